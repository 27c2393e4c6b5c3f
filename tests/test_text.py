"""Untrusted text is cleaned wherever it is shown."""

from __future__ import annotations

import json
import unicodedata

import pytest

from attnscope.errors import InputError, OutputError, first_line
from attnscope.storage.arrays import read_weights
from attnscope.text import Untrusted, clean, csv_cell, escape_json, per_cent, raw_csv, round_short, visible

HOSTILE = "\x1b]0;owned\x07 a\u202eb\u2066c\u2069 \x9b2J \r\n<script>alert(1)</script> --> \udcff"
"""A window's title, text turned round, a screen wiped, a line forged, a page's script, half a character."""


def steering(text: str) -> set[str]:
    """The characters of an output that would steer a terminal or turn its text round."""
    return {c for c in text if unicodedata.category(c) in ("Cc", "Cf", "Cs") and c not in "\n\u2068\u2069"}


def test_cleaned_text_shows_removed_characters() -> None:
    assert clean("a\x1b[2J\u202eb\nc") == "a␛[2J‹202E›b⏎c"
    assert clean("plain text, héllo 猫 🧑\u200d🚀") == "plain text, héllo 猫 🧑\u200d🚀"
    assert not steering(clean(HOSTILE))


def test_untrusted_text_is_not_str_and_is_clean_in_errors(tmp_path) -> None:
    text = Untrusted(HOSTILE)
    assert not isinstance(text, str)
    assert text.raw == HOSTILE
    with pytest.raises(TypeError):
        "a " + text
    with pytest.raises(InputError) as caught:
        read_weights(tmp_path / f"{HOSTILE.replace('/', '')[:-1]}.npz")
    errors = str(OutputError(HOSTILE)), str(caught.value), first_line(ValueError("\x1b[2J\u202e broken"))
    assert not any(map(steering, (str(text), f"{text}", repr(text), *errors)))


def test_very_long_label_is_cut() -> None:
    for text in ("x" * 10**6, "\x1b" * 10**6, "e" + "\u0301" * 10**6, " " * 10**6):
        assert len(visible(text)) <= 1000


def test_small_numbers_keep_two_digits_and_small_shares_one():
    told = {0.5: "0.50", 0.01: "0.01", 0.00195: "0.0019", 0.000012: "0.000012", 0: "0.00", -0.004: "-0.0040"}
    assert {number: round_short(number) for number in told} == told
    assert round_short(float("nan")) == "nan"
    said = {1: "100%", 0.974: "97%", 0.01: "1%", 0.0051: "0.5%", 3.2e-5: "0.003%", 0: "0%"}
    assert {share: per_cent(share) for share in said} == said


@pytest.mark.parametrize("code", [0xFFFE, 0xFFFF, 0x1FFFE, 0x10FFFF])
def test_noncharacters_are_shown_as_code_points(code: int) -> None:
    assert clean(f"a{chr(code)}b") == f"a‹{code:04X}›b"
    assert escape_json(f'["{chr(code)}"]').isascii()
    assert json.loads(escape_json(f'["{chr(code)}"]')) == [chr(code)]


def test_only_spreadsheet_formulas_get_an_apostrophe_in_csv() -> None:
    formulas = "=SUM(A1)", "+x", "-", "@z", "\tx", "\r=1", "-1+2"
    others = "a", "", "1", "-1", "-1.5e-07", " =x", -1, 0.5, None
    assert [*map(csv_cell, (*formulas, *others))] == [*(f"'{text}" for text in formulas), *others]
    raw_csv.set(True)
    assert [*map(csv_cell, formulas)] == [*formulas]
    raw_csv.set(False)
