"""The steps of a generation as one map a site: the whole text at once, one row a token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from attnscope.capture.keep import Kept


def stitched(maps: Sequence[Kept]) -> list[Kept]:
    """One map a site and call from the maps of a prefill and the cached steps behind it, in their order.

    Self-attention becomes a lower triangle over all positions: a step's row goes under the rows before it,
    and its keys to the positions that they are of, also where a sliding cache has dropped the first
    ones or a static cache holds places yet empty. Cross-attention grows by rows alone. Attention that
    ran once (an encoder's) stays as it is. Keys that a step no longer had are closed.

    Raises ``ValueError`` if the steps of a site have different heads or batches.
    """
    sites: dict[tuple[str, int], list[Kept]] = {}
    for kept in maps:
        sites.setdefault((kept.site.name, kept.site.call), []).append(kept)
    return [_joined(steps) if len(steps) > 1 else steps[0] for steps in sites.values()]


def _joined(steps: list[Kept]) -> Kept:
    """One map from all steps of one site."""
    first = steps[0]
    if any(step.heads != first.heads or len(step.weights) != len(first.weights) for step in steps):
        raise ValueError(f"the steps of {first.site.name} differ in their heads or their batch")
    queries = sum(step.weights.shape[2] for step in steps)
    keys = first.weights.shape[3] if first.offset is None else queries
    batch, heads = first.weights.shape[:2]
    mask_batch, mask_heads = (max(step.allowed.shape[axis] for step in steps) for axis in (0, 1))
    weights = first.weights.new_zeros(batch, heads, queries, keys)
    allowed = first.allowed.new_zeros(mask_batch, mask_heads, queries, keys)
    row = 0
    for step in steps:
        shift = 0 if step.offset is None else row - step.offset
        stop = row + step.weights.shape[2]
        _put(weights[:, :, row:stop], step.weights, shift)
        _put(allowed[:, :, row:stop], step.allowed, shift)
        row = stop
    axis = first.keys if first.offset is None else range(queries)
    return replace(first, weights=weights, allowed=allowed, queries=range(queries), keys=axis)


def _put(rows: Tensor, step: Tensor, shift: int) -> None:
    """Write a step's keys to their positions; what lies outside is not there."""
    start, stop = max(0, shift), min(rows.shape[-1], shift + step.shape[-1])
    rows[..., start:stop] = step[..., start - shift : stop - shift]
