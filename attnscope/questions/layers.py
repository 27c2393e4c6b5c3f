"""Every head in full: whole layers, for a page or for other programs, and the manifest of an export."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from attnscope.attention import Axis, Head, Kind, Token
from attnscope.axes import Weights
from attnscope.capture import Record, SiteRecord
from attnscope.capture.observers import Coarsen, RowObserver, SharedRows
from attnscope.measures import HeadScores, Measurement, settle_roles, worth_a_look
from attnscope.measures.measurement import measure_words
from attnscope.models import Model, ModelInput
from attnscope.models.inputs import Picture
from attnscope.questions import sentences
from attnscope.questions.head import head_picture, pick_head, readings_of
from attnscope.questions.selection import Selection
from attnscope.questions.token import find_scene, overlay_pictures, pictures_of
from attnscope.records import Meaning, Notes, Parts, record
from attnscope.storage.trace.layout import About
from attnscope.version import __version__
from attnscope.views import (
    WEIGHT,
    Grid,
    HeadDescription,
    Heatmap,
    Scene,
    Table,
    TokenView,
    grid,
    name_weight,
    place_of,
    token_view,
)

if TYPE_CHECKING:
    from attnscope.storage.arrays import Kinds

TINY = 1e-30  # stands for zero in logarithms
MAX_TOKENS = 512  # rows and columns of each head; a longer text is pooled


@dataclass(frozen=True, eq=False)
class WholeLayers:
    """By kind, a layer's number and weights ``[head, query, key]``; what ran; the first written token."""

    kinds: Mapping[str, list[tuple[int, Weights]]]
    title: str
    subtitle: str
    notes: tuple[str, ...]
    record: Record
    written: int | None = None
    numbers: Mapping[tuple[str, int], Sequence[int]] = field(
        default_factory=dict
    )  # of the heads, by kind and layer, if some were named

    @property
    def data(self) -> tuple[Kinds, dict[str, Any]]:
        """The contents of a data file: all weights, and what describes them."""
        return self.kinds, {"title": self.title, "notes": self.notes, "numbers": self.numbers}

    def save(self, path: Path) -> None:
        """Write all heads as data, as the suffix says. Raises ``OutputError``."""
        from attnscope.storage.arrays import save_weights

        kinds, described = self.data
        save_weights(kinds, path, **described)

    @property
    def proofs(self) -> Mapping[tuple[str, int], str]:
        """What was checked about the weights of each kind and layer, and what a mixer is, in a sentence."""
        places = sentences.group_by(self.record.sites, lambda each: (each.site.kind, each.site.layer))
        names = {place: f"{sites[0].kernel}; " * (place[0] == "mixer") for place, sites in places.items()}
        return {place: names[place] + sentences.describe_proof(sites) for place, sites in places.items()}

    def apart(self, head: Head) -> float:
        """The Jensen-Shannon divergence of a head's rows, in nats: 0 if all are the same."""
        rows = dict(self.kinds[str(head.kind)])[head.layer].values[head.head]  # [query, key]
        sizes = np.nan_to_num(np.abs(rows))
        shares = sizes / np.maximum(sizes.sum(-1, keepdims=True), TINY)
        logs = np.log(np.maximum(shares, TINY)) - np.log(np.maximum(shares.mean(0), TINY))
        return float((shares * logs).sum(-1).mean())

    @property
    def ends(self) -> tuple[float, float]:
        """The smallest weight or 0, and the largest: above 1 if a model scales them, or words are merged."""
        values = [weights.values for pairs in self.kinds.values() for _, weights in pairs]
        least = min(float(each.min(initial=0)) for each in values)
        return least, max(float(each.max(initial=0)) for each in values)


def whole_layers(
    model: Model, prepared: ModelInput, selection: Selection, observers: Sequence[RowObserver] = ()
) -> WholeLayers:
    """Run the model once and keep all heads of the selected layers; ``observers`` see them too."""
    coarse = selection.coarsen(MAX_TOKENS)
    record = model.run(prepared, [SharedRows([coarse, *observers], selection.heads)])
    sentences.require_selected(coarse.maps, record, selection)
    return layers_of_maps(coarse, model, prepared, record, selection)


CELLS = 256  # rows and columns of a map, at most


def layers_of_maps(
    pool: Coarsen,
    model: Model,
    prepared: ModelInput,
    record: Record,
    selection: Selection | None = None,
    *,
    note_pooled: bool = True,
) -> WholeLayers:
    """The maps that an observer has kept (the mean of a batch), with notes on hidden and pooled cells."""
    kinds: dict[str, list[tuple[int, Weights]]] = {}
    notes = [*model.notes, *prepared.notes, *record.notes]
    for kind in sentences.kinds_of((each.site for each in pool.maps), prepared.first_kind):
        maps = [each for each in pool.maps if each.site.kind == kind]
        pairs, shares = zip(*(each.label() for each in maps), strict=True)
        kinds[kind] = [(each.site.layer, weights) for each, weights in zip(maps, pairs, strict=True)]
        if selection is not None:
            notes += sentences.note_hidden(shares, selection, f"the {sentences.kind_title(kind)}", kind)
        notes += sentences.note_maps(maps, prepared)
        notes += sentences.note_pooling(maps[0], pairs[0], pool.how) if note_pooled else []
    ran = sentences.provenance(record.sites)
    numbers: dict[tuple[str, int], Sequence[int]] = {}
    if selection is not None and selection.named:
        for each in sentences.selected_sites(record, selection):
            numbers[each.site.kind, each.site.layer] = selection.heads(each.site, each.heads)
    return WholeLayers(
        kinds, model.title, ran, tuple(dict.fromkeys(notes)), record, prepared.written, numbers
    )


@dataclass(frozen=True, eq=False)
class AllHeads:
    """Whole layers, the scores of their heads by kind and layer, and pictures of them, built on demand.

    ``scene`` and ``pictures`` are what the model saw or heard.
    """

    layers: WholeLayers
    scores: Mapping[tuple[str, int], Sequence[HeadScores]]
    selection: Selection
    name: str
    scene: Scene | None = None
    pictures: tuple[Picture, ...] = ()
    by: str | None = None  # what a page's overview is coloured by: ``role`` or one of ``SHOWN_MEASURES``
    bar: str = WEIGHT  # what the weights are, in words
    named: tuple[Head, ...] = ()  # at the first of which a page opens
    terms: Mapping[Head, Mapping[tuple[int, int], Table]] = field(default_factory=dict)  # by row and key
    command: str = ""  # what follows the head and the cell in a command that explains it, if one can

    def head(self, kind: str, layer: int, head: int) -> Heatmap:
        """One head with its scores, as ``one_head`` shows it."""
        scores, site = self.scores[kind, layer][head], self._seen[kind, layer]
        weights = pick_head(self.weights[kind, layer], head)
        picture = head_picture(weights, scores, site, self.name, self.selection, self.layers.notes)
        written = self.layers.written if kind == "decoder" else None
        return replace(picture, written=written, bar=self.bar_of(kind))

    def layer(self, kind: str, layer: int) -> Grid:
        """The heads of one layer as thumbnails."""
        return self._grid(kind, [layer], f"L{layer} · ")

    def overview(self, kind: str) -> Grid:
        """All heads of a kind of attention as thumbnails."""
        return self._grid(kind, [layer for layer, _ in self.layers.kinds[kind]], "")

    def token(self, kind: str, layer: int, head: int, query: int | None, key: int | None) -> TokenView:
        """What the token ``query`` attends to in one head, and which tokens attend to the token ``key``."""
        picture = self.head(kind, layer, head)
        weights, words = picture.weights, replace(picture, notes=self.layers.notes)
        result = token_view(
            weights, query=query, key=key, title=words.title, notes=words.notes, bar=words.bar
        )
        row = None if query is None else place_of(weights.queries, query)
        column = None if key is None else place_of(weights.keys, key)
        place = weights.queries[row] if row is not None else weights.keys[column or 0]
        across = None if row is None else (weights.values[row], weights.keys)
        down = None if column is None else (weights.values[:, column], weights.queries)
        return replace(result, overlays=overlay_pictures(self.pictures, place, across, down)[0])

    def token_of(self, kind: str, picture: str, row: int, column: int) -> tuple[int, bool] | None:
        """The token number of a picture's patch, and whether it has a row."""
        patches = next(each for each in self.pictures if each.name == picture)
        assert patches.grid is not None
        wanted = [token.id for token in patches.tokens if not token.special][row * patches.grid[1] + column]
        weights = next(iter(self.layers.kinds[kind]))[1]
        axes = (weights.queries, True), (weights.keys, False)
        return next(((at.start, own) for axis, own in axes for at in axis if at.id == wanted), None)

    @property
    def described(self) -> Mapping[tuple[str, int], tuple[HeadDescription, ...]]:
        """The text about each head, by kind and layer."""
        return {place: tuple(map(_describe, heads)) for place, heads in self.scores.items()}

    @property
    def worth(self) -> tuple[Head, ...]:
        """The named heads, then those most worth a look, most telling first."""
        heads = chain.from_iterable(self.scores.values())
        found = (head.address for head in worth_a_look(heads, apart=self.layers.apart))
        return tuple(dict.fromkeys((*self.named, *found)))

    @cached_property
    def weights(self) -> Mapping[tuple[str, int], Weights]:
        """By kind and layer, the weights ``[head, query, key]``."""
        kinds = self.layers.kinds
        return {(kind, layer): weights for kind, pairs in kinds.items() for layer, weights in pairs}

    def bar_of(self, kind: str) -> str:
        """What the weights of a kind are, in words."""
        return name_weight("raw", kind) if kind == "mixer" else self.bar

    @cached_property
    def _seen(self) -> Mapping[tuple[str, int], SiteRecord]:
        return {(site.site.kind, site.site.layer): site for site in self.layers.record.sites}

    def _grid(self, kind: str, layers: list[int], led: str) -> Grid:
        sites = [self._seen[kind, layer] for layer in layers]
        return grid(
            ((layer, self.weights[kind, layer]) for layer in layers),
            title=f"{led}{self.name} · {sentences.kind_title(kind)}",
            subtitle=sentences.provenance(sites),
            scale=self.selection.scale,
            notes=self.layers.notes,
            bar=self.bar_of(kind),
            whole=not led and self.selection.every_layer,
            written=self.layers.written if kind == "decoder" and self.selection.as_read else None,
        )


def _describe(head: HeadScores) -> HeadDescription:
    role = head.role
    return HeadDescription(role.name if role else "", role.sentence if role else "", tuple(readings_of(head)))


def all_heads(model: Model, prepared: ModelInput, selection: Selection, by: str | None = None) -> AllHeads:
    """Run the model once, and keep and measure all heads of the selected layers; ``by`` colours a page."""
    measured = Measurement()
    layers = whole_layers(model, prepared, selection, [measured])
    heads = settle_roles(measured.scores())
    made = replace(heads_of_layers(layers, heads, model, prepared, selection), by=by)
    if selection.as_read:
        return made
    spoken: dict[tuple[str, int], tuple[HeadScores, ...]] = {}
    if selection.words and not selection.hide_special:
        for place, weights in made.weights.items():
            scores = measure_words(weights, made.scores[place][0].site)
            spoken |= {place: scores} if scores else {}
    counted = "words, as in the pictures" if spoken else "all tokens"
    layers = replace(layers, notes=(*layers.notes, *sentences.note_averaged(selection, counted)))
    return replace(made, layers=layers, scores={**made.scores, **spoken})


def heads_of_layers(
    layers: WholeLayers,
    heads: Iterable[HeadScores],
    model: Model,
    prepared: ModelInput,
    selection: Selection,
) -> AllHeads:
    """Whole layers and the scores of their heads, with what is known about the input."""
    scores = sentences.group_by(heads, lambda head: (str(head.site.kind), head.site.layer))
    named = sentences.name_pass(model, prepared)
    seen = find_scene(prepared), pictures_of(prepared)
    return AllHeads(layers, scores, selection, named, *seen, name_weight(model.weighting))


LIBRARIES = ("torch", "transformers", "tokenizers", "numpy", "matplotlib")
"""Packages on which the bytes of an export may depend; the manifest has their versions."""

INTEGERS = {"type": "array", "items": {"type": "integer"}}
AxisText = Annotated[int | None, Meaning("its place in texts; null where the axis is no text")]


@record("a text")
class ExportedText:
    """The tokens of a text."""

    tokens: Annotated[tuple[str, ...], Meaning("its tokens")]
    ids: Annotated[tuple[int, ...], Meaning("their numbers", shape=INTEGERS)]


@record("the axes of a kind")
class ExportedAxes:
    """Which texts the rows and columns of a kind of attention are."""

    queries: AxisText
    keys: AxisText


@record("a file")
class ExportedFile:
    """A file, and the head or the layer that it shows, if only one."""

    name: Annotated[str, Meaning("its name")]
    bytes: Annotated[int, Meaning("its size")]
    sha256: Annotated[str, Meaning("its checksum")]
    kind: Annotated[str | None, Meaning("where a model has several", optional=True, shape=Kind)] = None
    layer: Annotated[int | None, Meaning("the layer that it shows", optional=True, shape=int)] = None
    head: Annotated[int | None, Meaning("the head that it shows", optional=True, shape=int)] = None


@record("the manifest of an export", "export")
class Manifest:
    """Everything in an export, and where it comes from, without anything that differs from run to run."""

    attnscope: Annotated[str, Meaning("the release that wrote it")]
    command: Annotated[str | None, Meaning("what was typed")]
    weigh: Annotated[str | None, Meaning("what the weights are weighted by", optional=True)]
    model: Annotated[About, Meaning("the model")]
    versions: Annotated[Mapping[str, str], Meaning("of what the bytes may depend on")]
    texts: Annotated[tuple[ExportedText, ...], Meaning("the texts on the axes")]
    kinds: Annotated[Mapping[Kind, ExportedAxes], Meaning("by kind of attention")]
    record: Annotated[Record, Parts(sites="every attention call")]
    notes: Notes
    warnings: Annotated[tuple[str, ...], Meaning("what to know about the pictures")]
    files: Annotated[tuple[ExportedFile, ...], Meaning("every file")]


def describe_export(
    model: Model,
    prepared: ModelInput,
    layers: WholeLayers,
    command: str | None,
    warnings: tuple[str, ...],
    files: tuple[ExportedFile, ...],
) -> Manifest:
    """The manifest of whole layers that were written to files."""
    from importlib.metadata import version

    from attnscope.models.trace_recording import describe_model

    texts: dict[ExportedText, int] = {}

    def number(axis: Axis) -> int | None:
        tokens = [token for token in axis if isinstance(token, Token)]
        text = ExportedText(tuple(token.text for token in tokens), tuple(token.id for token in tokens))
        return texts.setdefault(text, len(texts)) if tokens else None

    kinds = {
        kind: ExportedAxes(*map(number, axes)) for kind, axes in prepared.axes.items() if kind in layers.kinds
    }
    libraries = {library: version(library) for library in LIBRARIES}
    return Manifest(
        attnscope=__version__,
        command=command,
        weigh=None if model.weighting == "raw" else model.weighting,
        model=describe_model(model),
        versions={"python": platform.python_version(), **libraries},
        texts=tuple(texts),
        kinds=kinds,
        record=layers.record,
        notes=layers.notes,
        warnings=warnings,
        files=files,
    )
