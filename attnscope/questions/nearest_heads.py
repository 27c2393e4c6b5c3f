"""Which heads attend most like one head."""

from __future__ import annotations

from typing import Annotated

import numpy as np

from attnscope.attention import Head
from attnscope.errors import SelectionError
from attnscope.questions.answer import Answer, csv_rows
from attnscope.questions.compare import ComparedKind, Comparison, PairDistance, TextCount, with_error
from attnscope.records import Meaning, Notes, record
from attnscope.views import HeadRank, Ranking, head_map
from attnscope.views.heads import layer_rows

LISTED = 10  # nearest heads that are listed; the map and the numbers have all of them


@record("one head with every other (L1H2)", "compare")
class NearestHeads:
    """The distances of one head from every other, the nearest first."""

    kind: ComparedKind
    head: Annotated[Head, Meaning("the head")]
    others: Annotated[tuple[PairDistance, ...], Meaning("it with every other head, the nearest first")]
    chain: Annotated[
        tuple[PairDistance, ...],
        Meaning("from it to the nearest head of the next layer, from that one on, and so forth"),
    ]
    texts: TextCount
    notes: Notes
    title: str


def nearest_heads(result: Comparison, head: Head) -> NearestHeads:
    """One head with every other one that was compared. Raises ``SelectionError`` if it was not."""
    places = {(each.layer, each.head): place for place, each in enumerate(result.heads)}
    number = places.get((head.layer, head.head))
    if number is None:
        first, last = result.heads[0], result.heads[-1]
        raise SelectionError(f"no head {head.name} among those compared: {first.name} to {last.name}")
    pairs = (result.pair(number, other) for other in range(len(result.heads)) if other != number)
    chain, end = list[PairDistance](), number
    for layer in sorted({each.layer for each in result.heads if each.layer > head.layer}):
        following = [at for at, each in enumerate(result.heads) if each.layer == layer]
        successor = following[int(result.distances[end, following].argmin())]
        chain, end = [*chain, result.pair(end, successor)], successor
    return NearestHeads(
        kind=result.kind,
        head=result.heads[number],
        others=tuple(sorted(pairs, key=lambda pair: pair.distance)),
        chain=tuple(chain),
        texts=result.texts,
        notes=result.notes,
        title=result.title.partition(" · ")[2],
    )


def nearest_answer(result: NearestHeads, command: str | None) -> Answer:
    """A map of every head's distance from one, and the nearest heads with the commands that compare them."""
    name = result.head.name
    distances = {result.head: np.nan} | {pair.other: pair.distance for pair in result.others}
    view = head_map(
        layer_rows(distances),
        "distance",
        unit="nats",
        title=f"distance of each head from {name} · {result.title}",
        notes=result.notes,
    )
    nearest = [
        HeadRank(pair.other.name, pair.words, f"{command} {pair.names}" if command else "")
        for pair in result.others[:LISTED]
    ]
    steps = (f"{each.other.name} ({with_error(each.distance, 0.0)})" for each in result.chain)
    chain = f"the nearest of each next layer, in nats: {' → '.join([name, *steps])}"
    ranking = Ranking(tuple(nearest), title=f"Nearest to {name}", notes=(chain,) * bool(result.chain))
    return Answer((view, ranking), {"heads": view}, lambda: result, lambda: csv_rows(result.others))
