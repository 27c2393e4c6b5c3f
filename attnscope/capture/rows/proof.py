"""The proof of captured weights: a few rows of weights times values, against what the kernel returned."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from attnscope.attention import RowSource

TOLERANCES = {torch.float16: 0.02, torch.bfloat16: 0.02}
TOLERANCE = 1e-4


UNPROVED = {
    "kernel": "the kernel returned nothing of the shape of heads and queries",
    "recomputed": "the kernel drops weights at random, or returned nothing of the shape of heads and queries",
    "softmax": "what the weights and values gave has no axis for each of heads and queries, or another type",
    "module": "the module shows weights alone, and neither values nor what they gave",
    "file": "a file holds no values",
}
"""Why nothing was compared, by the source of the weights."""


def tolerance(dtype: torch.dtype) -> float:
    """The difference up to which weights count as the kernel's, in the type that it computed in."""
    return TOLERANCES.get(dtype, TOLERANCE)


@torch.no_grad()
def compare_rows(
    rows: RowSource, value: Tensor, output: Tensor, finish: Callable[[Tensor, int], Tensor] | None = None
) -> float:
    """The largest difference between a few rows of weights @ values and the output, of the largest value.

    ``value`` is [batch, key_head, key, size] and ``output`` [batch, head, query, size]. The rows in the
    middle and at the end are read, in all heads; where the kernel gave no finite number, nothing differs.
    ``finish`` is what a kernel does with the heads of a row, [batch, head, size], before it returns them as
    one, [batch, size].
    """
    queries = output.shape[2]
    largest, worst = float((value if finish is None else output.nan_to_num()).abs().amax()), 0.0
    for row in sorted({queries // 2, queries - 1}):
        weights = rows.rows(row, row + 1, None)[:, :, 0]  # [batch, head, key]
        values = value.to(weights.dtype)
        grouped = weights.reshape(
            len(weights), values.shape[1], -1, weights.shape[-1]
        )  # [batch, key_head, group, key]
        mixed = (grouped @ values).flatten(1, 2)  # [batch, head, size]
        mixed = mixed if finish is None else finish(mixed, row).unsqueeze(1)
        gap = (mixed - output[:, :, row]).abs().where(output[:, :, row].isfinite(), 0)
        worst = max(worst, float(gap.nan_to_num(torch.inf).amax()))
    return worst / largest if largest else worst
