"""One model type: captured maps under the default attention against the model's own eager ones."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attnscope.capture import Keep, Kept, Record, recording

CLOSE = 1e-5


@dataclass
class Result:
    """What happened with one type."""

    type: str
    model: str = ""
    built: bool = False
    identical: bool | None = None
    maps: int = 0
    own: int = 0  # tensors that the model's own eager output names attentions
    own_wrong: int = 0  # of those, the ones that are no attention weights
    matched: int = 0
    worst: float = 0.0
    kernels: list[str] = field(default_factory=list)
    unit: int = 0  # maps that equal what torch's kernel did with unit values, in another pass
    twin: int = 0  # maps that equal what the eager kernel weighed with, whether the model returns it or not
    note: str = ""

    def json(self) -> str:
        """One line."""
        return json.dumps(asdict(self))


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
    """A recorded pass."""
    everything = Keep(lambda site: None)

    class All:
        def observe(self, attention: Any) -> None:
            Keep.observe(everything, attention)

    counts: list[int] = []
    everything.select = lambda site: range(counts[-1])

    class Count:
        def observe(self, attention: Any) -> None:
            counts.append(attention.heads)

    torch.manual_seed(3)
    with torch.inference_mode(), recording(model, [Count(), All()]) as record:
        output = model(**given, **options)
    return output, record, everything.maps


def kernel_weights(model: Any, given: dict[str, Any]) -> list[Tensor]:
    """The weights of every call of torch's kernel in a pass: the same call, but with unit values."""
    kernel, seen = F.scaled_dot_product_attention, []

    def watched(query: Tensor, key: Tensor, value: Tensor, *args: Any, **options: Any) -> Tensor:
        keys = key.shape[-2]
        seen.append(kernel(query, key, torch.eye(keys).expand(*key.shape[:-2], keys, keys), *args, **options))
        return kernel(query, key, value, *args, **options)

    torch.manual_seed(3)
    F.scaled_dot_product_attention = watched
    try:
        with torch.inference_mode():
            model(**given)
    finally:
        F.scaled_dot_product_attention = kernel
    return seen


def same(one: Any, other: Any) -> bool:
    """Whether two outputs are the same numbers, bit by bit."""
    pairs = list(zip(tensors(one), tensors(other), strict=True))
    return all(a.shape == b.shape and torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in pairs)


def compare(result: Result, model: Any, eager: Any, given: dict[str, Any]) -> None:
    """Fill a result with what capture and the eager model say."""
    torch.manual_seed(3)
    with torch.inference_mode():
        plain = model(**given)
    output, record, maps = run(model, given)
    result.identical = same(plain, output)
    result.maps = len(maps)
    result.kernels = sorted({site.kernel for site in record.sites})
    units = kernel_weights(model, given)
    ours = [kept for kept, site in zip(maps, record.sites, strict=True) if site.source == "recomputed"]
    if len(units) == len(ours):
        result.unit = sum(gap(kept.weights, unit) <= CLOSE for kept, unit in zip(ours, units, strict=True))
    if eager is None:
        return
    eager.load_state_dict(model.state_dict())
    try:
        output, _, twins = run(eager, given, output_attentions=True)
    except TypeError:
        output, _, twins = run(eager, given)
    left = list(maps)
    for own in attentions(output):
        result.own += 1
        if not are_weights(own):
            result.own_wrong += 1
            continue
        for several in (left, maps):  # some models list one map twice
            gaps = [difference(kept, own) for kept in several]
            if gaps and min(gaps) <= CLOSE:
                result.matched += 1
                result.worst = max(result.worst, min(gaps))
                left = [kept for kept in left if kept is not several[gaps.index(min(gaps))]]
                break
    by_name = {(kept.site.name, kept.site.call): kept for kept in twins}
    for kept in maps:
        twin = by_name.get((kept.site.name, kept.site.call))
        result.twin += twin is not None and difference(kept, twin.weights) <= CLOSE
