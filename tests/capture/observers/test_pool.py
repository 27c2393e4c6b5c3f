"""Pooled and kept maps against the whole weights."""

from itertools import pairwise

import pytest
import torch

from attnscope.attention import Attention, HeldRows, Site, Token
from attnscope.axes.folding import edges
from attnscope.capture import Keep, Pool
from attnscope.capture.observers import pool as pooling
from attnscope.errors import SizeError


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


@pytest.mark.parametrize("how", ["mean", "max"])
@pytest.mark.parametrize("cells", [1, 4, 7])
@pytest.mark.parametrize("block", [1, 1 << 24])
def test_a_cell_is_the_mean_or_maximum_of_its_open_pairs(how, cells, block, monkeypatch):
    monkeypatch.setattr(pooling, "BLOCK", block)
    attention, weights, mask = random_attention()
    pool = Pool(cells, how)
    pool.observe(attention)
    (pooled,) = pool.maps
    assert pooled.values.shape == (2, 3, cells, cells)
    for r in range(cells):
        for c in range(cells):
            rows = slice(pooled.row_edges[r], pooled.row_edges[r + 1])
            keys = slice(pooled.key_edges[c], pooled.key_edges[c + 1])
            for b in range(2):
                for h in range(3):
                    open_weights = weights[b, h, rows, keys][mask[b, h, rows, keys]]
                    assert bool(pooled.open.expand(2, 3, -1, -1)[b, h, r, c]) == (open_weights.numel() > 0)
                    expected = getattr(open_weights, how)() if open_weights.numel() else torch.tensor(0.0)
                    torch.testing.assert_close(pooled.values[b, h, r, c], expected)


@pytest.mark.parametrize("block", [1, 1 << 24])
def test_shares_are_summed_over_keys_and_averaged_over_queries_so_that_rows_keep_their_sums(
    block, monkeypatch
):
    monkeypatch.setattr(pooling, "BLOCK", block)
    attention, weights, _ = random_attention()
    pool = Pool(4, "share")
    pool.observe(attention)
    (pooled,) = pool.maps
    torch.testing.assert_close(pooled.values.sum(-1), torch.ones(2, 3, 4))
    for r, (top, bottom) in enumerate(pairwise(pooled.row_edges)):
        for c, (left, right) in enumerate(pairwise(pooled.key_edges)):
            expected = weights[:, :, top:bottom, left:right].sum(-1).mean(-1)
            torch.testing.assert_close(pooled.values[:, :, r, c], expected)


def test_maps_that_would_not_fit_the_free_memory_are_refused(monkeypatch):
    monkeypatch.setattr("attnscope.memory.free_memory", lambda: 10)
    monkeypatch.setattr("attnscope.memory.UNNOTICED", 1)
    attention, _, _ = random_attention()
    with pytest.raises(SizeError, match="6 heads of layer 0 in 16 cells each would take 480 bytes"):
        Pool(4).observe(attention)


def test_cells_cover_every_position_once():
    for length in range(1, 40):
        cells = edges(length, 6)
        assert (cells[0], cells[-1], len(cells) - 1) == (0, length, min(6, length))
        assert all(first < last for first, last in pairwise(cells))


def test_a_short_text_is_shown_as_it_is():
    attention, weights, mask = random_attention(5, 6)
    pool = Pool(32)
    pool.observe(attention)
    assert torch.equal(pool.maps[0].values, weights)
    assert torch.equal(pool.maps[0].open, mask[:1, :1])


def test_an_even_row_that_sees_nothing_is_masked_and_zero():
    weights = torch.full((1, 1, 4, 4), 0.25)
    mask = torch.ones(1, 1, 4, 4, dtype=torch.bool)
    mask[..., 2:, :] = False
    site = Site("a", 0, "encoder", 0)
    read = HeldRows(weights, mask)
    pool = Pool(2)
    pool.observe(Attention(site, "kernel", "eager", 1, 1, 1, range(4), range(4), 0, weights.dtype, read))
    assert pool.maps[0].open.tolist() == [[[[True, True], [False, False]]]]
    assert pool.maps[0].values[0, 0, 1].tolist() == [0.0, 0.0]


def test_no_cells_are_refused():
    with pytest.raises(ValueError, match="at least one cell"):
        Pool(0)


def test_keep_keeps_the_chosen_heads_in_the_order_asked():
    attention, weights, mask = random_attention()
    keep = Keep(lambda site: [2, 0])
    keep.observe(attention)
    (kept,) = keep.maps
    assert kept.heads == (2, 0)
    assert torch.equal(kept.weights, weights[:, [2, 0]])
    assert torch.equal(kept.allowed, mask[:1, :1])
    kept.weights.zero_()
    assert weights.sum() > 0


@pytest.mark.parametrize("answer", [None, []])
def test_keep_keeps_nothing_unasked(answer):
    attention, *_ = random_attention()
    keep = Keep(lambda site: answer)
    keep.observe(attention)
    assert keep.maps == []


def test_keep_takes_the_labels_along():
    attention, *_ = random_attention(2, 2)
    tokens = (Token("a", 1), Token("b", 2))
    keep = Keep(lambda site: [0])
    keep.observe(attention.with_axes(tokens, tokens))
    assert keep.maps[0].queries == tokens
