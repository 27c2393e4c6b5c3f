"""Compared heads in a terminal: colours that hold the numbers, no line too wide, no head lost."""

from __future__ import annotations

import re

import numpy as np
import pytest

from attnscope.render.terminal import lines
from attnscope.render.terminal.surface import Surface
from attnscope.views.heads import distance_map
from tests.render.compared import aligned, all_heads, pair, table
from tests.render.screen import expected_colours, pixels, printed


def widest(view, width, colour):
    """Columns of the longest line."""
    return max(sum(segment.cell_length for segment in line) for line in lines(view, Surface(width, colour)))


COUNTS = (2, 3, 12, 32, 41, 72, 144, 400)


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("width", [40, 80, 160])
@pytest.mark.parametrize("colour", [False, True])
def test_no_line_is_wider_than_the_terminal(count, width, colour):
    view = all_heads(count).table
    assert widest(view, width, colour) <= width
    assert "\x1b" not in printed(view, width=width)


@pytest.mark.parametrize("width", [40, 80, 160])
@pytest.mark.parametrize("colour", [False, True])
def test_pairs_and_texts_fit_too(width, colour):
    steps = [(f"word{i}", None if i % 5 == 0 else f"word{i}") for i in range(60)]
    for view in (pair(), pair(40), aligned(*steps)):
        assert widest(view, width, colour) <= width


def test_the_colour_of_a_cell_is_how_near_two_heads_are():
    view = table(24, [range(10), range(10, 24)])
    seen = pixels(view, width=80)
    expected = expected_colours(view.nearness())
    first = next(i for i, line in enumerate(seen) if any(pixel != (None, None) for pixel in line))
    label = len("L0H0 ") + 1
    for row in range(24):
        line = seen[first + row + (row >= 10)]  # a line of air between the groups
        for column in range(24):
            pixel = line[label + 2 * column + (column >= 10)]
            assert pixel == (tuple(expected[row, column]),) * 2


def test_many_heads_share_lines_in_half_blocks():
    view = table(72)
    seen = [line for line in pixels(view, width=80) if line.count((None, None)) < len(line)]
    expected = expected_colours(view.nearness())
    label = max(len(name) for name in view.rows) + 1
    for row in range(0, 72, 2):
        for column in range(0, 72, 5):
            upper, lower = tuple(expected[row, column]), tuple(expected[row + 1, column])
            assert seen[row // 2][label + column] == (upper, lower)


def test_what_does_not_fit_is_the_mean_of_several_heads_and_says_so():
    out = printed(table(144), width=80, colour="truecolor")
    assert "a cell is the mean over 2 × 2 heads" in " ".join(out.split()).replace("\x1b[2m", "")
    view = table(10)
    small = view.fit(5, 5)
    assert small.values[1, 2] == pytest.approx(view.values[2:4, 4:6].mean())
    odd = view.fit(3, 3)
    assert odd.values[2, 0] == pytest.approx(view.values[8:, :4].mean())


@pytest.mark.parametrize("count", [6, 24, 32, 72])
def test_every_line_of_a_table_begins_with_the_name_of_its_first_head(count):
    view = table(count, [range(count // 2), range(count // 2, count)])
    out = re.sub(r"\x1b\[[\d;]*m", "", printed(view, width=80, colour="truecolor"))
    half = count // 2  # an empty row stands before the second group
    two_a_line = (*view.rows[:half:2], view.rows[half], *view.rows[half + 1 :: 2])
    assert re.findall(r"^L\d+H\d+", out, re.MULTILINE) == list(view.rows if count <= 24 else two_a_line)


def test_of_matched_heads_as_many_are_shown_as_have_names_and_numbers():
    apart = np.arange(40 * 60).reshape(40, 60) / 2400
    rows, columns = [f"L0H{i}" for i in range(40)], [f"L1H{i}" for i in range(60)]
    view = distance_map(apart, rows, columns, matched=True)
    out = printed(view, width=80)
    assert "the first 12 of 40 rows and 60 columns" in out
    assert "L1H11" in out
    assert "mean over" not in out


def test_a_small_table_has_its_numbers():
    view = table(6)
    out = printed(view, width=80)
    assert f"{view.values[0, 1]:.2f}" in out
    assert "L0H5" in out
    assert "numbers above" not in out


def test_two_heads_stand_beside_each_other_where_there_is_room():
    wide = printed(pair(), width=160).splitlines()
    assert any(line.startswith("L0H1") and "L2H3" in line for line in wide[2:])
    narrow = printed(pair(), width=80).splitlines()
    assert [line for line in narrow if line in ("L0H1", "L2H3", "L0H1 − L2H3")] == [
        "L0H1", "L2H3", "L0H1 − L2H3",
    ]  # fmt: skip
    assert any(re.fullmatch(r" *cat 2  0\.51  cat 0 0\.95 +it 8 0\.11", line) for line in narrow)


def test_what_differs_between_two_texts_stands_out():
    out = printed(aligned(("the", "the"), ("cat", "dog"), (None, "old"), ("sat", None), (".", ".")), width=80)
    assert out.splitlines()[2:5] == ["the cat     sat .", "the dog old     .", "    ~~~ +   −"]


def test_token_text_steers_nothing():
    out = printed(aligned(("\x1b[31m", "[bold]x[/]"), ("a", "a")), width=80)
    assert "\x1b" not in out
    assert "[bold]x[/]" in out
    assert "[bold]" in printed(pair(label="[bold]"), width=80)
