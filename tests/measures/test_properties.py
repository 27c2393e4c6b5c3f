"""What must hold for any rows, and scipy as a second opinion."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import entropy as scipy_entropy

from attnscope.measures import MEASURES, Block
from attnscope.measures.forms import KeySum


def values(name: str, block: Block) -> torch.Tensor:
    """A measure of every row of a block.  -> [batch, head, row]"""
    found = MEASURES[name].form.of_block(block)
    if isinstance(found, KeySum):
        return (block.rows * found.number[:, None].to(block.rows.dtype)).sum(-1)
    return found.value


@st.composite
def blocks(draw: st.DrawFn) -> Block:
    queries, keys = draw(st.integers(1, 6)), draw(st.integers(1, 9))
    seed = draw(st.integers(0, 2**32 - 1))
    sharpness = draw(st.sampled_from([0.0, 1.0, 10.0, 100.0]))
    generator = torch.Generator().manual_seed(seed)
    allowed = torch.rand(1, 1, queries, keys, generator=generator) < 0.7
    allowed[..., 0] = True
    scores = sharpness * torch.randn(2, 3, queries, keys, generator=generator, dtype=torch.float64)
    return Block(scores.masked_fill(~allowed, -math.inf).softmax(-1), allowed, draw(st.integers(0, 3)))


@settings(max_examples=60, deadline=None)
@given(blocks())
def test_entropy_lies_between_0_and_log_n_and_equals_scipy(block):
    value = values("entropy", block)
    assert (value >= -1e-12).all()
    assert (value <= block.open_keys.double().log() + 1e-12).all()
    np.testing.assert_allclose(value, scipy_entropy(block.rows.numpy(), axis=-1), atol=1e-12)


@settings(max_examples=60, deadline=None)
@given(blocks())
def test_the_measures_of_a_row_keep_their_order(block):
    value = {
        name: values(name, block)
        for name in ("effective_keys", "confidence", "coverage90", "normalized_entropy")
    }
    assert (value["effective_keys"] * value["confidence"] >= 1 - 1e-9).all()
    assert (value["coverage90"] >= 1).all()
    assert (value["coverage90"] <= block.open_keys).all()
    assert (value["normalized_entropy"] <= 1 + 1e-9).all()
    assert (values("distance", block) >= values("offset", block).abs() - 1e-9).all()


@settings(max_examples=60, deadline=None)
@given(blocks(), st.permutations(range(3)))
def test_permuted_heads_have_permuted_figures(block, order):
    moved = Block(block.rows[:, order], block.allowed, block.start)
    for name in ("entropy", "confidence", "coverage90", "distance", "previous", "first", "no_key"):
        assert torch.equal(values(name, moved), values(name, block)[:, order])


@settings(max_examples=30, deadline=None)
@given(blocks())
def test_nothing_is_written_into_the_rows(block):
    before, mask = block.rows.clone(), block.allowed.clone()
    for name, measure in MEASURES.items():
        if measure.missing(["positions"]) is None:
            values(name, block)
    assert torch.equal(block.rows, before)
    assert torch.equal(block.allowed, mask)


def test_weights_too_small_for_a_logarithm_add_no_entropy():
    rows = torch.tensor([[[[1.0, 0.0, 1e-45, 1e-40]]]])
    block = Block(rows, torch.ones(1, 1, 1, 4, dtype=torch.bool))
    assert values("entropy", block).item() == pytest.approx(0, abs=1e-37)


@given(st.integers(0, 2**16))
@settings(max_examples=20, deadline=None)
def test_even_attention_has_the_figures_of_its_rows(seed):
    """The closed forms, against the same rows measured weight by weight; some rows have no open key."""
    allowed = torch.rand(2, 3, 5, 7, generator=torch.Generator().manual_seed(seed)) < 0.4
    even = Block(torch.zeros(2, 3, 5, 7), allowed).baseline()
    plain = Block(even.rows, even.allowed)
    for name in ("entropy", "largest", "total"):
        torch.testing.assert_close(getattr(even, name), getattr(plain, name), rtol=1e-12, atol=1e-12)
