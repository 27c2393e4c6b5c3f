"""How heads change from text to text, or from model to model, on tokens that correspond."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Annotated, Any, Literal

import numpy as np

from attnscope import comparison
from attnscope.attention import Attention, Axis, Head, Kind
from attnscope.axes import Array, Coarsening, coarsen_axis
from attnscope.capture.observers import Rows, Sample, SharedRows
from attnscope.errors import InputError, ModelError, SelectionError
from attnscope.models import Model, ModelInput
from attnscope.models.trace_model import TracedModel
from attnscope.questions import compare
from attnscope.questions.answer import Answer, csv_rows
from attnscope.questions.compare import CELLS, RowChooser, even_sample, read_head_rows
from attnscope.questions.selection import Selection
from attnscope.questions.sentences import kind_title, name_pass, quote_text, selected_sites
from attnscope.records import Meaning, Notes, derived, record
from attnscope.views import HeadMap, Heatmap, Ranked, Ranking, head_map, heatmap
from attnscope.views.heads import AlignedTexts, DistanceMap, Step, distance_map, joint_difference, layer_rows

Pairs = Sequence["tuple[Sequence[int], Sequence[int]]"]
"""Tokens of one axis, and the corresponding tokens of the other."""

Pairing = Callable[[Kind], "tuple[Pairs, Pairs]"]
"""The pairs of queries, and those of keys, of a kind of attention."""


def pairing(one: ModelInput, other: ModelInput, pair: Callable[[Axis, Axis], Pairs]) -> Pairing:
    """Pair the queries and the keys of every requested kind of attention, each once."""

    @cache
    def pairs(kind: Kind) -> tuple[Pairs, Pairs]:
        mine, theirs = one.axes.get(kind), other.axes.get(kind)
        if mine is None or theirs is None:
            raise InputError(f"token positions unknown for {kind_title(kind)}: it cannot be aligned")
        return pair(mine[0], theirs[0]), pair(mine[1], theirs[1])

    return pairs


def paired_rows(text: ModelInput, pairs: Pairing, side: int, cells: int = CELLS) -> RowChooser:
    """The rows and keys of a text that have a partner, which is side 0 or 1; many rows are sampled evenly."""

    def choose(attention: Attention) -> Rows:
        queries, keys = ([pair[side] for pair in axis] for axis in pairs(attention.site.kind))
        has, sees = text.axes[attention.site.kind], (attention.queries, attention.keys)
        if [len(axis) for axis in has] != [len(axis) for axis in sees]:
            raise SelectionError(
                f"layer {attention.site.layer} sees {len(sees[0])} × {len(sees[1])} tokens of "
                f"{len(has[0])} × {len(has[1])}, which cannot be aligned: choose others with --layer"
            )
        across = np.zeros((len(keys), len(attention.keys)), np.float32)
        for row, tokens in enumerate(keys):
            across[row, list(tokens)] = 1
        return Rows([queries[row] for row in even_sample(len(queries), len(keys), cells)], across)

    return choose


def by_place(selection: Selection) -> Callable[[Axis, Axis], Pairs]:
    """Pair the places of two texts (tokens or words), including those that replace each other."""

    def pair(one: Axis, other: Axis) -> Pairs:
        mine, theirs = selection.coarsening(one), selection.coarsening(other)
        steps = comparison.align_tokens(place_texts(mine), place_texts(theirs))
        pairs = [(i, j) for i, j in steps if i is not None and j is not None]
        alike = [(i, j) for i, j in pairs if mine.places[i].text == theirs.places[j].text]
        if all(mine.places[i].special for i, _ in alike):
            raise InputError(
                f"the two texts have no token in common: one begins {_beginning(mine)}, "
                f"the other {_beginning(theirs)}"
            )
        return [(mine.tokens(i), theirs.tokens(j)) for i, j in pairs]

    return pair


def by_word(one: Axis, other: Axis) -> Pairs:
    """Pair the words of one text under two tokenizers."""
    mine, theirs = (coarsen_axis(axis, words=True, hide_special=True) for axis in (one, other))
    pairs = comparison.find_shared_words(place_texts(mine), place_texts(theirs))
    if not pairs:
        raise InputError(
            f"the two models share no word: one reads {_beginning(mine)}, the other {_beginning(theirs)}"
        )
    return [(mine.tokens(*my_words), theirs.tokens(*their_words)) for my_words, their_words in pairs]


def place_texts(axis: Coarsening) -> list[str]:
    """The texts of an axis, stripped of spaces."""
    return [place.text.strip() or place.text for place in axis.places]


def _beginning(axis: Coarsening) -> str:
    return repr(" ".join(place.label for place in axis.places if not place.special)[:40])


LARGEST = 1024  # most tokens of a difference map
SMALL = 0.1  # below this many nats, a map of heads counts in thousandths


def map_of_nats(heads: Sequence[Head], values: Array, name: str, **more: Any) -> HeadMap:
    """A distance of each head as a map; small ones in thousandths, to keep the numbers readable."""
    small = float(values.max(initial=0)) < SMALL
    layers = layer_rows(dict(zip(heads, (values * (1000 if small else 1)).tolist(), strict=True)))
    return head_map(layers, name, unit="thousandths of a nat" if small else "nats", **more)


def _open_cells(view: Heatmap) -> Array:
    """The values of a map, NaN where masked."""
    return np.asarray(np.where(view.weights.allowed, view.weights.values, np.nan))


@record("a head")
class HeadChange:
    """How much a head changes from one text to the other."""

    head: Annotated[Head, Meaning("its name")]
    change: Annotated[float, Meaning(compare.NATS)]
    error: Annotated[float, Meaning("its standard error")]


@record("one model on two texts (--with-text)", "compare", eq=False)
class TextComparison:
    """What changes in every head from one text to the other, on corresponding tokens.

    Attention to tokens without a partner counts as one more key.
    """

    kind: compare.Compared
    heads: tuple[Head, ...]
    change: Array  # [head]
    error: Array  # [head]
    aligned: AlignedTexts
    view: HeadMap
    difference: Annotated[
        Heatmap | None,
        Meaning(
            "with --head: its second map minus its first",
            optional=True,
            shape=compare.MASKED,
            plain=_open_cells,
        ),
    ]
    notes: Notes

    @derived("tokens that belong together; null where a text has none")
    def tokens(self) -> tuple[tuple[str | None, str | None], ...]:
        texts = ([None if each is None else each.text for each in step] for step in self.aligned.steps)
        return tuple((one, other) for one, other in texts)

    @derived("how much each head changes", name="heads")
    def changes(self) -> tuple[HeadChange, ...]:
        return tuple(map(HeadChange, self.heads, self.change.tolist(), self.error.tolist()))

    @property
    def ranking(self) -> tuple[HeadChange, ...]:
        """Every head, the largest change first."""
        return tuple(sorted(self.changes, key=lambda each: -each.change))


def compare_texts(
    model: Model, prepared: ModelInput, other: ModelInput, selection: Selection | None = None
) -> TextComparison:
    """Run the model once on each text, and compare its heads on tokens that are aligned or replaced."""
    selection = selection or Selection()
    every = replace(selection, head=None)
    pairs = pairing(prepared, other, by_place(selection))
    results, chosen = [], []
    for side, text in enumerate((prepared, other)):
        whole = Sample(paired_rows(text, pairs, side, LARGEST * LARGEST))
        beside = [SharedRows([whole], selection.heads)] if selection.head is not None else []
        results.append(read_head_rows(model, text, every, paired_rows(text, pairs, side), beside=beside))
        chosen += [
            made.values[0, 0].cpu().numpy() for made in whole.maps if made.site.kind == results[0].kind
        ]
    one, two = results
    selected_sites(one.record, replace(selection, kind=one.kind))
    apart = comparison.divergence(one.rows, two.rows)  # [head, row]
    count = len(pairs(one.kind)[0])
    error = np.array([comparison.sampling_error(head, count) for head in apart])
    change = apart.double().mean(1).numpy()
    axes = zip(prepared.axes[one.kind], other.axes[one.kind], strict=True)
    queries, keys = (_steps(*map(selection.coarsening, pair)) for pair in axes)
    certain = compare.note_certainty(compare.RowCount(apart.shape[1], count), error)
    notes = tuple(dict.fromkeys([*model.notes, *prepared.notes, *other.notes, *one.notes, *certain]))
    difference = None
    if selection.head is not None and chosen:
        if len(queries) > LARGEST:
            raise InputError(
                f"a difference map shows at most {LARGEST:,} tokens, and these texts have {len(queries):,}: "
                "cut them with --max-tokens"
            )
        difference = heatmap(
            joint_difference((chosen[0], chosen[1]), queries, keys),
            title=f"{selection.head.name} · {model.title} · the second text minus the first",
            subtitle=f"{quote_text(other)} minus {quote_text(prepared)}",
            scale="head",
            signed=True,
        )
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
            subtitle=one.ran,
            notes=notes,
        ),
        difference=difference,
        notes=notes,
    )


def _steps(mine: Coarsening, theirs: Coarsening) -> tuple[Step, ...]:
    """Two axes as pairs of corresponding places."""
    return tuple(
        (None if i is None else mine.places[i], None if j is None else theirs.places[j])
        for i, j in comparison.align_tokens(place_texts(mine), place_texts(theirs))
    )


@record("two models (--with-model)", "compare", eq=False)
class ModelComparison:
    """The heads of one model and those of another, on the same texts, token by token or word by word."""

    kind: compare.Compared
    heads: Annotated[tuple[Head, ...], Meaning("the heads of the first model")]
    others: Annotated[tuple[Head, ...], Meaning("the heads of the second")]
    distances: Annotated[Array, compare.in_nats("[head, other]")]
    error: compare.Errors  # [head, other]
    matches: Annotated[
        tuple[compare.PairDistance, ...], Meaning("heads paired so that the sum of distances is smallest")
    ]
    units: Annotated[Literal["tokens", "words"], Meaning("what the rows are")]
    texts: compare.TextCount
    stability: compare.Stability
    title: str
    subtitle: str
    notes: Notes

    @derived(
        "each head from itself, where both models have the same heads",
        shape=tuple[float, ...] | None,
    )
    def drift(self) -> Array | None:
        """Distance of each head from the same head of the other model; ``None`` if shapes differ.  [head]"""
        return self.distances.diagonal() if self.heads == self.others else None

    @property
    def ranking(self) -> tuple[compare.PairDistance, ...]:
        """Every head with the same one of the other model, or with its match; the farthest first."""
        pairs = self.matches
        if self.heads == self.others:
            pairs = tuple(
                compare.pair_distance((head, head), self.heads, self.others, self.distances, self.error)
                for head in range(len(self.heads))
            )
        return tuple(sorted(pairs, key=lambda pair: -pair.distance))

    @property
    def view(self) -> HeadMap | DistanceMap:
        """The drift of every head; if shapes differ, all distances, with matches along the diagonal."""
        said = {"title": self.title, "subtitle": self.subtitle, "notes": self.notes}
        if self.drift is not None:
            return map_of_nats(self.heads, self.drift, "drift", **said)
        nearest_first = sorted(self.matches, key=lambda pair: pair.distance)
        rows = [*dict.fromkeys([*(pair.one for pair in nearest_first), *self.heads])]
        columns = [*dict.fromkeys([*(pair.other for pair in nearest_first), *self.others])]
        cells = np.ix_([*map(self.heads.index, rows)], [*map(self.others.index, columns)])
        return distance_map(
            self.distances[cells],
            [head.name for head in rows],
            [head.name for head in columns],
            title=self.title,
            subtitle=f"{self.subtitle}; matches lie on the diagonal, the nearest first",
            notes=(*self.notes, "rows are heads of the first model, columns those of the second"),
            matched=True,
        )


def compare_models(
    model: Model,
    other: Model,
    texts: Sequence[tuple[ModelInput, ModelInput]],
    selection: Selection | None = None,
) -> ModelComparison:
    """Run both models once on each text, and compare their heads on the same tokens or the common words."""
    kind = _common_kind(model, other, *texts[0], selection or Selection())
    led, models = replace(selection or Selection(), kind=kind), (model, other)
    alike = [_read_alike(mine, theirs, kind) for mine, theirs in texts]
    measured = compare.measure_texts(
        ((both, _passes(models, both, led, same)) for both, same in zip(texts, alike, strict=True)),
        [f"from {model.title} to {other.title}", *model.notes, *other.notes],
    )
    (first, second), mean = measured.passes, measured.mean
    matched = f"{len(first.heads)} heads matched with {len(second.heads)}"
    what = "drift of each head" if first.heads == second.heads else matched
    quoted = f"{quote_text(texts[0][0])} · ".removeprefix(" · ")
    units: Literal["tokens", "words"] = "tokens" if all(alike) else "words"
    compared = f"{quoted}{measured.rows.of:,} {units} compared"
    return ModelComparison(
        kind=kind,
        heads=first.heads,
        others=second.heads,
        distances=mean.mean,
        error=mean.error,
        matches=tuple(
            compare.pair_distance(cell, first.heads, second.heads, mean.mean, mean.error)
            for cell in comparison.match_heads(mean.mean)
        ),
        units=units,
        texts=len(texts),
        stability=mean.stability,
        title=f"{what} · {model.title} and {other.title} · {kind_title(kind)}",
        subtitle=compared if len(texts) == 1 else f"mean over {len(texts):,} texts",
        notes=measured.notes,
    )


def _read_alike(mine: ModelInput, theirs: ModelInput, kind: Kind) -> bool:
    """Whether both models read the same tokens."""
    one, other = (
        [[getattr(token, "text", None) for token in axis] for axis in each.axes.get(kind, ())]
        for each in (mine, theirs)
    )
    return one == other and not any(None in axis for axis in one)


def _passes(
    models: tuple[Model, Model], texts: tuple[ModelInput, ModelInput], selection: Selection, alike: bool
) -> list[compare.HeadRows]:
    """A pass of each model, with its rows of every token, or of the words that both read."""
    each = [*zip(models, texts, strict=True)]
    if alike:
        return [read_head_rows(model, text, selection) for model, text in each]
    pairs, passes = pairing(*texts, by_word), list[compare.HeadRows]()
    for side, (model, text) in enumerate(each):
        ran = read_head_rows(model, text, selection, paired_rows(text, pairs, side))
        passes.append(replace(ran, of=len(pairs(ran.kind)[0])))
    return passes


def _common_kind(
    model: Model, other: Model, mine: ModelInput, theirs: ModelInput, selection: Selection
) -> Kind:
    """The requested kind, or the first one that both models run."""
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


LISTED = 8  # heads that are listed; --csv has all of them


def texts_answer(result: TextComparison, command: str | None) -> Answer:
    """Two texts: their alignment, the change of each head, and the difference map of one head."""
    opened = f"{command} --head " if command and result.difference is None else ""
    listed = [
        Ranked(each.head.name, f"changes by {each.change:.3f} nats", opened and opened + each.head.name)
        for each in result.ranking[:LISTED]
    ]
    name, view = ("change", result.view) if result.difference is None else ("difference", result.difference)
    arrays = {"heads": compare.addresses(result.heads), "change": result.change, "error": result.error}
    if result.difference is not None:
        weights = result.difference.weights
        arrays |= {
            "difference": _open_cells(result.difference),
            "queries": np.array([place.text for place in weights.queries], np.str_),
            "keys": np.array([place.text for place in weights.keys], np.str_),
        }
    views = (result.aligned, view, Ranking(tuple(listed), title="Heads that change most"))
    return Answer(views, {name: view}, lambda: result, lambda: csv_rows(result.ranking), lambda: arrays)


def models_answer(result: ModelComparison) -> Answer:
    """Two models: the drift of every head, or the best match of each."""
    if result.drift is not None:
        title, pairs = "Heads that drifted most", result.ranking
        partner = {pair.one: pair for pair in result.matches}
        listed = []
        for pair in pairs[:LISTED]:
            words, match = f"{pair.words} from the same head", partner[pair.one]
            if match.one != match.other:
                words += f"; its match in the other model is {match.other.name} ({match.distance:.3f})"
            listed.append(Ranked(pair.one.name, words))
    else:
        title, pairs = "Best matches, each head in one of them at most", result.matches
        nearest = sorted(pairs, key=lambda pair: pair.distance)[:LISTED]
        listed = [Ranked(pair.names, pair.words) for pair in nearest]
    matches = [(result.heads.index(pair.one), result.others.index(pair.other)) for pair in result.matches]
    arrays = {
        "heads": compare.addresses(result.heads),
        "others": compare.addresses(result.others),
        "distances": result.distances,
        "error": result.error,
        "matches": np.array(matches),
    }
    view, ranked = result.view, Ranking(tuple(listed), title=title)
    return Answer((view, ranked), {"models": view}, lambda: result, lambda: csv_rows(pairs), lambda: arrays)


def compare_passes(
    model: Model, prepared: ModelInput, rival: TracedModel, selection: Selection, opening: str | None
) -> Answer:
    """Compare a pass with a kept one: two texts if the models have one name, otherwise two models."""
    if model.weighting != "raw":
        raise ModelError(f"{rival.name} keeps no values to weight by: compare it without --weighting")
    if rival.name == model.name and rival.prepared.tokens != prepared.tokens:
        other = replace(rival.prepared, notes=(*rival.notes, *rival.prepared.notes))
        return texts_answer(compare_texts(model, prepared, other, selection), opening)
    return models_answer(compare_models(model, rival, [(prepared, rival.prepared)], selection))
