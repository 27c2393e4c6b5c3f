"""Attention written as arrays or tables; the same attention gives the same bytes."""

from __future__ import annotations

import csv
import io
import json
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO

import numpy as np

from attnscope.axes.weights import Array, Weights
from attnscope.errors import OutputError
from attnscope.registry import Registry
from attnscope.storage.arrays.layout import DESCRIPTION, Description, Layers, each_layer
from attnscope.storage.whole import open_whole

Kinds = Mapping[str, Layers]
Writer = Callable[[Kinds, Description, "IO[bytes]"], None]

FORMATS: Registry[Writer] = Registry("data format")
"""What attention can be written as, by suffix."""

PADDED = 1 << 24
"""Characters that the array of tokens may take: it gives every token the room of the longest."""


def save(kinds: Kinds, path: str | Path, *, title: str = "", notes: tuple[str, ...] = ()) -> None:
    """Write every layer in the format that the suffix names; the file appears whole or not at all.

    NPZ, JSON and CSV hold one layer at a time in memory, safetensors all of them. Raises
    ``OutputError`` for an unknown suffix or a place that cannot be written to.
    """
    path = Path(path)
    form = path.suffix.lower().removeprefix(".")
    if form not in FORMATS:
        raise OutputError(
            f"cannot write {path}: {path.suffix!r} is no data format; there are {', '.join(FORMATS)}"
        )
    with open_whole(path) as file:
        FORMATS[form](kinds, Description(title, notes), file)


def save_arrays(arrays: Mapping[str, Array], path: str | Path) -> None:
    """Write named arrays for ``numpy.load``; the file appears whole or not at all. Raises ``OutputError``."""
    with open_whole(path) as file, zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            _add(archive, name, array)


@FORMATS.register("npz")
def _write_npz(kinds: Kinds, description: Description, file: IO[bytes]) -> None:
    with zipfile.ZipFile(file, "w") as archive:
        for kind, layer, weights in each_layer(kinds):
            for name, array in _arrays(description.add(kind, layer, weights), weights):
                _add(archive, name, array)
        tokens = description.tokens()
        if tokens and max(map(len, tokens)) * len(tokens) <= PADDED:
            _add(archive, "tokens", np.array(tokens, np.str_))
        _add(archive, DESCRIPTION, np.array(description.text()))


def _add(archive: zipfile.ZipFile, name: str, array: Array) -> None:
    """One array of an NPZ; without a date, so that bytes repeat. Masks are compressed, weights are not."""
    entry = zipfile.ZipInfo(f"{name}.npy")
    entry.compress_type = zipfile.ZIP_DEFLATED if array.dtype == bool else zipfile.ZIP_STORED
    with archive.open(entry, "w", force_zip64=True) as file:
        np.lib.format.write_array(file, array, allow_pickle=False)


@FORMATS.register("safetensors")
def _write_safetensors(kinds: Kinds, description: Description, file: IO[bytes]) -> None:
    from safetensors.numpy import save as serialize

    arrays = {
        name: array
        for kind, layer, weights in each_layer(kinds)
        for name, array in _arrays(description.add(kind, layer, weights), weights)
    }
    file.write(serialize(arrays, metadata={DESCRIPTION: description.text()}))


def _arrays(name: str, weights: Weights) -> Iterator[tuple[str, Array]]:
    """The arrays of one layer: its weights, and its mask where anything is masked."""
    values = weights.values
    exact = values if values.dtype in (np.float32, np.float64) else values.astype(np.float32)
    yield name, np.ascontiguousarray(exact)
    if not weights.allowed.all():
        mask = weights.allowed
        yield f"{name}.allowed", np.ascontiguousarray(mask if mask.ndim == 3 else mask[None])


@FORMATS.register("json")
def _write_json(kinds: Kinds, description: Description, file: IO[bytes]) -> None:
    """The description, and ``weights``: array name -> nested lists, ``null`` where a cell is masked."""
    file.write(b'{"weights": {')
    for number, (kind, layer, weights) in enumerate(each_layer(kinds)):
        name = json.dumps(description.add(kind, layer, weights))
        file.write(f"{', ' if number else ''}\n{name}: ".encode())
        file.write(_nest(_texts(weights)).encode())
    file.write(b"},\n")
    file.write(description.text().removeprefix("{").encode())


def _texts(weights: Weights) -> Array:
    """Each weight in the fewest digits that give it back; ``null`` where it is masked or no number."""
    texts = weights.values.astype(str).astype(object)
    texts[~(np.broadcast_to(weights.allowed, texts.shape) & np.isfinite(weights.values))] = "null"
    return texts


def _nest(texts: Array) -> str:
    if texts.ndim == 1:
        return f"[{', '.join(texts)}]"
    return f"[{', '.join(_nest(part) for part in texts)}]"


@FORMATS.register("csv")
def _write_csv(kinds: Kinds, description: Description, file: IO[bytes]) -> None:
    """One line for each weight that the mask left open; tokens are written as they are."""
    text = io.TextIOWrapper(file, "utf-8", newline="", write_through=True)
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["kind", "layer", "head", "query", "query_token", "key", "key_token", "weight"])
    for kind, layer, weights in each_layer(kinds):
        open_cells = np.broadcast_to(weights.allowed, weights.values.shape)
        texts = _texts(weights)
        for head, row, column in np.argwhere(open_cells).tolist():
            query, key = weights.queries[row], weights.keys[column]
            weight = texts[head, row, column]
            table.writerow([kind, layer, head, query.start, query.text, key.start, key.text, weight])
    text.detach()
