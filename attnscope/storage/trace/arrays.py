"""The arrays of a safetensors file, each read when it is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from attnscope.axes.weights import Array
from attnscope.memory import require

HELD = 8
"""Arrays that stay in memory: those of a layer or two."""

KINDS = {"F64": "f", "F32": "f", "F16": "f", "U16": "f", "I32": "i", "U8": "u"}
"""What an array of each type can be: numbers, runs of keys, bits or pixels. Bits of bfloat16 lie as U16."""


class FileArrays(Mapping[str, Array]):
    """What a file holds by name. Raises ``ValueError`` for a damaged file, ``SizeError`` for a huge one."""

    def __init__(self, path: Path) -> None:
        from safetensors import SafetensorError, safe_open

        reader: Any = safe_open
        require(path.stat().st_size, f"what {path.name} holds", "keep a shorter text")
        try:
            self._file = reader(path, framework="np")
        except SafetensorError as error:
            raise ValueError(f"it is no trace, or a damaged one ({error})") from error
        self.metadata: Mapping[str, str] = self._file.metadata() or {}
        self._names = tuple(self._file.keys())
        self._read = lru_cache(maxsize=HELD)(self._file.get_tensor)

    def __getitem__(self, name: str) -> Array:
        if name not in self._names:
            raise KeyError(name)
        array: Array = self._read(name)
        return array

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def shape(self, name: str, kind: str, axes: int | None = None) -> tuple[int, ...]:
        """The shape of an array that has to be there, of one of ``KINDS``, without reading the array.

        Raises ``ValueError`` for one that is not, or has other than so many axes.
        """
        if name not in self._names:
            raise ValueError(f"it has no array {name!r:.40}")
        view = self._file.get_slice(name)
        shape = tuple(view.get_shape())
        if KINDS.get(view.get_dtype()) != kind or 0 in shape or axes not in (None, len(shape)):
            raise ValueError(
                f"its array {name!r:.40} is {view.get_dtype()} {list(shape)}, which it cannot be"
            )
        return shape
