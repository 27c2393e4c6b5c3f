"""Sums over texts that any program computes in parts: they pickle, add up in any order, and finish."""

import pickle

import pytest

import attnscope
from attnscope.errors import InputError
from attnscope.models import load
from attnscope.questions.corpus_stats import corpus_stats
from attnscope.storage.corpus import ListedTexts

TEXTS = ["The cat sat on the mat.", "It slept.", "A dog ran on.", "She saw it there, and it sat.", " "] * 3


@pytest.fixture(scope="module")
def reader():
    return attnscope.load("own")


@pytest.fixture(scope="module")
def parts(reader):
    return [attnscope.measure_texts(reader, TEXTS[start : start + 4]) for start in range(0, len(TEXTS), 4)]


def test_sums_of_all_texts_give_the_corpus_scores(reader):
    found, expected = attnscope.measure_texts(reader, TEXTS), corpus_stats(load("own"), ListedTexts(TEXTS))
    assert {head.address: head for head in found.finish().heads} == {
        each.address: each for each in expected.heads
    }
    assert found.texts == 12
    assert found.finish().measured.title == expected.title
    assert "3 texts could not be read: text 5, text 10, text 15" in found.finish().measured.notes


def test_sums_of_parts_pickle_and_add_up_in_any_order(parts):
    whole = sum(parts).finish()
    again = sum(pickle.loads(pickle.dumps(parts))[::-1]).finish()
    assert again.heads == whole.heads == ((parts[2] + parts[0]) + (parts[3] + parts[1])).finish().heads
    assert again.measured.title == whole.measured.title
    assert (sum(parts).texts, sum(parts).tokens) == (12, sum(part.tokens for part in parts))
    assert repr(parts[0]).startswith("TextSums(4 texts, ")


def test_part_without_texts_adds_nothing(reader, parts):
    empty = attnscope.measure_texts(reader, [" "])
    assert (parts[0] + empty).finish().heads == parts[0].finish().heads == (empty + parts[0]).finish().heads
    with pytest.raises(InputError, match="the list holds no text that own can read"):
        empty.finish()


def test_sums_of_another_model_or_measures_are_refused(reader, parts):
    with pytest.raises(InputError, match="these sums are of another set of measures: they do not add up"):
        parts[0] + attnscope.measure_texts(reader, TEXTS[:1], measures=["entropy"])
    with pytest.raises(InputError, match="these sums are of another model: they do not add up"):
        parts[0] + attnscope.measure_texts("own-causal", TEXTS[:1])
    with pytest.raises(InputError, match="options belong to a model's name"):
        attnscope.measure_texts(reader, TEXTS[:1], device="cpu")
