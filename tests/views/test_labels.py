"""What a label says about text that cannot be seen."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnscope.attention import Token
from attnscope.axes import places
from attnscope.text import visible


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("cat", "cat"),
        (" cat", "cat"),
        ("[CLS]", "[CLS]"),
        ("$a_1$", "$a_1$"),
        ("\n", "⏎"),
        ("\r\n", "␍⏎"),
        ("\t", "⇥"),
        ("  ", "␣␣"),
        ("", "∅"),
        ("\x1b[31m", "␛[31m"),
        ("\x7f", "␡"),
        ("\x9b", "‹009B›"),
        ("a\u202eb", "a‹202E›b"),
        ("\ufeff", "‹FEFF›"),
        ("\u0301", "◌\u0301"),
        ("🧑\u200d🚀", "🧑\u200d🚀"),
        ("مرحبا", "مرحبا"),
        ("猫", "猫"),
        ("\udcff", "‹DCFF›"),
    ],
)
def test_a_label_shows_what_is_there(text: str, label: str) -> None:
    assert visible(text) == label


@given(st.text(max_size=20))
def test_no_label_steers_a_terminal(text: str) -> None:
    label = visible(text)
    assert label
    for character in label:
        assert unicodedata.category(character) not in ("Cc", "Cs", "Zl", "Zp")
        assert unicodedata.category(character) != "Cf" or character in "\u200c\u200d"


def test_places_carry_words_and_numbers() -> None:
    token = Token("cat", 5, segment=1, word=3)
    (place,) = places((token,))
    assert (place.start, place.stop, place.word, place.special) == (0, 1, (1, 3), False)


def test_bare_positions_are_their_own_labels() -> None:
    assert [place.label for place in places(range(3))] == ["0", "1", "2"]
