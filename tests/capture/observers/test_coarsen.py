"""Coarse maps against loops over the whole weights, and matrices that coarsen them."""

from itertools import pairwise

import pytest
import torch

from attnscope.attention import Attention, HeldRows, Site, Token
from attnscope.axes import Coarsening, edges, group_places, places
from attnscope.capture import Coarsen
from attnscope.capture import observers as coarsening
from attnscope.capture.observers import cells


def random_attention(queries=11, keys=13, causal=True, seed=0):
    """A random attention with a mask, and its weights."""
    noise = torch.Generator().manual_seed(seed)
    scores = torch.randn(2, 3, queries, keys, generator=noise)
    mask = torch.ones(1, 1, queries, keys, dtype=torch.bool)
    if causal:
        mask = mask.tril()
    weights = torch.softmax(scores.masked_fill(~mask, -torch.inf), -1)
    site = Site("layers.0.attention", 0, "decoder", 0)
    return (
        Attention(
            site,
            "softmax",
            "softmax",
            2,
            3,
            3,
            range(queries),
            range(keys),
            0,
            weights.dtype,
            HeldRows(weights, mask),
        ),
        weights,
        mask.expand(2, 3, -1, -1),
    )


def as_it_is(size: int) -> Coarsening:
    return group_places(places(range(size)))


ROWS = group_places(places(range(11)), most=4)
PIECES = tuple(Token("a", 0, special=at in (3, 12), word=at // 2) for at in range(13))
KEYS = group_places(places(PIECES), words=True, hide_special=True)


@pytest.mark.parametrize("block", [1, 200, 1 << 23])
@pytest.mark.parametrize("queries", [as_it_is(11), ROWS, ROWS.only(2)], ids=["as they are", "blocks", "one"])
@pytest.mark.parametrize("keys", [as_it_is(13), KEYS, KEYS.only(1)], ids=["as they are", "words", "one"])
def test_a_coarse_map_is_the_whole_one_between_two_matrices(monkeypatch, block, queries, keys):
    monkeypatch.setattr(coarsening, "BLOCK", block)
    attention, weights, allowed = random_attention()
    coarsen = Coarsen(lambda _: (queries, keys))
    coarsen.observe(attention)
    (made,) = coarsen.maps
    down, across = queries.averaging(), keys.summing()
    left = torch.eye(11) if down is None else torch.from_numpy(down)
    right = torch.eye(13) if across is None else torch.from_numpy(across)
    assert torch.allclose(made.values, left @ weights @ right.T, atol=1e-6)
    assert (made.open == (left @ allowed.float() @ right.T > 0)).all()


@pytest.mark.parametrize("how", ["mean", "max"])
@pytest.mark.parametrize("count", [1, 4, 7])
@pytest.mark.parametrize("block", [1, 1 << 24])
def test_a_cell_is_the_mean_or_maximum_of_its_open_pairs(how, count, block, monkeypatch):
    monkeypatch.setattr(coarsening, "BLOCK", block)
    attention, weights, mask = random_attention()
    coarsen = Coarsen(cells(count), how)
    coarsen.observe(attention)
    (made,) = coarsen.maps
    assert made.values.shape == (2, 3, count, count)
    for r, (top, bottom) in enumerate(pairwise(edges(11, count))):
        for c, (left, right) in enumerate(pairwise(edges(13, count))):
            rows, keys = slice(top, bottom), slice(left, right)
            for b in range(2):
                for h in range(3):
                    open_weights = weights[b, h, rows, keys][mask[b, h, rows, keys]]
                    assert bool(made.open.expand(2, 3, -1, -1)[b, h, r, c]) == (open_weights.numel() > 0)
                    expected = getattr(open_weights, how)() if open_weights.numel() else torch.tensor(0.0)
                    torch.testing.assert_close(made.values[b, h, r, c], expected)


@pytest.mark.parametrize("block", [1, 1 << 24])
def test_shares_are_summed_over_keys_and_averaged_over_queries_so_that_rows_keep_their_sums(
    block, monkeypatch
):
    monkeypatch.setattr(coarsening, "BLOCK", block)
    attention, weights, _ = random_attention()
    coarsen = Coarsen(cells(4))
    coarsen.observe(attention)
    (made,) = coarsen.maps
    torch.testing.assert_close(made.values.sum(-1), torch.ones(2, 3, 4))
    for r, (top, bottom) in enumerate(pairwise(edges(11, 4))):
        for c, (left, right) in enumerate(pairwise(edges(13, 4))):
            expected = weights[:, :, top:bottom, left:right].sum(-1).mean(-1)
            torch.testing.assert_close(made.values[:, :, r, c], expected)


def test_the_rows_of_one_place_alone_are_read():
    attention, weights, _ = random_attention()
    one = group_places(places(range(11))).only(6)
    coarsen = Coarsen(lambda _: (one, as_it_is(13)))
    read = []
    object.__setattr__(attention, "read", Noting(attention.read, read))
    coarsen.observe(attention)
    assert read == [(6, 7)]
    assert torch.equal(coarsen.maps[0].values, weights[:, :, 6:7])


class Noting:
    """Rows that note which of them were read."""

    def __init__(self, read, notes):
        self.read, self.notes = read, notes

    def rows(self, start, stop, heads):
        self.notes.append((start, stop))
        return self.read.rows(start, stop, heads)

    def allowed(self, start, stop):
        return self.read.allowed(start, stop)


def test_weights_that_are_no_numbers_count_as_nothing_and_are_counted():
    attention, weights, _ = random_attention()
    weights[0, 1, 4, 2] = torch.nan
    weights[1, 2, 5, 0] = torch.inf
    coarsen = Coarsen(lambda _: (as_it_is(11), as_it_is(13)))
    coarsen.observe(attention)
    assert coarsen.maps[0].broken == 2
    assert coarsen.maps[0].values[0, 1, 4, 2] == 0
    assert not coarsen.maps[0].open[0, 1, 4, 2]
    assert coarsen.maps[0].open[0, 0, 4, 2]


def test_nothing_is_kept_of_a_call_that_nobody_asked_for():
    attention, _, _ = random_attention()
    coarsen = Coarsen(lambda _: None)
    coarsen.observe(attention)
    assert coarsen.maps == []


def test_cells_cover_every_position_once():
    for length in range(1, 40):
        cut = edges(length, 6)
        assert (cut[0], cut[-1], len(cut) - 1) == (0, length, min(6, length))
        assert all(first < last for first, last in pairwise(cut))


def test_a_short_text_is_shown_as_it_is():
    attention, weights, mask = random_attention(5, 6)
    coarsen = Coarsen(cells(32))
    coarsen.observe(attention)
    assert torch.equal(coarsen.maps[0].values, weights)
    assert torch.equal(coarsen.maps[0].open, mask[:1, :1])


def test_an_even_row_that_sees_nothing_is_masked_and_zero():
    weights = torch.full((1, 1, 4, 4), 0.25)
    mask = torch.ones(1, 1, 4, 4, dtype=torch.bool)
    mask[..., 2:, :] = False
    site = Site("a", 0, "encoder", 0)
    read = HeldRows(weights, mask)
    coarsen = Coarsen(cells(2))
    coarsen.observe(Attention(site, "kernel", "eager", 1, 1, 1, range(4), range(4), 0, weights.dtype, read))
    assert coarsen.maps[0].open.tolist() == [[[[True, True], [False, False]]]]
    assert coarsen.maps[0].values[0, 0, 1].tolist() == [0.0, 0.0]
