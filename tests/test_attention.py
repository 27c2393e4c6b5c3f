"""Attention gives rows of weights, and explains what it cannot give."""

from itertools import combinations_with_replacement

import pytest
import torch

from attnscope.attention import Head, HeldRows
from attnscope.errors import SelectionError
from tests.measures.reference import shown


def attention(weights, open_keys=None):
    axes = map(range, weights.shape[2:])
    return shown(HeldRows(weights, open_keys), weights.shape[:2], axes, dtype=weights.dtype)


@pytest.fixture
def weights():
    torch.manual_seed(0)
    return torch.randn(2, 3, 5, 7).softmax(-1)


def test_rows_are_slices_and_heads_follow_requested_order(weights):
    shown = attention(weights)
    for start, stop in combinations_with_replacement(range(6), 2):
        assert torch.equal(shown.rows(start, stop), weights[:, :, start:stop])
    assert torch.equal(shown.weights([2, 0]), weights[:, [2, 0]])


def test_missing_head_or_row_error_lists_existing_ones(weights):
    with pytest.raises(SelectionError, match=r"no head 3 in layer.0: this layer has heads 0-2"):
        attention(weights).weights([3])
    with pytest.raises(SelectionError, match="no rows 4 to 6: this map has 5 rows"):
        attention(weights).rows(4, 6)


def test_mask_over_keys_applies_to_every_row(weights):
    mask = torch.ones(5, 7).tril().bool()[None, None]
    assert torch.equal(attention(weights, mask).allowed(1, 3), mask[..., 1:3, :])
    mask = torch.tensor([True] * 6 + [False])[None, None, None]
    assert torch.equal(attention(weights, mask).allowed(1, 3), mask.expand(1, 1, 2, 7))


def test_key_with_weight_is_unmasked_without_a_mask():
    weights = torch.tensor([[[[1.0, 0.0, 0.0]], [[0.5, 0.5, 0.0]]]])  # two heads, one row
    assert attention(weights).allowed(0, 1).tolist() == [[[[True, True, False]]]]


def test_selected_heads_are_renumbered(weights):
    mask = torch.rand(1, 3, 5, 7) > 0.3
    some = attention(weights, mask).only([2, 0])
    assert some.heads == 2
    assert torch.equal(some.weights(), weights[:, [2, 0]])
    assert torch.equal(some.rows(1, 3, [1]), weights[:, [0], 1:3])
    assert torch.equal(some.allowed(1, 3), mask[:, [2, 0], 1:3])
    with pytest.raises(SelectionError, match="no head 2 in"):
        some.weights([2])
    mask = torch.ones(1, 1, 5, 7).tril().bool()
    assert torch.equal(attention(weights, mask).only([1]).allowed(0, 5), mask)


@pytest.mark.parametrize("spelling", ["L5H3", "l5h3", "5.3", "5-3", " L5H3 ", "L05H03"])
def test_head_is_parsed_from_every_spelling_and_kind(spelling):
    assert Head(spelling) == Head(5, 3)
    assert str(Head(spelling)) == "L5H3"
    for kind in ("cross ", "cross."):
        head = Head(kind + spelling.strip())
        assert (head.layer, head.head, head.kind) == (5, 3, "cross")
        assert (head.name, str(head)) == ("L5H3", "cross L5H3")


@pytest.mark.parametrize("spelling", ["", "L5", "H3", "5", "L5H3H1", "5.3.1", "-1", "sideways L0H1", "L-1H2"])
def test_invalid_head_name_is_refused(spelling):
    with pytest.raises(SelectionError, match="write L5H3"):
        Head(spelling)
