"""What a form of measures is: it turns one small function into the same measure of rows and of statistics.

``of_block`` takes it from rows of weights, ``of_statistics`` from what the fused pass tells, each with the
baseline: of a block, by measuring the block with even attention; of statistics, in closed form, because there
the open keys of a row are one run of neighbours, and how many of something lie in a run is a difference of
running counts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeAlias

from attnscope.fused.request import Request
from attnscope.measures.block import Block, TokenFacts

if TYPE_CHECKING:
    from torch import Tensor

    from attnscope.fused.statistics import Statistics


class PerRow(NamedTuple):
    """A measure's value of each row, and which rows count.

    ``value`` is ``[batch, head, row]``; ``counts`` is bool, ``[batch or 1, head or 1, row]``. A row that
    does not count may hold any value. Rows without an open key never count, whatever ``counts`` says. Which
    rows count is a matter of masks, positions and tokens, never of weights.
    """

    value: Tensor
    counts: Tensor


class KeySum(NamedTuple):
    """A measure that adds up a row's weights, each times a number: ``Σ_j A[i, j] number[i, j]``.

    ``number`` is ``[text or 1, row or 1, key]``, of any type, ``counts`` as in ``PerRow``. Neither is a
    matter of weights, so that all such measures are prepared for all layers once, and cost one product.
    """

    number: Tensor
    counts: Tensor


class Total(NamedTuple):
    """A measure summed over the rows that count, with what tells rows with one open key from the others.

    ``value`` is ``[batch, head]``, ``counts`` (bool) and ``baseline`` are ``[batch or 1, 1, row]``, ``lone``
    is ``[batch or 1, head or 1, row]``: the values of rows with one open key, any number for others.
    """

    value: Tensor
    counts: Tensor
    baseline: Tensor
    lone: Tensor


class RowFigures(NamedTuple):
    """What is known of rows from the fused pass, float64, each ``[batch or 1, head or 1, row]``."""

    entropy: Tensor
    largest: Tensor
    total: Tensor
    open_keys: Tensor


Row: TypeAlias = "Block | RowFigures"


@dataclass(frozen=True)
class Form(ABC):
    """What a measure is a function of.

    ``needs`` says what it cannot do without: queries and keys on one sequence (``positions``), or tokens on
    an axis (``queries``, ``keys``). ``rows`` says in words which rows count. ``fused`` says whether the fused
    pass can tell it.
    """

    function: Callable[..., Any]
    needs: ClassVar[tuple[str, ...]] = ()
    rows: ClassVar[str] = "all rows"
    fused: ClassVar[bool] = True

    @abstractmethod
    def of_block(self, block: Block) -> PerRow | KeySum:
        """Measure the rows of a block."""

    def ask(self, name: str, request: Request, facts: TokenFacts | None) -> bool:
        """Ask the fused pass for what it must tell; false if it cannot. ``facts`` are those of the text."""
        return self.fused

    def of_statistics(self, name: str, statistics: Statistics, facts: TokenFacts | None) -> Total | None:
        """Measure all rows at once; ``None`` if that was not asked for. ``facts`` are those of the keys."""
        return None
