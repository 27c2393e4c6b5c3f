"""Every attention call of a model, and what is wrong with those that it reports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeAlias

import torch
from torch import Tensor

from attnscope.attention import Attention, RowSource, Site
from attnscope.capture import Failure, LayerWithoutAttention, RowSums, SiteRecord, recording
from attnscope.capture.record import FunctionObserver, beyond_rounding, pattern
from attnscope.errors import AttnscopeError, out_of_memory
from attnscope.models import Model, ModelInput
from attnscope.questions.answer import Answer
from attnscope.questions.sentences import group_by, layers_of, note_differences, note_unproved
from attnscope.records import Meaning, Notes, Parts, record
from attnscope.text import number_ranges
from attnscope.views import BREAK, Cell, Column, Table

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
    if _close(torch.softmax(own.float(), -1), weights, alive):
        return "scores from before the softmax"
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
    report: Annotated[Verdict, Meaning("whether the model itself reports these weights", name="own_report")]
    fault: Annotated[str | None, Meaning("what it reports in their place", name="own_fault")]
    row_sums: Annotated[tuple[float, float], Meaning("the smallest and the largest sum of a row")]


@record("every attention call of a model", "info")
class Survey:
    """Every attention call of a pass, the layers without one, what failed, and notes."""

    sightings: Annotated[tuple[Sighting, ...], Meaning("every call", name="sites")]
    without_attention: Annotated[
        tuple[LayerWithoutAttention, ...], Meaning("layers without attention", name="without")
    ]
    failures: Annotated[tuple[Failure, ...], Meaning("where the recording failed")]
    notes: Notes

    @property
    def calls(self) -> tuple[SiteRecord, ...]:
        """The calls alone."""
        return tuple(sighting.site for sighting in self.sightings)


def survey_model(model: Model, prepared: ModelInput) -> Survey:
    """Compare a run with eager ``output_attentions``, all layers in memory at once, with one as it is.

    The n-th call of a kind of attention is compared with the n-th tensor that the model reports of it.
    """
    outputs = _own_outputs(model, prepared)
    reported = {kind: _reported_weights(outputs, kind) for kind in OWN_NAMES}
    sums, met, faults = RowSums(), Counter[str](), dict[Site, str | None]()

    def compare(attention: Attention) -> None:
        site, size = attention.site, len(attention.queries)
        theirs = reported[site.kind][met[site.kind] :]
        met[site.kind] += 1
        if not theirs or theirs[0] is None:
            faults[site] = "nothing for this call"
            return
        alive = attention.allowed(0, size).any(-1, keepdim=True)
        faults[site] = fault(theirs[0], attention.rows(0, size), alive)

    def verdict(site: Site) -> tuple[Verdict, str | None]:
        theirs, calls = reported[site.kind], met[site.kind]
        # of a picture inside a text, the text's attention alone is reported
        if not theirs or (
            prepared.first_kind is not None and met[prepared.first_kind] and site.kind == "encoder"
        ):
            return "none", None
        if len(theirs) != calls:
            return "wrong", f"{len(theirs):,} tensors for {calls:,} calls"
        return ("right", None) if faults[site] is None else ("wrong", faults[site])

    record = model.run(prepared, [sums, FunctionObserver(compare)])
    return Survey(
        tuple(Sighting(site, *verdict(site.site), sums.ranges[site.site]) for site in record.sites),
        tuple(record.without_attention),
        tuple(record.failures),
        (*model.notes, *prepared.notes, *record.notes),
    )


def _own_outputs(model: Model, prepared: ModelInput) -> Any:
    """The attention that the model returns on request, ``None`` if it cannot be asked."""
    if not hasattr(model.module, "set_attn_implementation"):
        return None
    module: Any = model.module
    configs = {id(each): each for part in module.modules() if (each := getattr(part, "config", None))}
    chosen = "_attn_implementation_internal"  # its setter refuses what a backbone in another library lacks
    before = [(each, getattr(each, chosen)) for each in configs.values() if hasattr(each, chosen)]
    try:
        module.set_attn_implementation("eager")
        # recorded, so that it may attend no more often than a pass that is shown
        with torch.inference_mode(), recording(module, warn=False):
            run = getattr(module, prepared.entry)
            return run(**prepared.inputs, **prepared.settings, output_attentions=True, return_dict=True)
    except Exception as error:  # a model that fails on request reports nothing
        if isinstance(error, AttnscopeError) or out_of_memory(error):
            raise
        return None
    finally:
        for each, implementation in before:
            setattr(each, chosen, implementation)


def _reported_weights(outputs: Any, kind: str) -> Sequence[Tensor | None]:
    reported = (getattr(outputs, name, None) for name in OWN_NAMES[kind])
    return next((each for each in reported if isinstance(each, (tuple, list)) and each), ())


COLUMNS = ("layer", "kind", "module, kernel, weights", "heads", "size", "rows sum to", "own report")


def describe_model(model: Model, result: Survey) -> str:
    """Its name, type, layers and heads by kind of attention, parameters, and how many tokens it reads."""
    sizes, kinds = [], group_by(result.calls, lambda call: call.site.kind)
    for kind, sites in kinds.items():
        layers, heads = len({site.site.layer for site in sites}), {site.heads for site in sites}
        size = f"{layers} layer{'s' * (layers > 1)} × {number_ranges(heads)} heads"
        sizes.append(f"{kind}: {size}" if len(kinds) > 1 else size)
    parts = [model.title, type(model.module).__name__, *sizes]
    parts.append(f"{sum(each.numel() for each in model.module.parameters()):,} parameters")
    parts += [f"{model.positions:,} positions"] if model.positions else []
    return " · ".join(parts)


def survey_answer(result: Survey, title: str = "") -> Answer:
    """One line for calls that differ only in their numbers, the layers without attention, and notes."""
    rows = group_by(result.sightings, _cells)
    table = Table(
        tuple(Column(name, long="fold" if name == COLUMNS[2] else "keep") for name in COLUMNS),
        tuple(
            (number_ranges(each.site.site.layer for each in alike), *cells) for cells, alike in rows.items()
        ),
        title=title,
        notes=(*_notes(result), *result.notes),
        edge=True,
    )
    return Answer((table,), {}, lambda: result)


def _cells(sighting: Sighting) -> tuple[Cell, ...]:
    site = sighting.site
    low, high = (f"{value:.3g}" for value in sighting.row_sums)
    return (
        *_kernel_cells(site),
        f"{site.queries}×{site.keys}",
        low if low == high else f"{low} to {high}",
        sighting.report,
    )


def _kernel_cells(site: SiteRecord) -> tuple[Cell, ...]:
    kernel = f"{site.kernel} {site.dtype}" + (f" window {site.window}" if site.window else "")
    return (
        site.site.kind,
        ((pattern(site.site.name), ""), BREAK, (f"{kernel}, {site.source}", "")),
        f"{site.heads}" if site.key_heads == site.heads else f"{site.heads}/{site.key_heads}",
    )


def _notes(result: Survey) -> list[str]:
    """What is odd about calls."""
    notes = []
    if any(call.key_heads != call.heads for call in result.calls):
        notes.append("heads: query heads / key-value heads")
    faulty = [each for each in result.sightings if each.fault is not None]
    for (kind, fault), alike in group_by(faulty, lambda each: (each.site.site.kind, each.fault)).items():
        where = f"{kind} {layers_of(each.site for each in alike)}"
        notes.append(f"the model's own output_attentions are wrong in {where}: {fault}")
    notes += note_differences(result.calls)
    proofs = [call.difference for call in result.calls if call.difference is not None]
    if proofs:
        within = f"within {max(proofs):.1g} in {len(proofs)} calls"
        notes.append(f"weights × values reproduce the kernel's output {within}")
    notes += note_unproved(result.calls)
    if any(each.row_sums[1] < 1 - SAME for each in result.sightings):
        rest = "a sink that no token owns, or on padding"
        notes.append(f"rows that sum to less than 1 leave the rest on {rest}")
    return notes


@record("an attention call, or a layer without a softmax, and its proof")
class LayerProof:
    """One call, and how far its rows are from what identity values give."""

    site: Annotated[SiteRecord, Parts()]
    error: Annotated[
        float | None,
        Meaning("largest difference of the rows that identity values give; null where none can be fed"),
    ]
    row_sums: Annotated[tuple[float, float], Meaning("the smallest and the largest sum of a row")]

    @property
    def kind(self) -> str:
        """What was compared: the ``rows`` that are shown, or the layer's ``output``."""
        return "output" if self.error is None or self.site.source == "probe" else "rows"

    @property
    def shown_error(self) -> float | None:
        """That of the rows, or of weights × values."""
        return self.site.difference if self.error is None else self.error


@record("how each layer was proved by identity values (--prove)", "info")
class ModelProof:
    """Every call with its proof, and the layers without one."""

    proofs: Annotated[tuple[LayerProof, ...], Meaning("every call", name="sites")]
    without_attention: Annotated[
        tuple[LayerWithoutAttention, ...],
        Meaning("layers that are no matrix, or were not seen", name="without"),
    ]
    notes: Notes


def prove_model(model: Model, prepared: ModelInput) -> ModelProof:
    """Feed identity values to every kernel, and compare what comes back with the rows that are shown."""
    sums, errors = RowSums(), dict[Site, float]()

    def compare(attention: Attention) -> None:
        probe: RowSource | None = getattr(attention, "probe", None)
        if probe is not None:
            both = (rows.rows(0, len(attention.queries), None).float() for rows in (probe, attention))
            errors[attention.site] = float(torch.sub(*both).abs().max())

    model.learn_kinds(prepared)
    observers = (sums, FunctionObserver(compare))
    with (
        model.without_gradients(),
        model.threads(prepared),
        recording(model.module, observers, prepared.labels, warn=False, mixers=True) as seen,
    ):
        prepared.call(model.module)
    model.note_seal(prepared, seen)
    proofs = (
        LayerProof(
            each,
            each.difference if each.source == "probe" else errors.get(each.site),
            sums.ranges[each.site],
        )
        for each in seen.sites
    )
    notes = (*model.notes, *prepared.notes, *seen.notes)
    return ModelProof(tuple(proofs), tuple(seen.without_attention), tuple(dict.fromkeys(notes)))


def proof_answer(result: ModelProof, title: str = "") -> Answer:
    """One line for layers that were proved alike, with the largest error of them."""
    lines, groups = [], group_by(result.proofs, lambda each: (_kernel_cells(each.site), each.kind))
    for (cells, kind), alike in groups.items():
        errors = [each.shown_error for each in alike if each.shown_error is not None]
        proof = f"{max(errors):.0e} of {kind}" if errors else "none"
        if any(beyond_rounding(each.shown_error, each.site.dtype) for each in alike):
            proof = f"not proved: {proof}"
        low, high = (min(each.row_sums[0] for each in alike), max(each.row_sums[1] for each in alike))
        layers = number_ranges(each.site.site.layer for each in alike)
        lines.append((layers, *cells, f"{low:.3g} to {high:.3g}", proof))
    columns = tuple(
        Column(name, long="fold" if name == PROOF_COLUMNS[2] else "keep") for name in PROOF_COLUMNS
    )
    kinds = {kind for _, kind in groups}
    notes = (*(sentence for kind, sentence in PROOF_NOTES.items() if kind in kinds), *result.notes)
    return Answer((Table(columns, tuple(lines), title=title, notes=notes, edge=True),), {}, lambda: result)


PROOF_COLUMNS = ("layer", "kind", "module, kernel, weights", "heads", "rows sum to", "error")
PROOF_NOTES = {
    "rows": "of rows: the kernel ran on identity values, and gave the rows that are shown but for this error",
    "output": "of output: weights × values give the output but for this error, over its largest number",
}
