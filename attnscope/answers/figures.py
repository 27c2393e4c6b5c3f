"""Figures of heads on their way out: CSV and plain data for programs, maps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attnscope.analysis.intervention.importance import Importance
    from attnscope.analysis.stats import Stats
    from attnscope.measures import Figure, HeadFigures
    from attnscope.views import HeadMap

IMPORTANCE = "importance"
"""The column that is no measure of attention: what the model's predictions lose with a head."""


def figure(seen: Stats, head: HeadFigures, name: str) -> Figure | Importance | None:
    """A head's figure, or its importance."""
    if name == IMPORTANCE:
        return seen.importance.get(head.address)
    return head.figures.get(name)


def sort_heads(seen: Stats, heads: list[HeadFigures], name: str) -> list[HeadFigures]:
    """The heads that have a figure, the largest first."""
    known = [(found.value, head) for head in heads if (found := figure(seen, head, name)) is not None]
    return [head for _, head in sorted(known, key=lambda pair: -pair[0])]


def maps(seen: Stats, name: str) -> dict[str, HeadMap]:
    """One measure of all heads, or their importance, a map for each kind of attention that has it."""
    from attnscope.errors import SelectionError
    from attnscope.measures import MEASURES
    from attnscope.views import head_map

    tables: dict[str, dict[int, list[float]]] = {}
    for head in seen.heads:
        found = figure(seen, head, name)
        row = tables.setdefault(head.site.kind, {}).setdefault(head.site.layer, [])
        row.append(float("nan") if found is None else found.value)
    known = {kind: rows for kind, rows in tables.items() if any(x == x for row in rows.values() for x in row)}
    if not known:
        raise SelectionError(f"{name} cannot be drawn: {seen.heads[0].absent[name]}")
    unit = "nats" if name == IMPORTANCE else MEASURES[name].unit
    return {
        kind: head_map(
            rows,
            name,
            unit=unit,
            limits=(0.0, 1.0) if unit == "share" else None,
            signed=name == "offset",
            title=f"{name} · {kind}",
            subtitle=seen.title,
            notes=(seen.ran, *seen.notes),
        )
        for kind, rows in known.items()
    }


def numbers_of(seen: Stats, heads: Sequence[HeadFigures]) -> dict[str, Any]:
    """All figures of the heads as plain data."""
    from attnscope.answers.answer import head_numbers

    important = {key: {IMPORTANCE: asdict(found)} for key, found in seen.importance.items()}
    return {
        "ran": seen.ran,
        "notes": list(seen.notes),
        "heads": [head_numbers(head) | important.get(head.address, {}) for head in heads],
    }


def table_of(seen: Stats, heads: Sequence[HeadFigures], names: Sequence[str]) -> Iterator[list[Any]]:
    """The names of the columns, then a row a head: each figure, its baseline, over a corpus its error."""
    errors = any(figure.error is not None for head in heads for figure in head.figures.values())
    header = ["kind", "layer", "head", "role", "score", "role_baseline"]
    for name in names:
        header += [name, f"{name}_baseline", *([f"{name}_error"] if errors else [])]
    header += [IMPORTANCE, f"{IMPORTANCE}_error"] if seen.importance else []
    yield header
    for head in heads:
        role = [None] * 3 if head.role is None else [head.role.name, head.role.score, head.role.baseline]
        cells: list[float | None] = []
        for name in names:
            known = head.figures.get(name)
            told = (None,) * 3 if known is None else (known.value, known.baseline, known.error)
            cells += told if errors else told[:2]
        if seen.importance:
            found = seen.importance[head.address]
            cells += [found.value, found.error]
        yield [head.site.kind, head.site.layer, head.head, *role, *cells]
