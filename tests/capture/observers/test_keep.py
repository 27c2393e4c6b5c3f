"""Kept maps against the whole weights."""

from dataclasses import replace

import pytest
import torch

from attnscope.attention import Token
from attnscope.capture import Keep
from tests.capture.observers.test_coarsen import random_attention


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
    keep.observe(replace(attention, queries=tokens, keys=tokens))
    assert keep.maps[0].queries == tokens
