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
from attnscope.questions.sentences import kind_title, quote_text, quote_texts, selected_sites
from attnscope.records import Meaning, Notes, derived, record
from attnscope.views import DIFFERENCE, AxisNames, HeadMap, HeadRank, Heatmap, Ranking, head_map, heatmap
from attnscope.views.heads import AlignedTexts, DistanceMap, Step, distance_map, joint_difference, layer_rows

Pairs = Sequence["tuple[Sequence[int], Sequence[int]]"]
"""Tokens of one axis, and the corresponding tokens of the other."""

Pairing = Callable[[Kind], "tuple[Pairs, Pairs]"]
"""The pairs of queries, and those of keys, of a kind of attention."""


def pairing(
    left: ModelInput,
    right: ModelInput,
    pair: Callable[[Axis, Axis], Pairs],
    kinds: tuple[Kind, Kind] | None = None,
) -> Pairing:
    """Pair the queries and the keys of every requested kind of attention, each once; or of these two."""

    @cache
    def pairs(kind: Kind) -> tuple[Pairs, Pairs]:
        one, other = (
            text.axes_of(each) for text, each in zip((left, right), kinds or (kind, kind), strict=True)
        )
        if one is None or other is None:
            raise InputError(f"{kind_title(kind)} cannot be aligned: its token positions are unknown")
        queries, keys = map(pair, one, other)
        return queries, keys

    return pairs


def paired_rows(text: ModelInput, pairs: Pairing, side: int, cells: int = CELLS) -> RowChooser:
    """The rows and keys of a text that have a partner, which is side 0 or 1; many rows are sampled evenly."""

    def choose(attention: Attention) -> Rows:
        queries, keys = ([pair[side] for pair in axis] for axis in pairs(attention.site.kind))
        sizes = [
            f"{len(axes[0])} × {len(axes[1])}"
            for axes in ((attention.queries, attention.keys), text.axes_of(attention.site.kind) or ((), ()))
        ]
        if sizes[0] != sizes[1]:
            raise SelectionError(
                f"layer {attention.site.layer} sees {sizes[0]} tokens of {sizes[1]}, which cannot be "
                "aligned: choose others with --layer"
            )
        summing = np.zeros((len(keys), len(attention.keys)), np.float32)
        for row, tokens in enumerate(keys):
            summing[row, list(tokens)] = 1
        return Rows([queries[row] for row in even_sample(len(queries), len(keys), cells)], summing)

    return choose


def by_place(selection: Selection) -> Callable[[Axis, Axis], Pairs]:
    """Pair the places of two texts (tokens or words), including those that replace each other."""

    def pair(left_axis: Axis, right_axis: Axis) -> Pairs:
        left, right = selection.coarsening(left_axis), selection.coarsening(right_axis)
        steps = comparison.align_tokens(place_texts(left), place_texts(right))
        pairs = [(i, j) for i, j in steps if i is not None and j is not None]
        same = (left.places[i] for i, j in pairs if left.places[i].text == right.places[j].text)
        if all(place.special for place in same):
            raise InputError(
                f"the two texts have no token in common: one begins {_beginning(left)}, "
                f"the other {_beginning(right)}"
            )
        return [(left.tokens(i), right.tokens(j)) for i, j in pairs]

    return pair


def by_word(left_axis: Axis, right_axis: Axis) -> Pairs:
    """Pair the words of one text under two tokenizers."""
    left, right = (coarsen_axis(axis, words=True, hide_special=True) for axis in (left_axis, right_axis))
    pairs = comparison.find_shared_words(place_texts(left), place_texts(right))
    if not pairs:
        raise InputError(
            f"the two models share no word: one reads {_beginning(left)}, the other {_beginning(right)}"
        )
    return [(left.tokens(*words), right.tokens(*others)) for words, others in pairs]


def place_texts(axis: Coarsening) -> list[str]:
    """The texts of an axis, stripped of spaces."""
    return [place.text.strip() or place.text for place in axis.places]


def _beginning(axis: Coarsening) -> str:
    return repr(" ".join(place.label for place in axis.places if not place.special)[:40])


MAX_DIFFERENCE_TOKENS = 1024  # of a difference map
SMALL_NATS = 0.1  # below which a map of heads counts in thousandths


def map_of_nats(heads: Sequence[Head], values: Array, name: str, **more: Any) -> HeadMap:
    """A distance of each head as a map; small ones in thousandths, to keep the numbers readable."""
    small = float(values.max(initial=0)) < SMALL_NATS
    layers = layer_rows(dict(zip(heads, (values * (1000 if small else 1)).tolist(), strict=True)))
    return head_map(layers, name, unit="× 10⁻³ nats" if small else "nats", **more)


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

    kind: compare.ComparedKind
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

    @derived("aligned tokens; null where a text has none")
    def tokens(self) -> tuple[tuple[str | None, str | None], ...]:
        texts = ([None if each is None else each.text for each in step] for step in self.aligned.steps)
        return tuple((left, right) for left, right in texts)

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
    results, maps = list[compare.HeadRows](), []  # maps of the selected head, [query, key]
    for side, text in enumerate((prepared, other)):
        whole = Sample(paired_rows(text, pairs, side, MAX_DIFFERENCE_TOKENS**2), signed=True)
        beside = [SharedRows([whole], selection.heads)] if selection.head is not None else []
        results.append(read_head_rows(model, text, every, paired_rows(text, pairs, side), beside=beside))
        kind = results[0].kind
        maps += [each.values[0, 0].cpu().numpy() for each in whole.maps if each.site.kind == kind]
    left, right = results
    selected_sites(left.record, replace(selection, kind=kind))
    divergences = comparison.divergence(left.rows, right.rows)  # [head, row]
    count = len(pairs(kind)[0])
    error = np.array([comparison.sampling_error(head, count) for head in divergences])
    change = divergences.double().mean(1).numpy()
    axes = zip(*(each.axes_of(kind) or ((), ()) for each in (prepared, other)), strict=True)
    queries, keys = (_steps(*map(selection.coarsening, pair)) for pair in axes)
    certainty = compare.note_certainty(compare.RowCount(divergences.shape[1], count), error)
    notes = tuple(dict.fromkeys([*model.notes, *prepared.notes, *other.notes, *left.notes, *certainty]))
    difference, quoted = None, quote_texts(prepared, other)
    if selection.head is not None and maps:
        if len(queries) > MAX_DIFFERENCE_TOKENS:
            raise InputError(
                f"a difference map shows at most {MAX_DIFFERENCE_TOKENS:,} tokens, and these texts have "
                f"{len(queries):,}: cut them with --max-tokens"
            )
        difference = heatmap(
            joint_difference((maps[0], maps[1]), queries, keys),
            title=f"{selection.head.name} · {model.title} · the second text minus the first",
            subtitle=" minus ".join(quoted[::-1]),
            signed=True,
            bar=DIFFERENCE,
        )
    return TextComparison(
        kind=kind,
        heads=left.heads,
        change=change,
        error=error,
        aligned=AlignedTexts(queries, title=f"{model.title} · {kind_title(kind)} · two texts"),
        view=map_of_nats(
            left.heads,
            change,
            "change",
            title=f"how much each head changes · {model.title} · {' and '.join(quoted)}",
            subtitle=left.provenance,
            notes=notes,
        ),
        difference=difference,
        notes=notes,
    )


def _steps(left: Coarsening, right: Coarsening) -> tuple[Step, ...]:
    return tuple(
        (None if i is None else left.places[i], None if j is None else right.places[j])
        for i, j in comparison.align_tokens(place_texts(left), place_texts(right))
    )


@record("two models (--with-model)", "compare", eq=False)
class ModelComparison:
    """The heads of one model and those of another, on the same texts, token by token or word by word."""

    kind: compare.ComparedKind
    heads: Annotated[tuple[Head, ...], Meaning("the heads of the first model")]
    others: Annotated[tuple[Head, ...], Meaning("the heads of the second")]
    distances: Annotated[Array, compare.divergences("[head, other]")]
    error: compare.Errors  # [head, other]
    matches: Annotated[
        tuple[compare.PairDistance, ...],
        Meaning("a one-to-one matching of heads with the smallest sum of distances"),
    ]
    units: Annotated[Literal["tokens", "words"], Meaning("what the rows are")]
    texts: compare.TextCount
    stability: compare.Stability
    title: str
    subtitle: str
    notes: Notes
    axes: AxisNames
    other_kind: Annotated[
        str | None, Meaning("that of the second model, if it is another", optional=True, shape=Kind)
    ] = None
    single: Sequence[Array] = ()  # the distances of each text, if there are several

    @derived(
        "each head's distance from itself, where both models have the same heads",
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
        if self.drift is not None:
            words = {"title": self.title, "subtitle": self.subtitle, "notes": self.notes}
            return map_of_nats(self.heads, self.drift, "drift", **words)
        nearest_first = sorted(self.matches, key=lambda pair: pair.distance)
        rows = [*dict.fromkeys([*(pair.one for pair in nearest_first), *self.heads])]
        columns = [*dict.fromkeys([*(pair.other for pair in nearest_first), *self.others])]
        cells = np.ix_([*map(self.heads.index, rows)], [*map(self.others.index, columns)])
        return distance_map(
            self.distances[cells],
            [head.name for head in rows],
            [head.name for head in columns],
            title=self.title,
            subtitle=f"{self.subtitle}; matched heads lie on the diagonal, nearest first",
            notes=(*self.notes, f"rows: {self.axes.rows}; columns: {self.axes.columns}"),
            axes=self.axes,
            matched=True,
        )


def compare_models(
    model: Model,
    other: Model,
    texts: Sequence[tuple[ModelInput, ModelInput]],
    selection: Selection | None = None,
) -> ModelComparison:
    """Run both models once on each text, and compare their heads on the same tokens or the common words.

    Without a common kind of attention, an encoder's is compared with a decoder's.
    """
    selection, models = selection or Selection(), (model, other)
    kinds = _kinds_to_compare(model, other, *texts[0], selection)
    same_tokens = [_have_same_tokens(both, kinds) for both in texts]
    mixed = [] if kinds[0] == kinds[1] else [MIXED.format(*map(kind_title, kinds))]
    measured = compare.measure_texts(
        (
            (both, _passes(models, both, selection, kinds, same))
            for both, same in zip(texts, same_tokens, strict=True)
        ),
        [f"first model: {model.title}; second: {other.title}", *mixed, *model.notes, *other.notes],
    )
    (first, second), mean = measured.passes, measured.mean
    matched = f"{len(first.heads)} heads matched with {len(second.heads)}"
    what = "drift of each head" if first.heads == second.heads else matched
    quoted = f"{quote_text(texts[0][0])} · ".removeprefix(" · ")
    matches = [*comparison.match_heads(mean.mean)]
    errors = (
        mean.error.diagonal()
        if first.heads == second.heads
        else mean.error[tuple(zip(*matches, strict=True))]
    )
    units: Literal["tokens", "words"] = "tokens" if all(same_tokens) else "words"
    seen = " and ".join(dict.fromkeys(map(kind_title, kinds)))
    compared = f"{quoted}{measured.rows.of:,} {units} compared"
    return ModelComparison(
        kind=kinds[0],
        other_kind=kinds[1] if mixed else None,
        heads=first.heads,
        others=second.heads,
        single=mean.texts,
        distances=mean.mean,
        error=mean.error,
        matches=tuple(
            compare.pair_distance(cell, first.heads, second.heads, mean.mean, mean.error) for cell in matches
        ),
        units=units,
        texts=len(texts),
        stability=mean.stability,
        title=f"{what} · {model.title} and {other.title} · {seen}",
        subtitle=compared if len(texts) == 1 else f"mean over {len(texts):,} texts",
        axes=AxisNames(f"heads of {model.title}", f"heads of {other.title}", ""),
        notes=(*measured.notes, *compare.note_certainty(measured.rows, errors, mean.stability)),
    )


def _have_same_tokens(both: tuple[ModelInput, ModelInput], kinds: tuple[Kind, Kind]) -> bool:
    """Whether both models read the same tokens, whose texts are known."""
    texts, others = (
        [[getattr(token, "text", None) for token in axis] for axis in each.axes_of(kind) or ()]
        for each, kind in zip(both, kinds, strict=True)
    )
    return texts == others and not any(None in axis for axis in texts)


def _passes(
    models: tuple[Model, Model],
    texts: tuple[ModelInput, ModelInput],
    selection: Selection,
    kinds: tuple[Kind, Kind],
    same_tokens: bool,
) -> list[compare.HeadRows]:
    """A pass of each model, with its rows of every token, or of the words that both read."""
    each = [
        (model, text, replace(selection, kind=kind))
        for model, text, kind in zip(models, texts, kinds, strict=True)
    ]
    if same_tokens:
        return [read_head_rows(*one) for one in each]
    pairs, passes = pairing(*texts, by_word, kinds), list[compare.HeadRows]()
    for side, (model, text, selected) in enumerate(each):
        rows = read_head_rows(model, text, selected, paired_rows(text, pairs, side))
        passes.append(replace(rows, total=len(pairs(rows.kind)[0])))
    return passes


MIXED = "{} is compared with {}: part of each distance is that only one of them sees later tokens"
SELF = ("encoder", "decoder")  # kinds whose queries and keys are one sequence


def _kinds_to_compare(
    model: Model, other: Model, text: ModelInput, other_text: ModelInput, selection: Selection
) -> tuple[Kind, Kind]:
    """The requested kind, or the first one that both models run; or the self-attention of each."""
    kinds, other_kinds = (
        list(dict.fromkeys(site.site.kind for site in each.run(given, []).sites))
        for each, given in ((model, text), (other, other_text))
    )
    asked = [kind for kind in kinds if selection.kind in (None, kind)]
    pairs = [(kind, kind) for kind in asked if kind in other_kinds]
    pairs += [(one, two) for one in asked if one in SELF for two in other_kinds if two in SELF]
    if not pairs:
        have, other_has = (" and ".join(map(kind_title, each)) for each in (kinds, other_kinds))
        wanted = "kind of attention" if selection.kind is None else kind_title(selection.kind)
        raise SelectionError(
            f"the models have no {wanted} in common: {model.name} has {have}, {other.name} has {other_has}; "
            "compare the heads of each alone, without --with-model"
        )
    return pairs[0]


LISTED = 8  # heads that are listed; --csv has all of them


def texts_answer(result: TextComparison, command: str | None) -> Answer:
    """Two texts: their alignment, the change of each head, and the difference map of one head."""
    opening = f"{command} --head " if command and result.difference is None else ""
    listed = [
        HeadRank(
            each.head.name,
            f"changes by {compare.with_error(each.change, each.error)} nats",
            opening and opening + each.head.name,
        )
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
            listed.append(HeadRank(pair.one.name, words))
    else:
        title, pairs = "Best one-to-one matches", result.matches
        nearest = sorted(pairs, key=lambda pair: pair.distance)[:LISTED]
        listed = [HeadRank(pair.names, pair.words) for pair in nearest]
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
    """Compare a pass with a recorded one: two texts if the models have one name, otherwise two models."""
    if model.weighting != "raw":
        raise ModelError(f"{rival.name} holds no values for --weighting: compare it without")
    if rival.name == model.name and rival.prepared.tokens != prepared.tokens:
        other = replace(rival.prepared, notes=(*rival.notes, *rival.prepared.notes))
        return texts_answer(compare_texts(model, prepared, other, selection), opening)
    return models_answer(compare_models(model, rival, [(prepared, rival.prepared)], selection))
