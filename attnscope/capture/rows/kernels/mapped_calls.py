"""Attention inside of ``torch.vmap``, which hides the axis that it maps over, as a ``Capture``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from attnscope.capture.hooks.modules import Call
from attnscope.capture.placing.kinds import texts_in_batch
from attnscope.capture.rows.capture import Capture, Unknown
from attnscope.capture.rows.kernels.sdpa import ARGUMENTS, sdpa_call
from attnscope.capture.rows.mapped import batch_first, reveal
from attnscope.capture.rows.weighing import Weighing

UNORDERED = Unknown(
    "torch.vmap hides its heads or its texts, which are as many, so that nothing tells them apart"
)


def capture_mapped_weighing(
    weighing: Weighing, calls: Sequence[Call], heads: int | None
) -> Capture | Unknown:
    """Attention of a softmax in a mapped function, if something tells its batch from its heads."""
    parts = [weighing.weights] if weighing.masked is None else [weighing.weights, weighing.masked]
    batch = texts_in_batch(calls, weighing.weights.shape[-2])
    ordered = _order(parts, calls, batch)
    if ordered is None:
        return UNORDERED
    weights, *masked = ordered
    call = replace(weighing, weights=weights, masked=masked[0] if masked else None, values=None)
    return Capture.of_weighing(call, batch, heads)


def capture_mapped_sdpa(
    args: Sequence[Any], kwargs: dict[str, Any], result: Tensor, calls: Sequence[Call]
) -> Capture | Unknown:
    """A mapped call of torch's own kernel, if something tells its batch from its heads."""
    given = dict(zip(ARGUMENTS, args, strict=False)) | kwargs
    names = [name for name in ARGUMENTS if isinstance(given.get(name), Tensor)]  # the query first
    parts = [*(given[name] for name in names), result]
    axes = max(part.ndim for part in parts)
    batch = texts_in_batch(calls, given["query"].shape[-2])
    ordered = _order([part[(None,) * (axes - part.ndim)] for part in parts], calls, batch)
    if ordered is None:
        return UNORDERED
    parts = ordered
    lead = parts[0].shape[: max(1, parts[0].ndim - 3)]
    parts = [part.expand(*lead, *part.shape[len(lead) :]).flatten(0, len(lead) - 1) for part in parts]
    call = sdpa_call((), given | dict(zip(names, parts, strict=False)), batch)
    return Capture.of_call(call, "sdpa").proved(call.value, parts[-1].reshape(*call.query.shape[:3], -1))


def _order(parts: Sequence[Tensor], calls: Sequence[Call], batch: int) -> list[Tensor] | None:
    """All axes of some tensors, the batch in front of the heads.

    What is mapped around the module is the batch. What the module itself maps over may be its heads.
    """
    revealed = reveal(*parts)
    return revealed if calls[-1].hidden else batch_first(revealed, batch)
