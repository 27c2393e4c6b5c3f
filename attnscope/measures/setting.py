"""What a block's figures stand on whatever its weights are: masks, positions and tokens, worked out once.

Layers follow each other with the same mask and tokens, so all of this is kept from one to the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attnscope.measures.block import Block, TokenFacts
from attnscope.measures.measure import KeySum, Measure


@dataclass(frozen=True, eq=False)
class Setting:
    """What is known of a block besides its weights, ready to measure any weights in its place.

    ``uniform`` is the block with even attention. Its rows fall into two groups: those with a choice between
    keys, and those without. ``rowwise`` measures are functions of a block; the sums over keys are one product
    with ``number``. Here the rowwise ones stand before the sums; ``order`` says where each measure stands.
    """

    uniform: Block
    measures: Sequence[Measure]
    rowwise: Sequence[Measure]
    number: Tensor  # [text or 1, row, key, sum]
    beyond: Tensor  # [sum]
    taken: Sequence[tuple[Tensor, Tensor] | None]  # of each group, which rows count: [rowwise measure, batch
    # or 1, head or 1, row] and [batch or 1, row, head or 1, sum]; None where no row counts for any measure
    rows: Tensor  # [group, measure, batch or 1, head or 1], rows that count, in the order of ``measures``
    even: Tensor  # float64, the same: the sum over those rows on even attention
    order: Sequence[int]

    @classmethod
    def of(cls, block: Block, measures: Sequence[Measure]) -> Setting:
        """Work out what the measures need of a block besides its weights."""
        uniform = replace(block, allowed=block.allowed.clone()).uniform()
        found = [measure.function(uniform) for measure in measures]
        sums = [place for place, each in enumerate(found) if isinstance(each, KeySum)]
        rowwise = [place for place in range(len(found)) if place not in sums]
        key_sums = [each for each in found if isinstance(each, KeySum)]
        number = _table([each.number for each in key_sums], block.rows)
        beyond = number.new_tensor([each.beyond for each in key_sums])
        values = [each.value for each in found if not isinstance(each, KeySum)]
        on_keys = _on_keys(uniform.rows, number.to(uniform.rows.dtype), beyond)  # [batch, row, head, sum]
        even = _stack([*values, *on_keys.permute(3, 0, 2, 1)])  # [measure, batch or 1, head or 1, row]
        counts = _stack([found[place].counts for place in rowwise + sums])
        open_keys = block.open_keys.cpu()
        groups = [counts & (open_keys > 1), counts & (open_keys == 1)]
        order = [(rowwise + sums).index(place) for place in range(len(found))]
        split = len(rowwise)
        return cls(
            uniform=uniform,
            measures=measures,
            rowwise=[measures[place] for place in rowwise],
            number=number,
            beyond=beyond,
            taken=[
                (group[:split], group[split:].permute(1, 3, 2, 0).contiguous()) if bool(group.any()) else None
                for group in groups
            ],
            rows=torch.stack([group.sum(-1) for group in groups])[:, order],
            even=torch.stack([torch.where(group, even, 0).double().sum(-1) for group in groups])[:, order],
            order=order,
        )

    def fits(self, block: Block, measures: Sequence[Measure]) -> bool:
        """Whether this is the setting of that block for these measures."""
        own = self.uniform
        return (
            own.start == block.start
            and (self.number.dtype, self.number.device) == (block.rows.dtype, block.rows.device)
            and list(self.measures) == list(measures)
            and _same(own.queries, block.queries)
            and _same(own.keys, block.keys)
            and torch.equal(own.allowed, block.allowed)
        )

    def sums(self, block: Block) -> Tensor:
        """Measure a block.  -> float64, [chosen|forced, rows|value|baseline, measure, text, head]"""
        batch, heads = block.rows.shape[:2]
        value = torch.zeros(2, len(self.measures), batch, heads, dtype=torch.float64)
        rowwise = (
            torch.stack([measure(block).value for measure in self.rowwise]).cpu() if self.rowwise else None
        )
        on_keys = _on_keys(block.rows, self.number, self.beyond).cpu()  # [batch, row, head, sum]
        split = len(self.rowwise)
        for group, taken in enumerate(self.taken):
            if taken is None:
                continue
            if rowwise is not None:
                value[group, :split] = torch.where(taken[0], rowwise, 0).sum(-1, dtype=torch.float64)
            summed = torch.where(taken[1], on_keys, 0).sum(1, dtype=torch.float64)  # [batch, head, sum]
            value[group, split:] = summed.permute(2, 0, 1)
        rows, even = (each.expand(value.shape) for each in (self.rows, self.even))
        return torch.stack([rows, value[:, self.order], even], 1)


def _on_keys(rows: Tensor, number: Tensor, beyond: Tensor) -> Tensor:
    """The sums over keys.  [batch, head, row, key], [text or 1, row, key, sum] -> [batch, row, head, sum]"""
    return rows.transpose(1, 2) @ number + beyond


def _table(numbers: Sequence[Tensor], rows: Tensor) -> Tensor:
    """The numbers of all sums side by side, in the type of the rows.  -> [text or 1, row, key, sum]"""
    if not numbers:
        return rows.new_empty(1, *rows.shape[-2:], 0)
    shape = max(len(number) for number in numbers), *rows.shape[-2:]
    return torch.stack([number.to(rows.dtype).expand(shape) for number in numbers], -1)


def _same(one: TokenFacts | None, other: TokenFacts | None) -> bool:
    if one is None or other is None or one is other:
        return one is other
    return all(torch.equal(mine, theirs) for mine, theirs in zip(one.tensors, other.tensors, strict=True))


def _stack(rows: Sequence[Tensor]) -> Tensor:
    """Stack tensors that broadcast, on the CPU.  -> [measure, batch or 1, head or 1, row]"""
    shape = [max(sizes) for sizes in zip(*(each.shape for each in rows), strict=True)]
    return torch.stack([each.expand(shape) for each in rows]).cpu()
