"""Every attention call of a model, and what is wrong with the attention that the model reports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeAlias

import torch
from torch import Tensor

from attnscope.attention import Attention, Site
from attnscope.capture import Failure, LayerWithoutAttention, RowSums, SiteRecord
from attnscope.capture.record import pattern
from attnscope.models import Model, ModelInput
from attnscope.questions.answer import Answer
from attnscope.questions.sentences import note_differences, note_unproved, number_ranges
from attnscope.records import Meaning, Notes, Parts, derived, record
from attnscope.views.table import BREAK, Cell, Column, Table

SAME = 1e-3  # row sums may differ by this much
ROUNDING = 1e-4  # two computations of one weight in float32 may differ by this much


def fault(own: Tensor, weights: Tensor, alive: Tensor) -> str | None:
    """What a model's own attention tensor for a call holds instead of its weights, or None if it holds them.

    Only rows that see a key are compared: ``alive``, [batch or 1, head or 1, query, 1].
    """
    shape, heads = tuple(weights.shape), weights.shape[1]
    weights, alive = weights.to(own.device), alive.to(own.device)
    if tuple(own.shape) == shape and _close(own, weights, alive):
        return None
    if own.ndim == 4 and heads > 1 and bool((own == own[:, :1]).all()):  # one map, perhaps repeated
        own = own[:, 0]
    if tuple(own.shape) == (shape[0], *shape[2:]) and heads > 1:
        mean = weights.mean(1)
        return "the mean over the heads" if _close(own, mean, alive.any(1)) else "one map for all heads"
    if tuple(own.shape) != shape:
        return f"a tensor of the shape {list(own.shape)}, where the weights are {list(shape)}"
    if bool((own < 0).any()):
        if _close(torch.softmax(own.float(), -1), weights, alive):
            return "scores from before the softmax"
        return "no weights: some are negative"
    if float(own.float().sum(-1).amax()) > 1 + SAME:
        return "no weights: rows sum to more than 1"
    return "other weights than those that were used"


def _close(one: Tensor, other: Tensor, alive: Tensor) -> bool:
    """Whether two tensors of weights differ by no more than rounding in the type of the first."""
    tolerance = max(ROUNDING, 4 * torch.finfo(one.dtype).eps)
    return bool((((one.float() - other.float()) * alive).abs() <= tolerance).all())


Verdict: TypeAlias = Literal["right", "wrong", "none"]

OWN_NAMES = {
    "encoder": ("encoder_attentions", "attentions"),
    "decoder": ("decoder_attentions", "attentions"),
    "cross": ("cross_attentions",),
}
"""Where transformers' models put the attention of each kind in their outputs."""


@record("an attention call")
class Sighting:
    """One attention call, and whether the model's own eager ``output_attentions`` has the same weights."""

    site: Annotated[SiteRecord, Parts()]
    low: float
    high: float
    report: Annotated[Verdict, Meaning("whether the model itself reports these weights", name="own_report")]
    fault: Annotated[str | None, Meaning("what it reports in their place", name="own_fault")] = None

    @derived("the smallest and the largest sum of a row")
    def row_sums(self) -> tuple[float, float]:
        """The range of its rows' sums."""
        return self.low, self.high


@record("every attention call of a model", "info")
class Survey:
    """Every attention call of a pass, the layers without one, what failed, and notes."""

    sightings: Annotated[tuple[Sighting, ...], Meaning("every call", name="sites")]
    without_attention: Annotated[
        tuple[LayerWithoutAttention, ...], Meaning("layers without attention", name="without")
    ]
    failures: Annotated[tuple[Failure, ...], Meaning("where the recording failed")]
    notes: Notes


def survey_model(model: Model, prepared: ModelInput) -> Survey:
    """Compare a run with eager ``output_attentions``, all layers in memory at once, with one as it is."""
    outputs = _own_outputs(model, prepared)
    reported = {kind: _reported_weights(outputs, kind) for kind in OWN_NAMES}
    sums, compared = RowSums(), _Compared(reported, prepared.lead)
    record = model.run(prepared, [sums, compared])
    ranges = {row_sum.site: row_sum for row_sum in sums.sums}
    sightings = [
        Sighting(site, ranges[site.site].low, ranges[site.site].high, *compared.verdict(site.site))
        for site in record.sites
    ]
    return Survey(
        tuple(sightings),
        tuple(record.without_attention),
        tuple(record.failures),
        (*model.notes, *prepared.notes, *record.notes),
    )


@dataclass(frozen=True, eq=False)
class _Compared:
    """Observer: compares every call with what the model reported, the n-th of a kind with the n-th."""

    reported: Mapping[str, Sequence[Tensor | None]]
    lead: str | None = None  # the one kind that is reported for a picture inside a text
    met: Counter[str] = field(default_factory=Counter)
    faults: dict[Site, str | None] = field(default_factory=dict)

    def observe(self, attention: Attention) -> None:
        site, size = attention.site, len(attention.queries)
        theirs = self.reported[site.kind][self.met[site.kind] :]
        self.met[site.kind] += 1
        if not theirs or theirs[0] is None:
            self.faults[site] = "nothing for this call"
            return
        alive = attention.allowed(0, size).any(-1, keepdim=True)
        self.faults[site] = fault(theirs[0], attention.rows(0, size), alive)

    def verdict(self, site: Site) -> tuple[Verdict, str | None]:
        theirs, met = self.reported[site.kind], self.met[site.kind]
        beside = self.lead is not None and self.met[self.lead] and site.kind == "encoder"
        if not theirs or beside:
            return "none", None
        if len(theirs) != met:
            return "wrong", f"{len(theirs):,} tensors for {met:,} calls"
        return ("right", None) if self.faults[site] is None else ("wrong", self.faults[site])


def _own_outputs(model: Model, prepared: ModelInput) -> Any:
    """The attention that the model returns on request, ``None`` if it cannot be asked."""
    if not hasattr(model.module, "set_attn_implementation"):
        return None
    module: Any = model.module
    before = module.config._attn_implementation
    try:
        module.set_attn_implementation("eager")
        with torch.inference_mode():
            run = getattr(module, prepared.entry)
            return run(**prepared.inputs, **prepared.settings, output_attentions=True, return_dict=True)
    except Exception:  # a model that fails on request reports nothing
        return None
    finally:
        module.set_attn_implementation(before)


def _reported_weights(outputs: Any, kind: str) -> Sequence[Tensor | None]:
    found = (getattr(outputs, name, None) for name in OWN_NAMES[kind])
    return next((each for each in found if isinstance(each, (tuple, list)) and each), ())


COLUMNS = ("layer", "kind", "module, kernel, weights", "heads", "size", "rows sum to", "own report")


def describe_model(model: Model, result: Survey) -> str:
    """Its name, type, layers and heads by kind of attention, parameters, and how many tokens it reads."""
    kinds: dict[str, list[SiteRecord]] = {}
    for sighting in result.sightings:
        kinds.setdefault(sighting.site.site.kind, []).append(sighting.site)
    sizes = []
    for kind, sites in kinds.items():
        layers, heads = len({site.site.layer for site in sites}), {site.heads for site in sites}
        size = f"{layers} layer{'s' * (layers > 1)} × {number_ranges(heads)} heads"
        sizes.append(f"{kind}: {size}" if len(kinds) > 1 else size)
    parts = [model.title, type(model.module).__name__, *sizes]
    parts.append(f"{sum(each.numel() for each in model.module.parameters()):,} parameters")
    parts += [f"{model.positions:,} positions"] if model.positions else []
    return " · ".join(parts)


def of_survey(result: Survey, title: str = "") -> Answer:
    """One line for calls that differ only in their numbers, the layers without attention, and notes."""
    rows: dict[tuple[Cell, ...], set[int]] = {}
    for sighting in result.sightings:
        rows.setdefault(_cells(sighting), set()).add(sighting.site.site.layer)
    table = Table(
        tuple(Column(name, long="fold" if name == COLUMNS[2] else "keep") for name in COLUMNS),
        tuple((number_ranges(layers), *cells) for cells, layers in rows.items()),
        title=title,
        notes=(*_without(result), *_notes(result), *result.notes),
        edge=True,
    )
    return Answer((table,), {}, lambda: result)


def _cells(sighting: Sighting) -> tuple[Cell, ...]:
    site = sighting.site
    low, high = (f"{value:.3g}" for value in (sighting.low, sighting.high))
    kernel = f"{site.kernel} {site.dtype}" + (f" window {site.window}" if site.window else "")
    return (
        site.site.kind,
        ((pattern(site.site.name), ""), BREAK, (f"{kernel}, {site.source}", "")),
        f"{site.heads}" if site.key_heads == site.heads else f"{site.heads}/{site.key_heads}",
        f"{site.queries}×{site.keys}",
        low if low == high else f"{low} to {high}",
        sighting.report,
    )


def _without(result: Survey) -> list[str]:
    """The layers without attention, grouped by reason."""
    reasons: dict[str, list[int]] = {}
    for layer in result.without_attention:
        reasons.setdefault(layer.reason, []).append(layer.layer)
    return [
        f"no attention in layers {number_ranges(set(layers))}: {reason}" for reason, layers in reasons.items()
    ]


def _notes(result: Survey) -> list[str]:
    notes = []
    if any(sighting.site.key_heads != sighting.site.heads for sighting in result.sightings):
        notes.append("heads: query heads / key-value heads")
    faults: dict[tuple[str, str], set[int]] = {}
    for sighting in result.sightings:
        if sighting.fault is not None:
            site = sighting.site.site
            faults.setdefault((site.kind, sighting.fault), set()).add(site.layer)
    for (kind, fault), layers in faults.items():
        where = f"{kind} layer{'s' * (len(layers) > 1)} {number_ranges(layers)}"
        notes.append(f"the model's own output_attentions are wrong in {where}: {fault}")
    notes += note_differences([sighting.site for sighting in result.sightings])
    proofs = [each.site.difference for each in result.sightings if each.site.difference is not None]
    if proofs:
        notes.append(
            f"weights × values reproduce the kernel's output within {max(proofs):.1g} in {len(proofs)} calls"
        )
    notes += note_unproved([sighting.site for sighting in result.sightings])
    product = [each for each in result.sightings if each.site.kernel == "product"]
    if any(each.low < 1 - 1e-3 or each.high > 1 + 1e-3 for each in product):
        notes.append("weights that no softmax made (product): rows need not sum to 1")
    if any(each.high < 1 - 1e-3 for each in result.sightings if each not in product):
        rest = "a sink that no token owns, or on padding"
        notes.append(f"rows that sum to less than 1 leave the rest on {rest}")
    return notes
