"""Why a head attends from one token to another: the terms of its score before the softmax, strongest first.

A term is a part of the query times a part of the key (``score_terms.py``). The softmax ignores what all keys
of a row share, so a term counts by its excess: its value less its mean at the row's other keys, or less its
value in the cells of another question.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, zip_longest
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeAlias

import numpy as np

from attnscope.attention import Head
from attnscope.axes import Array
from attnscope.capture.stream import Summand
from attnscope.errors import ModelError, readable
from attnscope.models import Model, ModelInput
from attnscope.questions.answer import Answer
from attnscope.questions.find import find_heads
from attnscope.questions.rules import Question
from attnscope.questions.score_terms import ScorePass, ScoreTerms
from attnscope.questions.selection import Selection
from attnscope.questions.sentences import name_pass, pluralize
from attnscope.records import Address, Meaning, Notes, record
from attnscope.views import Column, GraphEdge, GraphNode, Heatmap, LayerGraph, Table

if TYPE_CHECKING:
    from attnscope.questions.layers import AllHeads

STORED_TERMS = 100  # terms of a cell among the numbers; the others are one sum
LISTED_TERMS = 8  # terms that are printed
LISTED_PARTS = 5  # parts of either side that are printed and drawn
OPENED_TOKENS = 40  # tokens of a text, at most, of whose map a page explains each cell
OPENED_BYTES = 2 << 20  # of the terms of cells in a page, at most
TERMS = Column("query part"), Column("key part"), Column("value", True), Column("excess", True)

WROTE = {
    "head": "what {part} brought to {token}",
    "feed-forward": "what {part} added at {token}",
    "mixer": "what {part} brought to {token}",
    "embeddings": "what {token} is by itself ({part})",
    "biases": "{part}, the same in every text",
}
"""What a kind of part is, in words."""

Cell: TypeAlias = tuple[int, int]  # of a map: its row and key
Opened: TypeAlias = Mapping[Head, Mapping[Cell, Table]]
"""By head, the terms of each cell of its map, by row and key."""
TOKEN = re.compile(r" (\d{1,9})$", re.ASCII)  # the number of a token behind its text

Value = Annotated[float, Meaning("its value in the score")]
Excess = Annotated[
    float, Meaning("its value less its mean at the row's other unmasked keys, or less that of --against")
]
Error = Annotated[float | None, Meaning("the standard error of the excess over prompts; null for one text")]


@record("a term of a score")
class ScoreTerm:
    """The product of a part of the query and a part of the key."""

    query: Annotated[str, Meaning("what wrote the query's part")]
    key: Annotated[str, Meaning("what wrote the key's part")]
    value: Value
    excess: Excess
    error: Error = None


@record("a part of the query or of the key")
class SidePart:
    """All terms of one part."""

    part: Annotated[str, Meaning("what wrote it")]
    kind: Annotated[str, Meaning("head, feed-forward, mixer, embeddings or biases")]
    layer: Annotated[int | None, Meaning("its layer; null for embeddings and biases")]
    value: Value
    excess: Excess
    error: Error = None


@record("what an earlier head has to do with the score")
class Link:
    """A head that wrote a part of the strongest term that has one of a head."""

    into: Annotated[int, Meaning("the place in the path, from 0, of the head whose score has the term")]
    side: Annotated[str, Meaning("query or key: the side of the term that it wrote")]
    term: Annotated[str, Meaning("the term: query part × key part, and its value")]
    carried: Annotated[float, Meaning("what this row and key carry of the value")]
    error: Annotated[float | None, Meaning("its standard error over prompts; null for one text")] = None
    agree: Annotated[int, Meaning("the prompts in which no other cell of the head carries more")] = 1


@record("a head, where it attends from and to, and why")
class ExplainedScore:
    """The score of some cells of one head, as means, and its terms."""

    head: Address
    name: Annotated[str, Meaning("its address in words, with its kind where the model has several")]
    query: Annotated[str, Meaning("the row: a token and its number, or the named part")]
    key: Annotated[str, Meaning("the key likewise")]
    cells: Annotated[int, Meaning("the cells that values are means of")]
    weight: Annotated[float, Meaning("the attention weight")]
    score: Annotated[float, Meaning("the input of the softmax")]
    normalizer: Annotated[
        float, Meaning("log of the sum of exp(score) over the row: the weight is exp(score - normalizer)")
    ]
    product: Annotated[float, Meaning("query times key, scaled: all terms and the remainder")]
    capped: Annotated[float | None, Meaning("the product after the soft cap; null without one")]
    bias: Annotated[float, Meaning("what a position bias adds to it")]
    bias_excess: Excess
    remainder: Annotated[float, Meaning("the part of the product lost to rounding")]
    terms: Annotated[
        tuple[ScoreTerm, ...], Meaning(f"the {STORED_TERMS} strongest terms, by the size of their excess")
    ]
    by_query: Annotated[tuple[SidePart, ...], Meaning("the sums by part of the query, the strongest first")]
    by_key: Annotated[tuple[SidePart, ...], Meaning("the sums by part of the key, the strongest first")]
    link: Annotated[Link | None, Meaning("of an earlier head (--depth): why it is here; else null")] = None

    @property
    def place(self) -> str:
        """The head and its row, as a graph names them."""
        return f"{self.name} · {self.query}"


@record("why a head attends from one part of a text to another", "why")
class Why:
    """The terms of a head's score, and with a depth those of the heads that wrote the strongest."""

    question: Annotated[str, Meaning("from where to where")]
    against: Annotated[str | None, Meaning("the cells whose values are subtracted; null for the other keys")]
    path: Annotated[
        tuple[ExplainedScore, ...], Meaning("the named head, then those that wrote its strongest term, ...")
    ]
    prompts: Annotated[int, Meaning("the prompts that values are means of")]
    title: Annotated[str, Meaning("the model and the text")]
    notes: Notes


def explain_head(
    model: Model,
    prepared: ModelInput,
    question: Question,
    head: Head | Selection,
    against: Question | None = None,
    depth: int = 1,
) -> Why:
    """The terms of a head's score in the cells of a question; with a depth, of earlier heads likewise.

    Of several selected heads it is the one that attends there most, as ``find`` ranks them. Raises
    ``SelectionError`` for a head or cells that do not exist, and ``ModelError`` for a model whose scores
    cannot be followed.
    """
    most: tuple[str, ...] = ()
    if isinstance(head, Selection):
        head = find_heads(model, prepared, [question], head).first.heads[0].head
        most = (f"{head.name} attends there most; --head names another",)
    ran = ScorePass.run(model, prepared)
    named = None if against is None else str(against)

    def ask(_: int, ran: ScorePass) -> ScoreTerms:
        return ran.explain(head, question, against)

    path, about = explain_path(lambda step: [step(0, ran)], ask, largest_cell, depth, named)
    notes = *most, *about, *model.notes, *prepared.notes, *ran.record.notes
    return Why(str(question), named, path, 1, name_pass(model, prepared), notes)


class FollowedCells(NamedTuple):
    """The cell of an earlier head that is followed in each text, and what it carries of a term, as means."""

    cells: Sequence[Cell]
    carried: float
    error: float | None = None
    agree: int = 1
    key: str | None = None  # its name over several texts


def largest_cell(carried: Sequence[Mapping[Cell, float]]) -> FollowedCells:
    """The cell of one text that carries most."""
    cell, value = max(carried[0].items(), key=lambda each: abs(each[1]))
    return FollowedCells([cell], value)


def explain_path(
    for_each: Callable[[Callable[[int, ScorePass], Any]], list[Any]],
    ask: Callable[[int, ScorePass], ScoreTerms],
    choose: Callable[[Sequence[Mapping[Cell, float]]], FollowedCells],
    depth: int,
    against: str | None,
    names: tuple[str, str] | None = None,
) -> tuple[tuple[ExplainedScore, ...], tuple[str, ...]]:
    """A head's score, then those of the heads that wrote its strongest term, and so on: means over texts.

    ``for_each`` runs a step with the number and the pass of each text; ``names`` are those of the first row
    and key. With notes on what values are.
    """
    every: list[list[ScoreTerms]] = [for_each(ask)]
    path, ends = [describe_score(every[0], None, names)], [0]

    def follow(into: int, side: int, parts: tuple[Summand, Summand], value: float) -> int:
        head, terms = parts[side].head, every[into]
        assert head is not None
        found = choose(for_each(lambda at, ran: ran.carried(terms[at], parts, side)))
        every.append(for_each(lambda at, ran: ran.explain_cell(head, *found.cells[at])))
        term = f"{parts[0].name} × {parts[1].name} ({value:+.2f})"
        link = Link(into, ("query", "key")[side], term, found.carried, found.error, found.agree)
        row = (path[into].query, path[into].key)[side]  # it wrote what that token brought to the term
        path.append(describe_score(every[-1], link, None if found.key is None else (row, found.key)))
        return len(path) - 1

    for _ in range(1, depth):
        ends = [follow(into, *each) for into in ends for each in _written_by_heads(every[into])]
    ended = [] if ends else ["the path ends here: no head wrote a term of these scores"]
    return tuple(path), (*ended, *_note_terms(chain(*every), against))


def _written_by_heads(terms: Sequence[ScoreTerms]) -> Iterator[tuple[int, tuple[Summand, Summand], float]]:
    """The sides of the strongest term, by its mean excess, that heads wrote, its parts and its value."""
    queries, keys, values, excess = _stack(terms)
    wrote = np.logical_or.outer(*([part.head is not None for part in side] for side in (queries, keys)))
    sizes = np.where(wrote, np.abs(excess.mean(0)), -1)
    if sizes.max() <= 0:
        return
    a, b = divmod(int(sizes.argmax()), len(keys))
    for side, part in enumerate((queries[a], keys[b])):
        if part.head is not None:
            yield side, (queries[a], keys[b]), float(values[:, a, b].mean())


def _note_terms(terms: Iterable[ScoreTerms], against: str | None) -> tuple[str, ...]:
    """What the values are."""
    held = dict.fromkeys(name for each in terms for side in (each.query, each.key) for name in side.held)
    frozen = " and ".join(["norm scales", *(f"the slopes of {name}" for name in held)])
    other = "at the row's other unmasked keys, on average" if against is None else f"in {against}"
    return (
        f"excess: a value less the same {other}; the softmax ignores what all keys of a row share",
        f"{frozen} are held at their values in this pass, so the terms add up to query times key",
    )


def _stack(terms: Sequence[ScoreTerms]) -> tuple[list[Summand], list[Summand], Array, Array]:
    """The parts of both sides, and in each text the terms' values and excesses.

    -> [text, query part, key part]
    """
    queries = list(dict.fromkeys(part for each in terms for part in each.queries))
    keys = list(dict.fromkeys(part for each in terms for part in each.keys))
    values, excess = np.zeros((2, len(terms), len(queries), len(keys)))  # 0 where a text has no such part
    for text, each in enumerate(terms):
        cells = np.ix_([*map(queries.index, each.queries)], [*map(keys.index, each.keys)])
        values[text][cells], excess[text][cells] = each.values, each.values - each.others
    return queries, keys, values, excess


def describe_score(
    explained: Sequence[ScoreTerms], link: Link | None = None, names: tuple[str, str] | None = None
) -> ExplainedScore:
    """The strongest terms and the sums of one text, or the means over several."""
    first = explained[0]
    means = {name: fmean(each.means[name] for each in explained) for name in first.means}
    queries, keys, values, excess = _stack(explained)
    names = names or first.cells.names
    numbers = _means(values, excess)  # [query part, key part, value | excess | error]
    order = np.argsort(-np.abs(numbers[..., 1]), axis=None, kind="stable")[:STORED_TERMS]
    places = [divmod(int(at), len(keys)) for at in order]
    terms = (ScoreTerm(queries[a].name, keys[b].name, *_known(numbers[a, b])) for a, b in places)
    return ExplainedScore(
        head=first.head,
        name=first.name,
        query=names[0],
        key=names[1],
        cells=sum(int((each.cells.asked != 0).sum()) for each in explained),
        weight=means["weight"],
        score=means["score"],
        normalizer=means["normalizer"],
        product=means["product"],
        capped=None if first.softcap is None else means["capped"],
        bias=means["bias"],
        bias_excess=means["bias_excess"],
        remainder=means["product"] - float(numbers[..., 0].sum()),
        terms=tuple(terms),
        by_query=_sides(queries, _means(values.sum(2), excess.sum(2))),
        by_key=_sides(keys, _means(values.sum(1), excess.sum(1))),
        link=link,
    )


def _means(values: Array, excess: Array) -> Array:
    """Means over texts, and the standard errors, nan for one text.  [text, ...] -> [..., number]"""
    count = len(values)
    errors = excess.std(0, ddof=1) / count**0.5 if count > 1 else np.full(excess.shape[1:], np.nan)
    return np.stack([values.mean(0), excess.mean(0), errors], -1)


def _known(numbers: Array) -> tuple[float, float, float | None]:
    value, excess, error = numbers.tolist()
    return value, excess, None if np.isnan(error) else error


def _sides(parts: Sequence[Summand], numbers: Array) -> tuple[SidePart, ...]:
    """The parts of one side, the strongest first.  [part, number]"""
    named = zip(parts, numbers, strict=True)
    sides = [SidePart(part.name, part.kind, part.layer, *_known(each)) for part, each in named]
    return tuple(sorted(sides, key=lambda each: -abs(each.excess)))


def explain_cells(
    model: Model, prepared: ModelInput, heads: Sequence[Head]
) -> Iterator[tuple[Head, dict[tuple[int, int], Table]]]:
    """The strongest terms of each cell of some heads' maps, head by head, from one pass.

    Raises ``SelectionError`` for a head that does not exist, and ``ModelError`` for a text of more than
    ``OPENED_TOKENS``, and where scores cannot be followed.
    """
    if len(prepared.tokens) > OPENED_TOKENS:
        raise ModelError(f"cells open in pages of one text of at most {OPENED_TOKENS} tokens")
    ran = ScorePass.run(model, prepared)
    for head in heads:
        yield (
            Head(head.layer, head.head, ran.find(head).site.kind),
            {
                cell: Table(TERMS, tuple((*term[:2], *map(_signed, term[2:])) for term in terms), title=title)
                for cell, title, terms in ran.explain_all(head, LISTED_PARTS)
            },
        )


def open_cells(page: AllHeads, model: Model, prepared: ModelInput, heads: Sequence[Head]) -> AllHeads:
    """A page of which each cell of these heads opens its terms, as far as ``OPENED_BYTES`` hold them.

    A note says which heads' cells do, and why others' do not.
    """
    if not heads:
        return page
    terms, size, why_not = dict[Head, Mapping[tuple[int, int], Table]](), 0, ""
    try:
        places = (place for each in page.weights.values() for place in (*each.queries, *each.keys))
        if any(place.stop - place.start > 1 for place in places):
            raise ModelError("each cell is one token: leave out --words")
        for head, cells in explain_cells(model, prepared, heads):
            size += sum(len(str(each.rows)) for each in cells.values())
            if size > OPENED_BYTES:
                why_not = f"the terms of a page have at most {readable(OPENED_BYTES)}"
                break
            terms[head] = cells
    except ModelError as error:
        why_not = str(error)
    notes = []
    if terms:
        names = ", ".join(str(head) for head in terms)
        notes.append(f"a click on a cell of {names} opens the strongest terms of its score")
    if why_not:
        notes.append(f"the cells of {'other' if terms else 'the named'} heads open no terms: {why_not}")
    layers = replace(page.layers, notes=(*page.layers.notes, *notes))
    return replace(page, layers=layers, named=tuple(terms) or tuple(heads), terms=terms)


def why_answer(
    result: Why,
    top: int = LISTED_TERMS,
    maps: Mapping[Head, Heatmap] | None = None,
    opened: Opened | None = None,
) -> Answer:
    """For each head of the path its score and its strongest terms, and the graph.

    ``maps`` are for a page, and ``opened`` what opens there at the cells of a map.
    """
    views: list[Table] = []
    for at, each in enumerate(result.path):
        title, subtitle = f"why {each.name} attends from {each.query} to {each.key}", ""
        if (link := each.link) is not None:
            term = f"{result.path[link.into].name}'s term {link.term}"
            subtitle = f"it wrote the {link.side} part of {term}; this key carries {link.carried:+.2f}"
            if result.prompts > 1:
                error = "" if link.error is None else f" ± {link.error:.2f}"
                subtitle += f"{error}, the most in {link.agree:,} of {result.prompts:,} prompts"
        title = title if at else f"{title} · {result.title}"
        views.append(Table(title=title, subtitle=subtitle, notes=tuple(_sentences(each, result))))
        views += [_terms_table(each, top), _sides_table(each)]
    views[-1] = replace(views[-1], notes=result.notes)
    graph = why_graph(result, maps or {}, opened or {})
    return Answer(tuple(views), {"why": graph}, lambda: result, lambda: _csv_rows(result))


def _csv_rows(result: Why) -> Iterator[tuple[object, ...]]:
    errors = ("error",) if result.prompts > 1 else ()
    yield "layer", "head", "query", "key", "query_part", "key_part", "value", "excess", *errors
    for each in result.path:
        cell = each.head.layer, each.head.head, each.query, each.key
        for term in each.terms:
            yield *cell, term.query, term.key, term.value, term.excess, *((term.error,) if errors else ())


def _summarize(each: ExplainedScore, against: str | None) -> str:
    """The part of the key and the part of the query that do most of it, in a sentence."""
    total = sum(side.excess for side in each.by_key)
    other = "the row's other keys" if against is None else against
    how, found = "above" if total >= 0 else "below", list[str]()
    for token, parts, far in ((each.key, each.by_key, "query"), (each.query, each.by_query, "key")):
        most = max(parts, key=lambda part: part.excess if total >= 0 else -part.excess)
        wrote = WROTE[most.kind].format(part=most.part, token=token)
        found.append(f"{wrote} ({most.excess:+.2f} with all parts of the {far})")
    what = "query times key" if each.bias_excess or each.capped is not None else "the score"
    return f"{what} is {abs(total):.2f} {how} that of {other}, most of all by {' and '.join(found)}"


def _sentences(each: ExplainedScore, result: Why) -> Iterator[str]:
    """The strongest parts, and the steps from the terms to the weight."""
    yield _summarize(each, result.against)
    if result.prompts > 1:
        yield f"means of {result.prompts:,} prompts; ± is the standard error of the excess"
    elif each.cells > 1:
        yield f"means of {each.cells:,} cells"
    numbers = f"score {each.score:.2f} - normalizer {each.normalizer:.2f}"
    yield f"weight {each.weight:.3f} " + (f"= exp({numbers})" if each.cells == 1 else f"({numbers})")
    if each.capped is not None:
        yield f"the soft cap makes {each.capped:.2f} of query times key, {each.product:.2f}"
    if each.bias or each.bias_excess:
        yield f"a position bias adds {each.bias:+.2f} to it (excess {each.bias_excess:+.2f})"


def _terms_table(each: ExplainedScore, top: int) -> Table:
    """The strongest terms, and the sum of all."""
    terms, count = each.terms[:top], len(each.by_query) * len(each.by_key)
    rows = [(term.query, term.key, *_cells(term)) for term in terms]
    sums = [sum(getattr(side, name) for side in each.by_key) for name in ("value", "excess")]
    rest = [sums[0] - sum(term.value for term in terms), sums[1] - sum(term.excess for term in terms)]
    errors = () if terms[0].error is None else (Column("±", True),)
    blank = [""] * len(errors)
    if count > len(terms):
        rows.append((pluralize(count - len(terms), "other term"), "", *map(_signed, rest), *blank))
    rows.append(("query times key", "", *map(_signed, sums), *blank))
    return Table((*TERMS, *errors), tuple(rows))


def _sides_table(each: ExplainedScore) -> Table:
    """The same sum by parts of the query, and beside it by parts of the key, each over the other side."""
    sides = [_side_rows(side) for side in (each.by_query, each.by_key)]
    rows = tuple((*one, *other) for one, other in zip_longest(*sides, fillvalue=("", "", "")))
    names, numbers = ("by query part", "by key part"), ("value", "excess")
    columns = [(Column(name), *(Column(number, True) for number in numbers)) for name in names]
    return Table((*columns[0], *columns[1]), rows)


def _side_rows(parts: Sequence[SidePart]) -> list[tuple[str, ...]]:
    """The strongest parts of a side, the sum of the others, and that of all."""
    rows = [(part.part, *_cells(part)[:2]) for part in parts[:LISTED_PARTS]]
    others, numbers = parts[LISTED_PARTS:], ("value", "excess")
    for name, some in ((pluralize(len(others), "other part"), others), ("query times key", parts)):
        rows += [(name, *(_signed(sum(getattr(part, at) for part in some)) for at in numbers))] * bool(some)
    return rows


def _cells(each: ScoreTerm | SidePart) -> list[str]:
    error = [] if each.error is None else [f"{each.error:.2f}"]
    return [_signed(each.value), _signed(each.excess), *error]


def _signed(value: float) -> str:
    return f"{round(value, 2) + 0.0:+.2f}"  # without a negative zero


def why_graph(result: Why, maps: Mapping[Head, Heatmap], opened: Opened) -> LayerGraph:
    """Each head of the path, and the strongest parts of its query and of its key, by layers.

    A node is a part at a token; an edge is as wide as all terms of that part on its side, by their excess.
    """
    explained = {each.place: each for each in reversed(result.path)}
    columns = {
        each.place: (each.head.kind != "encoder", each.head.layer, int(each.head.kind == "cross"))
        for each in result.path
    }
    edges, nodes, kinds = list[GraphEdge](), list[GraphNode](), dict[str, str]()
    for each in result.path:
        for side, column, edge in _sources(each, result):
            columns.setdefault(edge.source, column)
            kinds[edge.source] = {"head": "attention head", "embeddings": "embedding"}.get(
                side.kind, side.kind
            )
            edges.append(edge)
    order = sorted(set(columns.values()))
    for name, column in columns.items():
        cell = explained.get(name)
        role = "" if cell is None else f"to {cell.key}: {cell.weight:.2f}"
        map_ = None if cell is None else maps.get(cell.head)
        tables, token = {} if cell is None else opened.get(cell.head, {}), TOKEN.search(name)
        how: dict[str, Any] = {"kind": kinds.get(name, "attention head"), "token": token and int(token[1])}
        how["layer"] = None if column[1] < 0 else column[1]
        nodes.append(GraphNode(name, order.index(column), role, None, map_, tables, **how))
    title = f"why {result.path[0].name} attends: {result.question} · {result.title}"
    notes = f"Q, K: a part of the query, of the key; the {LISTED_PARTS} strongest of each", *result.notes
    bar = "excess of a part, summed over the other side"
    if maps and not opened:
        notes = (*notes, f"the cells of a map open in pages of one text of at most {OPENED_TOKENS} tokens")
    return LayerGraph(tuple(nodes), tuple(edges), title=title, notes=notes, value="excess", bar=bar)


def _sources(
    each: ExplainedScore, result: Why
) -> Iterator[tuple[SidePart, tuple[bool, int, int], GraphEdge]]:
    """The strongest parts of either side, and the heads of the path among them: part, column and edge.

    Columns are streams, the encoder's first, then layers, and in a layer heads, cross-attention, others.
    """
    places = {one.place for one in result.path}
    crossed = any(one.head.kind == "cross" for one in result.path)
    for way, token, sides in (("query", each.query, each.by_query), ("key", each.key, each.by_key)):
        behind = each.head.kind == "encoder" or (each.head.kind == "cross" and way == "key")
        for side in sides:
            other = "encoder " * (behind and crossed and side.kind != "head")
            name, layer = f"{other}{side.part} · {token}", -1 if side.layer is None else side.layer
            if side in sides[:LISTED_PARTS] or name in places:
                step = int(side.part.startswith("cross")) if side.kind == "head" else 2
                edge = GraphEdge(name, each.place, side.excess, way[0].upper())
                yield side, (not behind, layer, step), edge
