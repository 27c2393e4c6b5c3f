"""The arrays of a file by their names, and its description if it has one.

Nothing is taken on trust: no pickle is loaded, and the sizes that a file claims are compared with the bytes
that it has, and with the memory that is free, before any memory is taken.
"""

from __future__ import annotations

import json
import lzma
import math
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, TypeAlias

import numpy as np

from attnscope.axes.weights import Array
from attnscope.memory import require
from attnscope.storage.arrays.layout import DESCRIPTION

Found: TypeAlias = "tuple[dict[str, Array], dict[str, Any] | None]"
"""Arrays by name, and the description of a file that was saved here."""

COPIES = 3
"""How often the weights lie in memory while a picture is made of them."""

PARSED = 10
"""Bytes that a byte of JSON takes once it is read, at most."""

PICKLED = b"\x80"
"""What a pickle begins with."""

HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def _npz(path: Path) -> Found:
    try:
        return _unzipped(path)
    except (RuntimeError, zlib.error, lzma.LZMAError) as error:  # encrypted, or packed in a way that is not
        raise ValueError(str(error)) from error


def _unzipped(path: Path) -> Found:
    with zipfile.ZipFile(path) as archive:
        sizes = {}
        for member in archive.infolist():
            with archive.open(member) as file:
                sizes[member.filename] = _claimed(file, member.filename, member.file_size)
    _require(sum(sizes.values()), path)
    with np.load(path, allow_pickle=False) as found:
        arrays = {name: found[name] for name in found.files}
    text = arrays.pop(DESCRIPTION, None)
    return arrays, None if text is None else _description(str(text))


def _npy(path: Path) -> Found:
    with path.open("rb") as file:
        _require(_claimed(file, path.name, path.stat().st_size), path)
    return {path.stem: np.load(path, allow_pickle=False)}, None


def _claimed(file: IO[bytes], name: str, size: int) -> int:
    """The bytes that an array's header claims, if the file of ``size`` bytes has as many."""
    pickled = file.read(1) == PICKLED
    file.seek(0)
    version = None if pickled else np.lib.format.read_magic(file)
    if version is not None and version not in HEADERS:
        raise ValueError(f"{name} is in version {version[0]}.{version[1]} of the format, not 1.0 or 2.0")
    shape, _, dtype = ((), False, np.dtype(object)) if version is None else HEADERS[version](file)
    if dtype.hasobject:
        raise ValueError("it holds pickled objects, which could run code; save plain arrays instead")
    claimed = math.prod(shape) * dtype.itemsize
    if claimed != size - file.tell():
        raise ValueError(f"{name} claims {claimed:,} bytes of weights and has {size - file.tell():,}")
    return claimed


def _require(size: int, path: Path) -> None:
    require(COPIES * size, f"what {path.name} holds", "save fewer layers into a file")


def _safetensors(path: Path) -> Found:
    import torch
    from safetensors import SafetensorError, safe_open

    _require(path.stat().st_size, path)
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 it is no mapping
            text = (file.metadata() or {}).get(DESCRIPTION)
    except SafetensorError as error:
        raise ValueError(str(error)) from error
    narrow = [torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2]  # which NumPy has not
    arrays = {name: (t.float() if t.dtype in narrow else t).numpy() for name, t in tensors.items()}
    return arrays, None if text is None else _description(text)


def _json(path: Path) -> Found:
    size = path.stat().st_size
    require(PARSED * size, f"what {path.name} holds", "save the weights as .npz instead")
    content = _parsed(path.read_bytes().decode("utf-8-sig"))
    if isinstance(content, dict) and isinstance(content.get("weights"), dict) and "format" in content:
        weights = {name: _array(name, nested) for name, nested in content.pop("weights").items()}
        masks = {f"{name}.allowed": np.isfinite(values) for name, values in weights.items()}
        return {name: np.nan_to_num(values) for name, values in weights.items()} | masks, content
    if isinstance(content, Mapping):
        return {name: _array(name, nested) for name, nested in content.items()}, None
    if isinstance(content, list) and _depth(content) >= 4:
        return {f"{number}": _array(f"layer {number}", layer) for number, layer in enumerate(content)}, None
    return {path.stem: _array(path.stem, content)}, None


def _depth(nested: Any) -> int:
    depth = 0
    while isinstance(nested, list) and nested:
        depth, nested = depth + 1, nested[0]
    return depth


def _array(name: str, nested: Any) -> Array:
    """Nested lists as an array of numbers, ``null`` as NaN; or of texts, for tokens."""
    try:
        return np.array(nested, np.str_ if name == "tokens" else np.float64)
    except (ValueError, TypeError):
        raise ValueError(f"{name} is no array of numbers") from None


def _description(text: str) -> dict[str, Any]:
    found = _parsed(text)
    if not isinstance(found, dict):
        raise ValueError("its description is none")
    return found


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("its lists are nested too deep") from None


READERS: Mapping[str, Callable[[Path], Found]] = {
    ".npz": _npz,
    ".npy": _npy,
    ".safetensors": _safetensors,
    ".json": _json,
}
"""What reads a file, by its suffix."""
