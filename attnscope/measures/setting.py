"""What a block's figures stand on whatever its weights are: masks, positions and tokens, worked out once.

Layers follow each other with the same mask and tokens, so all of this is kept from one to the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from attnscope.measures.block import Block, TokenFacts
from attnscope.measures.forms.form import KeySum
from attnscope.measures.measure import Measure

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, eq=False)
class Setting:
    """What is known of a block besides its weights, ready to measure any weights in its place.

    ``even`` is the block with even attention. Its rows fall into two groups: those with a choice between
    keys, and lone ones with one open key. ``rowwise`` measures are functions of a block; the sums over keys
    are one product with ``number``. Here the rowwise ones stand before the sums; ``order`` says where each
    measure stands.
    """

    even: Block
    measures: Sequence[Measure]
    rowwise: Sequence[Measure]
    number: Tensor  # [text or 1, row, key, sum]
    counting: Sequence[tuple[Tensor, Tensor] | None]  # of each group, which rows count: [rowwise measure,
    # batch or 1, head or 1, row] and [batch or 1, row, head or 1, sum]; None where none counts anywhere
    rows: Tensor  # [group, measure, batch or 1, head or 1], rows that count, in the order of ``measures``
    baseline: Tensor  # float64, the same: the sum over those rows on even attention
    order: Sequence[int]

    @classmethod
    def of(cls, block: Block, measures: Sequence[Measure]) -> Setting:
        """Work out what the measures need of a block besides its weights."""
        import torch

        even = replace(block, allowed=block.allowed.clone()).baseline()
        forms = [measure.form.of_block(even) for measure in measures]
        sums = [place for place, each in enumerate(forms) if isinstance(each, KeySum)]
        rowwise = [place for place in range(len(forms)) if place not in sums]
        number = _table([each.number for each in forms if isinstance(each, KeySum)], block.rows)
        values = [each.value for each in forms if not isinstance(each, KeySum)]
        on_keys = even.rows.transpose(1, 2) @ number.to(even.rows.dtype)  # [batch, row, head, sum]
        baseline = _stack([*values, *on_keys.permute(3, 0, 2, 1)])  # [measure, batch or 1, head or 1, row]
        counts = _stack([forms[place].counts for place in rowwise + sums])
        open_keys = block.open_keys.cpu()
        groups = [counts & (open_keys > 1), counts & (open_keys == 1)]
        order = [(rowwise + sums).index(place) for place in range(len(forms))]
        split = len(rowwise)
        return cls(
            even=even,
            measures=measures,
            rowwise=[measures[place] for place in rowwise],
            number=number,
            counting=[
                (group[:split], group[split:].permute(1, 3, 2, 0).contiguous()) if bool(group.any()) else None
                for group in groups
            ],
            rows=torch.stack([group.sum(-1) for group in groups])[:, order],
            baseline=torch.stack([torch.where(group, baseline, 0).double().sum(-1) for group in groups])[
                :, order
            ],
            order=order,
        )

    def fits(self, block: Block, measures: Sequence[Measure]) -> bool:
        """Whether this is the setting of that block for these measures."""
        import torch

        own = self.even
        return (
            own.start == block.start
            and (self.number.dtype, self.number.device) == (block.rows.dtype, block.rows.device)
            and list(self.measures) == list(measures)
            and _same(own.queries, block.queries)
            and _same(own.keys, block.keys)
            and torch.equal(own.allowed, block.allowed)
            and _same_open(own.before, block.before)
        )

    def sums(self, block: Block) -> Tensor:
        """Measure a block.  -> float64, [choice|lone, rows|value|baseline, measure, text, head]"""
        import torch

        batch, heads = block.rows.shape[:2]
        value = torch.zeros(2, len(self.measures), batch, heads, dtype=torch.float64)
        rowwise = (
            torch.stack([measure(block).value for measure in self.rowwise]).cpu() if self.rowwise else None
        )
        on_keys = (block.rows.transpose(1, 2) @ self.number).cpu()  # [batch, row, head, sum]
        split = len(self.rowwise)
        for group, counting in enumerate(self.counting):
            if counting is None:
                continue
            if rowwise is not None:
                value[group, :split] = torch.where(counting[0], rowwise, 0).sum(-1, dtype=torch.float64)
            summed = torch.where(counting[1], on_keys, 0).sum(1, dtype=torch.float64)  # [batch, head, sum]
            value[group, split:] = summed.permute(2, 0, 1)
        rows, baseline = (each.expand(value.shape) for each in (self.rows, self.baseline))
        return torch.stack([rows, value[:, self.order], baseline], 1)


def _table(numbers: Sequence[Tensor], rows: Tensor) -> Tensor:
    """The numbers of all sums side by side, in the type of the rows.  -> [text or 1, row, key, sum]"""
    import torch

    if not numbers:
        return rows.new_empty(1, *rows.shape[-2:], 0)
    shape = max(len(number) for number in numbers), *rows.shape[-2:]
    return torch.stack([number.to(rows.dtype).expand(shape) for number in numbers], -1)


def _same_open(one: Block | None, other: Block | None) -> bool:
    if one is None or other is None:
        return one is other
    import torch

    return torch.equal(one.allowed, other.allowed)


def _same(one: TokenFacts | None, other: TokenFacts | None) -> bool:
    import torch

    if one is None or other is None:
        return one is other
    return all(torch.equal(mine, theirs) for mine, theirs in zip(one.tensors, other.tensors, strict=True))


def _stack(rows: Sequence[Tensor]) -> Tensor:
    """Stack tensors that broadcast, on the CPU.  -> [measure, batch or 1, head or 1, row]"""
    import torch

    shape = [max(sizes) for sizes in zip(*(each.shape for each in rows), strict=True)]
    return torch.stack([each.expand(shape) for each in rows]).cpu()
