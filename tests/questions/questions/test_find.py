"""Which heads attend from one part to another, against NumPy on the models' own eager weights."""

import random
import re
from itertools import groupby, pairwise

import numpy as np
import pytest
import torch

from attnscope.attention import Token
from attnscope.errors import SelectionError
from attnscope.models import ModelInput, load
from attnscope.models.inputs import Limit
from attnscope.models.text.reader import ModuleModel
from attnscope.questions.find import find_heads, parse_questions
from attnscope.questions.parts import TextPart
from tests.capture.tiny import FAMILIES, inputs, own_attentions
from tests.models import folders
from tests.models.folders import eager
from tests.models.images import picture, vision
from tests.questions.gold.test_gold import weights_of

TEXT = "The cat sat on the mat because it was tired, and the cat slept."


@pytest.mark.parametrize(
    ("asked", "step", "moved"), [("* -> -1", -1, 0), ("* -> -7", -7, 0), ("+2 -> *", -2, 2)]
)
def test_long_text_with_one_key_per_row_uses_fused_pass(asked, step, moved, tmp_path):
    """A rank is between those that weights as far apart as rounding give."""
    model = load(folders.gpt2(tmp_path, n_positions=800, initializer_range=0.4))
    prepared = model.prepare(TEXT * 60, limit=Limit(700))
    result = find_heads(model, prepared, parse_questions(asked))
    assert "fused" in result.title
    with pytest.raises(SelectionError, match="masked"):
        find_heads(model, prepared, parse_questions("* -> +2"))
    weights = weights_of(model, prepared)
    groups = [[at + moved for at in word if at + moved < 700] for _, word in groups_of(prepared.tokens)]
    counts = {row: 1 / len(group) for group in groups for row in group if row + step >= 0}
    rows, share = np.array(list(counts)), np.array(list(counts.values())) / sum(counts.values())
    given = weights[:, :, rows, rows + step]
    larger = (weights[:, :, rows] > given[..., None] + far for far in (1e-7, -1e-7))
    least, greatest = ((1 + each.sum(-1)) @ share for each in larger)
    assert len(result.answers[0].heads) == given.shape[0] * given.shape[1]
    for each in result.answers[0].heads:
        place = each.head.layer, each.head.head
        assert each.weight == pytest.approx(given[place] @ share, abs=1e-6)
        assert each.baseline == pytest.approx((1 / (rows + 1)) @ share)
        assert least[place] <= each.rank <= greatest[place]
        assert greatest[place] - least[place] < 20
        assert each.rows == len(rows)


def test_masked_direction_of_a_question_is_explained(causal):
    there, back = find_heads(causal, causal.prepare(TEXT), parse_questions("it <-> mat")).answers
    assert there.heads
    assert not back.heads
    assert back.notes == ("'mat' cannot attend to 'it' in decoder attention: those keys are masked",)


def test_words_on_separate_axes_are_not_called_masked(tmp_path):
    model = load(folders.t5(tmp_path))
    prepared = model.prepare("the cat sat", "the mat is red")
    with pytest.raises(
        SelectionError, match=r"no attention goes from 'cat' to 'red': .* no row of 'cat' has"
    ):
        find_heads(model, prepared, parse_questions("cat -> red"))
    assert find_heads(model, prepared, parse_questions("red -> cat")).answers[0].heads
    prepared = model.prepare("the cat the mat", "the mat the cat")
    same, back = find_heads(model, prepared, [*parse_questions("same"), *parse_questions("-1")]).answers
    assert {each.head.kind for each in same.heads} == {"encoder", "decoder"}
    assert {each.head.kind for each in back.heads} == {"encoder", "decoder", "cross"}


@pytest.mark.parametrize("broken", [[0], [3], [1, 2], [0, 1, 2, 3]])
def test_heads_with_nan_shares_come_last_in_order(broken):
    model, prepared, _ = made("gpt2")
    size = len(model.module.h[2].attn.c_attn.weight) // 4
    with torch.no_grad():
        for head in broken:
            model.module.h[2].attn.c_attn.weight[0, head * size] = torch.nan  # one number of its queries
    (answer,) = find_heads(model, prepared, parse_questions("4 -> 1")).answers
    weights = weights_of(model, prepared)[..., 4, 1]  # [layer, head]
    named = [(each.head.layer, each.head.head) for each in answer.heads]
    told = [place for place in named if place not in [(2, head) for head in broken]]
    assert named[len(told) :] == [(2, head) for head in broken]
    assert told == sorted(told, key=lambda place: -weights[place])
    assert len(named) == weights.size
    assert all(np.isnan(each.weight) for each in answer.heads[len(told) :])


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
def test_split_or_unknown_words_match_as_written(minilm, part, spelled):
    prepared = minilm.prepare(MARKED)
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
def test_quotes_take_precedence_over_arrows_and_numbers(minilm, part, spelled, way):
    prepared = minilm.prepare(ARROWS)
    question = parse_questions(way.format(part))[0]
    side = question.right if question.left.text == "cat" else question.left
    assert side.text == part
    groups = side.tokens(prepared.tokens)
    assert ["".join(prepared.tokens[number].text for number in group) for group in groups] == spelled


@pytest.mark.parametrize("text", ["'tis -> cat", "don't -> 'the dog's mat'", "' -> '", "/ -> /", "a/b -> c"])
def test_unclosed_quote_is_a_character(text):
    (question,) = parse_questions(text)
    assert str(question) == text


REFUSED = {
    **dict.fromkeys(["it", "it ->", "-> cat", "it -> cat -> mat", "it -> 'a' -> 'b'"], "is not a question"),
    "-1 -> +1": "counts tokens on both sides",
    "/a{1,99999999999}/ -> *": "too large",
    f"/{'(?:' * 5000}{')' * 5000}/ -> *": "nested too deep",
    "it -> /(/": "not a regular expression",
}


@pytest.mark.parametrize("asked", REFUSED)
def test_invalid_question_or_expression_is_refused(asked):
    with pytest.raises(SelectionError, match=REFUSED[asked]):
        parse_questions(asked)


def test_repeated_word_averages_queries_and_sums_keys(own):
    questions = [parse_questions(f"it -> {name}")[0] for name in ("cat", "cat#1", "cat#2")]
    both, *ones = find_heads(own, own.prepare(TEXT), questions).answers
    weights, one, two = ({each.head: each.weight for each in found.heads} for found in (both, *ones))
    assert weights == pytest.approx({head: one[head] + two[head] for head in one}, abs=1e-6)
    assert both.notes == ("cat is at 2 places (2, 14): summed",)


def test_backtracking_expression_is_stopped(monkeypatch):
    monkeypatch.setenv("ATTNSCOPE_DEADLINE", "0.2")
    with pytest.raises(SelectionError, match="takes longer than"):
        TextPart("/(a+)+$/").tokens((Token("a" * 60 + "b", 0),))


def test_phrase_never_matches_special_tokens():
    axis = (Token("[CLS]", 0, special=True), Token("cat", 1, word=0), Token("[SEP]", 2, special=True))
    assert TextPart("[SE P]").tokens(axis) == ()
    assert TextPart('"[ SEP ]"').tokens(axis) == ()


IMAGES = ("deit", "beit", "dinov2", "dinov2-with-registers", "dinov3", "clip-vision", "siglip-vision")
QUESTIONS = 15
NEAR = 2e-6

TOKENS = ("[CLS]", "The", "un", "tired", "cat", ",", "the", "cat", "sat", ".", "A", "[SEP]")
WORDS = (None, 0, 1, 1, 2, 3, 4, 5, 6, 7, 8, None)
TARGET = ("<s>", "Die", "Katze", ",", "die", "Kat", "ze", "schlief", "</s>")
TARGET_WORDS = (None, 0, 1, 2, 3, 4, 4, 5, None)


def axis(texts, words):
    return tuple(
        Token(text, number, special=word is None, word=word)
        for number, (text, word) in enumerate(zip(texts, words, strict=True))
    )


def made(name):
    """A random model of a family, its input, and the model's own eager attention by kind."""
    family = FAMILIES[name]
    given = {key: tensor[:1] for key, tensor in inputs(family.inputs, length=len(TOKENS)).items()}
    given.pop("attention_mask", None)
    source, target = axis(TOKENS, WORDS), axis(TARGET, TARGET_WORDS)
    axes = {"encoder": (source, source), "decoder": (source, source)}
    if family.inputs == "pair":
        axes = {"encoder": (source, source), "decoder": (target, target), "cross": (target, source)}
    if family.inputs == "audio":
        frames, target = range(10), axis(TARGET, TARGET_WORDS)
        axes = {"encoder": (frames, frames), "decoder": (target, target), "cross": (target, frames)}
    if family.inputs == "image":
        axes = {"encoder": (range(17), range(17))}
    with torch.inference_mode():
        own = own_attentions(family.build("eager")(**given, output_attentions=True))
    return ModuleModel(name, family.build(), None), ModelInput(given, axes, source), own


def groups_of(tokens):
    """The words of an axis: each as its name and its tokens."""
    if isinstance(tokens, range):
        return [(str(number), [number]) for number in tokens]
    words = [number if token.word is None else -1 - token.word for number, token in enumerate(tokens)]
    groups = [list(run) for _, run in groupby(range(len(tokens)), key=words.__getitem__)]
    return [("".join(tokens[number].text for number in group), group) for group in groups]


def random_part(chance, tokens, *, row):
    """A part of an axis as one writes it, and its groups of tokens; or how far the key is from the row."""
    named = groups_of(tokens)
    name, group = chance.choice(named)
    same = [each for other, each in named if other.casefold() == name.casefold()]
    exact = [each for other, each in named if other == name]
    plain = not isinstance(tokens, range)
    special = [[number] for number, token in enumerate(tokens) if plain and token.special]
    points = [[number] for number, token in enumerate(tokens) if plain and token.text in ",."]
    number = chance.randrange(len(tokens))
    choices = [("*", [each for _, each in named], None), (str(number), [[number]], None)]
    if plain:
        begun = [each for other, each in named if other.startswith(name[0])]
        choices.append((name, exact or same, None))
        choices.append((f"{name}#{exact.index(group) + 1}", [group], None))
        choices.append((f"/^{re.escape(name[0])}/", begun, None))
        words = [(other, each) for other, each in named if not tokens[each[0]].special]
        phrases = [(f"'{one} {two}'", before + each) for (one, before), (two, each) in pairwise(words)]
        phrase = chance.choice(phrases)[0]
        alike = [each for other, each in phrases if other.casefold() == phrase.casefold()]
        choices.append((phrase, alike, None))
        choices += [("special", special, None)] if special else []
        choices += [("punctuation", points, None)] if points else []
    if not row:
        step = chance.choice([-3, -2, -1, 1, 2])
        choices.append((f"{step:+d}", [], step))
    return chance.choice(choices)


def brute(weights, rows, keys, step, words):
    """Share, baseline, and the least and greatest rank of one head, one row after the other; None: masked."""
    scores, counted = np.zeros(4), 0.0
    for group in rows:
        for row in group:
            opened = np.flatnonzero(weights[row] > 0)
            wanted = {row + step} if step is not None else {key for each in keys for key in each}
            meant = [key for key in opened if key in wanted]
            if not meant:
                continue
            if step is not None:
                parts = [[key] for key in range(weights.shape[1])]
            else:  # what is meant counts as a word, and so does what it leaves of another
                parts = [[key for key in word if key not in wanted] for word in words] + list(keys)
            sums = np.array([weights[row, part].sum() for part in parts if part])
            best = max(
                total for total, part in zip(sums, filter(None, parts), strict=True) if wanted & set(part)
            )
            least, most = 1 + (sums > best + NEAR).sum(), 1 + (sums > best - NEAR).sum()
            share, even = weights[row, meant].sum(), len(meant) / len(opened)
            scores += np.array([share, even, least, most]) / len(group)
            counted += 1 / len(group)
    return scores / counted if counted else None


@pytest.mark.slow
@pytest.mark.sweep
@pytest.mark.parametrize("name", [*FAMILIES, *IMAGES])
def test_random_questions_equal_brute_force(name, tmp_path):
    if name in IMAGES:
        model = load(vision(tmp_path / name, name))
        prepared = model.prepare_image(picture(tmp_path / "picture.png"))
        own = {"self": eager(tmp_path / name, **prepared.inputs).attentions}
    else:
        model, prepared, own = made(name)
    chance, answered = random.Random(name), 0
    for _ in range(QUESTIONS):
        kind = chance.choice(list(prepared.axes)) if len(own) > 1 else None
        queries, keys = prepared.axes[kind or next(iter(prepared.axes))]
        left, rows, _ = random_part(chance, queries, row=True)
        right, columns, step = random_part(chance, keys, row=False)
        if step is None and chance.random() < 0.2:  # each key is asked about from so many tokens away
            step = chance.choice([-3, -1, 1, 2])
            moved = [[key - step for key in group if 0 <= key - step < len(queries)] for group in columns]
            left, rows, columns = f"{-step:+d}", [group for group in moved if group], []
        try:
            (answer,) = find_heads(model, prepared, parse_questions(f"{left} -> {right}")).answers
        except SelectionError:
            answer = None
        found = {looking.head: looking for looking in answer.heads} if answer else {}
        words = [group for _, group in groups_of(keys)]
        for own_kind, layers in own.items():
            if kind not in (None, own_kind):
                continue
            mine = {  # a pooling head is no self-attention, and no model reports it
                (head.layer, head.head): looking
                for head, looking in found.items()
                if own_kind == head.kind or (own_kind == "self" and head.kind != "cross")
            }
            for layer, stacked in enumerate(layers):
                for head, weights in enumerate(stacked[0].double().numpy()):
                    expected = brute(weights, rows, columns, step, words)
                    looking = mine.get((layer, head))
                    assert (looking is None) == (expected is None), (left, right, layer, head)
                    if looking is None:
                        continue
                    answered += 1
                    assert looking.weight == pytest.approx(expected[0], abs=5 * NEAR), (left, right)
                    assert looking.baseline == pytest.approx(expected[1], abs=1e-6)
                    if right != "*":
                        assert expected[2] - 1e-6 <= looking.rank <= expected[3] + 1e-6, (left, right)
    assert answered > 50
