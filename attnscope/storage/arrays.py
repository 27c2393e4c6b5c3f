"""Attention weights in files, written and read back: NPZ, safetensors, JSON, CSV; tables as Parquet.

    save_weights(kinds, "heads.npz")   # the suffix says the format
    saved = read_weights("heads.npz")  # what was saved, or another tool's tensors

where ``kinds`` maps a kind of attention to pairs of a layer's number and its weights ``[head, query,
key]``. Weights are written in their own type, at least float32. The ``README.md`` beside this
file has the layout, and how other tools read it.
"""

from __future__ import annotations

import csv
import io
import json
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import IO, Any, TypeAlias

import numpy as np

from attnscope.axes import Array, Place, Weights
from attnscope.errors import OutputError
from attnscope.records import read
from attnscope.registry import Registry
from attnscope.storage.files import open_whole, reading, require_pyarrow, write_whole
from attnscope.storage.tensors import DESCRIPTION, read_arrays, reader_suffixes, suffix_of
from attnscope.text import Untrusted, csv_cell

SUM_TOLERANCE = 5e-3  # how far a row's sum may exceed 1; half precision needs it

KINDS = ("encoder", "decoder", "cross", "mixer")

MOST_LAYERS, MOST_HEADS = 1000, 1 << 15
"""Most layers of a kind in a file, those of the deepest model, and most heads: twice those of the largest."""


Layers = Iterable[tuple[int, Weights]]
Numbers: TypeAlias = Mapping[tuple[str, int], Sequence[int]]

FORMAT = 1
MOST_PLACES = 1 << 17  # most rows or columns in a file; each takes kilobytes once it is labelled and drawn
LARGEST_NUMBER = 1 << 31  # the largest token number or vocabulary id in a description


@dataclass(eq=False)
class LayersDescription:
    """A file's description of its arrays; it grows while layers are written.

    ``about`` says what was read, by which model and how, as the answer of a command does; ``numbers`` names
    the heads of a kind and layer, if not all of them are there.
    """

    title: str = ""
    notes: tuple[str, ...] = ()
    about: Mapping[str, Any] = field(default_factory=dict)
    numbers: Numbers = field(default_factory=dict)
    axes: dict[tuple[tuple[Place, ...], tuple[Place, ...]], int] = field(default_factory=dict)
    layers: list[dict[str, Any]] = field(default_factory=list)

    def add(self, kind: str, layer: int, weights: Weights) -> str:
        """Describe one layer; return the name of its array."""
        name = f"{kind}.{layer:02}"
        axes = self.axes.setdefault((weights.queries, weights.keys), len(self.axes))
        heads = {"heads": [*self.numbers[kind, layer]]} if (kind, layer) in self.numbers else {}
        self.layers.append({"kind": kind, "layer": layer, "array": name, "axes": axes, **heads})
        return name

    def text(self) -> str:
        """The description as JSON."""
        axes = [{"queries": _store_axis(queries), "keys": _store_axis(keys)} for queries, keys in self.axes]
        content = {**self.about, "format": FORMAT, "title": self.title, "notes": self.notes, "axes": axes}
        return json.dumps({**content, "layers": self.layers}, ensure_ascii=False)

    def tokens(self) -> list[str] | None:
        """The texts of the keys, if all layers have the same."""
        keys = {keys for _, keys in self.axes}
        return [place.text for place in next(iter(keys))] if len(keys) == 1 else None


def _each_layer(kinds: Mapping[str, Layers]) -> Iterator[tuple[str, int, Weights]]:
    for kind, layers in kinds.items():
        for layer, weights in layers:
            yield kind, layer, weights


def _store_axis(axis: tuple[Place, ...]) -> list[list[Any]]:
    return [[one.text, one.start, one.stop, one.special, one.word, one.id, one.adds] for one in axis]


StoredPlace = tuple[str, int, int, bool, tuple[int, int] | None, int | None, str | None]


def _restore_axis(stored: Any) -> tuple[Place, ...]:
    if not isinstance(stored, list) or len(stored) > MOST_PLACES:
        raise ValueError(f"an axis is a list of at most {MOST_PLACES:,} places")
    places = []
    for one in stored:
        try:
            text, start, stop, special, word, number, adds = read(StoredPlace, one)
            if not 0 <= start < stop <= LARGEST_NUMBER:
                raise ValueError
        except ValueError:
            described = f"a row or column is described by {str(one)[:60]!r}"
            raise ValueError(f"{described}, not by its text and tokens") from None
        pooled = word is None and stop - start > 1  # pieces merged into a word still name it
        places.append(Place(text, start, stop, special, word, pooled, number, adds=adds))
    return tuple(places)


def _is_number(value: Any, most: int = LARGEST_NUMBER) -> bool:
    return type(value) is int and -most <= value <= most


Kinds = Mapping[str, Layers]

FORMATS: Registry[Callable[[Kinds, LayersDescription, IO[bytes]], None]] = Registry("data format")
"""The formats of attention weights, by suffix."""

MOST_TOKEN_CHARACTERS = 1 << 24  # in the array of tokens, where each takes the space of the longest


@dataclass(frozen=True, eq=False)
class SavedWeights:
    """What a file holds; ``notes`` are the saved ones, and those on invalid weights."""

    kinds: Mapping[str, tuple[tuple[int, Weights], ...]]
    title: Untrusted
    notes: tuple[Untrusted, ...]


def read_weights(path: str | Path) -> SavedWeights:
    """Read attention from an NPZ, NPY, safetensors or JSON file; its contents are never executed.

    A file that another tool wrote holds arrays only. Its names in their natural order are the layers:
    ``[head, query, key]``, or with an axis of one text before it; a single array may be ``[query,
    key]``, ``[layer, head, query, key]`` or ``[layer, 1, head, query, key]``. Rows and columns are labelled
    with an array "tokens" if there is one of their length, else with their numbers. Every cell counts as
    open, unless all above the diagonal are exactly 0: then the layers count as causal, and a note says so.
    Raises ``InputError`` for any other file.
    """
    path = Path(path)
    with reading(path, "attention from"):
        if suffix_of(path) not in reader_suffixes() and path.exists():
            raise ValueError(f"it is none of {', '.join(reader_suffixes())}")
        path.stat()
        arrays, description = read_arrays(path)
        saved = _read_own(arrays, description) if description else _read_foreign(arrays, path)
        heads = sum(len(weights.values) for layers in saved.kinds.values() for _, weights in layers)
        if heads > MOST_HEADS:
            raise ValueError(f"it has {heads:,} heads, and at most {MOST_HEADS:,} are read")
    oddities = map(Untrusted, _name_oddities(saved))
    return replace(saved, notes=tuple(dict.fromkeys((*saved.notes, *oddities))))


def _read_own(arrays: dict[str, Array], description: dict[str, Any]) -> SavedWeights:
    if description["format"] != FORMAT:
        raise ValueError(f"its layout is number {description['format']!s:.40}; this version reads {FORMAT}")
    axes = [(_restore_axis(one["queries"]), _restore_axis(one["keys"])) for one in description["axes"]]
    kinds: dict[str, dict[int, Weights]] = {}
    for layer in description["layers"]:
        kind, number, name, labels = (layer[part] for part in ("kind", "layer", "array", "axes"))
        if kind not in KINDS:
            raise ValueError(f"{kind!r:.40} is not a kind of attention: there are {', '.join(KINDS)}")
        if not _is_number(number, MOST_LAYERS - 1) or number < 0 or number in kinds.get(kind, ()):
            raise ValueError(f"{kind} layer {number!s:.40} is out of 0-{MOST_LAYERS - 1}, or there twice")
        if "heads" in layer:
            raise ValueError("it holds some heads alone, as --head saves them: --from reads whole layers")
        if not _is_number(labels) or not 0 <= labels < len(axes):
            raise ValueError(f"{kind} layer {number} has the axes {labels!s:.40}, of {len(axes)}")
        values = _weights_of(name, arrays.pop(name))
        allowed = arrays.get(f"{name}.allowed")
        open_cells = _all_open(values) if allowed is None else allowed.astype(bool)
        kinds.setdefault(kind, {})[number] = Weights(values, open_cells, *axes[labels])
    if not kinds:
        raise ValueError("it holds no layers")
    title, notes = description["title"], description["notes"]
    if not isinstance(title, str) or not isinstance(notes, list):
        raise ValueError("its title or its notes are no text")
    ordered = {kind: tuple(layers.items()) for kind, layers in kinds.items()}
    return SavedWeights(ordered, Untrusted(title), tuple(Untrusted(str(note)) for note in notes))


def _weights_of(name: str, values: Array) -> Array:
    """The weights of one layer, if the array has such a shape.  -> [head, query, key]"""
    if values.ndim != 3 or values.dtype.kind != "f" or 0 in values.shape:
        shape = f"{values.dtype} {list(values.shape)}"
        raise ValueError(f"{name} is {shape}, not weights [head, query, key] of one text")
    return values


def _all_open(values: Array) -> Array:
    """A mask that takes no memory.  [head, query, key] -> [1, query, key]"""
    return np.broadcast_to(np.ones((), bool), (1, *values.shape[-2:]))


def _read_foreign(arrays: dict[str, Array], path: Path) -> SavedWeights:
    tokens = arrays.pop("tokens", None)
    layers = _foreign_layers(arrays)
    kind, mask_note = _guess_kind(layers)
    texts = [] if tokens is None else [str(text) for text in tokens.ravel()]
    axes = {n: list(map(str, range(n))) for values in layers for n in values.shape[-2:]} | {len(texts): texts}
    places = {n: tuple(Place(text, i, i + 1) for i, text in enumerate(named)) for n, named in axes.items()}
    labelled = []
    for number, values in enumerate(layers):
        allowed = np.tril(_all_open(values)) if kind == "decoder" else _all_open(values)
        labelled.append((number, Weights(values, allowed, *(places[n] for n in values.shape[-2:]))))
    note = f"read from {path.name}: layers count from 0, {mask_note}"
    return SavedWeights({kind: tuple(labelled)}, Untrusted(path.stem), (Untrusted(note),))


def _foreign_layers(arrays: Mapping[str, Array]) -> list[Array]:
    """The weights of each layer, by the names' natural order.  -> [head, query, key] each"""

    def in_order(name: str) -> list[tuple[int, str]]:  # 2 before 10
        return [(int(p), "") if p.isdecimal() else (-1, p) for p in re.split(r"(\d+)", name)]

    weights = {
        name: _without_cache_padding(name, arrays[name])
        for name in sorted(arrays, key=in_order)
        if arrays[name].dtype.kind == "f" and arrays[name].ndim >= 2 and arrays[name].size
    }
    if not weights:
        named = ", ".join(arrays) or "nothing"
        raise ValueError(f"it has no array of weights [..., query, key], only {named}")
    if len(weights) == 1:
        (alone,) = weights.values()
        alone = alone[None] if alone.ndim == 3 else alone[None, None] if alone.ndim == 2 else alone
        weights = {f"layer {number}": values for number, values in enumerate(alone[: MOST_LAYERS + 1])}
    if len(weights) > MOST_LAYERS or max(max(each.shape[-2:]) for each in weights.values()) > MOST_PLACES:
        raise ValueError(f"it has more than {MOST_LAYERS:,} layers, or {MOST_PLACES:,} rows or columns")
    return [
        _weights_of(name, values[0] if values.ndim == 4 and len(values) == 1 else values)  # of one text
        for name, values in weights.items()
    ]


def _guess_kind(layers: Sequence[Array]) -> tuple[str, str]:
    """The kind of attention of layers without a mask, and a note on what counts as masked."""
    if any(values.shape[-2] != values.shape[-1] for values in layers):
        return "cross", "and which cells were masked is not known"
    if all(len(values[0]) > 1 and not np.triu(values, 1).any() for values in layers):
        return "decoder", "and what is above the diagonal is all 0, so it counts as masked"
    return "encoder", "and which cells were masked is not known"


def _without_cache_padding(name: str, values: Array) -> Array:
    """Weights dumped by llama.cpp, without the padding keys of its cache, which have no weight."""
    if not re.fullmatch(r"kq_soft_max(?:_ext)?-\d+", name):
        return values
    used = values.any(axis=tuple(range(values.ndim - 1))).nonzero()[0]
    return values[..., : max(values.shape[-2], int(used[-1]) + 1 if len(used) else 0)]


def _name_oddities(saved: SavedWeights) -> Iterator[str]:
    """What attention weights cannot be, for each layer where it occurs, with counts."""
    for kind, layers in saved.kinds.items():
        for layer, weights in layers:
            finite = np.where(np.isfinite(weights.values), weights.values, 0)
            negative, sums = int((finite < 0).sum()), finite.sum(-1, dtype=np.float64)
            over = int((sums > 1 + SUM_TOLERANCE).sum())
            if negative:
                yield f"negative weights in {kind} layer {layer}: {negative:,}; entropies say nothing there"
            if over:
                top = f"{sums.max():.3g}"
                yield f"rows of {kind} layer {layer} that sum to more than 1: {over:,}, up to {top}"


def save_weights(kinds: Kinds, path: str | Path, **described: Any) -> None:
    """Write every layer in the format that the suffix names, whole or not at all. Raises ``OutputError``.

    ``described`` are the title, the notes, and other fields of ``LayersDescription``.
    """
    path = Path(path)
    form = path.suffix.lower().removeprefix(".")
    if form not in FORMATS:
        there = f"there are {', '.join(FORMATS)}"
        raise OutputError(f"cannot write {path}: {path.suffix!r} is not a data format; {there}")
    with open_whole(path) as file:
        FORMATS[form](kinds, LayersDescription(**described), file)


def save_arrays(arrays: Mapping[str, Array], path: str | Path, source: str) -> None:
    """Write named arrays and their source for ``numpy.load``, whole or not at all. Raises ``OutputError``."""
    with open_whole(path) as file, zipfile.ZipFile(file, "w") as archive:
        for name, array in {**arrays, DESCRIPTION: np.array(source)}.items():
            _add(archive, name, array)


@FORMATS.register("npz")
def _write_npz(kinds: Kinds, description: LayersDescription, file: IO[bytes]) -> None:
    with zipfile.ZipFile(file, "w") as archive:
        for kind, layer, weights in _each_layer(kinds):
            for name, array in _arrays(description.add(kind, layer, weights), weights):
                _add(archive, name, array)
        tokens = description.tokens()
        if tokens and max(map(len, tokens)) * len(tokens) <= MOST_TOKEN_CHARACTERS:
            _add(archive, "tokens", np.array(tokens, np.str_))
        _add(archive, DESCRIPTION, np.array(description.text()))


def _add(archive: zipfile.ZipFile, name: str, array: Array) -> None:
    """One array of an NPZ, without a date, so that bytes are reproducible. Only masks are compressed."""
    entry = zipfile.ZipInfo(f"{name}.npy")
    entry.compress_type = zipfile.ZIP_DEFLATED if array.dtype == bool else zipfile.ZIP_STORED
    with archive.open(entry, "w", force_zip64=True) as file:
        np.lib.format.write_array(file, array, allow_pickle=False)


@FORMATS.register("safetensors")
def _write_safetensors(kinds: Kinds, description: LayersDescription, file: IO[bytes]) -> None:
    from safetensors.numpy import save as serialize

    arrays: dict[str, Array] = {}
    for kind, layer, weights in _each_layer(kinds):
        arrays |= _arrays(description.add(kind, layer, weights), weights)
    file.write(serialize(arrays, metadata={DESCRIPTION: description.text()}))


def _arrays(name: str, weights: Weights) -> Iterator[tuple[str, Array]]:
    """The arrays of one layer: its weights, and its mask where anything is masked."""
    values, mask = weights.values, weights.allowed
    exact = values if values.dtype in (np.float32, np.float64) else values.astype(np.float32)
    yield name, np.ascontiguousarray(exact)
    if not mask.all():
        yield f"{name}.allowed", np.ascontiguousarray(mask if mask.ndim == 3 else mask[None])


@FORMATS.register("json")
def _write_json(kinds: Kinds, description: LayersDescription, file: IO[bytes]) -> None:
    """The description, and ``weights``: array name -> nested lists, ``null`` where a cell is masked."""
    file.write(b'{"weights": {')
    for number, (kind, layer, weights) in enumerate(_each_layer(kinds)):
        name = json.dumps(description.add(kind, layer, weights))
        file.write(f"{', ' if number else ''}\n{name}: ".encode())
        file.write(_nest(_texts(weights)).encode())
    file.write(b"},\n")
    file.write(description.text().removeprefix("{").encode())


def _texts(weights: Weights) -> Array:
    """Each weight in up to nine digits, those of float32; ``null`` if masked or NaN."""
    values = weights.values
    texts = (np.char.mod("%.9g", values) if values.dtype == np.float64 else values.astype(str)).astype(object)
    texts[~(np.broadcast_to(weights.allowed, texts.shape) & np.isfinite(weights.values))] = "null"
    return texts


def _nest(texts: Array) -> str:
    return f"[{', '.join(texts if texts.ndim == 1 else map(_nest, texts))}]"


@FORMATS.register("csv")
def _write_csv(kinds: Kinds, description: LayersDescription, file: IO[bytes]) -> None:
    """One line for each unmasked weight."""
    text = io.TextIOWrapper(file, "utf-8", newline="", write_through=True)
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["kind", "layer", "head", "query", "query_token", "key", "key_token", "weight"])
    for kind, layer, weights in _each_layer(kinds):
        open_cells = np.broadcast_to(weights.allowed, weights.values.shape)
        texts = _texts(weights)
        numbers = description.numbers.get((kind, layer), range(len(weights.values)))
        for head, row, column in np.argwhere(open_cells).tolist():
            query, key = weights.queries[row], weights.keys[column]
            sides = [query.start, csv_cell(query.text), key.start, csv_cell(key.text)]
            table.writerow([kind, layer, numbers[head], *sides, texts[head, row, column]])
    text.detach()


def save_table(rows: Iterable[Sequence[Any]], path: Path, source: str) -> None:
    """Write a table as Parquet: first the names of its columns, then its rows; an empty cell is null.

    ``source`` says in the file's metadata where it comes from. Raises ``InputError`` without pyarrow.
    """
    pyarrow: Any = require_pyarrow(path)
    parquet: Any = import_module("pyarrow.parquet")
    names, *lines = ([*row] for row in rows)
    columns = [_column(values) for values in zip(*lines, strict=True)] or [[] for _ in names]
    with io.BytesIO() as file:
        named = dict(zip(map(str, names), columns, strict=True))
        parquet.write_table(pyarrow.table(named, metadata={DESCRIPTION: source}), file)
        write_whole(path, file.getvalue())


def _column(values: Sequence[Any]) -> list[Any]:
    """Cells of one type: numbers, truth values, or else texts."""
    cells = [None if value is None or value == "" else value for value in values]
    kinds = {type(cell) for cell in cells if cell is not None}
    if kinds <= {int, float} or kinds == {bool}:
        return [float(cell) if float in kinds and cell is not None else cell for cell in cells]
    return [None if cell is None else str(cell) for cell in cells]
