"""Figures of some rows alone: of a part of the text, or of one part after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from attnscope.analysis.selection import Selection
from attnscope.analysis.sentences import name_pass, provenance, require_selected
from attnscope.attention import Attention
from attnscope.capture import Record
from attnscope.capture.observers.shared_rows import Reading, RowObserver, SharedRows
from attnscope.errors import SelectionError
from attnscope.figures import Figure
from attnscope.measures import MEASURES, Measurement
from attnscope.models import Model, ModelInput
from attnscope.views.charts.curves import Curve, Curves

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class SomeRows:
    """Observer that shows another one only the rows ``start`` to ``stop - 1`` of each call."""

    observer: RowObserver
    start: int
    stop: int

    def begin(self, attention: Attention) -> Reading | None:
        """Begin to read a call, whose figures of all rows are of no use here."""
        rows = range(self.start, min(self.stop, len(attention.queries)))
        reading = self.observer.begin(attention) if rows else None
        return reading and _SomeRows(reading, rows)


@dataclass(frozen=True, eq=False)
class _SomeRows:
    reading: Reading
    rows: range

    @property
    def step(self) -> int:
        return self.reading.step

    @property
    def wanted(self) -> Sequence[int] | None:
        return () if self.reading.wanted == () else self.rows

    def add(self, rows: Tensor, allowed: Tensor, start: int) -> None:
        first, last = max(start, self.rows.start), min(start + rows.shape[2], self.rows.stop)
        if first < last:
            part = slice(first - start, last - start)
            self.reading.add(rows[:, :, part], allowed[:, :, part], first)

    def end(self) -> None:
        self.reading.end()


def no_rows(rows: range, record: Record) -> SelectionError:
    """What to say where no head has one of these rows."""
    most = max((site.queries for site in record.sites), default=0)
    return SelectionError(f"no rows {rows.start}-{rows.stop - 1}: there are rows 0-{most - 1}, one a token")


def curves_by_position(
    model: Model, prepared: ModelInput, selection: Selection, name: str, *, parts: int, top: int
) -> Curves:
    """How a measure of each head changes along the text: its average over one run of rows after the other.

    Up to ``parts`` runs of as many rows each; the ``top`` heads with the largest average over the runs.
    Raises ``SelectionError`` for a measure or a head that does not exist.
    """
    axes = [len(queries) for kind, (queries, _) in prepared.axes.items() if selection.kind in (None, kind)]
    size = max(axes, default=len(prepared.tokens))
    step = max(1, -(-size // parts))
    edges = (*range(0, size, step), size)
    measured = [Measurement([name]) for _ in pairwise(edges)]
    observers = [SomeRows(*each) for each in zip(measured, edges, edges[1:], strict=False)]
    record = model.run(prepared, [SharedRows(observers, selection.heads)])
    chosen = [site for site in record.sites if selection.heads(site.site, site.heads)]
    require_selected(chosen, record, selection)
    found: dict[str, list[Figure | None]] = {}
    several = len({site.site.kind for site in record.sites}) > 1
    for part, each in enumerate(measured):
        for head in each.figures():
            label = f"{head.site.kind} {head.name}" if several else head.name
            found.setdefault(label, [None] * len(measured))[part] = head.figures.get(name)
    curves = [
        Curve(
            label,
            tuple(figure.value if figure else None for figure in figures),
            tuple(figure.baseline if figure else None for figure in figures),
        )
        for label, figures in found.items()
        if any(figures)
    ]
    if not curves:
        rows = MEASURES[name].rows
        raise SelectionError(f"no head has {name}: it is taken over {rows}, and there are none")
    best = sorted(curves, key=lambda curve: -curve.mean)[:top]
    return Curves(
        name,
        MEASURES[name].unit,
        edges,
        tuple(best),
        f"{name} by position",
        f"{name_pass(model, prepared)} · {provenance(record.sites)}",
        (
            f"{len(best)} of {len(curves)} heads; each mark is the average of {_rows(step)} of the {size:,}",
            *model.notes,
            *prepared.notes,
            *record.notes,
        ),
    )


def _rows(count: int) -> str:
    return "one row" if count == 1 else f"{count:,} rows"
