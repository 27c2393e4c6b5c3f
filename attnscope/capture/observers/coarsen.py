"""An observer that keeps every head with fewer rows and columns than it has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

import torch
from torch import Tensor

from attnscope.attention import Attention, Axis, Site
from attnscope.memory import require

BLOCK = 1 << 23
"""Weights computed at a time: 32 MB of float32."""

BYTES = 16
"""What a cell takes while it is being made: its weight and how open it is, in blocks and put together."""

Folding: TypeAlias = "tuple[Tensor | None, Tensor | None]"
"""What to do with the rows, ``[row group, query]``, and the columns, ``[key group, key]``, of a map."""


@dataclass(frozen=True, eq=False)
class Folded:
    """The heads of one attention call, folded.

    ``open`` is False where the mask closes everything that went into a cell. ``broken`` counts the
    weights that were not finite numbers; they count as 0, and as closed.
    """

    site: Site
    values: Tensor  # [batch, head, row group, key group]
    open: Tensor  # bool, [batch or 1, head or 1, row group, key group]
    queries: Axis
    keys: Axis
    broken: int

    @property
    def mean(self) -> Tensor:
        """The mean over the batch, as figures are over all of it.  -> [head, row group, key group]"""
        return self.values.mean(0)

    @property
    def opened(self) -> Tensor:
        """Where the mask leaves something open in any of the batch.  -> [head or 1, row group, key group]"""
        return self.open.any(0)


@dataclass(eq=False)
class Fold:
    """Keeps ``down @ weights @ across.T`` of every head of every call that ``folding`` has an answer for.

    ``folding`` is asked once a call, and answers with ``(down, across)``, or with ``None`` to keep nothing
    of it. Each is a matrix of non-negative numbers, or ``None`` for an axis that stays as it is: rows of
    ``down`` that sum to 1 average queries, rows of ``across`` that hold ones add up keys. Weights are
    computed in blocks of rows, so memory is that of the result.
    """

    folding: Callable[[Attention], Folding | None]
    maps: list[Folded] = field(default_factory=list)

    def observe(self, attention: Attention) -> None:
        """Fold all heads of one call and keep the result in ``maps``."""
        folding = self.folding(attention)
        if folding is None:
            return
        down, across = folding
        size = len(attention.queries)
        cells = (size if down is None else len(down)) * (
            len(attention.keys) if across is None else len(across)
        )
        heads = attention.batch * attention.heads
        require(
            BYTES * heads * cells,
            f"{heads:,} heads of layer {attention.site.layer} in {cells:,} cells each",
            "choose one layer, or cut the text",
        )
        step = max(1, BLOCK // max(1, attention.batch * attention.heads * len(attention.keys)))
        values: list[Tensor] = []
        opened: list[Tensor] = []
        broken = 0
        for start in range(0, size, step):
            stop = min(size, start + step)
            rows = attention.rows(start, stop).float()  # [batch, head, row, key]
            finite = rows.isfinite()
            allowed = attention.allowed(start, stop)  # [batch or 1, head or 1, row, key]
            if not finite.all():
                broken += int((~finite).sum())
                rows = rows.where(finite, 0)
                allowed = allowed & finite
            part = None if down is None else down[:, start:stop].to(rows)
            _keep(values, _fold(rows, part, across), summed=down is not None)
            _keep(opened, _fold(allowed.float(), part, across), summed=down is not None)
        self.maps.append(
            Folded(
                site=attention.site,
                values=torch.cat(values, 2),
                open=torch.cat(opened, 2) > 0,
                queries=attention.queries,
                keys=attention.keys,
                broken=broken,
            )
        )


def _keep(parts: list[Tensor], part: Tensor, summed: bool) -> None:
    """Add the rows of a block to those before: as further rows, or into the one sum of them all."""
    if summed and parts:
        parts[0] += part
    else:
        parts.append(part)


def _fold(rows: Tensor, down: Tensor | None, across: Tensor | None) -> Tensor:
    """[..., row, key] -> [..., row group, key group]"""
    if across is not None:
        rows = rows @ across.to(rows).mT
    return rows if down is None else down @ rows
