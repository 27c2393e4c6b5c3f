"""Tokens of two texts, or of one text read by two models, that belong together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnscope.attention import Attention, Axis, Head, Kind
from attnscope.axes import Coarsening, coarsen_axis
from attnscope.capture.observers.coarsen import SharedRows
from attnscope.capture.observers.rows import Rows, Sample
from attnscope.comparison import (
    Spread,
    align,
    average_over_texts,
    divergence,
    find_shared_words,
    match_heads,
    measure_distances,
    sampling_error,
)
from attnscope.errors import InputError, ModelError, SelectionError
from attnscope.models import Model, ModelInput
from attnscope.models.kept import FileModel
from attnscope.questions.answer import Answer
from attnscope.questions.compare import Pair, note_certainty
from attnscope.questions.compared import (
    Compared,
    apart,
    names,
    numbers_of,
    pair_numbers,
    pair_table,
    round_values,
)
from attnscope.questions.head_rows import CELLS, Choosing, evenly, head_rows, map_of_nats
from attnscope.questions.selection import Selection
from attnscope.questions.sentences import kind_title, name_pass, provenance, quote_text, require_selected
from attnscope.views import HeadMap, Heatmap, Ranked, Ranking, heatmap
from attnscope.views.distances import DistanceMap, distance_map
from attnscope.views.heads import AlignedTexts, Step, joint_difference

Pairs = Sequence["tuple[Sequence[int], Sequence[int]]"]
"""Tokens of one axis, and the tokens of the other that they belong to."""

Pairing = Callable[[Kind], "tuple[Pairs, Pairs]"]
"""The pairs of queries, and those of keys, of a kind of attention."""


def pairing(one: ModelInput, other: ModelInput, pair: Callable[[Axis, Axis], Pairs]) -> Pairing:
    """Pair the queries and the keys of every kind of attention that is asked for, each once."""

    @cache
    def pairs(kind: Kind) -> tuple[Pairs, Pairs]:
        mine, theirs = one.axes.get(kind), other.axes.get(kind)
        if mine is None or theirs is None:
            raise InputError(f"nobody knows which tokens the {kind_title(kind)} sees: it cannot be aligned")
        return pair(mine[0], theirs[0]), pair(mine[1], theirs[1])

    return pairs


def paired_rows(pairs: Pairing, side: int, cells: int = CELLS) -> Choosing:
    """The rows and keys that have a partner, on one side (0 or 1); rows sampled evenly if they are many."""

    def choose(attention: Attention) -> Rows:
        queries, keys = ([pair[side] for pair in axis] for axis in pairs(attention.site.kind))
        across = np.zeros((len(keys), len(attention.keys)), np.float32)
        for row, tokens in enumerate(keys):
            across[row, list(tokens)] = 1
        return Rows([queries[row] for row in evenly(len(queries), len(keys), cells)], across)

    return choose


def by_place(selection: Selection) -> Callable[[Axis, Axis], Pairs]:
    """Pair the places of two texts, tokens or words, also those that replace each other.

    Raises ``InputError`` where the texts have no token in common but special ones.
    """

    def pair(one: Axis, other: Axis) -> Pairs:
        mine, theirs = selection.coarsening(one), selection.coarsening(other)
        pairs = align(texts(mine), texts(theirs)).pairs
        alike = [(i, j) for i, j in pairs if mine.places[i].text == theirs.places[j].text]
        if all(mine.places[i].special for i, _ in alike):
            raise InputError(
                f"the two texts have no token in common: one begins {_beginning(mine)}, "
                f"the other {_beginning(theirs)}"
            )
        return [(mine.tokens(i), theirs.tokens(j)) for i, j in pairs]

    return pair


def by_word(one: Axis, other: Axis) -> Pairs:
    """Pair the words of one text as two tokenizers cut it.

    Raises ``InputError`` where they have no word in common.
    """
    mine, theirs = (coarsen_axis(axis, words=True, hide_special=True) for axis in (one, other))
    pairs = find_shared_words(texts(mine), texts(theirs))
    if not pairs:
        raise InputError(
            f"the two models read no word alike: one reads {_beginning(mine)}, the other {_beginning(theirs)}"
        )
    return [(mine.tokens(*my_words), theirs.tokens(*their_words)) for my_words, their_words in pairs]


def texts(axis: Coarsening) -> list[str]:
    """The texts of an axis, without the spaces around them."""
    return [place.text.strip() or place.text for place in axis.places]


def _beginning(axis: Coarsening) -> str:
    return repr(" ".join(place.label for place in axis.places if not place.special)[:40])


LARGEST = 1024
"""Tokens that a difference map shows at most."""


@dataclass(frozen=True, eq=False)
class TextComparison:
    """What changes in every head from one text to the other.

    ``change`` is the Jensen-Shannon divergence (nats) between the rows of tokens that belong together,
    averaged over those tokens; the attention to tokens without a partner counts as that to one more key.
    ``error`` is its standard error where rows were sampled. ``difference`` is the second text's map minus
    the first one's, of the head that was chosen.
    """

    kind: str
    heads: tuple[Head, ...]
    change: NDArray[np.float64]  # [head]
    error: NDArray[np.float64]  # [head]
    aligned: AlignedTexts
    view: HeadMap
    difference: Heatmap | None
    notes: tuple[str, ...]

    @property
    def ranking(self) -> tuple[int, ...]:
        """The numbers of all heads in ``heads``, the one that changes most first."""
        return tuple(int(head) for head in np.argsort(-self.change, kind="stable"))


def compare_texts(
    model: Model, prepared: ModelInput, other: ModelInput, selection: Selection | None = None
) -> TextComparison:
    """Run the model once on each text, and compare what its heads do on the tokens that both have.

    As many tokens in the place of as many others are compared with those. ``layers`` of the selection leaves
    their heads; with a ``head``, all heads stay and the difference map of that one is added. Raises
    ``InputError`` for texts that share no token, ``SelectionError`` for what does not exist.
    """
    selection = selection or Selection()
    every = replace(selection, head=None)
    pairs = pairing(prepared, other, by_place(selection))
    results, chosen = [], []
    for side, text in enumerate((prepared, other)):
        whole = Sample(paired_rows(pairs, side, LARGEST * LARGEST))
        beside = [SharedRows([whole], selection.heads)] if selection.head is not None else []
        results.append(head_rows(model, text, every, paired_rows(pairs, side), beside=beside))
        chosen += [
            kept.values[0, 0].cpu().numpy() for kept in whole.maps if kept.site.kind == results[0].kind
        ]
    one, two = results
    asked = [site for site in one.sites if selection.heads(site.site, site.heads)]
    require_selected(asked, one.record, selection)
    apart = divergence(one.rows, two.rows)  # [head, row]
    count = len(pairs(one.kind)[0])
    error = np.array([sampling_error(head, count) for head in apart])
    change = apart.double().mean(1).numpy()
    queries, keys = (
        _steps(*axes, selection) for axes in zip(prepared.axes[one.kind], other.axes[one.kind], strict=True)
    )
    notes = (
        *model.notes,
        *prepared.notes,
        *other.notes,
        *one.notes,
        *note_certainty(apart.shape[1], count, error),
    )
    notes = tuple(dict.fromkeys(notes))
    named = f"{quote_text(other)} minus {quote_text(prepared)}"
    return TextComparison(
        kind=one.kind,
        heads=one.heads,
        change=change,
        error=error,
        aligned=AlignedTexts(queries, title=f"{model.title} · {kind_title(one.kind)} · two texts"),
        view=map_of_nats(
            one.heads,
            change,
            "change",
            title=f"how much each head changes · {name_pass(model, prepared)} and {quote_text(other)}",
            subtitle=provenance(one.sites),
            notes=notes,
        ),
        difference=_difference(chosen, queries, keys, selection, model, named) if chosen else None,
        notes=notes,
    )


def _steps(one: Axis, other: Axis, selection: Selection) -> tuple[Step, ...]:
    """Two axes as places that belong together."""
    mine, theirs = selection.coarsening(one), selection.coarsening(other)
    return tuple(
        (None if i is None else mine.places[i], None if j is None else theirs.places[j])
        for i, j in align(texts(mine), texts(theirs)).steps
    )


def _difference(
    chosen: list[NDArray[np.float32]],
    queries: tuple[Step, ...],
    keys: tuple[Step, ...],
    selection: Selection,
    model: Model,
    named: str,
) -> Heatmap:
    """The map of one head, the second text's minus the first one's, which is ``named``."""
    if len(queries) > LARGEST:
        raise InputError(
            f"a difference map shows at most {LARGEST:,} tokens, and these texts have {len(queries):,}: "
            "cut them with --max-tokens"
        )
    assert selection.head is not None
    title = f"{selection.head.name} · {model.title} · the second text minus the first"
    return heatmap(
        joint_difference((chosen[0], chosen[1]), queries, keys),
        title=title,
        subtitle=named,
        scale="head",
        signed=True,
    )


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


LISTED = 8
"""Heads that are listed; --csv has all of them."""


def of_texts(result: TextComparison, command: str | None) -> Compared:
    """Two texts: how they are aligned, how much each head changes, and the difference map of one head."""
    ranking = Ranking(
        tuple(
            Ranked(
                result.heads[head].name,
                f"changes by {result.change[head]:.3f} nats",
                f"{command} --head {result.heads[head].name}"
                if command and result.difference is None
                else "",
            )
            for head in result.ranking[:LISTED]
        ),
        "Heads that change most",
    )
    steps = [[None if place is None else place.text for place in step] for step in result.aligned.steps]
    numbers: dict[str, Any] = {
        "kind": result.kind,
        "tokens": steps,
        "heads": [
            {"head": head.name, "change": float(change), "error": float(error)}
            for head, change, error in zip(result.heads, result.change, result.error, strict=True)
        ],
        "notes": list(result.notes),
    }
    table: list[list[object]] = [["head", "change", "error"]]
    table += [
        [result.heads[head].name, float(result.change[head]), float(result.error[head])]
        for head in result.ranking
    ]
    arrays = {"heads": numbers_of(result.heads), "change": result.change, "error": result.error}
    if result.difference is None:
        return Compared(
            Answer((result.aligned, result.view, ranking), {"change": result.view}, lambda: numbers),
            table,
            arrays,
        )
    weights = result.difference.weights
    values = np.where(weights.allowed, weights.values, np.nan)
    arrays |= {
        "difference": values,
        "queries": np.array([place.text for place in weights.queries], np.str_),
        "keys": np.array([place.text for place in weights.keys], np.str_),
    }
    numbers["difference"] = [[None if np.isnan(x) else round(float(x), 7) for x in row] for row in values]
    answer = Answer(
        (result.aligned, result.difference, ranking), {"difference": result.difference}, lambda: numbers
    )
    return Compared(answer, table, arrays)


def of_models(result: ModelComparison) -> Compared:
    """Two models: the drift of every head, or the best match of each."""
    drift = result.drift
    partner = {pair.one: pair for pair in result.matches}
    if drift is not None:
        title = "Heads that drifted most"
        listed = [
            Ranked(pair.one.name, f"{apart(pair)} from the same head{_now(partner[pair.one])}")
            for pair in result.ranking[:LISTED]
        ]
    else:
        title = "Best matches, each head in one of them at most"
        listed = [
            Ranked(f"{pair.one.name} {pair.other.name}", apart(pair))
            for pair in sorted(result.matches, key=lambda pair: pair.distance)[:LISTED]
        ]
    numbers = {
        "kind": result.kind,
        "heads": names(result.heads),
        "others": names(result.others),
        "units": result.units,
        "distances": round_values(result.distances),
        "error": round_values(result.error),
        "drift": None if drift is None else round_values(drift),
        "matches": [pair_numbers(pair) for pair in result.matches],
        "texts": result.texts,
        "stability": result.stability,
        "notes": list(result.notes),
    }
    arrays = {
        "heads": numbers_of(result.heads),
        "others": numbers_of(result.others),
        "distances": result.distances,
        "error": result.error,
        "matches": np.array(
            [[result.heads.index(pair.one), result.others.index(pair.other)] for pair in result.matches]
        ),
    }
    pairs = result.ranking if drift is not None else result.matches
    view = result.view
    answer = Answer((view, Ranking(tuple(listed), title)), {"models": view}, lambda: numbers)
    return Compared(answer, [*pair_table(pairs)], arrays)


def compare_passes(
    model: Model, prepared: ModelInput, rival: FileModel, selection: Selection, opening: str | None
) -> Compared:
    """A pass and one that was kept: two texts where the model is of one name, else two models.

    Raises ``ModelError`` for a model that is weighed: what was kept is not, and cannot be.
    """
    if model.weigh != "raw":
        raise ModelError(f"{rival.name} keeps no values to weigh by: compare it without --weigh")
    if rival.name == model.name and rival.prepared.tokens != prepared.tokens:
        other = replace(rival.prepared, notes=(*rival.notes, *rival.prepared.notes))
        return of_texts(compare_texts(model, prepared, other, selection), opening)
    return of_models(compare_models(model, rival, [(prepared, rival.prepared)], selection))


def _now(match: Pair) -> str:
    """What the head of the other model is that a head is most like, if it is another one."""
    if match.one == match.other:
        return ""
    return f"; its match in the other model is {match.other.name} ({match.distance:.3f})"
