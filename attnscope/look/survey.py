"""What can be seen of a model: every attention call of one pass, and what the model says of itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from attnscope.attention import Attention
from attnscope.capture import Hole, RowSums, SiteRecord
from attnscope.models import Model, Prepared

Verdict: TypeAlias = Literal["right", "wrong", "none"]

ROUNDING = 1e-4
"""Two computations of one weight in float32 differ by less."""

OWN_NAMES = {
    "encoder": ("encoder_attentions", "attentions"),
    "decoder": ("decoder_attentions", "attentions"),
    "cross": ("cross_attentions",),
}
"""Where transformers' models put the attention of each kind in their outputs."""


@dataclass(frozen=True)
class Sighting:
    """One attention call: what it is, the range of its rows' sums, and whether the model reports it rightly.

    ``report`` compares the model's own eager ``output_attentions`` with the captured weights: "right",
    "wrong" (other numbers, or another shape), or "none".
    """

    seen: SiteRecord
    low: float
    high: float
    report: Verdict


@dataclass(frozen=True)
class Survey:
    """Every attention call of a pass, the layers that have none, and what to know about the model."""

    sightings: tuple[Sighting, ...]
    holes: tuple[Hole, ...]
    notes: tuple[str, ...]


def survey(model: Model, prepared: Prepared) -> Survey:
    """Run the model once as it is and once with eager ``output_attentions``, and compare the two.

    Holds all weights of the text at once, so the text should be short.
    """
    sums, every = RowSums(), _EveryHead([])
    record = model.run(prepared, [sums, every])
    reported = {
        kind: _reported(outputs, kind) for outputs in [_own_outputs(model, prepared)] for kind in OWN_NAMES
    }
    met = dict.fromkeys(OWN_NAMES, 0)
    sightings = []
    for seen, row_sum, weights in zip(record.sites, sums.sums, every.weights, strict=True):
        kind = seen.site.kind
        count = sum(site.site.kind == kind for site in record.sites)
        theirs = reported[kind]
        own = theirs[met[kind]] if len(theirs) == count else None
        met[kind] += 1
        report = "wrong" if own is None and theirs else _verdict(weights, own)
        sightings.append(Sighting(seen, row_sum.low, row_sum.high, report))
    return Survey(tuple(sightings), tuple(record.holes), (*model.notes, *prepared.notes))


@dataclass(frozen=True, eq=False)
class _EveryHead:
    """Keeps the weights of every call, in the order they ran."""

    weights: list[Tensor]

    def observe(self, attention: Attention) -> None:
        self.weights.append(attention.weights().clone())


def _own_outputs(model: Model, prepared: Prepared) -> Any:
    """What the model returns when asked for its attention, ``None`` if it cannot be asked."""
    if not hasattr(model.module, "set_attn_implementation"):
        return None
    try:
        with _eager(model.module), torch.inference_mode():
            return model.module(
                **prepared.inputs, **prepared.settings, output_attentions=True, return_dict=True
            )
    except Exception:  # a model that fails when asked reports nothing
        return None


@contextmanager
def _eager(module: Any) -> Iterator[None]:
    before = module.config._attn_implementation
    module.set_attn_implementation("eager")
    try:
        yield
    finally:
        module.set_attn_implementation(before)


def _reported(outputs: Any, kind: str) -> Sequence[Tensor | None]:
    for name in OWN_NAMES[kind]:
        found = getattr(outputs, name, None)
        if isinstance(found, (tuple, list)) and found:
            return found
    return ()


def _verdict(weights: Tensor, own: Tensor | None) -> Verdict:
    if own is None:
        return "none"
    if own.shape != weights.shape:
        return "wrong"
    close = torch.allclose(own.float(), weights.to(own.device).float(), rtol=0, atol=_tolerance(own))
    return "right" if close else "wrong"


def _tolerance(own: Tensor) -> float:
    """Rounding of the type that the model computes in."""
    return max(ROUNDING, 4 * torch.finfo(own.dtype).eps)
