"""Which heads look from here to there, against NumPy on the model's own eager weights."""

from itertools import groupby

import numpy as np
import pytest

from attnscope.attention import Token
from attnscope.errors import SelectionError
from attnscope.models import load
from attnscope.models.inputs import Limit
from attnscope.questions.find import find_heads, parse_questions
from attnscope.questions.parts import TextPart
from tests.models import folders
from tests.questions.gold.plain import weights_of

TEXT = "The cat sat on the mat because it was tired, and the cat slept."


@pytest.fixture(scope="module", params=["gpt2", "minilm"])
def model(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    return load(folders.minilm() if request.param == "minilm" else folders.gpt2(folder))


def ask(model, question):
    """The answer to one question about the text."""
    return find_heads(model, model.prepare(TEXT), parse_questions(question)).answers[0]


def weights_by_head(answer):
    return {looking.head: looking.weight for looking in answer.heads}


def words_of(tokens) -> list[list[int]]:
    """The tokens of every word, and every other token by itself."""

    def word(number: int) -> tuple[int, ...]:
        token = tokens[number]
        return (-1, number) if token.special or token.word is None else (token.segment, token.word)

    return [list(group) for _, group in groupby(range(len(tokens)), key=word)]


@pytest.mark.parametrize("asked", ["* -> -1", "* -> -7", "-3 -> *", "+2 -> *", "* -> +2"])
def test_where_each_row_of_a_long_text_is_asked_about_one_key_the_fused_pass_answers(asked, tmp_path):
    """A rank is between those that weights as far apart as rounding give."""
    model = load(folders.gpt2(tmp_path, n_positions=800, initializer_range=0.4))
    prepared = model.prepare(TEXT * 60, limit=Limit(700))
    question = parse_questions(asked)
    step = -(question[0].left.step or 0) or question[0].right.step
    if step > 0:
        with pytest.raises(SelectionError, match="masked"):
            find_heads(model, prepared, question)
        return
    result = find_heads(model, prepared, question)
    assert "fused" in result.title
    weights = weights_of(model, prepared)
    moved = -step if question[0].left.step else 0
    groups = [[at + moved for at in word if at + moved < 700] for word in words_of(prepared.tokens)]
    counts = {row: 1 / len(group) for group in groups for row in group if row + step >= 0}
    rows, share = np.array(list(counts)), np.array(list(counts.values())) / sum(counts.values())
    given = weights[:, :, rows, rows + step]
    least, greatest = (
        (1 + (weights[:, :, rows] > given[..., None] + far).sum(-1)) @ share for far in (1e-7, -1e-7)
    )
    assert len(result.answers[0].heads) == given.shape[0] * given.shape[1]
    for each in result.answers[0].heads:
        place = each.head.layer, each.head.head
        assert each.weight == pytest.approx(given[place] @ share, abs=1e-6)
        assert each.baseline == pytest.approx((1 / (rows + 1)) @ share)
        assert least[place] <= each.rank <= greatest[place]
        assert greatest[place] - least[place] < 20
        assert each.rows == len(rows)


def test_a_phrase_is_all_its_words(model):
    prepared = model.prepare(TEXT)
    phrase = ask(model, "it -> 'on the mat'")
    numbers = [number for number, token in enumerate(prepared.tokens) if token.word in (3, 4, 5)]
    assert len(numbers) >= 3
    single = [weights_by_head(ask(model, f"it -> {number}")) for number in numbers]
    for head, weight in weights_by_head(phrase).items():
        assert weight == pytest.approx(sum(each[head] for each in single), abs=1e-6)


def test_a_question_that_one_way_only_can_be_asked_says_why_the_other_cannot():
    model = load("own-causal")
    there, back = find_heads(model, model.prepare(TEXT), parse_questions("it <-> mat")).answers
    assert there.heads
    assert not back.heads
    assert back.notes == ("'mat' cannot look at 'it' in decoder attention: those keys are masked",)


MARKED = "Don't the U.S. cats, a kind lot, pay $1,995 for 猫坐 or ☃ and ☃?"


@pytest.mark.parametrize(
    ("part", "spelled"),
    [
        ("don't", "Don't"),
        ("U.S.", "U.S."),
        ("$1,995", "$1,995"),
        ("'cats, a kind lot'", "cats,akindlot"),
        ("猫", "猫"),
        ("'猫坐'", "猫坐"),
        ("☃#2", "☃"),
    ],
)
def test_words_that_a_tokenizer_cuts_or_lacks_are_found_as_they_are_written(part, spelled):
    prepared = load(folders.minilm()).prepare(MARKED)
    (group,) = parse_questions(f"{part} -> *")[0].left.tokens(prepared.tokens)
    read = "".join(prepared.tokens[number].text.replace(" [UNK]", "") for number in group)
    assert read.casefold() == spelled.casefold()


ARROWS = 'He wrote "a -> b" twice: the a <-> b, and a -> b of the cat.'


@pytest.mark.parametrize(
    ("part", "spelled"),
    [
        ('"a -> b"', ["a->b", "a->b"]),
        ("'a <-> b'", ["a<->b"]),
        ("'a -> b'#2", ["a->b"]),
        (r'"\"a -> b\" twice"', ['"a->b"twice']),
        (r"/^a$|wr->|tw\/?ice/", ["a", "twice", "a", "a"]),
        ("/^a$/#3", ["a"]),
        ("'#2'", []),
        ("punctuation#1", ['"']),
    ],
)
@pytest.mark.parametrize("way", ["{} -> cat", "cat -> {}", "{0} <-> {0}"])
def test_quotes_are_read_before_arrows_and_numbers(part, spelled, way):
    prepared = load(folders.minilm()).prepare(ARROWS)
    question = parse_questions(way.format(part))[0]
    side = question.right if question.left.text == "cat" else question.left
    assert side.text == part
    groups = side.tokens(prepared.tokens)
    assert ["".join(prepared.tokens[number].text for number in group) for group in groups] == spelled


@pytest.mark.parametrize("text", ["'tis -> cat", "don't -> 'the dog's mat'", "' -> '", "/ -> /", "a/b -> c"])
def test_a_quote_that_does_not_close_is_a_letter(text):
    (question,) = parse_questions(text)
    assert str(question) == text


@pytest.mark.parametrize(
    "asked", ["it", "it ->", "-> cat", "it -> cat -> mat", "it -> 'a' -> 'b'", "-1 -> +1", "it -> /(/"]
)
def test_what_is_no_question_is_refused(asked):
    with pytest.raises(SelectionError):
        parse_questions(asked)


def test_several_places_are_averaged_and_summed_and_said():
    both, *single = (ask(load("own"), f"it -> {name}") for name in ("cat", "cat#1", "cat#2"))
    ones, twos = map(weights_by_head, single)
    for head, weight in weights_by_head(both).items():
        assert weight == pytest.approx(ones[head] + twos[head], abs=1e-6)
    assert both.notes == ("cat stands at 2 places (2, 14): summed",)


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|a)*$", "(a|aa)+$"])
def test_an_expression_that_tries_every_way_is_stopped(pattern, monkeypatch):
    monkeypatch.setenv("ATTNSCOPE_DEADLINE", "0.2")
    with pytest.raises(SelectionError, match="takes longer than"):
        TextPart(f"/{pattern}/").tokens((Token("a" * 60 + "b", 0),))


NO_PATTERNS = {
    "a{1,99999999999}": "too large",
    "(?:" * 5000 + ")" * 5000: "nested too deep",
    "[": "not a regular expression",
}


@pytest.mark.parametrize("pattern", NO_PATTERNS)
def test_what_is_no_expression_is_said_in_a_sentence(pattern):
    with pytest.raises(SelectionError, match=NO_PATTERNS[pattern]):
        parse_questions(f"/{pattern}/ -> *")


def test_a_phrase_of_special_tokens_alone_is_nowhere():
    axis = (Token("[CLS]", 0, special=True), Token("cat", 1, word=0), Token("[SEP]", 2, special=True))
    assert TextPart("[SE P]").tokens(axis) == ()
    assert TextPart('"[ SEP ]"').tokens(axis) == ()
