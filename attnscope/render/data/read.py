"""Attention read back from a file: what was saved here, and other tools' tensors."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from attnscope.errors import InputError
from attnscope.render.data.layout import DESCRIPTION, FORMAT, restored
from attnscope.views.axes import Array, Weights
from attnscope.views.labels import Place

READABLE = (".npz", ".npy", ".safetensors")


@dataclass(frozen=True, eq=False)
class Saved:
    """What a file holds: for each kind of attention, pairs of a layer's number and its weights."""

    kinds: Mapping[str, tuple[tuple[int, Weights], ...]]
    title: str = ""
    notes: tuple[str, ...] = ()


def read(path: str | Path) -> Saved:
    """Read attention from an NPZ, NPY or safetensors file; nothing in it is ever executed.

    A file that another tool wrote holds arrays only. Its names in their natural order are the layers:
    ``[head, query, key]``, or with an axis of one text before it; a single array may be ``[query,
    key]``, ``[layer, head, query, key]`` or ``[layer, 1, head, query, key]``. Rows and columns are
    labelled with an array "tokens" if there is one of their length, else with their numbers, and every
    cell counts as open. Raises ``InputError`` for a file that cannot be read so.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"there is no file {path}")
    if path.suffix.lower() not in READABLE:
        raise InputError(f"cannot read attention from {path}: it is none of {', '.join(READABLE)}")
    try:
        arrays, description = _safetensors(path) if path.suffix.lower() == ".safetensors" else _numpy(path)
        return _described(arrays, description) if description else _foreign(arrays, path)
    except (ValueError, KeyError, TypeError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(f"cannot read attention from {path}: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    if "allow_pickle" in str(error):
        return "it holds pickled objects, which could run code; save plain arrays instead"
    return f"{error}" if not isinstance(error, KeyError) else f"it says nothing about {error}"


def _numpy(path: Path) -> tuple[dict[str, Array], dict[str, Any] | None]:
    found = np.load(path, allow_pickle=False)
    if isinstance(found, np.ndarray):
        return {path.stem: found}, None
    with found:
        arrays = {name: found[name] for name in found.files}
    text = arrays.pop(DESCRIPTION, None)
    return arrays, None if text is None else json.loads(str(text))


def _safetensors(path: Path) -> tuple[dict[str, Array], dict[str, Any] | None]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np") as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 it is no mapping
            text = (file.metadata() or {}).get(DESCRIPTION)
    except SafetensorError as error:
        raise ValueError(str(error)) from error
    return arrays, None if text is None else json.loads(text)


def _described(arrays: dict[str, Array], description: dict[str, Any]) -> Saved:
    if description["format"] != FORMAT:
        raise ValueError(f"its layout is number {description['format']}; this version reads {FORMAT}")
    axes = [(restored(one["queries"]), restored(one["keys"])) for one in description["axes"]]
    kinds: dict[str, list[tuple[int, Weights]]] = {}
    for layer in description["layers"]:
        values = arrays[layer["array"]]
        allowed = arrays.get(f"{layer['array']}.allowed")
        open_cells = np.ones((1, *values.shape[-2:]), bool) if allowed is None else allowed
        weights = Weights(values, open_cells, *axes[layer["axes"]])
        kinds.setdefault(layer["kind"], []).append((layer["layer"], weights))
    found = {kind: tuple(layers) for kind, layers in kinds.items()}
    return Saved(found, description["title"], tuple(description["notes"]))


def _foreign(arrays: dict[str, Array], path: Path) -> Saved:
    tokens = arrays.pop("tokens", None)
    maps = {name: array for name, array in arrays.items() if array.dtype.kind == "f" and array.ndim >= 2}
    if not maps:
        raise ValueError(
            f"it has no array of weights [..., query, key], only {', '.join(arrays) or 'nothing'}"
        )
    names = sorted(maps, key=_natural)
    layers = _split(maps[names[0]]) if len(names) == 1 else [_one_layer(name, maps[name]) for name in names]
    texts = None if tokens is None else [str(text) for text in tokens.ravel()]
    labelled = tuple((number, _labelled(values, texts)) for number, values in enumerate(layers))
    note = f"read from {path.name}: its layers are counted from 0, and which cells were masked is not known"
    return Saved({"attention": labelled}, path.stem, (note,))


def _natural(name: str) -> list[tuple[int, str]]:
    """Names as people order them: 2 before 10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


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


def _labelled(values: Array, texts: list[str] | None) -> Weights:
    queries, keys = (_axis(length, texts) for length in values.shape[-2:])
    return Weights(values, np.ones((1, *values.shape[-2:]), bool), queries, keys)


def _axis(length: int, texts: list[str] | None) -> tuple[Place, ...]:
    named = texts if texts is not None and len(texts) == length else [str(i) for i in range(length)]
    return tuple(Place(text, i, i + 1) for i, text in enumerate(named))
