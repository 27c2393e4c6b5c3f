"""What a comparison of heads found, on its way out: views, numbers, a table, arrays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnscope.attention import Head
from attnscope.axes import Array
from attnscope.questions.answer import Answer
from attnscope.questions.compare import Comparison, Depth, HeadComparison, Pair
from attnscope.views import Ranked, Ranking, View

NEAREST = 5
"""Pairs that are listed; --csv has all of them."""


@dataclass(frozen=True, eq=False)
class Compared:
    """An answer, its ``table`` for --csv with the names of its columns first, and its ``arrays`` for .npz."""

    answer: Answer
    table: Sequence[Sequence[object]]
    arrays: Mapping[str, Array]


def of_heads(result: Comparison, command: str | None, *, everything: bool = True) -> Compared:
    """All heads: the table, the groups and the nearest pairs; with ``everything`` all that was found."""
    view = result.view
    groups = Ranking(
        tuple(
            Ranked(str(number), ", ".join(result.heads[head].name for head in group))
            for number, group in enumerate(result.groups.members, 1)
            if len(group) > 1
        ),
        "Alike",
    )
    nearest = result.nearest(NEAREST)
    pairs = tuple(
        Ranked(f"{pair.one.name} {pair.other.name}", apart(pair), _opening(command, pair)) for pair in nearest
    )
    singletons = tuple(
        Ranked(pair.one.name, f"{apart(pair)} from {pair.other.name}, the nearest to it")
        for pair in result.singletons
    )
    rest = () if everything else ("--all shows every head on a plane, and the singletons",)
    lists = [groups, Ranking(pairs, "Nearest pairs", rest)]
    lists += [Ranking(singletons, "Singletons")] if everything else []
    numbers = {
        "kind": result.kind,
        "heads": names(result.heads),
        "distances": round_values(result.distances),
        "error": round_values(result.error),
        "groups": [names(result.heads[head] for head in group) for group in result.groups.members],
        "silhouette": result.groups.silhouette,
        "nearest": [pair_numbers(pair) for pair in nearest],
        "singletons": [pair_numbers(pair) for pair in result.singletons],
        "plane": {
            "points": round_values(result.plane.points),
            "explained_variance": result.plane.explained_variance,
        },
        "rows": {"compared": result.rows, "of": result.of},
        "texts": result.texts,
        "stability": result.stability,
        "notes": list(result.notes),
    }
    count = len(result.heads)
    all_pairs = (result.pair(one, other) for one in range(count) for other in range(one + 1, count))
    member = np.zeros(count, int)
    for number, group in enumerate(result.groups.members):
        member[list(group)] = number
    arrays = {
        "heads": numbers_of(result.heads),
        "distances": result.distances,
        "error": result.error,
        "groups": member,
        "points": result.plane.points,
    }
    plane = (view.plane,) if everything else ()
    views: tuple[View, ...] = (view.table, *plane, *(ranking for ranking in lists if ranking.heads))
    return Compared(Answer(views, {"heads": view}, lambda: numbers), [*pair_table(all_pairs)], arrays)


def of_depth(result: Depth) -> Compared:
    """One head number through all layers."""
    series = result.view.series
    numbers = {
        "kind": result.kind,
        "heads": names(result.heads),
        "roles": list(result.view.roles),
        "distances": round_values(result.distances),
        "error": round_values(result.error),
        "series": {each.name: {"unit": each.unit, "values": list(each.values)} for each in series},
        "notes": list(result.view.notes),
    }
    table: list[list[object]] = [["head", "role", *(each.name for each in series)]]
    table += [
        [head.name, result.view.roles[number], *(each.values[number] for each in series)]
        for number, head in enumerate(result.heads)
    ]
    arrays = {
        "heads": numbers_of(result.heads),
        "distances": result.distances,
        "error": result.error,
        **{each.name.replace(" ", "_"): np.array(each.values, float) for each in series},
    }
    return Compared(Answer((result.view,), {"depth": result.view}, lambda: numbers), table, arrays)


def of_two_heads(result: HeadComparison) -> Compared:
    """Two heads and their difference."""
    one, other = (weights.values for weights in result.weights)
    places = result.weights[0]
    tokens = [place.text for place in places.queries], [place.text for place in places.keys]
    numbers = {
        "kind": result.kind,
        "heads": names(result.heads),
        "distance": result.distance,
        "error": result.error,
        "rows": [
            {"row": row, "distance": float(far)} for row, far in zip(result.rows, result.by_row, strict=True)
        ],
        "partings": [
            {
                "token": each.label,
                "position": each.position,
                "distance": each.distance,
                "look_at": list(each.keys),
            }
            for each in result.view.partings
        ],
        "queries": tokens[0],
        "keys": tokens[1],
        "weights": [round_values(one), round_values(other)],
        "notes": list(result.view.notes),
    }
    arrays = {
        "heads": numbers_of(result.heads),
        "rows": np.array(result.rows),
        "by_row": result.by_row,
        "one": one,
        "other": other,
        "difference": one - other,
        "queries": np.array(tokens[0], np.str_),
        "keys": np.array(tokens[1], np.str_),
    }
    table: list[list[object]] = [["row", "distance"]]
    table += [[row, float(far)] for row, far in zip(result.rows, result.by_row, strict=True)]
    return Compared(Answer((result.view,), {"pair": result.view}, lambda: numbers), table, arrays)


def apart(pair: Pair) -> str:
    """How far two heads are apart, in words."""
    error = f" ± {pair.error:.3f}" if pair.error else ""
    return f"{pair.distance:.3f}{error} nats apart"


def _opening(command: str | None, pair: Pair) -> str:
    return f"{command} {pair.one.name} {pair.other.name}" if command else ""


def names(heads: Iterable[Head]) -> list[str]:
    """The heads as people write them."""
    return [head.name for head in heads]


def numbers_of(heads: Iterable[Head]) -> Array:
    """The heads as arrays have them.  -> [head, layer | head]"""
    return np.array([(head.layer, head.head) for head in heads])


def pair_numbers(pair: Pair) -> dict[str, Any]:
    """A pair as plain data."""
    return {
        "one": pair.one.name,
        "other": pair.other.name,
        "distance": round(pair.distance, 7),
        "error": round(pair.error, 7),
    }


def pair_table(pairs: Iterable[Pair]) -> Iterator[list[object]]:
    """Pairs as rows under the names of their columns."""
    yield ["one", "other", "distance", "error"]
    for pair in pairs:
        yield list(pair_numbers(pair).values())


def round_values(values: Array) -> list[Any]:
    """Nested lists, in the digits that mean something."""
    found: list[Any] = values.astype(float).round(7).tolist()
    return found
