"""Figures that a trace came with: nothing is measured twice."""

from __future__ import annotations

from collections.abc import Sequence

from attnscope.analysis.selection import Selection
from attnscope.capture import Record
from attnscope.measures import HeadFigures
from attnscope.models import ModelInput


def find_figures(prepared: ModelInput, names: Sequence[str]) -> tuple[HeadFigures, ...] | None:
    """The figures of a trace, if these measures and no others were taken; ``None`` for any other input."""
    known = prepared.figures
    if known is None or any({*head.figures, *head.absent} != set(names) for head in known):
        return None
    return known


def pick_figures(
    figures: Sequence[HeadFigures], record: Record, selection: Selection
) -> tuple[HeadFigures, ...]:
    """Those of the heads that are meant."""
    counts = {site.site: site.heads for site in record.sites}
    return tuple(
        head for head in figures if head.head in (selection.heads(head.site, counts[head.site]) or ())
    )
