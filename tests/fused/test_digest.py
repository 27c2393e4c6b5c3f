"""A tensor that is written into is another tensor: masks, biases, and every bit of them."""

import pytest
import torch

from attnscope.fused.runs import digest

HEADS, SIZE = 3, 300


def masks():
    causal = torch.ones(SIZE, SIZE, dtype=torch.bool).tril().expand(1, HEADS, SIZE, SIZE)
    return {
        "bool": causal.clone(),
        "float32": torch.zeros(causal.shape).masked_fill(~causal, -torch.inf),
        "bfloat16": torch.zeros(causal.shape, dtype=torch.bfloat16).masked_fill(~causal, -torch.inf),
    }


@pytest.mark.parametrize("dtype", masks())
def test_one_cell_of_any_head_and_row_tells_two_masks_apart(dtype):
    mask = masks()[dtype]
    seen = {digest(mask)}
    for number in range(200):
        head, row, key = number % HEADS, (37 * number) % SIZE, (101 * number) % SIZE
        changed = mask.clone()
        changed[0, head, row, key] = not changed[0, head, row, key] if dtype == "bool" else number + 1.0
        seen.add(digest(changed))
    assert len(seen) == 201
    assert digest(mask.clone()) in seen


@pytest.mark.parametrize("dtype", masks())
def test_the_same_cells_at_other_places_are_another_mask(dtype):
    mask = masks()[dtype]
    moved = [
        mask.flip(1).flip(2),
        mask.flip(3),
        mask.roll(1, 2),
        mask.roll(1, 3),
        mask.roll(2, 3),
        mask.roll(64, 2),
        mask.transpose(2, 3),
        torch.cat([mask[:, :2], mask[:, 2:].roll(8, 3)], 1),
    ]
    assert len({digest(each) for each in (mask, *moved)}) == len(moved) + 1


def test_signs_alone_tell_two_biases_apart():
    """Pairs of sign bits cancel in a sum of products modulo 2⁶⁴."""
    bias = torch.randn(1, HEADS, SIZE, SIZE, generator=torch.Generator().manual_seed(0))
    seen = {digest(bias)}
    for number in range(100):
        changed = bias.clone()
        changed.view(-1)[[2 * number + 1, 2 * number + 3 + 2 * SIZE]] *= -1
        seen.add(digest(changed))
    assert len(seen) == 101


def test_what_repeats_itself_is_read_once_and_differs_from_what_does_not():
    row = torch.arange(SIZE).float()
    assert digest(row.expand(1, 1, SIZE, SIZE)) == digest(row.clone().expand(1, 1, SIZE, SIZE))
    assert digest(row.expand(1, 1, SIZE, SIZE)) != digest(row.expand(1, 1, SIZE, SIZE).clone())


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 65_536 * 8 - 1, 65_536 * 8, 65_536 * 8 + 1])
def test_any_number_of_bytes_counts_to_the_last(count):
    data = torch.zeros(count, dtype=torch.uint8)
    seen = {digest(data)}
    for place in (0, count // 2, count - 1)[: min(count, 3)]:
        changed = data.clone()
        changed[place] = 200
        seen.add(digest(changed))
    assert len(seen) == 1 + len({0, count // 2, count - 1} if count else ())
