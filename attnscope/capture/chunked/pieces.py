"""Attention that a module computes in pieces (windows, blocks, sorted chunks), put at its true keys.

A module of that sort takes several softmaxes a call, over few keys each, and lays them out in ways that no
reader of tensors can tell. So its class is known by name (``placers``), what it computes is noted while it
runs, and when it ends its placer says which key every weight belongs to. Rows are spread out when they are
read; what is held meanwhile is what the module itself computed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor

from attnscope.capture.hooks.softmax import SOFTMAX, closed_keys
from attnscope.capture.rows.found import Found


@dataclass(frozen=True, eq=False)
class Softmax:
    """One softmax of a module's call: its result, and the keys that a mask closed (None: all open)."""

    weights: Tensor
    closed: Tensor | None


@dataclass(eq=False)
class Trace:
    """What a module computed in one call, in order."""

    softmaxes: list[Softmax] = field(default_factory=list)
    gathered: list[Tensor] = field(default_factory=list)  # the indices of every gather

    def note(self, name: str, args: Sequence[Any], result: Any) -> None:
        """Take note of a torch function, if it is one that matters."""
        if name in SOFTMAX or name == "exp":  # of scores minus their log-sum-exp
            self.softmaxes.append(Softmax(result.detach(), closed_keys(args[0], -1)))
        elif name == "gather":
            self.gathered.append(args[2])


@dataclass(frozen=True, eq=False)
class Piece:
    """Weights of every query on some keys, each with its key's number; a key may come several times."""

    weights: Tensor  # [batch, head, query, slot]
    keys: Tensor  # [batch or 1, head or 1, query, slot]
    closed: Tensor | None = None  # bool, broadcastable to the weights


@dataclass(frozen=True, eq=False)
class WholeRows:
    """Rows over all keys, in the place of whatever pieces say of those queries."""

    places: Tensor  # [batch, row]: which query each row is; -1 for none
    weights: Tensor  # [batch, head, row, key]
    closed: Tensor | None = None


Numbers: TypeAlias = Callable[["Piece | WholeRows", slice], Tensor]
"""Some rows of what a part holds: its weights, or which of its keys are open."""


@dataclass(frozen=True, eq=False)
class PiecedRows:
    """Rows put together from pieces: the sum of all weights on a key."""

    pieces: tuple[Piece, ...]
    key_count: int
    whole: WholeRows | None = None

    def rows(self, start: int, stop: int, heads: Sequence[int] | None) -> Tensor:
        """Weights of the queries ``start`` to ``stop``.  -> [batch, head, row, key]"""
        return self._spread(start, stop, slice(None) if heads is None else list(heads), _weights)

    def allowed(self, start: int, stop: int) -> Tensor:
        """Keys that some piece left open, bool.  -> [batch, head, row, key]"""
        return self._spread(start, stop, slice(None), _opened) > 0

    def _spread(self, start: int, stop: int, heads: slice | list[int], numbers: Numbers) -> Tensor:
        """Numbers of every piece added up at their keys.  -> [batch, head, row, key]"""
        parts = [numbers(piece, slice(start, stop))[:, heads] for piece in self.pieces]
        spread = parts[0].new_zeros(*parts[0].shape[:3], self.key_count)
        for piece, part in zip(self.pieces, parts, strict=True):
            keys = piece.keys[:, :, start:stop]
            keys = keys if keys.shape[1] == 1 else keys[:, heads]
            spread.scatter_add_(-1, keys.expand(part.shape), part)
        if self.whole is not None:
            places = self.whole.places
            text, row = ((places >= start) & (places < stop)).nonzero(as_tuple=True)
            rows = numbers(self.whole, slice(None))[:, heads]
            spread[text, :, places[text, row] - start] = rows[text, :, row]  # [found, head, key]
        return spread


def trimmed(rows: PiecedRows, alive: Tensor) -> PiecedRows:
    """The rows without the padding behind the longest text, with which a model fills its last piece up.

    ``alive`` is bool, [batch, key].
    """
    places = alive.any(0).nonzero()
    count = int(places.max()) + 1 if len(places) else rows.key_count
    if count == rows.key_count:
        return rows
    pieces = []
    for piece in rows.pieces:
        keys = piece.keys[:, :, :count]
        weights = piece.weights[:, :, :count].masked_fill(keys >= count, 0.0)
        closed = None if piece.closed is None else piece.closed.expand_as(piece.weights)[:, :, :count]
        closed = keys >= count if closed is None else closed | (keys >= count)
        pieces.append(Piece(weights, keys.clamp(max=count - 1), closed))
    whole = rows.whole
    if whole is not None:
        far = None if whole.closed is None else whole.closed[..., :count]
        whole = WholeRows(whole.places, whole.weights[..., :count], far)
    return PiecedRows(tuple(pieces), count, whole)


def from_pieces(rows: PiecedRows, kernel: str) -> Found:
    """Self-attention that a module computed in pieces."""
    batch, heads, queries, _ = rows.pieces[0].weights.shape
    kind = rows.pieces[0].weights.dtype
    return Found("softmax", kernel, batch, heads, heads, queries, rows.key_count, kind, rows, crossed=False)


def _weights(part: Piece | WholeRows, rows: slice) -> Tensor:
    """-> [batch, head, row, slot]"""
    return part.weights[:, :, rows]


def _opened(part: Piece | WholeRows, rows: slice) -> Tensor:
    """1 where a key is open, else 0.  -> [batch, head, row, slot]"""
    weights = _weights(part, rows)
    if part.closed is None:
        return torch.ones_like(weights)
    return (~part.closed.expand_as(part.weights)[:, :, rows]).to(weights.dtype)
