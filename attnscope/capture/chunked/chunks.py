"""Attention that a module computes in chunks (windows, blocks, sorted chunks), put at its true keys.

A module of that sort takes several softmaxes a call, over few keys each, and lays them out in ways that no
reader of tensors can tell. So its class is known by name (``layouts``), what it computes is noted while it
runs, and when it ends its layout says which key every weight belongs to. Rows are spread out when they are
read; what is held meanwhile is what the module itself computed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor

from attnscope.capture.lineage.functions import SOFTMAX
from attnscope.capture.rows.capture import Capture, Unknown
from attnscope.capture.rows.proof import compare_rows
from attnscope.capture.rows.weighing import masked_keys


@dataclass(frozen=True, eq=False)
class Softmax:
    """One softmax of a module's call: its result, and the keys that a mask masked (None: all open)."""

    weights: Tensor
    masked: Tensor | None


@dataclass(eq=False)
class Notes:
    """What a module computed in one call, in order, and what it returned first."""

    softmaxes: list[Softmax] = field(default_factory=list)
    gathers: list[Tensor] = field(default_factory=list)  # the indices of every gather
    linears: list[tuple[Tensor, Tensor]] = field(default_factory=list)  # what each was given, and gave
    returned: Tensor | None = None

    def note(self, name: str, args: Sequence[Any], result: Any) -> None:
        """Take note of a torch function, if it is one that matters."""
        if name in SOFTMAX or name == "exp":  # of scores minus their log-sum-exp
            self.softmaxes.append(Softmax(result.detach(), masked_keys(args[0], -1)))
        elif name == "gather":
            self.gathers.append(args[2])
        elif name == "linear":
            self.linears.append((args[0], result.detach()))


@dataclass(frozen=True, eq=False)
class Chunk:
    """Weights of every query on some keys, each with its key's number; a key may come several times."""

    weights: Tensor  # [batch, head, query, slot]
    keys: Tensor  # [batch or 1, head or 1, query, slot]
    masked: Tensor | None = None  # bool, broadcastable to the weights


@dataclass(frozen=True, eq=False)
class WholeRows:
    """Rows over all keys, in the place of whatever chunks say of those queries."""

    places: Tensor  # [batch, row]: which query each row is; -1 for none
    weights: Tensor  # [batch, head, row, key]
    masked: Tensor | None = None


Numbers: TypeAlias = Callable[["Chunk | WholeRows", slice], Tensor]
"""Some rows of what a part holds: its weights, or which of its keys are open."""


@dataclass(frozen=True, eq=False)
class Proof:
    """What weights were multiplied with, and what that gave; ``whole``: values that whole rows have alone."""

    values: Tensor  # [batch, head, key, size]
    output: Tensor  # [batch, head, query, size]
    whole: Tensor | None = None

    @staticmethod
    def of(values: Tensor, output: Tensor | None, heads: int, whole: Tensor | None = None) -> Proof | None:
        """Of tensors with all heads behind each other, [batch, position, head·size]."""
        if output is None or output.shape != values.shape:
            return None
        parts = (None if of is None else split(of, heads) for of in (values, output, whole))
        return Proof(*parts)  # type: ignore[arg-type]


@dataclass(frozen=True, eq=False)
class ChunkedRows:
    """Rows put together from chunks: the sum of all weights on a key."""

    chunks: tuple[Chunk, ...]
    key_count: int
    whole: WholeRows | None = None
    proof: Proof | None = None

    def rows(self, start: int, stop: int, heads: Sequence[int] | None) -> Tensor:
        """Weights of the queries ``start`` to ``stop``.  -> [batch, head, row, key]"""
        return self._spread(start, stop, slice(None) if heads is None else list(heads), _weights)

    def allowed(self, start: int, stop: int) -> Tensor:
        """Keys that some chunk left open, bool.  -> [batch, head, row, key]"""
        return self._spread(start, stop, slice(None), _open) > 0

    def _spread(self, start: int, stop: int, heads: slice | list[int], numbers: Numbers) -> Tensor:
        """Numbers of every chunk added up at their keys.  -> [batch, head, row, key]"""
        parts = [numbers(chunk, slice(start, stop))[:, heads] for chunk in self.chunks]
        spread = parts[0].new_zeros(*parts[0].shape[:3], self.key_count)
        for chunk, part in zip(self.chunks, parts, strict=True):
            keys = chunk.keys[:, :, start:stop]
            keys = keys if keys.shape[1] == 1 else keys[:, heads]
            spread.scatter_add_(-1, keys.expand(part.shape), part)
        if self.whole is not None:
            places = self.whole.places
            text, row = ((places >= start) & (places < stop)).nonzero(as_tuple=True)
            rows = numbers(self.whole, slice(None))[:, heads]
            spread[text, :, places[text, row] - start] = rows[text, :, row]  # [place, head, key]
        return spread


def split(states: Tensor, heads: int) -> Tensor:
    """[batch, position, head·size] -> [batch, head, position, size]"""
    batch, positions, _ = states.shape
    return states.reshape(batch, positions, heads, -1).transpose(1, 2)


def trim(rows: ChunkedRows, real: Tensor) -> ChunkedRows:
    """The rows without the padding behind the longest text, with which a model fills its last chunk up.

    ``real`` is bool, [batch, key].
    """
    places = real.any(0).nonzero()
    count = int(places.max()) + 1 if len(places) else rows.key_count
    if count == rows.key_count:
        return rows
    chunks = []
    for chunk in rows.chunks:
        keys = chunk.keys[:, :, :count]
        weights = chunk.weights[:, :, :count].masked_fill(keys >= count, 0.0)
        masked = None if chunk.masked is None else chunk.masked.expand_as(chunk.weights)[:, :, :count]
        masked = keys >= count if masked is None else masked | (keys >= count)
        chunks.append(Chunk(weights, keys.clamp(max=count - 1), masked))
    whole = rows.whole
    if whole is not None:
        far = None if whole.masked is None else whole.masked[..., :count]
        whole = WholeRows(whole.places, whole.weights[..., :count], far)
    return ChunkedRows(tuple(chunks), count, whole, rows.proof)


def from_chunks(rows: ChunkedRows | None, kernel: str) -> Capture | Unknown:
    """Self-attention that a module computed in chunks; ``None``: nothing tells at which keys they are."""
    if rows is None:
        return Unknown(f"{kernel} attends in chunks, and those of this call cannot be put at their keys")
    batch, heads, queries, _ = rows.chunks[0].weights.shape
    kind = rows.chunks[0].weights.dtype
    capture = Capture(
        "softmax", kernel, batch, heads, heads, queries, rows.key_count, kind, rows, crossed=False
    )
    return replace(capture, difference=compare_chunks(rows))


def compare_chunks(rows: ChunkedRows) -> float | None:
    """What ``compare_rows`` says of all rows; None without their values, or if they are of another type."""
    proof, whole, count = rows.proof, rows.whole, rows.key_count
    if proof is None or proof.values.dtype != rows.chunks[0].weights.dtype:
        return None
    output = proof.output[:, :, :count]
    if whole is None or proof.whole is None:
        return compare_rows(rows, proof.values[:, :, :count], output)
    near, far = output.clone(), output.new_full((*whole.weights.shape[:3], output.shape[3]), torch.nan)
    text, row = (whole.places >= 0).nonzero(as_tuple=True)
    far[text, :, row] = output[text, :, whole.places[text, row]]
    near[text, :, whole.places[text, row]] = torch.nan  # what is no number is not compared
    keys = torch.arange(count, device=far.device).expand(1, 1, far.shape[2], -1)
    alone = ChunkedRows((Chunk(whole.weights, keys),), count)
    return max(
        compare_rows(replace(rows, whole=None), proof.values[:, :, :count], near),
        compare_rows(alone, proof.whole[:, :, :count], far),
    )


def _weights(part: Chunk | WholeRows, rows: slice) -> Tensor:
    """-> [batch, head, row, slot]"""
    return part.weights[:, :, rows]


def _open(part: Chunk | WholeRows, rows: slice) -> Tensor:
    """1 where a key is open, else 0.  -> [batch, head, row, slot]"""
    weights = _weights(part, rows)
    if part.masked is None:
        return torch.ones_like(weights)
    return (~part.masked.expand_as(part.weights)[:, :, rows]).to(weights.dtype)
