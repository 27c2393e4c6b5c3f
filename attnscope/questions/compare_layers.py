"""How far the heads of each layer are from those of each other layer, in one model or in two."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Annotated, Any

import numpy as np

from attnscope.attention import Head
from attnscope.axes import Array
from attnscope.comparison import MAX_DIVERGENCE, group_heads
from attnscope.errors import SelectionError
from attnscope.questions import compare
from attnscope.questions.answer import Answer, csv_rows, format_table
from attnscope.questions.compare import Comparison, PairDistance, decimals_for, pair_distance, with_error
from attnscope.questions.compare_texts_models import ModelComparison
from attnscope.records import MATRIX, Meaning, Notes, record
from attnscope.text import number_ranges
from attnscope.views import HeadRank, Ranking, View
from attnscope.views.heads import DistanceMap, distance_map

ALONE = "a layer of one head is drawn at 0 from itself"
NEAREST = 5  # pairs of layers that are listed; --csv has all of them
LISTED = 20  # heads of --by head that are printed


@record("two layers")
class LayerPair:
    """Two layers, or one with itself: how far their heads are apart, and the nearest two."""

    layer: Annotated[int, Meaning("a layer")]
    other: Annotated[int, Meaning("another one, or itself; of the second model, if there are two")]
    mean: Annotated[float, Meaning(f"mean over all pairs of their heads, {compare.NATS}")]
    nearest: Annotated[float, Meaning(f"the smallest of them, {compare.NATS}")]
    farthest: Annotated[float, Meaning(f"the largest of them, {compare.NATS}")]
    head: Annotated[Head, Meaning("of the nearest two heads, that of the first layer")]
    other_head: Annotated[Head, Meaning("that of the other layer")]
    mean_error: Annotated[
        float,
        Meaning("the standard error of the mean over texts; of one text at most, for the rows left out"),
    ]
    nearest_error: Annotated[float, Meaning("that of the distance of the nearest two heads")]


@record("layers with each other (--by layer)", "compare", eq=False)
class LayerComparison:
    """Distances between layers, in order: [layer, other], NaN for a layer of one head and itself."""

    kind: compare.ComparedKind
    layers: Annotated[tuple[int, ...], Meaning("the layers of the rows, in order")]
    others: Annotated[tuple[int, ...], Meaning("those of the columns; of the second model, if there are two")]
    mean: Annotated[
        Array, Meaning("[layer, other], mean over the pairs of their heads, in nats", shape=MATRIX)
    ]
    nearest: Annotated[Array, Meaning("[layer, other], that of the nearest two heads", shape=MATRIX)]
    pairs: Annotated[tuple[LayerPair, ...], Meaning("every two layers, and each with itself")]
    continued: Annotated[
        tuple[PairDistance, ...],
        Meaning("each head with the nearest of the next layer, or of the second model; the nearest first"),
    ]
    texts: compare.TextCount
    notes: Notes
    title: str
    subtitle: str
    two_models: bool

    @property
    def maps(self) -> dict[str, DistanceMap]:
        """The mean and the nearest distance as tables, each from its smallest colour to its largest."""
        rows, columns = ([f"L{layer}" for layer in each] for each in (self.layers, self.others))
        words: dict[str, Any] = {"subtitle": self.subtitle}
        means, nearest = np.nan_to_num(self.mean), np.nan_to_num(self.nearest)
        mean = distance_map(
            means,
            rows,
            columns,
            title=f"distance of layers, mean over pairs of their heads · {self.title}",
            **words,
        )
        words |= {"title": f"distance of layers, their nearest two heads · {self.title}", "notes": self.notes}
        low = float(np.nanmin(self.mean)) if self.mean.size > 1 else 0.0  # means are far from 0 and alike
        return {
            "mean": replace(mean, low=min(low, 0.99 * mean.top)),
            "nearest": distance_map(nearest, rows, columns, **words),
        }


def compare_layers(result: Comparison | ModelComparison) -> LayerComparison:
    """The distances of heads, gathered by layer; a layer and itself without each head and itself."""
    two_models = isinstance(result, ModelComparison)
    heads, others = result.heads, result.others if isinstance(result, ModelComparison) else result.heads
    rows, columns = _by_layer(heads), _by_layer(others)
    if not two_models and len(rows) < 2:
        raise SelectionError("--by layer compares layers, and one is selected: leave out --layer")
    apart = result.distances if two_models else result.distances + np.diag([np.nan] * len(heads))
    pairs = []
    for layer, own in rows.items():
        for other, theirs in columns.items():
            block = apart[np.ix_(own, theirs)]
            if (other < layer and not two_models) or np.isnan(block).all():
                continue
            one, two = np.unravel_index(int(np.nanargmin(block)), block.shape)
            ends = float(np.nanmean(block)), float(np.nanmin(block)), float(np.nanmax(block))
            error = result.error[np.ix_(own, theirs)]
            means = [float(each[np.ix_(own, theirs)][~np.isnan(block)].mean()) for each in result.single]
            spread = np.std(means, ddof=1) / np.sqrt(len(means)) if means else error[~np.isnan(block)].mean()
            errors = float(spread), float(error[one, two])
            pairs.append(LayerPair(layer, other, *ends, heads[own[one]], others[theirs[two]], *errors))
    mean, nearest = np.full((2, len(rows), len(columns)), np.nan)
    places = {layer: at for at, layer in enumerate(columns)}
    for each in pairs:
        for row, column in ((each.layer, each.other), (each.other, each.layer)):
            if row == each.layer or not two_models:
                cell = [*rows].index(row), places[column]
                mean[cell], nearest[cell] = each.mean, each.nearest
    return LayerComparison(
        kind=result.kind,
        layers=tuple(rows),
        others=tuple(columns),
        mean=mean,
        nearest=nearest,
        pairs=tuple(pairs),
        continued=tuple(sorted(_continued(result, rows, columns, others), key=lambda pair: pair.distance)),
        texts=result.texts,
        notes=(*result.notes, *([ALONE] if np.isnan(mean).any() else [])),
        title=result.title.partition(" · ")[2],
        subtitle=result.subtitle,
        two_models=two_models,
    )


def _by_layer(heads: Sequence[Head]) -> dict[int, list[int]]:
    """The numbers of the heads of each layer, in order."""
    layers: dict[int, list[int]] = {}
    for number, head in sorted(enumerate(heads), key=lambda each: each[1].layer):
        layers.setdefault(head.layer, []).append(number)
    return layers


def _continued(
    result: Comparison | ModelComparison,
    rows: dict[int, list[int]],
    columns: dict[int, list[int]],
    others: Sequence[Head],
) -> Iterator[PairDistance]:
    """Each head with the nearest of the next layer, or of all layers of the second model."""
    following = dict(zip(rows, [*columns.values()][1:], strict=False))
    everyone = list(range(len(others)))
    for layer, own in rows.items():
        among = everyone if isinstance(result, ModelComparison) else following.get(layer, [])
        for head in own if among else ():
            nearest = among[int(result.distances[head, among].argmin())]
            yield pair_distance((head, nearest), result.heads, others, result.distances, result.error)


def _describe_spread(own: Sequence[LayerPair]) -> tuple[str, ...]:
    """The layers whose heads are most and least alike."""
    if len(own) < 2:
        return ()
    alike, *_, varied = sorted(own, key=lambda each: each.mean)
    most, least = (f"L{each.layer} ({with_error(each.mean, 0.0)} on average)" for each in (alike, varied))
    return (f"heads are most alike in {most}, least in {least}",)


def _most_alike(result: LayerComparison) -> Ranking:
    """Which layers do the same: the nearest pairs, groups of layers, and those far from all others."""
    apart = [each for each in result.pairs if each.layer != each.other or result.two_models]
    nearest = sorted(apart, key=lambda each: each.mean)[:NEAREST]
    listed = tuple(
        HeadRank(f"L{each.layer} L{each.other}", f"{with_error(each.mean, each.mean_error)} nats apart")
        for each in nearest
    )
    notes = [
        f"mean over all pairs of their heads; 0: they attend alike, {MAX_DIVERGENCE:.3f}: no common token"
    ]
    if not result.two_models and len(result.layers) > 2:
        table = np.where(np.eye(len(result.layers), dtype=bool), 0, result.mean)
        groups = [sorted(each) for each in group_heads(table).members if 1 < len(each) < len(table)]
        named = [f"L{number_ranges(result.layers[at] for at in each)}" for each in sorted(groups)]
        notes += [f"groups of similar layers: {'; '.join(named)}"] if named else []
        means = table.sum(1) / (len(table) - 1)
        far = [f"L{result.layers[at]} ({with_error(means[at], 0.0)})" for at in np.argsort(-means)[:3]]
        notes.append(f"farthest from all other layers, on average: {', '.join(far)}")
    return Ranking(listed, title="Layers most alike", notes=tuple(notes))


def _continuing(result: LayerComparison, command: str | None) -> Ranking:
    """Of each layer, the head that the next layer, or the second model, has most alike."""
    best: dict[int, PairDistance] = {}
    for pair in result.continued:  # the nearest first
        best.setdefault(pair.one.layer, pair)
    opens = "" if result.two_models or command is None else f"{command} "
    listed = [HeadRank(best[layer].names, best[layer].words) for layer in sorted(best)]
    listed[:1] = [replace(each, command=opens and opens + each.head) for each in listed[:1]]
    where = "the second model" if result.two_models else "the next layer"
    note = f"the nearest pair of each layer, of {len(result.continued):,} heads: --by head --csv lists all"
    return Ranking(tuple(listed), title=f"Continued in {where}", notes=(note,))


def layers_answer(result: LayerComparison, command: str | None) -> Answer:
    """Which layers do the same, maps of layers, how each one's heads spread, and which continue."""
    own = [each for each in result.pairs if each.layer == each.other and not result.two_models]
    digits = {
        name: decimals_for(getattr(each, name) for each in own) for name in ("mean", "nearest", "farthest")
    }

    def cell(each: LayerPair, name: str, error: float = 0.0) -> str:
        value: float = getattr(each, name)
        return with_error(value, error) if error else f"{value:.{digits[name]}f}"

    spread = format_table(
        {
            "layer": "L{0.layer}",
            "mean": lambda each: cell(each, "mean", each.mean_error),
            "nearest": lambda each: cell(each, "nearest", each.nearest_error),
            "nearest heads": lambda each: f"{each.head.name} {each.other_head.name}",
            "farthest": lambda each: cell(each, "farthest"),
        },
        own,
        ("layer", "nearest heads"),
        title="How each layer's heads spread, in nats",
        notes=_describe_spread(own),
    )
    arrays = {name: np.array(getattr(result, name)) for name in ("layers", "others", "mean", "nearest")}
    tables: tuple[View, ...] = (spread,) if own else ()
    continuing: tuple[View, ...] = (_continuing(result, command),) if result.continued else ()
    views = (_most_alike(result), *result.maps.values(), *tables, *continuing)
    return Answer(views, result.maps, lambda: result, lambda: csv_rows(result.pairs), lambda: arrays)


def continued_answer(result: LayerComparison, command: str | None) -> Answer:
    """Every head with the nearest one of the next layer, or of the second model."""
    listed = result.continued[:LISTED]
    decimals = decimals_for(each.distance for each in listed)
    where = "of the second model" if result.two_models else "of the next layer"
    more = len(result.continued) - len(listed)
    table = format_table(
        {
            "head": "{0.one.name}",
            f"nearest {where}": "{0.other.name}",
            "nats apart": lambda each: (
                with_error(each.distance, each.error) if each.error else f"{each.distance:.{decimals}f}"
            ),
        },
        listed,
        ("head", f"nearest {where}"),
        title=f"Each head and the nearest {where} · {result.title}",
        subtitle=result.subtitle,
        notes=(*([f"the nearest first; {more:,} more: --csv"] if more else []), *result.notes),
        commands=(f"{command} {listed[0].names}",) if command and listed and not result.two_models else (),
    )
    return Answer((table,), {}, lambda: result, lambda: csv_rows(result.continued))
