"""Every head of a text: its scores, filtered by conditions, as a table, maps and curves, and at a glance."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import compress
from math import inf, isfinite, isnan, nan
from typing import Annotated, Any

from attnscope.attention import Head, Token
from attnscope.capture import FUSED, Record, SiteRecord
from attnscope.capture.observers import Coarsen, How, RowObserver, SharedRows
from attnscope.errors import SelectionError
from attnscope.fused.request import SHORTEST, Request
from attnscope.measures import DEFAULT, MEASURES, ROLES, HeadScores, Measurement, fused_request
from attnscope.measures.roles import (
    NONE,
    PATTERNLESS,
    note_chance,
    note_threshold,
    note_unreached,
    settle_roles,
    worth_a_look,
)
from attnscope.models import Model, ModelInput
from attnscope.questions.answer import Answer
from attnscope.questions.conditions import Condition
from attnscope.questions.head import Losses, find_scores, own_numbers, pick_scores, token_losses_table
from attnscope.questions.layers import CELLS, WholeLayers, layers_of_maps
from attnscope.questions.selection import Selection
from attnscope.questions.sentences import (
    kind_title,
    name_beside,
    name_pass,
    note_averaged,
    note_errors,
    provenance,
    require_selected,
)
from attnscope.records import Meaning, Notes, Parts, record
from attnscope.registry import BUNDLED
from attnscope.scores import ABLATION, IMPORTANCE, PREDICTIONS, Importance, Removal, Score
from attnscope.text import round_short
from attnscope.views import THUMBNAIL_CELLS as GRID_CELLS
from attnscope.views import (
    Column,
    Grid,
    HeadMap,
    HeadRank,
    Ranking,
    RoleMap,
    Table,
    grid,
    maps_by_kind,
    name_weight,
    number,
)
from attnscope.views.charts import Cell


@record("the scores of every head", "stats", "ablate", eq=False)
class Stats:
    """The scores of the selected heads, and every head on at most 256 × 256 cells if requested."""

    heads: Annotated[tuple[HeadScores, ...], Meaning("the selected heads, in the requested order")]
    title: str
    ran: Annotated[str, Meaning("whether the model's kernels ran, or the fused pass instead")]
    notes: Notes
    maps: WholeLayers | None = None
    read: tuple[Any, ...] = ()  # the model, and what it read

    @property
    def shown_notes(self) -> tuple[str, ...]:
        """The notes, and what ran if that was not the same for all calls; the title names the fused pass."""
        return (*([] if self.ran in (OWN_KERNELS, ALL_FUSED) else [self.ran]), *self.notes)

    def meeting(self, conditions: Sequence[Condition], sort: str | None = None) -> list[HeadScores]:
        """The heads that meet all conditions, largest lift of the role's score first.

        ``sort`` names another order: a measure (largest first, NaN last), ``role``, or ``head``; with a minus
        before it, the reverse. Raises ``SelectionError``, with the reason, for a measure that no head has.
        """
        sort, sign = measure_of(sort), 1 if sort and sort.startswith("-") else -1
        for name in (*(condition.name for condition in conditions), sort):
            if name not in (None, "role", "head") and not any(head.score(name) for head in self.heads):
                why = (head.absent[name] for head in self.heads if name in head.absent)
                raise SelectionError(f"no head has a score for {name}: {next(why, 'it was not measured')}")
        heads = [head for head in self.heads if all(condition.meets(head) for condition in conditions)]
        if sort in (None, "role", "head"):
            ordered = heads if sort == "head" else sorted(heads, key=partial(_place, by_role=sort == "role"))
            return ordered[::-sign]
        scored = [(found.value, head) for head in heads if (found := head.score(sort)) is not None]
        return [head for _, head in sorted(scored, key=lambda pair: (isnan(pair[0]), sign * pair[0]))]


def measure_of(sort: str | None) -> str | None:
    """What heads are sorted by, without the minus of ``-entropy``, the smallest first."""
    return sort and sort.removeprefix("-")


def _describe_order(sort: str | None, heads: Sequence[HeadScores]) -> str:
    """The order of a table's heads, in words."""
    name, reverse = measure_of(sort), bool(sort and sort.startswith("-"))
    patterned = any(head.role is None or head.role.name not in PATTERNLESS for head in heads)
    clearest = "clearest role first" if patterned else "least uniform first: none shows a clear pattern"
    ends = {None: clearest, "role": "in order of roles", "head": "in order of heads"}
    return ends.get(name, f"{'smallest' if reverse else 'largest'} {name} first")


def _place(head: HeadScores, by_role: bool) -> tuple[int, float]:
    """A head's rank in the table: patterns by lift, then those without by distance from even."""
    if head.role is None:
        return len(ROLES), 0.0
    named = head.role.name not in PATTERNLESS
    return ROLES.index(head.role.name) if by_role else -named, -head.role.lift if named else head.role.score


def find_heads(wanted: Head, heads: Sequence[HeadScores]) -> list[HeadScores]:
    """A head of some, in one kind of attention or in each. Raises ``SelectionError`` if there is none."""
    kind = wanted.kind
    matching = [head for head in heads if head.name == wanted.name and kind in (None, head.site.kind)]
    if not matching:
        last = f"{heads[0].name} to {heads[-1].name}"
        raise SelectionError(f"no head {kind + '.' if kind else ''}{wanted.name}: there are {last}")
    return matching


def with_predictions(
    heads: Sequence[HeadScores], importances: Mapping[Head, Score], removals: Mapping[Head, Score]
) -> tuple[HeadScores, ...]:
    """Heads with how much the model's predictions lose without each."""
    slopes = {head: Importance(each.value, each.texts, each.error) for head, each in importances.items()}
    losses = {
        head: Removal(each.value, each.texts, each.error, each.value + each.baseline)
        for head, each in removals.items()
    }
    places = [(head, head.address) for head in heads]
    return tuple(replace(head, importance=slopes.get(at), ablation=losses.get(at)) for head, at in places)


def stats_answer(
    result: Stats,
    heads: Sequence[HeadScores],
    names: Sequence[str],
    sort: str | None,
    shown: int | None = None,
    *,
    alone: bool = False,
) -> Answer:
    """Some heads as a table of at most ``shown``, as numbers, and the scores of ``names`` for a file.

    ``alone``: the table has no other measure than the one that it is sorted by.
    """
    chosen, more = replace(result, heads=tuple(heads)), len(heads) - len(heads[:shown])
    table = score_table(result, heads[:shown], sort, alone=alone)
    if more:
        count, *notes = table.notes
        table = replace(table, notes=(f"{count}; {more:,} more: --top 0", *notes))
    return Answer((table,), {}, lambda: chosen, table=lambda: score_rows(chosen, names))


def score_rows(result: Stats, names: Sequence[str]) -> Iterator[list[object]]:
    """The header, then one row per head: each score, its baseline, and over a corpus its error.

    ``name`` is what ``--head`` takes, with the kind where there are several.
    """
    several = len({head.site.kind for head in result.heads}) > 1
    errors = any(score.error is not None for head in result.heads for score in head.scores.values())
    parts = ("value", "baseline", "error") if errors else ("value", "baseline")
    columns = [(name, part) for name in names for part in parts]
    predictions = [name for name in PREDICTIONS if any(head.score(name) for head in result.heads)]
    columns += [(name, part) for name in predictions for part in ("value", "error")]
    named = [name if part == "value" else f"{name}_{part}" for name, part in columns]
    yield ["name", "kind", "layer", "head", "role", "score", "role_baseline", *named]
    for head in result.heads:
        role = [None] * 3 if head.role is None else [head.role.name, head.role.score, head.role.baseline]
        scores = [getattr(head.score(name), part, None) for name, part in columns]
        address = str(head.address) if several else head.name
        yield [address, head.site.kind, head.site.layer, head.head, *role, *scores]


def measure_maps(result: Stats, name: str) -> Mapping[str, HeadMap]:
    """One measure of all heads, or their importance, as a map for each kind of attention that has it."""
    values = {head.address: found.value for head in result.heads if (found := head.score(name)) is not None}
    if not any(value == value for value in values.values()):
        raise SelectionError(f"{name} cannot be drawn: {result.heads[0].absent[name]}")
    unit = "nats" if name in PREDICTIONS else MEASURES[name].unit
    known = [value for value in values.values() if value == value]
    even = {getattr(head.score(name), "baseline", nan) for head in result.heads if head.score(name)}
    if len(even) == 1 and max(known) - min(known) < NARROW * (uniform := even.pop()):
        unit += f"; uniform attention: {round_short(uniform)}"
    maps = maps_by_kind(
        values,
        name,
        lambda kind: f"{name} · {kind_title(kind)}",
        unit=unit,
        from_zero=unit.startswith("share"),
        signed=name in ("offset", ABLATION),
        subtitle=result.title,
        notes=(*note_threshold(name), *result.shown_notes),
    )
    return {kind: replace(view, by_layer=len(view.layers) > 1) for kind, view in maps.items()}


NARROW = 0.1  # scores whose range is a smaller share of the baseline are drawn with it at the bar

COLUMNS = ("entropy", "distance", "previous", "first", "special")
"""The measures of the table; the one it is sorted by stands before them, in place of the role's score."""


def _listed_measures(heads: Sequence[HeadScores], key: str | None) -> list[str]:
    """The measures of a table, of which ``key`` is one, if it is a measure."""
    measured = dict.fromkeys(name for head in heads for name in (*head.scores, *head.absent))
    names = list(COLUMNS) if {*COLUMNS} <= {*measured} else list(measured)[: len(COLUMNS)]
    if key not in MEASURES:
        return names
    return [str(key), *[name for name in names if name != key][: len(COLUMNS) - 1]]


def score_table(
    result: Stats, heads: Sequence[HeadScores], sort: str | None = None, *, alone: bool = False
) -> Table:
    """One line per head: its role, the role's score, and some measures that apply to every head.

    Sorted by a measure, that one with its baseline takes the place of the role's score; ``alone``, of all.
    """
    key = measure_of(sort)
    names = _listed_measures(heads, key)
    sorted_by = key if key in names else None
    names = names[:1] if sorted_by and alone else names
    if not heads:
        none = f"none of the {len(result.heads)} heads meets the conditions"
        return Table(title=result.title, notes=(none, *result.shown_notes))
    kept = [True, len({head.site.kind for head in heads}) > 1, True, not sorted_by]
    columns = [
        _draw_column([head.score(name) for head in heads], MEASURES[name].unit, sorted_by=name == key)
        for name in names
    ]
    named = [Column(f"{name}\n", long="cut") for name in compress(("head", "kind", "role", "score"), kept)]
    beneath = {name: f"\n{MEASURES[name].unit.replace('share', '')}" for name in names}
    if sorted_by and alone:  # no note stands below the table of a paper
        beside, unit = name_beside(each.scores.get(sorted_by) for each in heads), beneath[sorted_by].strip()
        beneath = {sorted_by: ", ".join(filter(None, (beside, unit)))}
    named += [Column(f"{name}{beneath[name]}", True, "cut") for name in names]
    named_by = [(head.name, head.site.kind, *_role_cells(head)) for head in heads]
    rows = tuple((*compress(name, kept), *cells) for name, *cells in zip(named_by, *columns, strict=True))
    notes = tuple(_notes_of_table(result, heads, sort, sorted_by))
    return Table(tuple(named), rows, title=result.title, notes=notes, gap=1, edge=True)


def _notes_of_table(
    result: Stats, heads: Sequence[HeadScores], sort: str | None, sorted_by: str | None
) -> Iterator[str]:
    """The order of the heads, what the scores are, and the notes of the result."""
    named_sharp = sorted({head.role.name for head in heads if head.role} & {"sharp", "broad"})
    explained = f"{sorted_by or 'score: how strongly the head shows its role'}, averaged over tokens"
    shown = [head.scores.get(sorted_by) if sorted_by else _role_score(head) for head in heads]
    yield from (
        f"{len(heads):,} of {len(result.heads):,} heads, {_describe_order(sort, heads)}",
        f"{explained} (baseline in parentheses); --csv prints every measure",
        *[f"score of {' and '.join(named_sharp)}: normalized entropy, 0 (one key) to 1 (uniform)"][
            : 0 if sorted_by else len(named_sharp)
        ],
        *note_errors(shown),
        *note_unreached(result.heads, sorted_by, repeated=any(map(_is_repeated, result.read))),
        *note_chance(heads, sorted_by or ""),
        *result.shown_notes,
    )


def _is_repeated(read: Any) -> bool:
    """Whether it is an input of random tokens, read twice."""
    return isinstance(read, ModelInput) and getattr(read.request, "repeat_random", None) is not None


def _role_score(head: HeadScores) -> Score | None:
    """The score behind the role's: of the measure that has it, as -2 of ``positional``."""
    role, scores = head.role, head.scores
    if role is None:
        return None
    same = (each for each in scores.values() if (each.value, each.baseline) == (role.score, role.baseline))
    return scores.get(role.pattern) or next(same, None)


def _role_cells(head: HeadScores) -> tuple[str, str]:
    """A role, its score and the baseline; a dash for no score."""
    if head.role is None or head.role.name == NONE:
        return NONE if head.role else "–", "–"
    error = getattr(_role_score(head), "error", None)
    score = f"{head.role.score:.2f}" if error is None else f"{head.role.score:.3f} ±{error:.3f}"
    return head.role.name, f"{score} ({round_short(head.role.baseline)})"


def _draw_column(
    scores: Sequence[Score | Importance | Removal | None], unit: str, *, sorted_by: bool = False
) -> list[Cell]:
    """The cells of a column; of the one that is sorted by, with errors and baselines.

    The brightest is 1, or the largest if no share.
    """

    values = [0.0 if each is None or not isfinite(each.value) else abs(each.value) for each in scores]
    largest = max(values, default=0.0)

    def text(each: Score | Importance | Removal | None) -> str:
        error = getattr(each, "error", None) if sorted_by else None
        if each is None:
            return "–"
        baseline = f" ({round_short(each.baseline)})" if sorted_by and isinstance(each, Score) else ""
        if sorted_by and (unit == "loss" or error is not None):
            return f"{each.value:.3f}" + ("" if error is None else f" ±{error:.3f}") + baseline
        text = number(each.value, largest) if 1e-6 < largest < 0.01 else f"{each.value:.2f}"  # of a long text
        return text + baseline

    texts = [text(each) for each in scores]
    top, width = 1.0 if unit == "share" else largest or 1.0, max(map(len, texts), default=0)
    return [
        text if each is None else ((text.rjust(width), min(value / top, 1.0)),)
        for each, text, value in zip(scores, texts, values, strict=True)
    ]


def removals_answer(result: Stats, top: int) -> Answer:
    """The ``top`` heads without which predictions lose most, as a table, and a map of all heads."""
    without = [head.ablation for head in result.heads if head.ablation]
    name = ABLATION if without else IMPORTANCE
    heads = sorted(result.heads, key=lambda head: -found.value if (found := head.score(name)) else inf)
    ordered = replace(result, heads=tuple(heads))
    several = len({head.site.kind for head in heads}) > 1
    values = _draw_column([head.score(name) for head in heads[:top]], "loss", sorted_by=True)
    notes = ["importance: |slope of the loss at a gate on the head|, an estimate (Michel et al. 2019)"]
    if without:
        whole = without[0].loss - without[0].value
        notes = [f"loss rise: loss without the head minus {whole:.3f}, the loss with all heads"]
    notes += note_errors([head.score(name) for head in heads])
    if len(heads) > top:
        notes.append(f"{len(heads) - top:,} more heads: --top {len(heads)}, --csv or --json")
    titles = ("head", *(["kind"] if several else []))
    lost = Column("loss rise\nnats" if name == ABLATION else "importance\nnats", True)
    columns = (*(Column(f"{each}\n") for each in titles), lost, Column("role\n"))
    rows = (
        (head.name, *([head.site.kind] if several else []), value, _role_cells(head)[0])
        for head, value in zip(heads[:top], values, strict=True)
    )
    table = Table(columns, tuple(rows), title=result.title, notes=(*notes, *result.notes), edge=True)
    maps = measure_maps(result, name)
    return Answer((table,), maps, lambda: ordered, table=lambda: score_rows(ordered, DEFAULT))


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
    """Run the model once and measure every selected head.

    ``exact_kernel`` never uses the fused pass. ``importance`` adds each head's importance (needs an output
    head), ``ablation`` the loss with each head set to zero, ``pool`` a small map of every head from the same
    pass (see ``Coarsen`` for its cells); ``rows`` limits scores to those rows. Raises ``SelectionError`` for
    a layer, kind or measure that does not exist.
    """
    cached = None if pool or rows else find_scores(prepared, names)
    measured, maps = Measurement(names), selection.coarsen(CELLS, even=True, how=pool) if pool else None
    measured.rows = rows
    if cached is None:
        arguments = (model, prepared, measured, selection, [prepared.tokens])
        record = measuring_pass(*arguments, exact_kernel=exact_kernel, maps=maps)
        heads = own_numbers(measured.scores(), record, selection)
        if rows is not None and not heads:
            last = max((site.queries for site in record.sites), default=0) - 1
            raise SelectionError(f"no rows {rows.start}-{rows.stop - 1}: rows are 0-{last}, one per token")
    else:
        record = model.run(prepared, [])
        heads = pick_scores(cached, record, selection)
    require_selected(heads, record, selection)
    how: tuple[str, ...] = ()
    if importance or ablation:
        from attnscope.models.inputs import join_texts
        from attnscope.models.targets import note_repeats
        from attnscope.questions.loss import HeadSums, describe_way, predicted_side

        importances, removals, batch = HeadSums(importance=True), HeadSums(), join_texts([prepared])
        if importance:
            importances.add(model, batch.prepared, batch.labels)
        if ablation:
            removals.add(model, batch.prepared, batch.labels, selection)
        heads = with_predictions(heads, importances.scores(), removals.scores())
        how = describe_way("zero" if ablation else None) + note_repeats(model, predicted_side(batch.labels))
    return Stats(
        settle_roles(heads),
        f"{name_pass(model, prepared)} · {provenance(record.sites)}",
        what_ran(record.sites),
        (*model.notes, *prepared.notes, *record.notes, *how),
        layers_of_maps(maps, model, prepared, record) if maps else None,
        (model, prepared),
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
    side: int = CELLS,
    batched: bool = False,
) -> Record:
    """One forward pass, measured.

    ``texts`` are the tokens of each text of the batch; ``maps``, of ``side`` cells, sees the same heads. From
    512 tokens on the fused pass replaces torch's kernel: scores beside it would cost several times as much.
    The kernel runs if the fused pass cannot compute all measures, or only some rows are measured, or rows are
    watched. Of a ``batched`` corpus, weights × values replace it below 512 tokens, too.
    """
    fused, request = None, Request() if batched else None
    if any(len(text) >= SHORTEST for text in texts):
        cells = side if maps and maps.how != "max" else None
        request = fused_request(measured.measures, texts, cells) if measured.watch is None else None
    if request is not None and not exact_kernel and measured.rows is None:
        from attnscope.fused.fused_pass import FusedPass

        fused = FusedPass(request, rows=batched)
    observers: list[RowObserver] = [measured, *([maps] if maps else [])]
    return model.run(prepared, [SharedRows(observers, selection.heads)], fused)


OWN_KERNELS, ALL_FUSED = "every call ran in the model's own kernel", "every call ran in the fused pass"


def what_ran(sites: Sequence[SiteRecord]) -> str:
    """How scores were computed, in words, and what the fused pass left to the kernel."""
    refusals = Counter(call.refusal for call in sites if call.refusal is not None)
    left = [f"{count:,} left to the kernel: {reason}" for reason, count in refusals.items()]
    return "; ".join([count_fused(sum(call.kernel == FUSED for call in sites), len(sites)), *left])


def count_fused(fused_calls: int, calls: int) -> str:
    """How so many calls were computed, in words."""
    fused = f"{fused_calls:,} of {calls:,} calls ran in the fused pass (--exact-kernel: the model's own)"
    return {0: OWN_KERNELS, calls: ALL_FUSED}.get(fused_calls, fused)


FEWEST = 6  # least tokens for naming patterns
LEAST_UNIFORM = 3  # heads that are named where none shows a pattern


@record("every head", "show", eq=False)
class Overview:
    """Thumbnails by kind of attention, the scores of every head, what ran, and notes."""

    grids: Mapping[str, Grid]
    heads: Annotated[tuple[HeadScores, ...], Meaning("every selected head")]
    record: Annotated[Record, Parts(sites="every attention call")]
    notes: Notes
    losses: Losses = None
    apart: Callable[[Head], float] = lambda head: 0.0
    by: str | None = None  # ``role`` or a measure, by which each head is one coloured cell


def overview(
    model: Model,
    prepared: ModelInput,
    selection: Selection,
    *,
    large: bool = False,
    exact_kernel: bool = False,
    by: str | None = None,
) -> Overview:
    """Run the model once, and pool and measure every selected head; a long text in the fused pass.

    Its grids fit a screen; ``large`` ones do not. ``exact_kernel`` never runs the fused pass; ``by`` is
    ``role`` or a measure, for one cell a head.
    """
    names = DEFAULT if by in (None, "role", *DEFAULT) else (*DEFAULT, MEASURES[str(by)].name)
    coarse, measured = selection.coarsen(GRID_CELLS, even=True), Measurement(names)
    cached = find_scores(prepared, names)
    as_read = selection.as_read and not prepared.picture  # neighbours are tokens
    if cached is None:
        exact_kernel |= selection.words or selection.hide_special or not (as_read or selection.zoom)
        arguments = (model, prepared, measured, selection, [prepared.tokens])
        record = measuring_pass(*arguments, exact_kernel=exact_kernel, maps=coarse, side=GRID_CELLS)
    else:
        record = model.observe(prepared, [SharedRows([coarse], selection.heads)])
    require_selected(coarse.maps, record, selection)
    layers = layers_of_maps(coarse, model, prepared, record, selection, note_pooled=False)
    grids: dict[str, Grid] = {}
    for kind, pairs in layers.kinds.items():
        calls = [each for each in record.sites if each.site.kind == kind and selection.meets(each.site)]
        grids[kind] = grid(
            pairs,
            title=f"{name_pass(model, prepared)} · {kind_title(kind)}",
            subtitle=f"{'small built-in model, ' * (model.name in BUNDLED)}{provenance(calls)}",
            scale=selection.scale,
            bar=name_weight(model.weighting, kind),
            large=large,
            whole=selection.every_layer,
            written=prepared.written if as_read and kind == "decoder" else None,
        )
    measures: Sequence[HeadScores] = pick_scores(cached or (), record, selection)
    if cached is None:
        measures = own_numbers(measured.scores(), record, selection)
    heads = settle_roles(measures)
    grids = {kind: replace(grid, roles=role_map(heads, kind, grid)) for kind, grid in grids.items()}
    notes = (*layers.notes, *note_averaged(selection))
    return Overview(grids, heads, record, notes, apart=layers.apart, by=by)


def role_map(heads: Sequence[HeadScores], kind: str, view: Grid) -> RoleMap:
    """The roles of the heads of a kind of attention, with the title of their thumbnails."""
    layers: dict[int, dict[int, str]] = {layer.layer: {} for layer in view.layers}
    for head in heads:
        if head.site.kind == kind and head.role is not None:
            layers[head.site.layer][head.head] = head.role.name
    rows = tuple(
        tuple(roles.get(head, "") for head in range(1 + max(roles, default=-1))) for roles in layers.values()
    )
    return RoleMap(tuple(layers), rows, title=view.title, subtitle=view.subtitle)


def overview_answer(
    result: Overview, command: str | None, opening: Callable[[Head], str] | None = None
) -> Answer:
    """Every head as a thumbnail, or as one cell, and those most worth a look, each with a command, or
    ``opening`` of it.
    """
    short = all(max(site.queries, site.keys) < FEWEST for site in result.record.sites)
    by = None if result.by == "role" else result.by
    chosen = [] if short else worth_a_look(result.heads, apart=result.apart, by=by)
    notes, led = result.notes, "Worth a look" if by is None else f"Farthest from uniform attention in {by}"
    if short:
        notes = ("too few tokens to name patterns: try a sentence", *notes)
    elif not chosen:
        chosen = worth_a_look(result.heads, LEAST_UNIFORM, by="entropy")
        led, by = "Least uniform", "entropy"
        maps = "; --by entropy maps all heads" * (bool(chosen) and opening is None)
        notes = (f"no head shows a clear pattern on this text{maps}", *notes)
    if chosen and not command and not opening:
        notes = (*notes, "... stands for the command that you gave")
    ranked = tuple(_heads_worth_a_look(result, chosen, by, command, opening))
    ranking = Ranking(ranked, title=led if ranked else "", notes=notes)
    strips = [] if result.losses is None else [token_losses_table(result.losses)]
    views: Mapping[str, Any] = result.grids if result.by is None else _one_cell_a_head(result, result.by)
    named = [f"{led.lower()}: {', '.join(f'{each.head} {each.word}'.strip() for each in ranked)}"][
        : len(ranked)
    ]
    pictures = {kind: replace(view, notes=(*named, *result.notes)) for kind, view in views.items()}
    return Answer((*views.values(), *strips, ranking), pictures, lambda: result)


def _heads_worth_a_look(
    result: Overview,
    heads: Sequence[HeadScores],
    by: str | None,
    command: str | None,
    opening: Callable[[Head], str] | None,
) -> Iterator[HeadRank]:
    """These heads, each with its score ``by`` a measure, or with what its role says."""
    several = len(result.grids) > 1
    for head in heads:
        kind, extra = (f" {head.site.kind}", f" --kind {head.site.kind}") if several else ("", "")
        words = f"{command or '...'} --head {head.name}{extra}"
        if opening is not None:
            words = opening(head.address if several else Head(head.name))
        reason = head.role.sentence if head.role else ""
        word = "" if head.role is None or head.role.name == NONE else head.role.name
        if by is not None:
            score, unit = head.scores[by], MEASURES[by].unit.replace("share", "")
            word = f"{round_short(score.value)} {unit}".strip()
            reason = f"{word} (baseline {round_short(score.baseline)}); {reason}".removesuffix("; ")
        elif head.role and head.role.name in PATTERNLESS:
            far, apart = 1 - head.role.score, result.apart(head.address)
            reason += f"; focus {far:.0%} (0%: uniform, 100%: one key); its tokens attend to different keys "
            reason += f"(rows {apart:.2f} nats apart; 0: all alike)"
        yield HeadRank(head.name + kind, reason, words, word)


def _one_cell_a_head(result: Overview, by: str) -> Mapping[str, RoleMap | HeadMap]:
    """The roles, or one measure, of every head, for each kind of attention."""
    if by == "role":
        return {kind: grid.roles for kind, grid in result.grids.items() if grid.roles is not None}
    maps = measure_maps(Stats(result.heads, "", OWN_KERNELS, ()), by)
    titles = {kind: grid.title for kind, grid in result.grids.items()}
    return {
        kind: replace(view, title=f"{by} · {titles[kind]}", compact=True, by_layer=False)
        for kind, view in maps.items()
    }
