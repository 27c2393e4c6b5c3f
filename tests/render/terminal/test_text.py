"""Text in columns: cut, padded and upright, in every script."""

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from attnscope.render.colour import OFFERED
from attnscope.render.terminal import print_views
from attnscope.render.terminal.charts import MOST_ROWS
from attnscope.render.terminal.surface import (
    TONES,
    Palette,
    clusters,
    cut,
    fit_text,
    flow_items,
    number_label,
    style_on,
    upright,
    wrap_text,
)
from attnscope.text import balance_lines, isolate, isolate_lines, isolate_quotes, visible
from attnscope.views import Column, Table
from tests.render.test_colour import KNOWN, linear


@given(st.text(max_size=30), st.integers(0, 999), st.integers(0, 20), st.booleans())
def test_fitted_text_has_the_exact_width(text, number, width, right) -> None:
    assert cell_len(fit_text(visible(text), width, right=right)) == width
    assert cell_len(number_label(visible(text), number, width)) == width
    assert "".join(clusters(text)) == text


@pytest.mark.parametrize("width", range(8, 18))
def test_cut_special_tokens_stay_distinct(width: int) -> None:
    tokens = ["<|begin_of_image|>", "<|begin_of_video|>", "<|end_of_image|>x", "<|end_of_header|>"]
    assert len({cut(token, width) for token in tokens}) == len(tokens)
    assert len(set(zip(*upright(tokens[:2], 1, 9), strict=True))) == 2


@pytest.mark.parametrize(
    ("found", "text"),
    [
        *((cut("because", 5), "beca…"), (cut("猫猫猫", 4), "猫…"), (cut("cat", 3), "cat")),
        (cut("<|begin_of_image|>", 13), "<|be…_image|>"),
        *((upright(["a", "cat"], 2, 10), ["  c ", "  a ", "a t "]), (upright(["猫"], 1, 3), None)),
        *((upright(["because"], 1, 3), ["b", "e", "…"]), (upright(["猫"], 2, 3), ["猫"])),
        *((isolate("שלום"), "\u2068שלום\u2069"), (isolate("peace 和"), "peace 和")),
        *((flow_items(["ab", "cd", "ef"], 6, "  "), ["ab  cd", "ef"]), (wrap_text("", 12), [])),
        (flow_items(["abcdefgh"], 4, " "), ["abc…"]),
        (wrap_text("pooled to 5 × 12 (keys summed)", 12), ["pooled to", "5 × 12 (keys", "summed)"]),
        *((number_label("lighthouse", 12, 9), "light… 12"), (number_label("cat", 2, 9), "    cat 2")),
        (number_label("שלום", 2, 8), "  \u2068שלום\u2069 2"),
        # marks, joiners and flags stay with their character
        *((len(clusters(text)), 2) for text in ("at", "e\u0301a", "🧑\u200d🚀x", "🇩🇪🇫🇷", "猫好")),
        # a quoted text from right to left is fenced in on every line
        (isolate_quotes("own · “שלום עולם…” · encoder"), "own · “\u2068שלום עולם…\u2069” · encoder"),
        (isolate_quotes("own · “The cat…”"), "own · “The cat…”"),
        (
            isolate_lines(["own · “\u2068שלום", "עולם…\u2069” · encoder"]),
            ["own · “\u2068שלום\u2069", "\u2068עולם…\u2069” · encoder"],
        ),
    ],
)
def test_text_layout_helpers_give_expected_lines(found, text) -> None:
    assert found == text


def test_title_breaks_between_its_parts() -> None:
    title = "own · “The cat sat…” · 4 layers × 8 heads · 13 tokens · sdpa, float32, weights recomputed"
    assert balance_lines(title, 80, cell_len) == [
        "own · “The cat sat…” · 4 layers × 8 heads",
        "13 tokens · sdpa, float32, weights recomputed",
    ]
    lines = [line for width in range(20, 90) for line in balance_lines(title, width, cell_len)]
    assert not any(line.startswith("·") or line.endswith("·") for line in lines)


@pytest.mark.parametrize("name", [*OFFERED, *KNOWN])
@pytest.mark.parametrize(("faint", "least"), [(False, 4.5), (True, 2.0)])
def test_numbers_have_contrast_with_their_cells(name: str, faint: bool, least: float) -> None:
    for number in range(TONES):
        style = style_on(Palette(name), number, faint)
        assert style.color is not None
        assert style.bgcolor is not None
        colours = np.array([colour.get_truecolor() for colour in (style.color, style.bgcolor)])
        light = sorted(linear(colours) @ [0.2126, 0.7152, 0.0722])  # relative luminance as in WCAG 2
        assert (light[1] + 0.05) / (light[0] + 0.05) >= least, number


def test_long_table_is_cut_with_a_note():
    for count in (MOST_ROWS, MOST_ROWS + 5):
        console = Console(file=io.StringIO(), width=80)
        rows = tuple((f"row {number}",) for number in range(count))
        print_views([Table((Column("name"),), rows)], console)
        shown = console.file.getvalue()
        assert (f"row {MOST_ROWS - 1}\n" in shown, f"row {MOST_ROWS}\n" in shown) == (True, False)
        said = "· the first 2,000 of 2,005 rows; --csv and --json have all"
        assert (said in shown, "rows;" in shown) == (count > MOST_ROWS,) * 2
