"""Folded maps against matrices that fold the whole weights."""

import pytest
import torch

from attnscope import memory
from attnscope.capture.observers import coarsen as folding
from attnscope.capture.observers.coarsen import Fold
from attnscope.errors import SizeError
from tests.capture.observers.test_pool import random_attention

DOWN = torch.tensor([[0.5, 0.5] + [0.0] * 9, [0.0] * 2 + [1 / 9] * 9])
ACROSS = torch.eye(13).view(13, 13)[[0, 4, 12]] + torch.eye(13)[[1, 5, 11]]


@pytest.mark.parametrize("block", [1, 200, 1 << 23])
@pytest.mark.parametrize("down", [None, DOWN], ids=["rows as they are", "rows averaged"])
@pytest.mark.parametrize("across", [None, ACROSS], ids=["columns as they are", "columns summed"])
def test_a_folded_map_is_the_whole_one_between_two_matrices(monkeypatch, block, down, across):
    monkeypatch.setattr(folding, "BLOCK", block)
    attention, weights, allowed = random_attention()
    fold = Fold(lambda _: (down, across))
    fold.observe(attention)
    (folded,) = fold.maps
    left = torch.eye(11) if down is None else down
    right = torch.eye(13) if across is None else across
    assert torch.allclose(folded.values, left @ weights @ right.T, atol=1e-6)
    assert (folded.open == (left @ allowed.float() @ right.T > 0)).all()


def test_what_is_kept_does_not_grow_with_the_number_of_blocks(monkeypatch):
    monkeypatch.setattr(folding, "BLOCK", 1)
    held = []
    keep = folding._keep

    def watched(parts, part, summed):
        keep(parts, part, summed)
        held.append(sum(tensor.numel() for tensor in parts))

    monkeypatch.setattr(folding, "_keep", watched)
    attention, _, _ = random_attention()
    Fold(lambda _: (DOWN, ACROSS)).observe(attention)
    assert len(held) == 22
    assert max(held) == 2 * 3 * 2 * 3  # [batch, head, row group, key group], once


def test_weights_that_are_no_numbers_count_as_nothing_and_are_counted():
    attention, weights, _ = random_attention()
    weights[0, 1, 4, 2] = torch.nan
    weights[1, 2, 5, 0] = torch.inf
    fold = Fold(lambda _: (None, None))
    fold.observe(attention)
    assert fold.maps[0].broken == 2
    assert fold.maps[0].values[0, 1, 4, 2] == 0
    assert not fold.maps[0].open[0, 1, 4, 2]


def test_maps_that_would_not_fit_are_refused_before_they_are_made(monkeypatch):
    monkeypatch.setattr(memory, "UNNOTICED", 0)
    monkeypatch.setattr(memory, "free_memory", lambda: 1000)
    attention, _, _ = random_attention()
    with pytest.raises(SizeError, match="6 heads of layer 0 in 143 cells each would take 13"):
        Fold(lambda _: (None, None)).observe(attention)


def test_nothing_is_kept_of_a_call_that_nobody_asked_for():
    attention, _, _ = random_attention()
    fold = Fold(lambda _: None)
    fold.observe(attention)
    assert fold.maps == []
