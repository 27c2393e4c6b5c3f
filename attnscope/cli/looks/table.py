"""A survey on its way out: a table for people, plain data for programs."""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import Any

from attnscope.analysis.audit.audit import Audit
from attnscope.analysis.figures.numbers import site_numbers
from attnscope.analysis.sentences import note_differences, note_unproved, number_ranges
from attnscope.analysis.survey import Sighting, Survey
from attnscope.axes import visible

COLUMNS = ("layer", "kind", "module, kernel, weights", "heads", "size", "rows sum to", "own report")
LONG = COLUMNS[2]


def survey_numbers(result: Survey) -> dict[str, Any]:
    """A survey as plain data, every call by itself."""
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
            f"weights times values give the kernel's output within {max(proofs):.1g}, in {len(proofs)} calls"
        )
    notes += note_unproved([sighting.site for sighting in result.sightings])
    product = [each for each in result.sightings if each.site.kernel == "product"]
    if any(each.low < 1 - 1e-3 or each.high > 1 + 1e-3 for each in product):
        notes.append("weights that no softmax made (product): rows need not sum to 1")
    if any(each.high < 1 - 1e-3 for each in result.sightings if each not in product):
        rest = "a sink that no token owns, or on padding"
        notes.append(f"rows that sum to less than 1 leave the rest on {rest}")
    return notes
