"""What a captured map is compared with: the model's own attentions, and torch's own kernels."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attnscope.capture import Keep, Kept, Record, recording


def tensors(value: Any) -> Iterator[Tensor]:
    """All tensors in a nested output."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from tensors(part)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from tensors(part)


def attentions(output: Any, inside: bool = False) -> Iterator[Tensor]:
    """The tensors that an output files under a name that says attention."""
    if isinstance(output, dict):
        for name, part in output.items():
            yield from attentions(part, inside or "attentions" in str(name))
    elif isinstance(output, (list, tuple)):
        for part in output:
            yield from attentions(part, inside)
    elif isinstance(output, Tensor) and inside:
        yield output


def are_weights(own: Tensor) -> bool:
    """Whether a tensor is shaped like attention: 3 axes, not negative, rows of at most 1."""
    if own.ndim < 3 or not own.is_floating_point() or own.numel() == 0:
        return False
    rows = own.float().sum(-1)
    return bool((own >= 0).all()) and float(rows.max()) <= 1.001 and float(rows.max()) > 0.01


def are_sampled(own: Tensor, config: Any) -> bool:
    """Whether weights are of deformable attention: [batch, query, head, level, point], or flat behind."""
    levels = getattr(config, "num_feature_levels", None) or getattr(config, "encoder_in_channels", None)
    count = levels if isinstance(levels, int) else len(levels or ())
    points = {
        value for name, value in vars(config).items() if name.endswith("n_points") and isinstance(value, int)
    }
    per_level = own.ndim == 5 and own.shape[-2] == count and own.shape[-1] in points
    flat = own.ndim == 4 and own.shape[-1] in {count * several for several in points}
    return per_level or flat


def difference(kept: Kept, own: Tensor) -> float:
    """The largest difference, over queries that may see anything; infinite where shapes differ."""
    ours, alive = kept.weights, kept.allowed.any(-1, keepdim=True)
    queries, keys = own.shape[-2:]
    if own.ndim == 4 and own.shape[:2] == ours.shape[:2] and queries < ours.shape[2] and keys < ours.shape[3]:
        ours, alive = ours[:, :, -queries:, -keys:], alive[..., -queries:, :]  # without a learned prefix
    elif own.shape != ours.shape:
        if own.numel() != ours.numel() or own.shape[-2:] != ours.shape[-2:]:
            return float("inf")
        own = own.reshape(ours.shape)
    if not bool(alive.any()):
        return float("inf")
    return float(((ours - own) * alive).abs().max())


def gap(ours: Tensor, unit: Tensor) -> float:
    """The largest difference between tensors of one count and order."""
    if ours.numel() != unit.numel():
        return float("inf")
    return float((ours - unit.reshape(ours.shape)).abs().max())


def run(model: Any, given: dict[str, Any], **options: Any) -> tuple[Any, Record, list[Kept]]:
    """A recorded pass, with every head of every map."""
    everything = Keep(lambda site: None)

    class All:
        def observe(self, attention: Any) -> None:
            everything.select = lambda site: range(attention.heads)
            everything.observe(attention)

    torch.manual_seed(3)
    with torch.inference_mode(), recording(model, [All()]) as record:
        output = model(**given, **options)
    return output, record, everything.maps


def kernel_weights(model: Any, given: dict[str, Any]) -> list[Tensor]:
    """The weights of every call of torch's kernels in a pass, as torch itself gives them.

    Its kernel for queries, keys and values is called a second time with unit values; its whole multi-head
    attention is asked for its weights.
    """
    seen: list[Tensor] = []
    torch.manual_seed(3)
    with torch.inference_mode(), _watched(seen):
        model(**given)
    return seen


@contextmanager
def _watched(seen: list[Tensor]) -> Iterator[None]:
    kernel, whole = F.scaled_dot_product_attention, F.multi_head_attention_forward
    inside = [False]

    def watched(query: Tensor, key: Tensor, value: Tensor, *args: Any, **options: Any) -> Tensor:
        if not inside[0]:
            keys = key.shape[-2]
            unit = torch.eye(keys, dtype=value.dtype).expand(*key.shape[:-2], keys, keys)
            seen.append(kernel(query, key, unit, *args, **options))
        return kernel(query, key, value, *args, **options)

    def asked(*args: Any, **options: Any) -> Any:
        inside[0] = True
        try:
            telling = options | {"need_weights": True, "average_attn_weights": False}
            weights = whole(*args, **telling)[1]
            seen.append(weights if weights.ndim == 4 else weights[None])
            return whole(*args, **options)
        finally:
            inside[0] = False

    fast = torch.backends.mha.get_fastpath_enabled()
    F.scaled_dot_product_attention, F.multi_head_attention_forward = watched, asked
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        F.scaled_dot_product_attention, F.multi_head_attention_forward = kernel, whole
        torch.backends.mha.set_fastpath_enabled(fast)


def same(one: Any, other: Any) -> bool:
    """Whether two outputs are the same numbers, bit by bit."""
    pairs = list(zip(tensors(one), tensors(other), strict=True))
    return all(a.shape == b.shape and torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in pairs)
