"""The check of captured weights: a few rows of weights × values against the kernel's output."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from attnscope.attention import HeldRows, RowSource, SomeHeads
from attnscope.capture.record import tolerance
from attnscope.capture.rows.scores import ScoredRows

SOME = 64  # about this many keys are enough for the magnitude of the values


def sample_rows(queries: int) -> tuple[int, ...]:
    """The sampled rows: the first, the middle and the last one."""
    return tuple(sorted({0, queries // 2, queries - 1}))


@torch.no_grad()
def compare_rows(
    rows: RowSource,
    value: Tensor,
    output: Tensor,
    finish: Callable[[Tensor, Sequence[int]], Tensor] | None = None,
) -> float:
    """The largest error of a few rows of weights @ values against the output, relative to the largest value.

    ``value`` is [batch, key_head, key, size] and ``output`` [batch, head, query, size]. Rows are read in
    all heads; NaNs and infinities of the kernel are ignored. The magnitude of the values is estimated
    from some of them and from these rows: reading all of them would cost one more pass over memory.
    ``finish`` is what a kernel does with the heads of a few rows, [batch, head, row, size], before it
    returns [batch, row, size].
    """
    places = sample_rows(output.shape[2])
    mixed = mix(sampled_weights(rows, places), value)  # [batch, head, row, size]
    mixed = mixed if finish is None else finish(mixed, places).unsqueeze(1)
    given = output[:, :, list(places)]
    gap = (mixed - given).abs().where(given.isfinite(), 0)
    worst = float(gap.nan_to_num(torch.inf).amax())
    some = [given] if finish is not None else [given, value[:, :, :: max(1, value.shape[2] // SOME)]]
    largest = max(float(part.nan_to_num(0.0, 0.0, 0.0).abs().amax()) for part in some)
    return worst / largest if largest else worst


def join_differences(differences: Sequence[float | None], dtype: torch.dtype) -> float | None:
    """The error of parts of one attention: None if one is unknown, unless another is wrong."""
    known = [each for each in differences if each is not None]
    most = max(known, default=None)
    whole = len(known) == len(differences)
    return most if whole or (most is not None and not most <= tolerance(dtype)) else None


def mix(weights: Tensor, values: Tensor) -> Tensor:
    """Weights times values, which several heads may share.

    [batch, head, row, key], [batch, key_head, key, size] -> [batch, head, row, size]
    """
    batch, heads, count, keys = weights.shape
    values = values.to(weights.dtype)
    grouped = weights.reshape(batch, values.shape[1], -1, keys)  # [batch, key_head, group·row, key]
    return (grouped @ values).view(batch, heads, count, -1)


def sampled_weights(rows: RowSource, places: tuple[int, ...]) -> Tensor:
    """The weights of a few queries.  -> [batch, head, row, key]"""
    if isinstance(rows, ScoredRows):
        return rows.pick(places)
    return torch.cat([rows.rows(row, row + 1, None) for row in places], 2)


ReadScores: TypeAlias = Callable[[int, int, "Sequence[int] | None"], Tensor]
"""The input of the softmax, for some queries and heads.  -> [batch, head, row, key]"""


def find_scores(read: RowSource) -> ReadScores | None:
    """The scores behind rows; ``None`` if only weights are known, or if rows are not a softmax of scores."""
    if hasattr(read, "source"):  # rows of a trace are read on demand
        read = read.source()
    if isinstance(read, ScoredRows):
        return read.scores
    if isinstance(read, SomeHeads):
        scores, chosen = find_scores(read.all), read.chosen
        return scores and (lambda start, stop, heads: scores(start, stop, chosen))
    if not isinstance(read, HeldRows) or read.call is None:
        return None
    made, places = ScoredRows(read.call), sample_rows(read.weights.shape[2])
    gap = (made.pick(places) - read.weights[:, :, list(places)]).abs().amax()
    return made.scores if float(gap) <= tolerance(read.weights.dtype) else None
