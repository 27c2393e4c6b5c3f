"""Texts in titles: whole where short, without their middle where long, and of two texts what differs."""

import pytest

from attnscope.attention import Token
from attnscope.models.inputs import ModelInput
from attnscope.questions.sentences import MAX_PAIR_QUOTE, MAX_QUOTE, quote_text, quote_texts

LONG = "In the beginning of the long story there was a man who said "


def read(text: str) -> ModelInput:
    """A text whose tokens are words with their spaces."""
    words = [f" {word}" if number else word for number, word in enumerate(text.split())]
    return ModelInput({}, {}, tokens=tuple(Token(word, number) for number, word in enumerate(words)))


def test_long_text_loses_its_middle_and_short_text_nothing():
    short = "The cat sat on the mat because it was tired."
    assert quote_text(read(short)) == f"“{short}”"
    cut = quote_text(read(LONG * 3 + "at the end."))
    assert cut.startswith("“In the beginning of the long story")
    assert cut.endswith(" said at the end.”")
    assert cut.count("…") == 1
    assert len(cut) <= MAX_QUOTE + 2
    assert len(quote_text(read("word " * 5000))) <= MAX_QUOTE + 2


@pytest.mark.parametrize(
    ("before", "after"),
    [("", ""), ("", LONG * 2), (LONG * 2, ""), (LONG * 2, " because it was tired " + LONG)],
)
def test_two_long_texts_keep_what_differs(before, after):
    both = [read(f"{before}the {animal} sat on it{after}") for animal in ("cat", "dog")]
    quoted = quote_texts(*both)
    assert [animal in each for animal, each in zip(("cat", "dog"), quoted, strict=True)] == [True, True]
    assert max(map(len, quoted)) <= MAX_PAIR_QUOTE + 6
    assert quoted[0].startswith("“…") == bool(before)
    assert quoted[0].endswith("…”") == bool(after)
    assert quoted[0].replace("cat", "dog") == quoted[1]
