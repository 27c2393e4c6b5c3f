"""Planted rules are found, random heads have none, and a rule is a measure that ``check`` can hold."""

import random
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import nn

from attnscope.attention import Head
from attnscope.errors import SelectionError
from attnscope.measures import MEASURES
from attnscope.measures.block import TokenFacts
from attnscope.models import load
from attnscope.models.text.reader import wrap_module
from attnscope.questions.check import parse_claim
from attnscope.questions.conditions import parse_conditions
from attnscope.questions.corpus_stats import corpus_stats
from attnscope.questions.find import corpus_heads, find_heads, parse_questions
from attnscope.questions.rule import (
    HeadRule,
    Remainder,
    Rules,
    find_rules,
    pack_bits,
    rules_answer,
    unpack_bits,
)
from attnscope.questions.rules import parse_rule
from attnscope.storage.corpus import ListedTexts
from tests.models.folders import gpt2

NAMES = ["[UNK]", "[CLS]", "[SEP]"]
WORDS = ["the", "cat", "dog", "ran", "sat", "Ann", "Bob", "Eve", "7", "42", "1999", ".", ",", "!"]
IDS = {word: number for number, word in enumerate([*NAMES, *WORDS])}
PUNCTUATION, DIGITS = {IDS[word] for word in ".,!"}, {IDS[word] for word in ("7", "42", "1999")}
CAPITALS = {IDS[word] for word in ("Ann", "Bob", "Eve")}


def after_same(ids, row, key):
    """Whether a key followed an earlier occurrence of the row's token."""
    return 0 < key <= row and ids[key - 1] == ids[row]


PLANTED = {
    "-1": lambda ids, row, key: key == row - 1,
    "+2": lambda ids, row, key: key == row + 2,
    "+0": lambda ids, row, key: key == row,
    "0": lambda ids, row, key: key == 0,
    "same": lambda ids, row, key: key != row and ids[key] == ids[row],
    "after same": after_same,
    "[SEP]": lambda ids, row, key: ids[key] == IDS["[SEP]"],
    "punctuation": lambda ids, row, key: ids[key] in PUNCTUATION,
    r"/^\d/": lambda ids, row, key: ids[key] in DIGITS,
    "'the'": lambda ids, row, key: ids[key] == IDS["the"],
    "-1 and /^[A-Z]/": lambda ids, row, key: key == row - 1 and ids[key] in CAPITALS,
    "after same or [SEP]": lambda ids, row, key: after_same(ids, row, key) or ids[key] == IDS["[SEP]"],
}
"""By rule, which keys it names: loops over ids."""


class Ruled(nn.Module):
    """A head for each planted rule: nine tenths on one of its keys, uniform without one."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(IDS), 12 * 4)

    def forward(self, input_ids):
        """[text, token] -> [text, token, width]"""
        value = self.embedding(input_ids).unflatten(-1, (12, 4)).transpose(1, 2)
        scores = torch.stack([self.scores(ids) for ids in input_ids.tolist()])  # [text, head, row, key]
        return (torch.softmax(scores, -1) @ value).transpose(1, 2).flatten(-2)

    def scores(self, ids):
        """The scores of one text.  -> [head, row, key]"""
        size = len(ids)
        scores = torch.zeros(len(PLANTED), size, size)
        for head, named in enumerate(PLANTED.values()):
            for row in range(size):
                keys = [key for key in range(size) if named(ids, row, key)]
                if keys:
                    scores[head, row, keys[(7 * row + head) % len(keys)]] = float(np.log(9 * size))
        return scores


@pytest.fixture(scope="module")
def ruled():
    """The model."""
    torch.manual_seed(0)
    tokenizer = Tokenizer(models.WordLevel(IDS, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        "[CLS] $A [SEP]", special_tokens=[("[CLS]", IDS["[CLS]"]), ("[SEP]", IDS["[SEP]"])]
    )
    return wrap_module(Ruled(), tokenizer, None, "ruled")


@pytest.fixture(scope="module")
def texts():
    """Random sentences."""
    draw = random.Random(0)
    return [" ".join(draw.choices(WORDS, k=draw.randint(8, 18))) for _ in range(160)]


@pytest.fixture(scope="module")
def found(ruled, texts):
    """The rule of each head."""
    return find_rules(ruled, ListedTexts(texts))


def test_all_twelve_planted_rules_are_found(found):
    clauses = [{*each.rule.split(" or ")} for each in found.heads]
    assert clauses == [{*rule.split(" or ")} for rule in PLANTED]
    assert all(each.accuracy == 1 for each in found.heads)


def test_coverage_is_the_share_of_held_out_rows_with_such_a_key(ruled, texts, found):
    for (_, named), each in zip(PLANTED.items(), found.heads, strict=True):
        rows = there = 0
        for text in texts[1::2]:
            ids = [token.id for token in ruled.prepare(text).tokens]
            rows += len(ids)
            there += sum(any(named(ids, row, key) for key in range(len(ids))) for row in range(len(ids)))
        assert each.rows == rows
        assert each.coverage == pytest.approx(there / rows, abs=1e-12)
        flat = sum(part.share for part in each.left if part.where == "no weight above 0.3")
        assert flat == pytest.approx(1 - each.coverage, abs=1e-12)


def test_rule_is_a_measure_whose_value_is_its_accuracy(ruled, texts, found):
    names = tuple(f"rule({text})" for text in PLANTED)
    measured = corpus_stats(ruled, ListedTexts(texts[1::2]), names=names)
    for number, (each, head) in enumerate(zip(found.heads, measured.heads, strict=True)):
        own = head.scores[names[number]]
        assert own.value == pytest.approx(each.accuracy, abs=1e-12)
        assert own.rows == round(each.coverage * each.rows)
        assert own.baseline == 0
        others = [head.scores[name].value for name in names if name != names[number]]
        assert min(others) < 0.5


TIED = {"-1 and /^[A-Z]/": "-1", "after same or [SEP]": "[SEP]"}
"""Rules whose every row with such a key also obeys another planted rule."""


def measured_by_loop(ruled, text, named):
    """Each head's mean weight on the keys that a function names, over rows with one; the same if uniform."""
    ids = [token.id for token in ruled.prepare(text).tokens]
    weights = torch.softmax(ruled.module.scores(ids).double(), -1).numpy()  # [head, row, key]
    size, rows = len(ids), []
    for row in range(size):
        keys = [key for key in range(size) if named(ids, row, key)]
        if keys:
            rows.append((weights[:, row, keys].sum(-1), len(keys) / size))
    return [np.array(each) for each in zip(*rows, strict=True)]


@pytest.mark.parametrize("rule", PLANTED)
def test_rule_asked_by_find_names_its_head_first(ruled, texts, rule):
    text = max(texts, key=len)
    (answer,) = find_heads(ruled, ruled.prepare(text), parse_questions(rule)).answers
    weights, baseline = measured_by_loop(ruled, text, PLANTED[rule])
    assert {each.head.head: each.weight for each in answer.heads} == pytest.approx(
        dict(enumerate(weights.mean(0))), abs=1e-6
    )
    assert answer.heads[0].baseline == pytest.approx(baseline.mean(), abs=1e-6)
    assert {each.rows for each in answer.heads} == {len(weights)}
    best = answer.heads[0].weight - 1e-6
    first = {each.head.head for each in answer.heads if each.weight > best}
    assert first == {list(PLANTED).index(each) for each in (rule, TIED.get(rule, rule))}


def test_find_over_a_corpus_is_a_mean_over_all_rows(ruled, texts):
    names = tuple(f"find({question})" for rule in PLANTED for question in parse_questions(rule))
    stats = corpus_stats(ruled, ListedTexts(texts[:20]), names=names)
    asked = [question for rule in PLANTED for question in parse_questions(rule)]
    found = corpus_heads(stats.heads, asked, stats.title, stats.notes)
    for answer, named in zip(found.answers, PLANTED.values(), strict=True):
        found = filter(None, [measured_by_loop(ruled, text, named) for text in texts[:20]])
        weights, baseline = map(np.concatenate, zip(*found, strict=True))
        assert {each.head.head: each.weight for each in answer.heads} == pytest.approx(
            dict(enumerate(weights.mean(0))), abs=1e-6
        )
        assert answer.heads[0].baseline == pytest.approx(baseline.mean(), abs=1e-6)
        assert answer.heads[0].rows == len(weights)


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("same or +0", "* -> same or +0"),
        ("/ or / and 'a or b'", "* -> / or / and 'a or b'"),
        ("'the cat'#2", "* -> 'the cat'#2"),
        ("Ann -> special or after same", "Ann -> special or after same"),
        ("Ann -> or", "Ann -> or"),
    ],
)
def test_rule_is_a_question_about_every_row(text, same):
    (question,) = parse_questions(text)
    assert str(question) == same
    assert parse_questions(same) == (question,)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("cat or dog", "is not a question"),
        ("same -> cat", "names keys of a row, on the right: quote the word, 'same' -> cat"),
        ("cat <-> same", "write 'cat -> same'"),
        ("+1 -> same", "counts tokens on both sides"),
        ("Ann -> 7 or", "cannot read the rule"),
    ],
)
def test_what_is_no_question_is_refused(text, said):
    with pytest.raises(SelectionError, match=re.escape(said)):
        parse_questions(text)


def test_rule_without_a_key_is_not_called_a_missing_word(ruled):
    with pytest.raises(SelectionError, match=r"no row of '\*' has a key of 'same and \+1'"):
        find_heads(ruled, ruled.prepare("the cat ran"), parse_questions("same and +1"))
    with pytest.raises(SelectionError, match="for a phrase, write 'cat and dog' in quotes"):
        find_heads(ruled, ruled.prepare("the cat ran"), parse_questions("the -> cat and dog"))


def test_random_heads_have_no_rule(tmp_path):
    torch.manual_seed(1)
    model = load(gpt2(tmp_path, n_layer=5, n_head=40, n_embd=160))
    draw = random.Random(1)
    words = [
        "the",
        "cat",
        "sat",
        "on",
        "a",
        "mat",
        "because",
        "it",
        "was",
        "tired",
        "and",
        "words",
        "look",
        "back",
        "at",
        "few",
        "lines",
    ]
    texts = [" ".join(draw.choices(words, k=20)) + "." for _ in range(24)]
    rules = [each.rule for each in find_rules(model, ListedTexts(texts)).heads]
    assert len(rules) == 200
    assert sum(rule is not None for rule in rules) <= 2


def test_check_holds_a_rule_of_a_head(run, tmp_path):
    (tmp_path / "texts.txt").write_text("The cat sat on the mat because it was tired.\n" * 3)
    claims = "L1H3.rule(-1 or /^[(]/) > 0.7", "L1H3.rule(+3) > 0.5"
    ran = run("check", *claims, "--texts", tmp_path / "texts.txt")
    assert ran.code == 1
    assert [line.split()[0] for line in ran.out.splitlines()] == ["ok", "FAILED"]


def test_printed_claim_holds(found, run, monkeypatch, ruled, texts):
    claims = [parse_claim(each.claim) for each in found.heads]
    names = tuple(name for claim in claims for name in claim.names)
    heads = corpus_stats(ruled, ListedTexts(texts), names=names).heads
    assert all(claim.verdict(heads).holds for claim in claims)
    assert claims[0].text == "encoder.L0H0.rule(-1) > 0.95"


def test_conditions_with_a_rule_are_split_outside_of_it():
    first, second = parse_conditions("rule(-1 and special) > 0.5 and entropy<1")
    assert (first.name, second.name) == ("rule(-1 and special)", "entropy")


@pytest.mark.parametrize("text", ["", "-1 or ", "-1 and  and 0", "/(/"])
def test_unreadable_rule_is_refused(text):
    with pytest.raises(SelectionError, match=r"cannot read the rule|not a regular expression"):
        parse_rule(text)


def test_only_own_patterns_are_looked_for(ruled, texts, monkeypatch):
    corpus_stats(ruled, ListedTexts(texts[:2]), names=("rule(/^do/)", "find(dog -> 'the')"))
    found = []
    from_texts = TokenFacts.from_texts
    monkeypatch.setattr(
        TokenFacts, "from_texts", lambda *asked: found.append({*asked[1]}) or from_texts(*asked)
    )
    find_rules(ruled, ListedTexts(texts[:4]))
    corpus_stats(ruled, ListedTexts(texts[:2]), names=("rule(special)", "entropy"))
    assert "punctuation" in found[0]
    assert "/^do/" not in found[0]
    assert found[-1] == {"special"}
    assert MEASURES["rule(-1)"].summary == "Share of rows whose largest weight, above 0.3, is on a key of -1"


def test_bits_are_packed_and_unpacked():
    flags = torch.rand(5, 62) < 0.5
    assert np.array_equal(unpack_bits(pack_bits(flags).numpy(), 62), flags.numpy())


def test_unknown_head_is_refused_and_no_rule_says_what_is_left(ruled, texts, found):
    with pytest.raises(SelectionError, match="no head L3H0: there are L0H0 to L0H11"):
        find_rules(ruled, ListedTexts(texts[:4]), Head("L3H0"))
    short = find_rules(ruled, ListedTexts(["the cat ran"] * 2), Head("L0H0"))
    assert [each.rule for each in short.heads] == [None]
    assert rules_answer(short).views[0].rows[0][1] == "no simple rule"
    assert "no simple rule: none is right often enough" in rules_answer(short).views[0].notes[0]
    assert SimpleNamespace(**vars(found)).title.startswith("ruled · ")


def test_own_key_is_called_itself_and_rules_stay_as_typed():
    left = (Remainder("no weight above 0.3", 0.77), Remainder("+0", 0.11), Remainder("+0 and special", 0.1))
    heads = (
        HeadRule(Head("L0H0"), None, 0, 0, 0, 9, left),
        HeadRule(Head("L0H1"), "-1 or +0", 1, 1, 1, 9, ()),
    )
    for count, named in ((1, False), (2, True)):
        (table,) = rules_answer(Rules(heads[:count], "x", ())).views
        assert table.rows[0][-1] == "77% no weight above 0.3, 11% itself, 10% itself and special"
        assert ("+0: the row's token itself" in table.notes) == named
    assert table.rows[1][1] == "-1 or +0"
