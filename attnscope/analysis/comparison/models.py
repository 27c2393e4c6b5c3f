"""Two models on the same words: how far each head drifted, and which head of the other is most like it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from attnscope.analysis.comparison.compare import Pair, note_certainty
from attnscope.analysis.comparison.head_rows import head_rows, map_of_nats
from attnscope.analysis.comparison.partners import by_word, paired_rows, pairing
from attnscope.analysis.selection import Selection
from attnscope.analysis.sentences import kind_title, quote_text
from attnscope.attention import Head, Kind
from attnscope.comparison import Spread, average_over_texts, match_heads, measure_distances
from attnscope.errors import InputError, SelectionError
from attnscope.models import Model, ModelInput
from attnscope.views import HeadMap
from attnscope.views.distances import DistanceMap, distance_map


@dataclass(frozen=True, eq=False)
class ModelComparison:
    """The heads of one model and those of another, on the same texts.

    ``distances`` are Jensen-Shannon divergences in nats, averaged over rows and then over texts, ``error``
    their standard error (over texts, or of the sample of rows). ``units`` says whether the rows are those of
    "tokens", where both models read the same ones, or of "words". ``matches`` pairs heads so that the sum of
    distances is smallest, each head in one pair at most.
    """

    kind: str
    heads: tuple[Head, ...]
    others: tuple[Head, ...]
    distances: NDArray[np.float64]  # [head, other]
    error: NDArray[np.float64]  # [head, other]
    matches: tuple[Pair, ...]
    units: str
    texts: int
    stability: float | None
    title: str
    subtitle: str
    notes: tuple[str, ...]

    @property
    def drift(self) -> NDArray[np.float64] | None:
        """Distance of each head from the same head of the other model; ``None`` for other shapes.  [head]"""
        return self.distances.diagonal() if self.heads == self.others else None

    @property
    def ranking(self) -> tuple[Pair, ...]:
        """Every head with the same one of the other model, or else with its match; the farthest first."""
        pairs = self.matches
        if self.heads == self.others:
            pairs = tuple(self._pair(number, number) for number in range(len(self.heads)))
        return tuple(sorted(pairs, key=lambda pair: -pair.distance))

    @property
    def view(self) -> HeadMap | DistanceMap:
        """The drift of every head; for other shapes all distances, with matches along the diagonal."""
        drift = self.drift
        if drift is not None:
            return map_of_nats(
                self.heads, drift, "drift", title=self.title, subtitle=self.subtitle, notes=self.notes
            )
        nearest_first = sorted(self.matches, key=lambda pair: pair.distance)
        rows = [self.heads.index(pair.one) for pair in nearest_first]
        columns = [self.others.index(pair.other) for pair in nearest_first]
        rows += [number for number in range(len(self.heads)) if number not in rows]
        columns += [number for number in range(len(self.others)) if number not in columns]
        return distance_map(
            self.distances[np.ix_(rows, columns)],
            [self.heads[number].name for number in rows],
            [self.others[number].name for number in columns],
            title=self.title,
            subtitle=f"{self.subtitle}; matches lie on the diagonal, the nearest first",
            notes=(*self.notes, "rows are heads of the first model, columns those of the second"),
            matched=True,
        )

    def _pair(self, one: int, other: int) -> Pair:
        return Pair(
            self.heads[one],
            self.others[other],
            float(self.distances[one, other]),
            float(self.error[one, other]),
        )


def compare_models(
    model: Model,
    other: Model,
    texts: Sequence[tuple[ModelInput, ModelInput]],
    selection: Selection | None = None,
) -> ModelComparison:
    """Run both models once a text, each text as both have prepared it, and compare their heads.

    Models that read a text as the same tokens are compared token by token, others on the words that both
    have, special tokens counting as one more key. ``layers`` and ``kind`` choose heads of both.
    Raises ``SelectionError`` for models without a common kind of attention, ``InputError`` for texts that
    they read without a common word.
    """
    selection = selection or Selection()
    if not texts:
        raise InputError("there is no text to compare models on: give one at least")
    kind = _common_kind(model, other, *texts[0], selection)
    results = [_one_text(model, other, *prepared, replace(selection, kind=kind), kind) for prepared in texts]
    first = results[0]
    if any((text.heads, text.others) != (first.heads, first.others) for text in results):
        raise SelectionError("the texts run through different layers: compare the models on one at a time")
    average = average_over_texts([text.spread.mean for text in results]) if len(results) > 1 else None
    distances = first.spread.mean if average is None else average.mean
    error = first.spread.error(first.of) if average is None else average.error
    rows, of = sum(text.spread.rows for text in results), sum(text.of for text in results)
    notes = [
        f"from {model.title} to {other.title}",
        *model.notes,
        *other.notes,
        *(note for text in results for note in text.notes),
    ]
    one, quoted = len(texts) == 1, f"{quote_text(texts[0][0])} · ".removeprefix(" · ")
    units = "tokens" if all(text.tokens for text in results) else "words"
    return ModelComparison(
        kind=first.kind,
        heads=first.heads,
        others=first.others,
        distances=distances,
        error=error,
        matches=tuple(
            Pair(first.heads[i], first.others[j], float(distances[i, j]), float(error[i, j]))
            for i, j in match_heads(distances)
        ),
        units=units,
        texts=len(texts),
        stability=None if average is None else average.stability,
        title=f"{_what(first)} · {model.title} and {other.title} · {kind_title(first.kind)}",
        subtitle=f"{quoted}{of:,} {units} compared" if one else f"mean over {len(texts):,} texts",
        notes=(*dict.fromkeys(notes), *note_certainty(rows, of, error, average)),
    )


@dataclass(frozen=True, eq=False)
class _OneText:
    """What is kept of a text: the rows themselves are not."""

    kind: str
    heads: tuple[Head, ...]
    others: tuple[Head, ...]
    spread: Spread
    of: int
    tokens: bool
    notes: tuple[str, ...]


def _what(text: _OneText) -> str:
    if text.heads == text.others:
        return "drift of each head"
    return f"{len(text.heads)} heads matched with {len(text.others)}"


def _one_text(
    model: Model, other: Model, mine: ModelInput, theirs: ModelInput, selection: Selection, kind: Kind
) -> _OneText:
    if _reads_alike(mine, theirs, kind):
        one, two = (head_rows(each, text, selection) for each, text in ((model, mine), (other, theirs)))
        of, tokens = one.of, True
    else:
        pairs = pairing(mine, theirs, by_word)
        one = head_rows(model, mine, selection, paired_rows(pairs, 0))
        two = head_rows(other, theirs, selection, paired_rows(pairs, 1))
        of, tokens = len(pairs(kind)[0]), False
    notes = (*mine.notes, *theirs.notes, *one.notes, *two.notes)
    return _OneText(kind, one.heads, two.heads, measure_distances(one.rows, two.rows), of, tokens, notes)


def _common_kind(
    model: Model, other: Model, mine: ModelInput, theirs: ModelInput, selection: Selection
) -> Kind:
    """The kind that is asked for, or else the first one that both models run."""
    runs = [
        list(dict.fromkeys(site.site.kind for site in each.run(text, []).sites))
        for each, text in ((model, mine), (other, theirs))
    ]
    common = [kind for kind in runs[0] if kind in runs[1] and selection.kind in (None, kind)]
    if not common:
        have = [" and ".join(kind_title(kind) for kind in kinds) for kinds in runs]
        asked = "kind of attention" if selection.kind is None else kind_title(selection.kind)
        raise SelectionError(
            f"the models have no {asked} in common: {model.name} has {have[0]}, {other.name} has {have[1]}"
        )
    return common[0]


def _reads_alike(mine: ModelInput, theirs: ModelInput, kind: Kind) -> bool:
    """Whether both models see the same tokens."""
    axes = zip(mine.axes.get(kind, ()), theirs.axes.get(kind, ()), strict=True)
    return all(
        not isinstance(a, range) and not isinstance(b, range) and [t.text for t in a] == [t.text for t in b]
        for a, b in axes
    )
