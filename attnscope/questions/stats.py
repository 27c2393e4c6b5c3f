"""The figures of every head of a text: measured, chosen by conditions, as a table, maps and curves."""

from __future__ import annotations

import operator
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import isfinite
from typing import TYPE_CHECKING, Annotated

from attnscope.attention import Attention, Head, Token
from attnscope.capture import FUSED, Record, SiteRecord
from attnscope.capture.observers.coarsen import Coarsen, How, Reading, RowObserver, SharedRows, cells
from attnscope.errors import SelectionError
from attnscope.figures import ABLATION, PREDICTIONS, Figure, Importance, Removal
from attnscope.fused.request import SHORTEST
from attnscope.measures import DEFAULT, MEASURES, ROLES, HeadFigures, Measurement, fused_request, settle_roles
from attnscope.models import Model, ModelInput
from attnscope.questions.answer import Answer
from attnscope.questions.head import find_figures, pick_figures
from attnscope.questions.layers import CELLS, WholeLayers, pooled_layers
from attnscope.questions.selection import Selection
from attnscope.questions.sentences import name_pass, provenance, require_selected
from attnscope.records import Meaning, Notes, record
from attnscope.registry import nearest_name
from attnscope.views import HeadMap, head_map
from attnscope.views.charts import Curve, Curves

if TYPE_CHECKING:
    from torch import Tensor


OPERATORS: Mapping[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}

NAME = r"offset=[+-]?\d+|\[[^\[\]\s]+\]|<[^<>\s]+>|\w+"
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)
CONDITION = re.compile(rf"({NAME})\s*(<=|>=|!=|<|>|=)\s*([\w.+-]+|weak \w+)", re.ASCII)


@dataclass(frozen=True)
class Condition:
    """``entropy<1`` or ``role=previous``; ``meets`` is false for a head that has no such figure."""

    name: str
    sign: str
    wanted: str

    def meets(self, head: HeadFigures) -> bool:
        """Whether a head is meant."""
        if self.name == "role":
            return (head.role is not None and head.role.name == self.wanted) == (self.sign == "=")
        figure = head.figures.get(self.name)
        return figure is not None and OPERATORS[self.sign](figure.value, float(self.wanted))


def parse_conditions(text: str) -> tuple[Condition, ...]:
    """Read ``entropy<1 and previous>0.5 and role=none``. It is parsed, never run as code.

    Raises ``SelectionError`` for anything else.
    """
    return tuple(_condition(part.strip()) for part in re.split(r"\s+and\s+", text.strip()))


def _condition(text: str) -> Condition:
    match = CONDITION.fullmatch(text)
    if match is None:
        raise SelectionError(f"cannot read {text!r}: write conditions like entropy<1 and role=previous")
    name, sign, wanted = match.groups()
    if name == "role":
        if sign not in ("=", "!=") or wanted not in ROLES:
            raise SelectionError(
                f"cannot read {text!r}: {nearest_name(wanted, ROLES)}write role=NAME or role!=NAME, of "
                f"{', '.join(ROLES)}"
            )
        return Condition(name, sign, wanted)
    MEASURES[name]
    if NUMBER.fullmatch(wanted) is None or not isfinite(float(wanted)):
        raise SelectionError(f"cannot read {text!r}: {wanted!r} is no number")
    if sign not in OPERATORS:
        raise SelectionError(
            f"cannot read {text!r}: compare a figure with {', '.join(OPERATORS)}, as none equals a number"
        )
    return Condition(name, sign, wanted)


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
        title=f"{name} by position",
        subtitle=f"{name_pass(model, prepared)} · {provenance(record.sites)}",
        notes=(
            f"{len(best)} of {len(curves)} heads; each mark is the average of {_rows(step)} of the {size:,}",
            *model.notes,
            *prepared.notes,
            *record.notes,
        ),
    )


def _rows(count: int) -> str:
    return "one row" if count == 1 else f"{count:,} rows"


@record("the figures of every head")
@dataclass(frozen=True, eq=False)
class Stats:
    """The figures of the heads that are meant, what ran, and what to know.

    ``ran`` says whether the kernels ran beside the measuring, or the fused pass in their place.
    ``maps``, every head on at most 256 × 256 cells, are there if they were asked for.
    """

    heads: Annotated[
        tuple[HeadFigures, ...], Meaning("the heads that are meant, in the order that was asked for")
    ]
    title: str
    ran: Annotated[str, Meaning("whether the kernels ran, or the fused pass in their place")]
    notes: Notes
    maps: WholeLayers | None = None

    @property
    def importance(self) -> Mapping[Head, Importance]:
        """The importance of every head; empty unless it was asked for."""
        return {head.address: head.importance for head in self.heads if head.importance}

    @property
    def ablation(self) -> Mapping[Head, Removal]:
        """What is lost without each head; empty unless it was asked for."""
        return {head.address: head.ablation for head in self.heads if head.ablation}

    @property
    def predictions(self) -> list[str]:
        """Which of ``PREDICTIONS`` were asked for."""
        return [name for name in PREDICTIONS if any(head.figure(name) for head in self.heads)]

    def meeting(self, conditions: Sequence[Condition], sort: str | None = None) -> list[HeadFigures]:
        """The heads that meet all conditions, the largest of one figure first, if ``sort`` names it.

        Raises ``SelectionError``, with the reason, for a figure that no head has.
        """
        named = [condition.name for condition in conditions if condition.name != "role"]
        for name in [*named, *([sort] if sort else [])]:
            if not any(head.figure(name) for head in self.heads):
                why = {head.absent[name]: None for head in self.heads if name in head.absent}
                raise SelectionError(
                    f"no head has a figure of {name}: {next(iter(why), 'it was not measured')}"
                )
        heads = [head for head in self.heads if all(condition.meets(head) for condition in conditions)]
        if sort is None:
            return heads
        known = [(figure.value, head) for head in heads if (figure := head.figure(sort)) is not None]
        return [head for _, head in sorted(known, key=lambda pair: -pair[0])]


def with_predictions(
    heads: Sequence[HeadFigures], importances: Mapping[Head, Importance], removals: Mapping[Head, Removal]
) -> tuple[HeadFigures, ...]:
    """Heads with what the model's predictions lose with each."""
    return tuple(
        replace(head, importance=importances.get(head.address), ablation=removals.get(head.address))
        for head in heads
    )


def of_stats(result: Stats, names: Sequence[str]) -> Answer:
    """The figures as numbers and, those of ``names``, as a table."""
    return Answer((), {}, lambda: result, table=lambda: figure_rows(result, names))


def figure_rows(result: Stats, names: Sequence[str]) -> Iterator[list[object]]:
    """The names of the columns, then a row a head: each figure, its baseline, over a corpus its error."""
    errors = any(figure.error is not None for head in result.heads for figure in head.figures.values())
    parts = ("value", "baseline", "error") if errors else ("value", "baseline")
    columns = [(name, part) for name in names for part in parts]
    columns += [(name, part) for name in result.predictions for part in ("value", "error")]
    named = [name if part == "value" else f"{name}_{part}" for name, part in columns]
    yield ["kind", "layer", "head", "role", "score", "role_baseline", *named]
    for head in result.heads:
        role = [None] * 3 if head.role is None else [head.role.name, head.role.score, head.role.baseline]
        figures = [getattr(head.figure(name), part, None) for name, part in columns]
        yield [head.site.kind, head.site.layer, head.head, *role, *figures]


def measure_maps(result: Stats, name: str) -> Mapping[str, HeadMap]:
    """One measure of all heads, or their importance, a map for each kind of attention that has it."""
    tables: dict[str, dict[int, list[float]]] = {}
    for head in result.heads:
        found = head.figure(name)
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


def measure_heads(
    model: Model,
    prepared: ModelInput,
    selection: Selection,
    *,
    names: tuple[str, ...] = DEFAULT,
    exact_kernel: bool = False,
    importance: bool = False,
    ablation: bool = False,
    pool: How | None = None,
    rows: range | None = None,
) -> Stats:
    """Run the model once and measure every head that is meant.

    From 512 tokens on, on the CPU, the fused pass runs in the place of torch's kernel: it computes
    the layer's output (within 1e-4) and the figures together, where computing the scores again beside the
    kernel would cost several times as much. ``exact_kernel`` always leaves the kernel alone. ``importance``
    asks for each head's importance, too, of a model with an output head, ``ablation`` for its loss with each
    head set to zero, ``pool`` for a small map of every head out of the same pass (``Coarsen`` says what its
    cells may hold), ``rows`` for the figures of those rows alone. Raises ``SelectionError`` for a
    layer, kind or measure that does not exist.
    """
    known = None if pool or rows else find_figures(prepared, names)
    measured = Measurement(names)
    maps = Coarsen(cells(CELLS), pool) if pool else None
    texts = [prepared.tokens]
    if known is None:
        record, taken = measuring_pass(
            model, prepared, measured, selection, texts, exact_kernel=exact_kernel, maps=maps, rows=rows
        )
        heads = tuple(measured.figures())
        if rows is not None and not heads:
            raise no_rows(rows, record)
    else:
        record = model.run(prepared, [])
        taken = _count_fused(record)
        heads = pick_figures(known, record, selection)
    require_selected(heads, record, selection)
    how: tuple[str, ...] = ()
    if importance or ablation:
        from attnscope.questions.ablate import Removals, describe_way
        from attnscope.questions.corpus import join_texts
        from attnscope.questions.importance import Importances

        importances, removals, batch = Importances(), Removals(), join_texts([prepared])
        if importance:
            importances.add(model, batch.prepared, batch.labels)
        if ablation:
            removals.add(model, batch.prepared, batch.labels, selection)
        heads = with_predictions(heads, importances.figures(), removals.figures())
        how = describe_way("zero" if ablation else None)
    return Stats(
        settle_roles(heads),
        f"{name_pass(model, prepared)} · {provenance(record.sites)}",
        what_ran(taken, len(record.sites), record.sites),
        (*model.notes, *prepared.notes, *record.notes, *how),
        pooled_layers(maps, model, prepared, record) if maps else None,
    )


def measuring_pass(
    model: Model,
    prepared: ModelInput,
    measured: Measurement,
    selection: Selection,
    texts: Sequence[Sequence[Token]],
    *,
    exact_kernel: bool = False,
    maps: Coarsen | None = None,
    rows: range | None = None,
) -> tuple[Record, int]:
    """One forward pass, measured; how many calls of it the fused pass computed.

    ``texts`` are the tokens of each text of the batch; ``maps`` sees the same heads. The kernel runs where
    the fused pass could not tell all measures: every row must then be read beside it. Only ``rows`` count,
    if some are named; the fused pass tells of all rows together.
    """
    long = any(len(text) >= SHORTEST for text in texts)
    side = CELLS if maps and maps.how != "max" else None
    long = long and not exact_kernel and rows is None
    request = fused_request(measured.measures, texts, side) if long else None
    fused = None
    if request is not None:
        from attnscope.fused.fused_pass import FusedPass

        fused = FusedPass(request)
    figures = measured if rows is None else SomeRows(measured, rows.start, rows.stop)
    observers: list[RowObserver] = [figures, *([maps] if maps else [])]
    chosen = [SharedRows(observers, None if selection == Selection() else selection.heads)]
    record = model.run(prepared, chosen, fused)
    return record, _count_fused(record)


def _count_fused(record: Record) -> int:
    return sum(call.kernel == FUSED for call in record.sites)


def what_ran(taken: int, calls: int, sites: Sequence[SiteRecord] = ()) -> str:
    """How the figures were had, in words; with the calls, also what the fused pass left to the kernel."""
    ran = "figures measured beside the kernel"
    if taken:
        ran = f"{taken:,} of {calls:,} calls ran as a fused pass in the kernel's place"
    refusals = Counter(call.refusal for call in sites if call.refusal is not None)
    left = [f"{count:,} left to the kernel: {reason}" for reason, count in refusals.items()]
    return "; ".join([ran, *left])
