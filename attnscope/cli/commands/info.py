"""A survey on its way out: a table for people, plain data for programs."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import typer

from attnscope.cli.command import argument, command, flag
from attnscope.cli.deliver import print_answer
from attnscope.cli.options import ModelOptions, NumbersOptions, SourceOptions
from attnscope.cli.source import read_source, reading
from attnscope.text import visible

if TYPE_CHECKING:
    from attnscope.models import Model, ModelInput
    from attnscope.questions.audit import Audit
    from attnscope.questions.info import Sighting, Survey


COLUMNS = ("layer", "kind", "module, kernel, weights", "heads", "size", "rows sum to", "own report")
LONG = COLUMNS[2]


def survey_numbers(result: Survey) -> dict[str, Any]:
    """A survey as plain data, every call by itself."""
    from attnscope.questions.answer import site_numbers

    return {
        "notes": list(result.notes),
        "sites": [
            site_numbers(sighting.site)
            | {"row_sums": [sighting.low, sighting.high]}
            | {"own_report": sighting.report, "own_fault": sighting.fault}
            for sighting in result.sightings
        ],
        "without": [
            {"name": layer.name, "layer": layer.layer, "reason": layer.reason}
            for layer in result.without_attention
        ],
        "failures": [{"name": failure.name, "reason": failure.reason} for failure in result.failures],
    }


def audit_numbers(result: Audit) -> dict[str, Any]:
    """An audit as plain data."""
    return {
        "complete": result.complete,
        "sentences": list(result.sentences),
        "held": [{"name": site.name, "kind": site.kind, "layer": site.layer} for site in result.sites],
        "mixers": [asdict(mixer) for mixer in result.mixers],
    }


def print_survey(result: Survey) -> None:
    """One line for calls that differ in nothing but their numbers, the layers without, and what to know."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from attnscope.questions.sentences import number_ranges

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in COLUMNS:
        table.add_column(name, overflow="fold", no_wrap=name != LONG)
    for layers, cells in _merge(result):
        table.add_row(
            number_ranges(layers),
            *(Text("\n".join(visible(line) for line in cell.split("\n"))) for cell in cells),
        )
    console = Console(highlight=False)
    console.print(table)
    for note in (*_without(result), *_notes(result), *result.notes):
        console.print(Text(f"· {visible(note)}"), style="dim")


def _merge(result: Survey) -> list[tuple[set[int], tuple[str, ...]]]:
    """Sightings with the same cells as one row of several layers."""
    rows: dict[tuple[str, ...], set[int]] = {}
    for sighting in result.sightings:
        rows.setdefault(_cells(sighting), set()).add(sighting.site.site.layer)
    return [(layers, cells) for cells, layers in rows.items()]


def _cells(sighting: Sighting) -> tuple[str, ...]:
    site = sighting.site
    low, high = (f"{value:.3g}" for value in (sighting.low, sighting.high))
    dtype = site.dtype
    kernel = f"{site.kernel} {dtype}" + (f" window {site.window}" if site.window else "")
    return (
        site.site.kind,
        re.sub(r"(^|\.)\d+(?=\.|$)", r"\1*", site.site.name) + f"\n{kernel}, {site.source}",
        f"{site.heads}" if site.key_heads == site.heads else f"{site.heads}/{site.key_heads}",
        f"{site.queries}×{site.keys}",
        low if low == high else f"{low} to {high}",
        sighting.report,
    )


def _without(result: Survey) -> list[str]:
    """The layers that have no attention, those of one reason together."""
    from attnscope.questions.sentences import number_ranges

    reasons: dict[str, list[int]] = {}
    for layer in result.without_attention:
        reasons.setdefault(layer.reason, []).append(layer.layer)
    return [
        f"no attention in layers {number_ranges(set(layers))}: {reason}" for reason, layers in reasons.items()
    ]


def _notes(result: Survey) -> list[str]:
    from attnscope.questions.sentences import note_differences, note_unproved, number_ranges

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
            f"weights times values give the kernel's output within {max(proofs):.1g}, in {len(proofs)} calls"
        )
    notes += note_unproved([sighting.site for sighting in result.sightings])
    if any(each.high < 1 - 1e-3 for each in result.sightings):
        rest = "a sink that no token owns, or on padding"
        notes.append(f"rows that sum to less than 1 leave the rest on {rest}")
    return notes


TEXT = "The cat sat on the mat because it was tired."


@dataclass(frozen=True, kw_only=True)
class ModelArgument:
    """A model that is named first, without -m."""

    first: str | None = argument("The model, as --model names one; with --model, the text.", metavar="MODEL")


@dataclass(frozen=True, kw_only=True)
class AuditOptions:
    """What is asked of the model."""

    audit: bool = flag(
        "Prove that tokens are mixed by the attention that is shown, and name what else mixes."
    )


@command
def info(
    named: ModelArgument,
    source: SourceOptions,
    asked: AuditOptions,
    output: NumbersOptions,
    model: ModelOptions,
) -> None:
    """List every attention call of a model's forward pass, and the layers that have none.

    A short text goes through once as the model is, and once with its own output_attentions, so that the
    table can say where the model itself would report other weights than those that it used.

    With --audit it goes through again and again, each time with one other token, while all attention that is
    shown answers as before. A module whose numbers then move with more than one token mixes tokens by itself:
    by attention that was missed, a convolution, a recurrence, a pooling. Each is named.

    Examples:

    attnscope info own

    attnscope info openai-community/gpt2 --json

    attnscope info facebook/dinov2-base --image cat.png

    attnscope info model.py:Model --inputs inputs.npz --audit
    """

    if model.model is None:
        model = replace(model, model=named.first)
    elif named.first is not None:
        if source.second_text is not None:
            raise typer.BadParameter("name the model once, first or with --model", param_hint="MODEL")
        source = replace(source, text=named.first, second_text=source.text)
    if not source.names_one:
        source = replace(source, text=TEXT)
    loaded, prepared = read_source(source, model).open(cached=False)
    (_audit if asked.audit else _survey)(loaded, prepared, output.as_json)


def _survey(model: Model, prepared: ModelInput, as_json: bool) -> None:
    from attnscope.questions.info import survey

    with reading(model, prepared):
        result = survey(model, prepared)
    if as_json:
        print_answer("info", survey_numbers(result))
    else:
        print_survey(result)


def _audit(model: Model, prepared: ModelInput, as_json: bool) -> None:
    from attnscope.questions.audit import audit

    with reading(model, prepared):
        result = audit(model, prepared)
    if as_json:
        print_answer("info", audit_numbers(result))
    else:
        print(*map(visible, result.sentences), sep="\n")
