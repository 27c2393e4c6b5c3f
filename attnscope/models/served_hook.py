"""Queries and keys that vLLM-Hook saves: qk.safetensors and qk.json, in a folder for each rank.

A tensor has the states of a batch, padded to the longest request, [request, token, width], of the heads of
its tensor-parallel rank. The sidecar has the lengths of the requests, the names of the tensors and the
numbers of heads. Read from the description of the format as of 631b0f9 (``ProbeHookQKWorker``), in which each
step of generation is a further request of one token, without the keys before it; later versions save these
keys, and the lengths of queries and keys apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from attnscope.axes import Array
from attnscope.storage.files import read_json
from attnscope.storage.tensors import Entry, TensorFile

TENSORS, SIDECAR, RANK = "qk.safetensors", "qk.json", "tp_rank_"
LENGTHS = ("seq_lens", "q_seq_lens", "k_seq_lens")  # of requests: of both queries and keys, or of each


def find_hook(path: Path) -> Path | None:
    """The file of the first rank, if a folder or a file is one of vLLM-Hook."""
    places = (path / TENSORS, path / f"{RANK}0" / TENSORS) if path.is_dir() else (path,)
    return next((each for each in places if each.is_file() and (each.parent / SIDECAR).is_file()), None)


class Rank(NamedTuple):
    """What one rank has saved."""

    path: Path
    file: TensorFile
    about: Mapping[str, Any]
    names: Mapping[str, str]  # of the tensors, by ours: layers.0.q


class HookFile(Mapping[str, Array]):
    """The states of one request of a batch, of all ranks: layers.N.q and layers.N.k, [token, width].

    Stands for a ``TensorFile``. Raises ``ValueError`` where the files do not fit together, and ``OSError``.
    """

    def __init__(self, path: Path, request: int | None) -> None:
        folder = path.parent
        ranked = folder.name.startswith(RANK)
        folders = sorted(folder.parent.glob(f"{RANK}*"), key=_number) if ranked else [folder]
        self._ranks = [_read_rank(each) for each in folders]
        about = self._ranks[0].about
        config = dict(about["config"])
        self._lengths = {part: _whole(about.get(f"{part}_seq_lens") or about["seq_lens"]) for part in "qk"}
        counts = [config.get(name) for name in ("num_attention_heads", "num_key_value_heads", "head_dim")]
        self._heads, self._key_heads, self._size = _whole(counts)
        for rank in self._ranks:
            if (
                any(rank.about.get(name) != about.get(name) for name in LENGTHS)
                or rank.names.keys() != self._ranks[0].names.keys()
            ):
                raise ValueError(f"{self._ranks[0].path} and {rank.path} are not ranks of one batch")
        self._request = _choose(request, self._lengths)
        self.metadata = {
            "layout": "token width",
            "heads": str(self._heads),
            "key_heads": str(self._key_heads),
            "scale": str(config["attention_multiplier"]),
            "rotary": "applied",
        }
        self._parts = {name: self._parts_of(name) for name in self._ranks[0].names}
        self.entries = {name: self._entry(name) for name in self._parts}

    def __getitem__(self, name: str) -> Array:
        rows = self._lengths[name[-1]][self._request]
        parts = [rank.file[rank.names[name]][self._request, :rows] for rank in self._parts[name]]
        return np.concatenate(parts, -1)

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def _parts_of(self, name: str) -> list[Rank]:
        """The ranks whose heads are joined: of more ranks than heads of keys, some have the same."""
        heads, lengths = self._heads if name.endswith("q") else self._key_heads, self._lengths[name[-1]]
        saved = 0
        for rank in self._ranks:
            shape = rank.file.entries[rank.names[name]].shape
            if len(shape) != 3 or shape[0] != len(lengths) or shape[2] % self._size:
                raise ValueError(f"the tensor {rank.names[name]!r:.60} of {rank.path} has the shape {shape}")
            if shape[1] < lengths[self._request]:
                raise ValueError(f"{rank.path} has {shape[1]:,} tokens of a longer request")
            saved += shape[2] // self._size
        if saved == heads:
            return self._ranks
        repeated = len(self._ranks) // heads
        if saved == len(self._ranks) == heads * repeated:
            return self._ranks[::repeated]
        if saved > heads:  # the plugin divides hidden_size by the number of heads
            wide = f"the heads of {rank.names[name]!r:.60} are wider than its head_dim {self._size}"
            raise ValueError(f"{wide}: {SIDECAR} does not know the scale of this model")
        numbers = ", ".join(rank.path.parent.name for rank in self._ranks)
        raise ValueError(f"{numbers} have {saved:,} of {heads:,} heads: the folder of a rank is missing")

    def _entry(self, name: str) -> Entry:
        parts = [rank.file.entries[rank.names[name]] for rank in self._parts[name]]
        width = sum(part.shape[2] for part in parts)
        return Entry(parts[0].dtype, (self._lengths[name[-1]][self._request], width), 0)


def _number(folder: Path) -> int:
    number = folder.name.removeprefix(RANK)
    return int(number) if number.isascii() and number.isdecimal() else -1


def _read_rank(folder: Path) -> Rank:
    path = folder / TENSORS
    file, about = TensorFile(path), read_json(folder / SIDECAR)
    mode = about["hookq_mode"]
    if mode != "all_tokens":
        raise ValueError(f"its hookq_mode is {mode!r:.40}: only all_tokens has every query")
    names = dict[str, str]()
    for layer in about["layer_order"]:
        (number,) = _whole([layer["layer_num"]], least=0)
        names |= {f"layers.{number}.q": layer["key_q"], f"layers.{number}.k": layer["key_k"]}
    missing = [name for name in names.values() if name not in file]
    if missing or not names:
        raise ValueError(f"{path} has no tensor {str(*missing[:1])!r:.60}, which {SIDECAR} names")
    return Rank(path, file, about, names)


def _whole(numbers: Sequence[Any], least: int = 1) -> list[int]:
    """The same numbers. Raises ``ValueError`` if any is not whole, or too small."""
    if not all(type(number) is int and number >= least for number in numbers):
        raise ValueError(f"{SIDECAR} has {numbers!s:.60} where whole numbers belong")
    return list(numbers)


def _choose(request: int | None, lengths: Mapping[str, Sequence[int]]) -> int:
    """The chosen request, from 0. Raises ``ValueError`` for none of several, or for one without its keys."""
    count, steps = len(lengths["q"]), lengths["q"].count(1)
    holds = f"it holds {count:,} requests" + f", {steps:,} of them of one token" * bool(steps)
    if request is None and count != 1:
        raise ValueError(f"{holds}: choose one with --line, 1 to {count:,}")
    chosen = request or 1
    if not 1 <= chosen <= count:
        raise ValueError(f"{holds}, and no request {request}: --line counts from 1")
    if lengths["k"][chosen - 1 : chosen] == [1]:
        raise ValueError(f"request {chosen} is one token without the keys before it, a step of generation")
    return chosen - 1
