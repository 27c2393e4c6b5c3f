"""Sums and counts that figures are made of. They add up: over blocks, texts, processes and machines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from attnscope.measures.figures import Figure, FixedOffset

FARTHEST = 128
"""A fixed offset is looked for up to so many tokens to either side; farther ones share one bin."""

OFFSET_BINS = 2 * FARTHEST + 2


@dataclass
class Sums:
    """What has been added up for one site: ``[measure, head]`` float64, counts being exact up to 2^53.

    ``rows``, ``value`` and ``baseline`` add up the rows with a choice (two open keys or more);
    ``forced_*`` the other rows that count. ``texts`` counts the texts in which a row counted; the last
    three add up, over texts, the squared sum of values, the product of that sum with the number of rows,
    and the squared number of rows: the standard error is made of them. ``offsets`` counts, ``[head, bin]``,
    at what offset the largest weight sat, over rows with a choice; bin ``FARTHEST + offset``, the last bin
    for offsets farther away.
    """

    rows: Tensor
    value: Tensor
    baseline: Tensor
    forced_rows: Tensor
    forced_value: Tensor
    forced_baseline: Tensor
    texts: Tensor
    text_value_squared: Tensor
    text_value_rows: Tensor
    text_rows_squared: Tensor
    offsets: Tensor

    @classmethod
    def of_texts(cls, chosen: Tensor, forced: Tensor, offsets: Tensor) -> Sums:
        """Fold the sums of a batch of texts.

        ``chosen`` and ``forced`` are ``[rows|value|baseline, measure, text, head]``, ``offsets`` is
        ``[head, bin]``.
        """
        rows, value, _baseline = chosen + forced  # [measure, text, head]
        return cls(
            rows=chosen[0].sum(1),
            value=chosen[1].sum(1),
            baseline=chosen[2].sum(1),
            forced_rows=forced[0].sum(1),
            forced_value=forced[1].sum(1),
            forced_baseline=forced[2].sum(1),
            texts=(rows > 0).double().sum(1),
            text_value_squared=value.square().sum(1),
            text_value_rows=(value * rows).sum(1),
            text_rows_squared=rows.square().sum(1),
            offsets=offsets,
        )

    def add(self, other: Sums) -> None:
        """Add the other's sums to these."""
        for field in fields(self):
            getattr(self, field.name).add_(getattr(other, field.name))

    def copy(self) -> Sums:
        """The same sums, in memory of their own."""
        return Sums(*(getattr(self, field.name).clone() for field in fields(self)))

    def figures(self, forced: bool = True) -> list[list[Figure | None]]:
        """Averages over all rows that counted, or over those with a choice.  -> [head][measure]

        ``None`` where no row counted. The standard error is that of a ratio of sums over texts: with sums
        ``s_t`` over ``n_t`` rows of ``T`` texts and the figure ``f``, it is
        ``sqrt(T / (T - 1) Σ (s_t - f n_t)²) / Σ n_t`` (Cochran 1977, Sampling Techniques, 6.4).
        """
        rows = self.rows + self.forced_rows if forced else self.rows  # [measure, head]
        value = (self.value + self.forced_value if forced else self.value) / rows
        baseline = (self.baseline + self.forced_baseline if forced else self.baseline) / rows
        squares = (
            self.text_value_squared
            - 2 * value * self.text_value_rows
            + value.square() * self.text_rows_squared
        )
        error = (squares.clamp_min(0) * self.texts / (self.texts - 1)).sqrt() / rows
        columns = [tensor.T.tolist() for tensor in (value, baseline, rows, self.texts, error)]
        return [
            [
                Figure(v, b, int(n), int(t), e if forced and t > 1 else None) if n else None
                for v, b, n, t, e in zip(*head, strict=True)
            ]
            for head in zip(*columns, strict=True)
        ]

    def fixed_offset(self, head: int) -> FixedOffset | None:
        """The offset that the largest weight sits at most often; ``None`` if no row counted."""
        counts = self.offsets[head]
        rows = int(counts.sum())
        if rows == 0:
            return None
        bin_ = int(counts[:-1].argmax())
        return FixedOffset(bin_ - FARTHEST, float(counts[bin_]) / rows, rows)

    def state(self) -> dict[str, Any]:
        """The sums as plain lists, which JSON keeps exactly."""
        return {field.name: getattr(self, field.name).tolist() for field in fields(self)}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Sums:
        """The sums that ``state`` wrote down."""
        return cls(*(torch.tensor(state[field.name], dtype=torch.float64) for field in fields(cls)))


def offset_bins(largest: Tensor, positions: Tensor, counts: Tensor) -> Tensor:
    """How often the largest weight sits at each offset.

    ``largest`` is the key of each row's largest weight, ``[batch, head, row]``, ``positions`` ``[row]`` on
    the key axis, ``counts`` bool, ``[batch or 1, head or 1, row]``. -> ``[head, bin]``
    """
    heads = largest.shape[1]
    offset = largest - positions  # [batch, head, row]
    bin_ = torch.where(offset.abs() <= FARTHEST, offset + FARTHEST, OFFSET_BINS - 1)
    bin_ = bin_ + torch.arange(heads, device=largest.device)[:, None] * OFFSET_BINS
    chosen = bin_[counts.expand(bin_.shape)]
    return torch.bincount(chosen, minlength=heads * OFFSET_BINS).view(heads, OFFSET_BINS).cpu().double()
