"""Forms over rows: a measure is a function of whole rows, or of figures that every row has."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from attnscope.measures.block import Block, TokenFacts
from attnscope.measures.forms.form import Form, PerRow, RowFigures, Total

if TYPE_CHECKING:
    from torch import Tensor

    from attnscope.fused.statistics import Statistics


class OfWeights(Form):
    """Any function of a block, -> [batch, head, row]. It has to see every row."""

    rows = "rows with at least two open keys"
    fused = False

    def of_block(self, block: Block) -> PerRow:
        """Measure the rows of a block."""
        return PerRow(self.function(block), block.open_keys > 1)


class OfTwoRows(OfWeights):
    """A function of rows and of the rows before them, [batch, head, row, key] each, -> [batch, head, row].

    A row counts if there is one before it.
    """

    rows = "rows after the first"

    def of_block(self, block: Block) -> PerRow:
        """Measure the rows of a block."""
        import torch

        before = block.rows if block.before is None else torch.cat([block.before.rows, block.rows], -2)
        value = self.function(before[..., 1:, :], before[..., :-1, :])
        counts = torch.ones_like(block.open_keys, dtype=torch.bool)
        if block.before is None:
            value = torch.nn.functional.pad(value, (1, 0))
            counts[..., 0] = False
        return PerRow(value, counts)


class OfRow(Form):
    """A function of the entropy, largest weight, total and number of open keys of rows, elementwise."""

    rows = "rows with at least two open keys"
    least: ClassVar[int] = 2

    def of_block(self, block: Block) -> PerRow:
        """Measure the rows of a block."""
        return PerRow(self.function(block), block.open_keys >= self.least)

    def of_statistics(self, name: str, statistics: Statistics, facts: TokenFacts | None) -> Total:
        """Measure all rows at once."""
        import torch

        open_keys = statistics.runs.count[:, None].double()  # [batch or 1, 1, row]
        entropy, largest, total = (
            each.double() for each in (statistics.entropy, statistics.largest, statistics.total)
        )
        value = self.function(RowFigures(entropy.clamp_min(0), largest, total, open_keys))
        even = RowFigures(open_keys.log(), 1 / open_keys, torch.ones_like(open_keys), open_keys)
        return by_rows(value, open_keys >= self.least, self.function(even))


class OfEveryRow(OfRow):
    """The same, of rows with one open key, too."""

    rows = "all rows"
    least = 1


def by_rows(value: Tensor, counts: Tensor, baseline: Tensor) -> Total:
    """The total of values that are known row by row."""
    import torch

    return Total(torch.where(counts, value, 0).sum(-1), counts, baseline, value)
