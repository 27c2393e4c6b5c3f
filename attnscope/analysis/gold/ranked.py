"""Heads by how well they find the answers of each label."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from attnscope.analysis.gold.asked import Slots
from attnscope.analysis.gold.sums import REACH, GoldSums, SiteSums
from attnscope.attention import Head, Site


@dataclass(frozen=True)
class Scored:
    """How well one head finds the answers of a label in one direction, over ``rows`` questions.

    ``accuracy`` is the share of the questions whose row has its largest word among the answers, ``weight``
    what the answers get on average and ``baseline`` what they get of even attention. ``fixed`` is the
    accuracy of the word that is ``offset`` words away, the best such distance. ``chosen`` is the accuracy on
    the texts on which heads are ranked, ``aer`` the alignment error rate, where the answers are a whole
    alignment. Each ``error`` is a standard error over texts.
    """

    head: Head
    rows: int
    texts: int
    accuracy: float
    accuracy_error: float | None
    weight: float
    weight_error: float | None
    baseline: float
    offset: int
    fixed: float
    chosen: float
    aer: float | None = None
    aer_error: float | None = None


@dataclass(frozen=True)
class Label:
    """All heads by how well they find the answers of one label in one direction, the best first."""

    label: str
    way: str
    heads: tuple[Scored, ...]


def rank_heads(total: GoldSums, slots: Slots, ways: Sequence[str], held_out: bool) -> Iterator[Label]:
    """Every label and direction that was asked, those with the most questions first."""
    found = []
    agreement = slots.numbers.get(None)
    for slot, number in slots.numbers.items():
        if slot is None:
            continue
        ranked: list[Scored] = []
        for site, sums in total.sites.items():
            halves = ([2 * number], [2 * number + 1]) if held_out else ([2 * number, 2 * number + 1],) * 2
            chosen, scored = (sums.part(rows) for rows in halves)
            if chosen.asked[0] and scored.asked[0]:
                heads = list(_score(site, total.heads[site], chosen, scored))
                if agreement is not None:
                    shift = 2 * (agreement - number)
                    heads = _with_error_rate(heads, sums.part([row + shift for row in halves[1]]))
                ranked += heads
        ranked.sort(key=lambda head: (-head.chosen, -head.weight, head.head))
        if ranked:
            found.append(Label(slot[0], ways[slot[1]], tuple(ranked)))
    counts: dict[str, int] = {}
    for each in found:
        counts[each.label] = max(counts.get(each.label, 0), max(head.rows for head in each.heads))
    order_ = {label: place for place, label in enumerate(counts)}
    yield from sorted(found, key=lambda each: (-counts[each.label], order_[each.label]))


def _score(site: Site, heads: Sequence[int], chosen: SiteSums, scored: SiteSums) -> Iterator[Scored]:
    """The figures of each head on ``scored``, beside the distance that is best on ``chosen``."""
    offset = int(chosen.offsets[0].argmax())
    rows = float(scored.asked[0])
    right, weight = scored.ratios(scored.right), scored.ratios(scored.weight)
    order = (chosen.right[0, 0] / chosen.asked[0]).tolist()
    for place, head in enumerate(heads):
        yield Scored(
            Head(site.layer, head, site.kind),
            int(rows),
            int(scored.texts[0]),
            right[place].value,
            right[place].error,
            weight[place].value,
            weight[place].error,
            float(scored.even[0]) / rows,
            offset - REACH,
            float(scored.offsets[0, offset]) / rows,
            order[place],
        )


def _with_error_rate(heads: Sequence[Scored], agreement: SiteSums) -> list[Scored]:
    """The same heads with their alignment error rates."""
    return [
        replace(head, aer=1 - ratio.value, aer_error=ratio.error)
        for head, ratio in zip(heads, agreement.ratios(agreement.right), strict=True)
    ]
