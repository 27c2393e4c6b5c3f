"""The one reader of arrays in files."""

from __future__ import annotations

import math
import os
import zipfile
from collections.abc import Callable, Iterator, Mapping
from io import BytesIO
from pathlib import Path
from threading import Lock
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attnscope.axes import Array
from attnscope.errors import InputError, first_line
from attnscope.lazy import torch
from attnscope.registry import plugins
from attnscope.storage.files import parse_json, reading

if TYPE_CHECKING:
    from torch import Tensor


DESCRIPTION = "attnscope"  # the name of the description among the arrays, or in a file's metadata
HEADER_READERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def reader_suffixes() -> tuple[str, ...]:
    """The suffixes of all readers, those of other packages last."""
    return (*READERS, *plugins("readers"))


def suffix_of(path: Path) -> str:
    """The suffix that names a file's reader, in lower case: the longest that one is registered for."""
    parts = [part.lower() for part in path.suffixes]
    every, readers = ("".join(parts[start:]) for start in range(len(parts))), reader_suffixes()
    return next((suffix for suffix in every if suffix in readers), path.suffix.lower())


def read_arrays(path: Path) -> tuple[dict[str, Array], dict[str, Any] | None]:
    """The arrays of a file by name, and the description if it was saved here; raises for a damaged file."""
    suffix, added = suffix_of(path), plugins("readers")
    arrays, description = READERS[suffix](path) if suffix in READERS else (dict(added[suffix](path)), None)
    if description is not None and not isinstance(description, dict):
        raise ValueError("its description is none")
    for name, array in arrays.items():  # native byte order, and at most 64 bits, for torch
        wide = array.dtype.kind == "f" and array.dtype.itemsize > 8
        arrays[name] = array.astype(np.float64 if wide else array.dtype.newbyteorder("="), copy=False)
    return arrays, description


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Named tensors from a ``.safetensors``, ``.npz`` or ``.pt`` file, no pickled objects; ``InputError``."""
    with reading(path, "tensors from"):
        if path.suffix == ".safetensors":
            return read_safetensors(path)[0]
        if path.suffix == ".npz":
            arrays, _ = read_arrays(path)
            return {name.removeprefix("arr_"): torch.from_numpy(array) for name, array in arrays.items()}
        if path.suffix in (".pt", ".pth"):
            return _read_torch(path)
        raise InputError(f"{path} is not a tensor file: its name must end in .safetensors, .npz or .pt")


NUMPY_TYPES = {
    "F64": "f8", "F32": "f4", "F16": "f2", "BF16": "u2", "F8_E4M3": "u1", "F8_E5M2": "u1", "BOOL": "?",
    "I64": "i8", "I32": "i4", "I16": "i2", "I8": "i1", "U64": "u8", "U32": "u4", "U16": "u2", "U8": "u1",
}  # fmt: skip
"""The types of safetensors in NumPy, or same-sized integers for those that NumPy lacks."""

TORCH_TYPES = {"BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2"}
"""Types that only torch has."""

MOST_WHOLE_BYTES = 64 << 20
"""Files up to this size are read when opened, so that nobody can change them under their reader."""


class Entry(NamedTuple):
    """Where an array lies in a file."""

    dtype: str
    shape: tuple[int, ...]
    start: int


class TensorFile(Mapping[str, Array]):
    """The arrays of a safetensors file by name, read on demand; ``content`` is the file's, if known.

    The file is read, not memory-mapped: truncating a mapped file would kill the process (SIGBUS). Raises
    ``ValueError`` for a damaged file, ``InputError`` for one that changes while open.
    """

    def __init__(self, path: Path, content: bytes | None = None) -> None:
        self._path, self._lock = path, Lock()
        self._file: Any = path.open("rb") if content is None else BytesIO(content)
        self._state = self._stat()
        size = len(content or b"") if self._state is None else self._state[0]
        if self._state is not None and size <= MOST_WHOLE_BYTES:
            content = self._file.read()
            self._unchanged(len(content) == size)
            self._file.close()
            self._file, self._state = BytesIO(content), None
        length = int.from_bytes(self._file.read(8), "little")
        if not 2 <= length <= min(size - 8, 100_000_000):  # more is not read by safetensors itself
            raise ValueError("damaged, or no safetensors file")
        header = parse_json(self._file.read(length))
        if not isinstance(header, dict):
            raise ValueError("its header describes no arrays")
        self.metadata: dict[str, str] = header.pop("__metadata__", None) or {}
        if not isinstance(self.metadata, dict) or not all(isinstance(x, str) for x in self.metadata.values()):
            raise ValueError("its metadata is none")
        self.entries: dict[str, Entry] = {}
        end = 0
        for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"][0]):
            dtype, shape, (start, stop) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
            if dtype not in NUMPY_TYPES or not all(type(axis) is int and axis >= 0 for axis in shape):
                described = f"{dtype!s:.20} {list(shape)!s:.60}"
                raise ValueError(f"its array {name!r:.40} is {described}, which it must not be")
            if start != end or stop - start != math.prod(shape) * np.dtype(NUMPY_TYPES[dtype]).itemsize:
                raise ValueError(f"its array {name!r:.40} does not fill its place in the file")
            self.entries[name] = Entry(dtype, shape, 8 + length + start)
            end = stop
        if end != size - 8 - length:
            raise ValueError(f"its arrays take {end:,} bytes, and it has {size - 8 - length:,}")

    def __getitem__(self, name: str) -> Array:
        dtype, shape, start = self.entries[name]
        array = np.empty(shape, np.dtype(NUMPY_TYPES[dtype]).newbyteorder("<"))
        if array.size:
            with self._lock:
                self._file.seek(start)
                whole = self._file.readinto(array.reshape(-1).view(np.uint8)) == array.nbytes
            self._unchanged(whole)
        return array

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def tensor(self, name: str) -> Tensor:
        """An array for torch, in a type that NumPy may lack."""
        array, narrow = self[name], TORCH_TYPES.get(self.entries[name].dtype)
        if narrow is None:
            return torch.from_numpy(array)
        return torch.from_numpy(array.view(f"i{array.itemsize}")).view(getattr(torch, narrow))

    def _stat(self) -> tuple[int, int] | None:
        """Size and time of a file on the disk."""
        status = None if isinstance(self._file, BytesIO) else os.fstat(self._file.fileno())
        return status and (status.st_size, status.st_mtime_ns)

    def _unchanged(self, whole: bool) -> None:
        if not whole or self._stat() != self._state:
            raise InputError(f"{self._path} was overwritten while it was read: read it again")


def read_safetensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of a safetensors file and its metadata. Raises ``ValueError`` for a damaged one."""
    _require_plausible_size(path.stat().st_size, path)
    try:
        file = TensorFile(path)
    except (LookupError, TypeError) as error:
        raise ValueError("its header describes no arrays") from error
    return {name: file.tensor(name) for name in file}, file.metadata


def _read_torch(path: Path) -> dict[str, Tensor]:
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            _require_plausible_size(sum(member.file_size for member in archive.infolist()), path)
    loaded = torch.load(path, map_location="cpu", weights_only=True)
    entries = loaded if isinstance(loaded, (tuple, list)) else [loaded]
    named = loaded if isinstance(loaded, dict) else dict(enumerate(entries))
    if not all(isinstance(tensor, torch.Tensor) for tensor in named.values()):
        raise InputError(f"{path} holds something else than tensors: save a dictionary of tensors")
    _require_plausible_size(sum(tensor.numel() * tensor.element_size() for tensor in named.values()), path)
    return {str(name): tensor for name, tensor in named.items()}


def _read_npz(path: Path) -> tuple[dict[str, Array], Any]:
    sizes = 0
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            with archive.open(member) as file:
                sizes += _claimed_size(file, member.filename, member.file_size)
    _require_plausible_size(sizes, path)
    with np.load(path, allow_pickle=False) as members:
        arrays = {name: members[name] for name in members.files}
    text = arrays.pop(DESCRIPTION, None)
    return arrays, None if text is None else parse_json(str(text))


def _read_npy(path: Path) -> tuple[dict[str, Array], None]:
    with path.open("rb") as file:
        _require_plausible_size(_claimed_size(file, path.name, path.stat().st_size), path)
    return {path.stem: np.load(path, allow_pickle=False)}, None


def _claimed_size(file: IO[bytes], name: str, size: int) -> int:
    """The bytes that an array's header claims, if a file of ``size`` bytes can hold them."""
    shape: tuple[int, ...] = ()
    dtype = np.dtype(object)
    pickled = file.read(1) == b"\x80"
    file.seek(0)
    if not pickled:
        version = np.lib.format.read_magic(file)
        if version not in HEADER_READERS:
            raise ValueError(f"{name} is in version {version[0]}.{version[1]} of the format, not 1.0 or 2.0")
        try:
            shape, _, dtype = HEADER_READERS[version](file)
        except Exception as error:  # NumPy parses it as Python, whose parser has exceptions of its own
            raise ValueError(f"the header of {name} is damaged ({first_line(error)})") from None
    if dtype.hasobject:
        raise ValueError("it holds pickled objects, which could run code; save plain arrays instead")
    claimed = math.prod(shape) * dtype.itemsize
    if claimed != size - file.tell():
        raise ValueError(f"{name} claims {claimed:,} bytes of weights and has {size - file.tell():,}")
    return claimed


def _require_plausible_size(size: int, path: Path) -> None:
    """Refuse a file packed to exhaust memory: weights pack 20 to 1 at most, a zip bomb 1,000 to 1.

    A sparse file has few blocks on the disk; some systems do not count them.
    """
    status = path.stat()
    packed = min(status.st_size, 512 * getattr(status, "st_blocks", 0) or status.st_size)
    if size > max(1 << 28, 100 * packed):
        raise ValueError(f"its {packed:,} bytes unpack to {size:,}: save the arrays without compression")


def _read_safetensors(path: Path) -> tuple[dict[str, Array], Any]:
    tensors, metadata = read_safetensors(path)
    narrow = (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)  # not in NumPy
    arrays = {name: (t.float() if t.dtype in narrow else t).numpy() for name, t in tensors.items()}
    return arrays, parse_json(metadata[DESCRIPTION]) if DESCRIPTION in metadata else None


def _read_json(path: Path) -> tuple[dict[str, Array], Any]:
    content = parse_json(path.read_bytes().decode("utf-8-sig"))
    if not (isinstance(content, dict) and isinstance(content.get("weights"), dict) and "format" in content):
        raise ValueError("attnscope did not write it: save the arrays of other tools as .npz")
    arrays: dict[str, Array] = {}
    for name, nested in content.pop("weights").items():
        try:
            array = np.array(nested, np.float64)
        except (ValueError, TypeError, OverflowError):
            raise ValueError(f"{name} is not an array of numbers") from None
        arrays |= {name: np.nan_to_num(array), f"{name}.allowed": np.isfinite(array)}
    return arrays, content


READERS: Mapping[str, Callable[[Path], tuple[dict[str, Array], Any]]] = {
    ".npz": _read_npz,
    ".npy": _read_npy,
    ".safetensors": _read_safetensors,
    ".json": _read_json,
}
"""Readers by suffix; of several that a name ends in, the longest counts."""
