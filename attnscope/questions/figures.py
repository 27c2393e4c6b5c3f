"""Figures of heads on their way out: CSV and plain data for programs, maps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attnscope.attention import Head
    from attnscope.measures import Figure, HeadFigures
    from attnscope.questions.ablate import Removal
    from attnscope.questions.importance import Importance
    from attnscope.questions.stats import Stats
    from attnscope.views import HeadMap


IMPORTANCE, ABLATION = "importance", "ablation"
PREDICTIONS = (ABLATION, IMPORTANCE)
"""The columns that are no measures of attention: what the model's predictions lose with a head."""


def of_predictions(result: Stats) -> dict[str, Mapping[Head, Importance | Removal]]:
    """What was asked about the model's predictions, by column."""
    known: dict[str, Mapping[Head, Importance | Removal]] = {
        ABLATION: result.ablation,
        IMPORTANCE: result.importance,
    }
    return {name: found for name, found in known.items() if found}


def figure(result: Stats, head: HeadFigures, name: str) -> Figure | Importance | Removal | None:
    """A head's figure, or what the predictions lose with it."""
    if name in PREDICTIONS:
        return of_predictions(result).get(name, {}).get(head.address)
    return head.figures.get(name)


def require_figure(result: Stats, name: str) -> None:
    """Raise ``SelectionError``, with the reason, if no head has a figure: no text may have such a token."""
    if not any(figure(result, head, name) for head in result.heads):
        from attnscope.errors import SelectionError

        why = {head.absent[name]: None for head in result.heads if name in head.absent}
        raise SelectionError(f"no head has a figure of {name}: {next(iter(why), 'it was not measured')}")


def sort_heads(result: Stats, heads: list[HeadFigures], name: str) -> list[HeadFigures]:
    """The heads that have a figure, the largest first."""
    known = [(found.value, head) for head in heads if (found := figure(result, head, name)) is not None]
    return [head for _, head in sorted(known, key=lambda pair: -pair[0])]


def maps(result: Stats, name: str) -> dict[str, HeadMap]:
    """One measure of all heads, or their importance, a map for each kind of attention that has it."""
    from attnscope.errors import SelectionError
    from attnscope.measures import MEASURES
    from attnscope.views import head_map

    tables: dict[str, dict[int, list[float]]] = {}
    for head in result.heads:
        found = figure(result, head, name)
        row = tables.setdefault(head.site.kind, {}).setdefault(head.site.layer, [])
        row.append(float("nan") if found is None else found.value)
    known = {kind: rows for kind, rows in tables.items() if any(x == x for row in rows.values() for x in row)}
    if not known:
        raise SelectionError(f"{name} cannot be drawn: {result.heads[0].absent[name]}")
    unit = "nats" if name in PREDICTIONS else MEASURES[name].unit
    return {
        kind: head_map(
            rows,
            name,
            unit=unit,
            limits=(0.0, 1.0) if unit == "share" else None,
            signed=name in ("offset", ABLATION),
            title=f"{name} · {kind}",
            subtitle=result.title,
            notes=(result.ran, *result.notes),
        )
        for kind, rows in known.items()
    }


def numbers_of(result: Stats, heads: Sequence[HeadFigures]) -> dict[str, Any]:
    """All figures of the heads as plain data."""
    from attnscope.questions.answer import head_numbers

    more = of_predictions(result)
    return {
        "ran": result.ran,
        "notes": list(result.notes),
        "heads": [
            head_numbers(head)
            | {name: asdict(found[head.address]) for name, found in more.items() if head.address in found}
            for head in heads
        ],
    }


def table_of(result: Stats, heads: Sequence[HeadFigures], names: Sequence[str]) -> Iterator[list[Any]]:
    """The names of the columns, then a row a head: each figure, its baseline, over a corpus its error."""
    errors = any(figure.error is not None for head in heads for figure in head.figures.values())
    header = ["kind", "layer", "head", "role", "score", "role_baseline"]
    for name in names:
        header += [name, f"{name}_baseline", *([f"{name}_error"] if errors else [])]
    more = of_predictions(result)
    header += [column for name in more for column in (name, f"{name}_error")]
    yield header
    for head in heads:
        role = [None] * 3 if head.role is None else [head.role.name, head.role.score, head.role.baseline]
        cells: list[float | None] = []
        for name in names:
            known = head.figures.get(name)
            told = (None,) * 3 if known is None else (known.value, known.baseline, known.error)
            cells += told if errors else told[:2]
        for known_ in more.values():
            found = known_[head.address]
            cells += [found.value, found.error]
        yield [head.site.kind, head.site.layer, head.head, *role, *cells]
