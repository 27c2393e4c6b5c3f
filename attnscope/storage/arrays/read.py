"""Attention read back from a file: what was saved here, and other tools' tensors."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from attnscope.axes.places import Place
from attnscope.axes.weights import Array, Weights
from attnscope.errors import InputError
from attnscope.storage.arrays.layout import FORMAT, restored
from attnscope.storage.arrays.readers import READERS

OVER = 5e-3
"""How far a row's sum may lie above 1; in half precision it can."""

KINDS = ("encoder", "decoder", "cross")


@dataclass(frozen=True, eq=False)
class Saved:
    """What a file holds: for each kind of attention, pairs of a layer's number and its weights.

    ``notes`` are those that were saved, and what is odd about the weights: where, and how many of them.
    """

    kinds: Mapping[str, tuple[tuple[int, Weights], ...]]
    title: str = ""
    notes: tuple[str, ...] = ()


def read(path: str | Path) -> Saved:
    """Read attention from an NPZ, NPY, safetensors or JSON file; nothing in it is ever executed.

    A file that another tool wrote holds arrays only. Its names in their natural order are the layers:
    ``[head, query, key]``, or with an axis of one text before it; a single array may be ``[query,
    key]``, ``[layer, head, query, key]`` or ``[layer, 1, head, query, key]``; JSON may be such an array,
    a list of layers, or an object of arrays by name. Rows and columns are labelled with an array "tokens"
    if there is one of their length, else with their numbers. Every cell counts as open, unless all above
    the diagonal are exactly 0: then the layers count as causal, and a note says so.

    Raises ``InputError`` for a file that cannot be read so, ``SizeError`` for one that would not fit the
    memory that is free.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"there is no file {path}")
    if path.suffix.lower() not in READERS:
        raise InputError(f"cannot read attention from {path}: it is none of {', '.join(READERS)}")
    try:
        arrays, description = READERS[path.suffix.lower()](path)
        saved = _described(arrays, description) if description else _foreign(arrays, path)
    except (ValueError, KeyError, TypeError, IndexError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(f"cannot read attention from {path}: {_reason(error)}") from error
    return replace(saved, notes=tuple(dict.fromkeys((*saved.notes, *_odd(saved)))))


def _reason(error: Exception) -> str:
    return f"{error}" if not isinstance(error, KeyError) else f"it says nothing about {error}"


def _described(arrays: dict[str, Array], description: dict[str, Any]) -> Saved:
    if description["format"] != FORMAT:
        raise ValueError(f"its layout is number {description['format']}; this version reads {FORMAT}")
    axes = [(restored(one["queries"]), restored(one["keys"])) for one in description["axes"]]
    kinds: dict[str, list[tuple[int, Weights]]] = {}
    for layer in description["layers"]:
        if layer["kind"] not in KINDS:
            raise ValueError(f"{layer['kind']!r} is no kind of attention: there are {', '.join(KINDS)}")
        values = _weights_of(layer["array"], arrays[layer["array"]])
        allowed = arrays.get(f"{layer['array']}.allowed")
        open_cells = np.ones((1, *values.shape[-2:]), bool) if allowed is None else allowed.astype(bool)
        weights = Weights(values, open_cells, *axes[layer["axes"]])
        kinds.setdefault(layer["kind"], []).append((int(layer["layer"]), weights))
    if not kinds:
        raise ValueError("it holds no layers")
    found = {kind: tuple(layers) for kind, layers in kinds.items()}
    return Saved(found, str(description["title"]), tuple(map(str, description["notes"])))


def _weights_of(name: str, values: Array) -> Array:
    """The weights of one layer, if they are such.  -> [head, query, key]"""
    if values.ndim != 3 or values.dtype.kind != "f" or 0 in values.shape:
        raise ValueError(f"{name} is {values.dtype} {list(values.shape)}, not weights [head, query, key]")
    return values


def _foreign(arrays: dict[str, Array], path: Path) -> Saved:
    tokens = arrays.pop("tokens", None)
    maps = {name: array for name, array in arrays.items() if array.dtype.kind == "f" and array.ndim >= 2}
    if not maps:
        raise ValueError(
            f"it has no array of weights [..., query, key], only {', '.join(arrays) or 'nothing'}"
        )
    names = sorted(maps, key=_natural)
    layers = _split(maps[names[0]]) if len(names) == 1 else [_one_layer(name, maps[name]) for name in names]
    if not layers:
        raise ValueError(f"{names[0]} is {list(maps[names[0]].shape)}: it holds no layers")
    layers = [_weights_of(f"layer {number}", values) for number, values in enumerate(layers)]
    texts = None if tokens is None else [str(text) for text in tokens.ravel()]
    kind, known = _kind(layers)
    labelled = tuple((number, _labelled(values, texts, kind)) for number, values in enumerate(layers))
    return Saved({kind: labelled}, path.stem, (f"read from {path.name}: layers count from 0, {known}",))


def _kind(layers: Sequence[Array]) -> tuple[str, str]:
    """What kind of attention it must be, and what is known of the mask, in words."""
    if any(values.shape[-2] != values.shape[-1] for values in layers):
        return "cross", "and which cells were masked is not known"
    if all(len(values[0]) > 1 and not np.triu(values, 1).any() for values in layers):
        return "decoder", "and what is above the diagonal is all 0, so it counts as masked"
    return "encoder", "and which cells were masked is not known"


def _natural(name: str) -> list[tuple[int, str]]:
    """Names as people order them: 2 before 10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]


def _split(values: Array) -> list[Array]:
    """The layers of a single array.  -> [head, query, key] each"""
    if values.ndim == 2:
        return [values[None]]
    if values.ndim == 3:
        return [values]
    return [_one_layer(f"layer {number}", layer) for number, layer in enumerate(values)]


def _one_layer(name: str, values: Array) -> Array:
    """One layer without its axis of texts.  -> [head, query, key]"""
    if values.ndim == 4 and len(values) == 1:
        values = values[0]
    if values.ndim != 3:
        raise ValueError(f"{name} is {list(values.shape)}, not [head, query, key] of one text")
    return values


def _labelled(values: Array, texts: list[str] | None, kind: str) -> Weights:
    queries, keys = (_axis(length, texts) for length in values.shape[-2:])
    allowed = np.ones((1, *values.shape[-2:]), bool)
    return Weights(values, np.tril(allowed) if kind == "decoder" else allowed, queries, keys)


def _axis(length: int, texts: list[str] | None) -> tuple[Place, ...]:
    named = texts if texts is not None and len(texts) == length else [str(i) for i in range(length)]
    return tuple(Place(text, i, i + 1) for i, text in enumerate(named))


def _odd(saved: Saved) -> Iterator[str]:
    """What attention weights are not, said of each layer where it occurs, with how often."""
    for kind, layers in saved.kinds.items():
        for layer, weights in layers:
            finite = np.where(np.isfinite(weights.values), weights.values, 0)
            negative, sums = int((finite < 0).sum()), finite.sum(-1, dtype=np.float64)
            over = int((sums > 1 + OVER).sum())
            if negative:
                yield f"negative weights in {kind} layer {layer}: {negative:,}; entropies say nothing there"
            if over:
                top = f"{sums.max():.3g}"
                yield f"rows of {kind} layer {layer} that sum to more than 1: {over:,}, up to {top}"
