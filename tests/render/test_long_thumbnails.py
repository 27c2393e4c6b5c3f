"""Thumbnails of long texts: heads that do different things look different where a cell holds many tokens.

Heads of known kinds are read through the observers that the overview reads with, drawn as a terminal and as
an image draw them, and each picture is given to the kind whose clean picture is nearest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import Tensor

from attnscope.attention import Attention, HeldRows, Site
from attnscope.axes import weights
from attnscope.capture.observers.coarsen import Coarsen, Near, SharedRows, cells
from attnscope.render.image.maps import fit_image, mosaic
from attnscope.views import Grid, grid, heatmap
from attnscope.views.grid import CELLS, NEAR, near_weights, thumbnail_levels
from tests.render.screen import pixels, printed

KINDS = ("previous", "next", "two back", "first", "broad")
SITE = Site("layers.0.attention", 0, "encoder", 0)


@dataclass(frozen=True)
class Mixed:
    """Rows that put a share of their weight on one key each, and the rest evenly on all, with noise."""

    kinds: Sequence[str]
    shares: Sequence[float]
    size: int
    seed: int

    def rows(self, start: int, stop: int, heads: Sequence[int] | None) -> Tensor:
        noise = torch.Generator().manual_seed(self.seed + start)
        position = torch.arange(start, stop)
        row = torch.arange(stop - start)
        made = []
        for kind, share in zip(self.kinds, self.shares, strict=True):
            uneven = 0.5 + torch.rand(self.size, generator=noise)
            rows = (uneven / uneven.sum()).repeat(stop - start, 1)
            if kind != "broad":
                back = {"previous": -1, "next": 1, "two back": -2, "first": 0}[kind]
                key = torch.zeros_like(position) if kind == "first" else position + back
                rows *= 1 - share
                rows[row, key.clamp(0, self.size - 1)] += share
            made.append(rows)
        return torch.stack(made)[None]

    def allowed(self, start: int, stop: int) -> Tensor:
        return torch.ones(1, 1, stop - start, self.size, dtype=torch.bool)


def thumbnails_of(kinds: Sequence[str], shares: Sequence[float], size: int, seed: int = 0) -> Grid:
    read = Mixed(kinds, shares, size, seed)
    axis, heads = range(size), len(kinds)
    attention = Attention(SITE, "softmax", "softmax", 1, heads, heads, axis, axis, 0, torch.float32, read)
    coarse, near = Coarsen(cells(CELLS)), Near(NEAR, CELLS)
    SharedRows([coarse, near]).observe(attention)
    (made,) = coarse.maps
    return grid([(0, made.label()[0])], near=[near.maps[SITE]], large=True, scale="auto")


def terminal(view: Grid) -> list[np.ndarray]:
    """The colours of each thumbnail on a screen on which they stand in one row."""
    heads, room = view.heads, 19
    shown = [line for line in pixels(view, width=3 + room * heads) if any(cell[0] for cell in line)]
    cells = [[cell[half] or (0, 0, 0) for cell in line] for line in shown[:-1] for half in (0, 1)]
    picture = np.array(cells, float)
    return [picture[:, 3 + room * at : 3 + room * at + 17] for at in range(heads)]


def image(view: Grid) -> list[np.ndarray]:
    """The colours of each thumbnail in a picture file."""
    picture, (_, wide, gap) = mosaic(fit_image(view), "ember")
    return [
        picture[:, at * (wide + gap) : at * (wide + gap) + wide].astype(float) for at in range(view.heads)
    ]


@pytest.mark.parametrize(("size", "trials"), [(512, 20), pytest.param(8192, 2, marks=pytest.mark.slow)])
def test_heads_of_long_texts_are_told_apart_by_their_thumbnails(size: int, trials: int) -> None:
    clean = thumbnails_of(KINDS, [1.0] * len(KINDS), 512, seed=99)
    shares = np.random.default_rng(0).uniform(0.6, 0.95, (trials, len(KINDS)))
    views = [thumbnails_of(KINDS, row.tolist(), size, seed) for seed, row in enumerate(shares)]
    for draw in (terminal, image):
        known = draw(clean)
        for view in views:
            assert [nearest(one, known) for one in draw(view)] == list(range(len(KINDS)))


def test_the_144_heads_of_a_causal_model_stand_in_rows_of_12_and_are_told_apart_there() -> None:
    size, kinds = 300, ("previous", "two back", "first", "broad")
    open_ = np.tril(np.ones((size, size), bool))

    def drawn(shares: np.ndarray, seed: int) -> list[np.ndarray]:
        noise = np.random.default_rng(seed).uniform(0.5, 1.5, (len(shares), size, size)) * open_
        rows = np.arange(size)
        values = noise / noise.sum(-1, keepdims=True)
        for head, share in enumerate(shares):
            back = {"previous": 1, "two back": 2, "first": size}.get(kinds[head % 4])
            if back is not None:
                values[head] *= 1 - share
                values[head, rows, np.maximum(rows - back, 0)] += share
        axis = range(size)
        view = grid(
            [(layer, weights(values, axis, axis, open_)) for layer in range(12)], scale="auto", large=True
        )
        assert len(printed(view, width=160, colour="truecolor").splitlines()) < 70
        shown = [line for line in pixels(view, width=160) if any(cell[0] for cell in line)]
        picture = np.array(
            [[cell[half] or (0, 0, 0) for cell in line] for line in shown[:4] for half in (0, 1)]
        )
        return [picture[:, 4 + 13 * head : 15 + 13 * head].astype(float) for head in range(12)]

    known = drawn(np.full(4, 1.0).repeat(3), 0)[:4]
    shares = np.random.default_rng(1).uniform(0.6, 0.95, 12)
    assert [nearest(one, known) for one in drawn(shares, 2)] == [0, 1, 2, 3] * 3


def nearest(picture: np.ndarray, known: list[np.ndarray]) -> int:
    return int(np.argmin([np.abs(one - picture).sum() for one in known]))


def test_where_nearly_nothing_is_seen_each_head_has_its_own_full_colour_and_that_is_said() -> None:
    even = weights(np.full((2, 12, 12), 0.08), range(12), range(12))
    assert grid([(0, even)], scale="auto").shown_scale == "head"
    assert "nearly nothing is above 0.1: full colour is each head's largest weight" in " ".join(
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


def test_neighbours_that_an_observer_reads_are_those_of_the_whole_weights() -> None:
    values = np.random.default_rng(0).random((2, 60, 60)).astype(np.float32)
    values *= np.tril(np.ones((60, 60)))
    held = HeldRows(torch.from_numpy(values)[None])
    attention = Attention(SITE, "softmax", "softmax", 1, 2, 2, range(60), range(60), 0, torch.float32, held)
    near = Near(NEAR, 60)
    near.observe(attention)
    field = weights(values, range(60), range(60), values > 0)
    whole = near_weights(field, 60)
    assert whole is not None
    np.testing.assert_allclose(near.maps[SITE], whole, rtol=1e-6)
    assert np.isnan(whole[:, :, NEAR + 1 :]).all()  # nothing ahead is open
    assert whole[0, 7, NEAR - 2] == values[0, 7, 5]
    assert grid([(0, field)]).near == ()
    assert grid([(0, field)], large=True).near == (-4, -3, -2, -1, 0)


@pytest.mark.parametrize("size", [49, 60, 68, 69])
def test_an_image_shows_the_nearest_keys_of_every_text_that_has_more_tokens_than_cells(size: int) -> None:
    view = grid([(0, weights(np.eye(size)[None], range(size), range(size)))], large=True)
    assert fit_image(view).beside == (-4, -3, -2, -1, 0, 1, 2, 3, 4)
