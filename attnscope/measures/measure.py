"""What a measure is, and the table of all measures.

Adding a measure is adding one function of a ``Block`` under ``@measure(...)``, which returns its value of
every row, or what it sums over keys. Its baseline is the same function on even attention over the open keys,
so there is nothing else to write.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias, TypeVar

from torch import Tensor

from attnscope.measures.block import Block
from attnscope.registry import Registry


class PerRow(NamedTuple):
    """A measure's value of each row, and which rows count.

    ``value`` is ``[batch, head, row]``; ``counts`` is bool, ``[batch or 1, head or 1, row]``. A row that
    does not count may hold any value. Rows without an open key never count, whatever ``counts`` says. Which
    rows count is a matter of masks, positions and tokens, never of weights.
    """

    value: Tensor
    counts: Tensor


class KeySum(NamedTuple):
    """A measure that adds up a row's weights, each times a number: ``beyond + Σ_j A[i, j] number[i, j]``.

    ``number`` is ``[text or 1, row or 1, key]``, of any type, ``counts`` as in ``PerRow``. Neither is a
    matter of weights, so that all such measures are prepared for all layers once, and cost one product.
    """

    number: Tensor
    counts: Tensor
    beyond: float = 0.0

    def of(self, block: Block) -> PerRow:
        """The sum of every row."""
        return PerRow(block.sum_of(self.number) + self.beyond, self.counts)


Function: TypeAlias = "Callable[[Block], PerRow | KeySum]"


@dataclass(frozen=True)
class Measure:
    """A number a row, with all that a reader needs to know about it.

    ``rows`` says in words which rows count. ``positions``, ``query_tokens`` and ``key_tokens`` say what
    the measure cannot do without: queries and keys on one sequence, token labels on an axis.
    """

    name: str
    unit: str
    bounds: str
    formula: str
    rows: str
    source: str
    function: Function
    positions: bool = False
    query_tokens: bool = False
    key_tokens: bool = False

    def __call__(self, block: Block) -> PerRow:
        """Measure every row of a block."""
        found = self.function(block)
        return found.of(block) if isinstance(found, KeySum) else found

    @property
    def summary(self) -> str:
        """The first sentence of the function's docstring."""
        return (self.function.__doc__ or "").strip().split("  ->")[0].split("\n")[0].rstrip(".")

    def missing(self, positions: bool, query_tokens: bool, key_tokens: bool) -> str | None:
        """Why this measure does not exist for an attention that offers only so much; ``None`` if it does."""
        if self.positions and not positions:
            return f"{self.name} compares positions of one sequence, and here there are two sequences"
        if (self.query_tokens and not query_tokens) or (self.key_tokens and not key_tokens):
            return f"{self.name} needs tokens, and this axis holds bare positions"
        return None


Found = TypeVar("Found", bound=Function)

MEASURES: Registry[Measure] = Registry("measure")


def measure(
    name: str,
    *,
    unit: str,
    bounds: str,
    formula: str,
    rows: str,
    source: str,
    positions: bool = False,
    query_tokens: bool = False,
    key_tokens: bool = False,
) -> Callable[[Found], Found]:
    """Return a decorator that files a function of a block as the measure ``name``."""

    def file(function: Found) -> Found:
        MEASURES.register(name)(
            Measure(name, unit, bounds, formula, rows, source, function, positions, query_tokens, key_tokens)
        )
        return function

    return file
