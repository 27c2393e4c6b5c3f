"""Thumbnails: whose largest weight full colour is, and that rows and columns have whole cells."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from attnscope.axes import weights
from attnscope.views import grid, heatmap
from attnscope.views.grid import thumbnail_levels
from tests.render.screen import pixels, printed


def test_where_nearly_nothing_is_seen_each_head_has_its_own_full_colour_and_that_is_said() -> None:
    even = weights(np.full((2, 12, 12), 0.08), range(12), range(12))
    assert grid([(0, even)], scale="auto").shown_scale == "head"
    assert "hardly anything is above 0.1: full colour is each head's largest weight" in " ".join(
        printed(grid([(0, even)], scale="auto")).split()
    )
    assert grid([(0, even)], scale="fixed").shown_scale == "fixed"
    one = weights(np.stack([np.eye(12), even.values[0]]), range(12), range(12))
    assert grid([(0, one)], scale="auto").shown_scale == "fixed"


def test_the_first_rows_of_a_causal_head_do_not_decide_the_scale() -> None:
    open_ = np.tril(np.ones((48, 48), bool))
    even = weights((open_ / open_.sum(-1, keepdims=True))[None], range(48), range(48), open_)
    drawn = grid([(0, even)], scale="auto")
    assert drawn.shown_scale == "head"
    levels = thumbnail_levels(drawn.layers[0], drawn)[0]
    assert levels[-1, :-1].min() > 0.4  # the last row is the faintest, and is seen
    said = " ".join(printed(drawn).split())
    assert "full colour is each head's largest weight where most keys are open, not 1" in said
    one = heatmap(replace(even, values=even.values[0]), scale="auto")
    assert one.scale == "head"
    assert one.limits[1] == pytest.approx(1 / 25)
    assert "nearly all weights are below 0.1" in one.notes[0]
    previous = weights(np.eye(48, k=-1)[None], range(48), range(48), open_)
    assert grid([(0, previous)], scale="auto").shown_scale == "fixed"


def test_rows_and_columns_of_a_short_text_have_cells_of_their_own() -> None:
    heads = np.stack([np.eye(13)] * 12)
    shown = pixels(grid([(0, weights(heads, range(13), range(13)))], large=True), width=80)
    lines = [line for line in shown if any(cell != (None, None) for cell in line)][:7]
    rows = [[cell[half] for cell in line[3:16]] for line in lines for half in (0, 1)][:13]
    bright = max(filter(None, rows[0]), key=sum)
    assert [[cell == bright for cell in row] for row in rows] == np.eye(13, dtype=bool).tolist()


def test_where_two_rows_share_a_line_they_are_whole_ones() -> None:
    diagonal = weights(np.eye(13)[None], range(13), range(13))
    (layer,) = grid([(0, diagonal)]).fit(7, 13).layers
    whole = np.eye(14)[:, :13].reshape(7, 2, 13).sum(1) / 2
    whole[-1] = np.eye(13)[-1]
    np.testing.assert_allclose(layer.values[0], whole)
