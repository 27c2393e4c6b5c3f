"""Token, Site, AttentionCall and Attention: the data that flows from capture to every picture and number.

An ``Attention`` is one call of one attention site inside one forward pass. It does not hold the layer's
``[batch, head, query, key]`` tensor: it computes the rows that somebody reads. Rows are queries, columns
are keys, heads and layers count from 0.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias

from attnscope.errors import SelectionError
from attnscope.lazy import torch

if TYPE_CHECKING:  # pictures read tokens without loading torch
    from numpy.typing import NDArray
    from torch import Tensor

Kind: TypeAlias = Literal["encoder", "decoder", "cross", "mixer"]
"""Encoder or decoder self-attention, cross-attention, or a token mixer that has no softmax."""

Source: TypeAlias = Literal["kernel", "recomputed", "softmax", "file", "served", "probe"]
"""Where the weights come from.

``kernel``      the model's own kernel returned them
``recomputed``  from the query, key, mask and scale that the kernel received, with its formula
``softmax``     a softmax inside the forward pass returned them
``file``        they were read from a file, without any model
``served``      from the queries and keys that a server wrote into a file
``probe``       from identity values that the model's own kernel was given: signed, of a mixer
"""


@dataclass(frozen=True, slots=True)
class Token:
    """One token as a person reads it.

    ``text`` is the piece of text that the token stands for (without ``Ġ``, ``▁``, ``##`` or raw bytes),
    ``id`` its number in the vocabulary, ``special`` whether the tokenizer added it, ``segment`` 0 or 1 in
    a text pair, ``word`` the running number of its word (``None`` for a special token). ``span``: in a
    pooled map of a file, the range of tokens that it stands for (end excluded). ``adds``: how the text goes
    on with it, spaces included, so that a character of several tokens is written once; ``None`` where that
    is not known, or nothing stands before.
    """

    text: str
    id: int
    special: bool = False
    segment: int = 0
    word: int | None = None
    span: tuple[int, int] | None = None
    adds: str | None = None


Axis: TypeAlias = "tuple[Token, ...] | range"
"""The tokens along one axis, or a range of positions where the axis has no tokens."""


class Section(NamedTuple):
    """A part of an axis of keys whose states have one origin.

    ``name`` is that of states that are the same for every input; ``keys_only``: they have no queries.
    ``grid`` has the rows and columns of a picture whose patches they are, row by row.
    """

    length: int
    name: str = ""
    keys_only: bool = False
    grid: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Site:
    """Where in a model attention happens.

    ``name`` is the module's path, ``call`` counts its calls in this pass from 0 (a shared module has
    several), ``kind`` tells encoder, decoder and cross attention apart, ``layer`` is the running number
    of the layer within its kind; layers without attention count too.
    """

    name: str
    call: int
    kind: Kind
    layer: int

    def __post_init__(self) -> None:
        """Refuse numbers that no model has: a file may hold any."""
        if not all(0 <= number < 1 << 31 for number in (self.call, self.layer)):
            raise ValueError(f"there is no layer {self.layer}, or call {self.call}")


_HEAD = re.compile(
    r"(?a)(?:(encoder|decoder|cross|mixer)[ .])?(?:[Ll]#[Hh]#|#[.-]#)".replace("#", r"(\d{1,9})")
)


@dataclass(frozen=True, slots=True, order=True, init=False)
class Head:
    """The one address of a head: ``Head("L5H3")``, ``Head("5.3")``, ``Head("cross L0H1")``, ``Head(5, 3)``.

    A head stays as it is. ``kind`` is ``None`` where it was not given. Raises ``SelectionError`` if the text
    does not name a head.
    """

    layer: int
    head: int
    kind: Kind | None = None

    def __init__(self, layer: int | str | Head, head: int | None = None, kind: Kind | None = None) -> None:
        if isinstance(layer, Head):
            head, kind, layer = layer.head, layer.kind, layer.layer
        if isinstance(layer, str):
            match = _HEAD.fullmatch(layer.strip())
            if match is None or head is not None:
                raise SelectionError(
                    f"{layer!r} is not a head: write L5H3, 5.3 or 5-3, with a kind before it: cross L5H3"
                )
            kind = kind if match[1] is None else match[1]  # type: ignore[assignment]
            layer, head = (int(number) for number in match.groups()[1:] if number is not None)
        if head is None:
            raise SelectionError(f"which head of layer {layer}? write L{layer}H0")
        for name, value in (("layer", layer), ("head", head), ("kind", kind)):
            object.__setattr__(self, name, value)

    @property
    def name(self) -> str:
        """Layer and head alone: ``L5H3``."""
        return f"L{self.layer}H{self.head}"

    def __str__(self) -> str:
        return self.name if self.kind is None else f"{self.kind} {self.name}"


OpenKeys: TypeAlias = "Tensor | Callable[[int, int], Tensor]"
"""A bool tensor that broadcasts to [batch, head, query, key], or a function (first row, last row) to one."""


@dataclass(frozen=True, eq=False)
class AttentionCall:
    """What a kernel received in one call: everything that determines its weights and output.

    Query head ``h`` reads key head ``h // (heads / key_heads)``. The scores ``scale·QKᵀ`` pass, in this
    order: ``softcap`` (``c·tanh(s/c)``, Gemma-2); the ``biases`` (position bias and additive masks, where
    a very low number masks a key); the ``diagonal`` (row ``i`` sees the keys ``j <= i + diagonal``;
    ``None``: not causal); the ``masks``; and ``sinks``, a logit per head [head] or row that takes part in
    the softmax without a key of its own. ``window`` is the sliding window passed to the kernel; the masks
    already contain it.
    """

    query: Tensor  # [batch, head, query, size]
    key: Tensor  # [batch, key_head, key, size]
    value: Tensor  # [batch, key_head, key, value size]
    scale: float | Tensor
    biases: tuple[Tensor, ...] = ()  # each broadcasts to [batch, head, query, key]
    masks: tuple[OpenKeys, ...] = ()
    diagonal: int | None = None
    softcap: float | None = None
    sinks: Tensor | None = None
    window: int | None = None
    dropout: float = 0.0


class RowSource(Protocol):
    """What an ``Attention`` reads its rows from; one implementation for each origin of weights."""

    def rows(self, start: int, stop: int, heads: Sequence[int] | None) -> Tensor:
        """Weights of the queries ``start`` to ``stop``.  -> [batch, head, row, key]"""

    def allowed(self, start: int, stop: int) -> Tensor:
        """Unmasked keys of those queries, bool.  -> [batch or 1, head or 1, row, key]"""


@dataclass(frozen=True, eq=False)
class Attention:
    """The attention of one call of one site; its rows are computed when asked for.

    ``key_heads`` are fewer than ``heads`` in grouped-query attention. ``offset`` is the position of query 0
    on the key axis: 0 for plain self-attention, the number of cached tokens in a generation step, ``None``
    where queries and keys are different sequences. ``kernel`` names what computed the layer's output
    ("sdpa", "softmax", ...), in ``dtype``. Readers never write into the results (tensors or ``arrays``).
    ``statistics`` come from the fused pass, and ``refusal`` says why it left this call to the kernel.
    ``window`` is the sliding window passed to the kernel. ``difference`` is the largest error of a few rows
    of weights × values against the kernel's output, over the largest value; ``None`` if not compared.
    ``sections`` are the parts of the keys, if they have several origins.
    """

    site: Site
    source: Source
    kernel: str
    batch: int
    heads: int
    key_heads: int
    queries: Axis
    keys: Axis
    offset: int | None
    dtype: torch.dtype | str
    read: RowSource
    statistics: Any = None  # attnscope.fused.request.Statistics, from a package above this one
    values: Tensor | None = None  # [batch, key_head, key, size]
    arrays: bool = False
    window: int | None = None
    refusal: str | None = None
    difference: float | None = None
    sections: tuple[Section, ...] = ()

    @property
    def lengths(self) -> set[int]:
        """The lengths that labels may have: of both axes, and of each section that is not learned."""
        own = (section.length for section in self.sections if not section.name)
        return {len(self.queries), len(self.keys), *own}

    def rows(self, start: int, stop: int, heads: Sequence[int] | None = None) -> Tensor:
        """Weights of the queries ``start`` to ``stop``, of ``heads`` or all.  -> [batch, head, row, key]"""
        if not 0 <= start <= stop <= len(self.queries):
            raise SelectionError(f"no rows {start} to {stop}: this map has {len(self.queries)} rows")
        self._check(heads)
        return self.read.rows(start, stop, heads)

    def allowed(self, start: int, stop: int) -> Tensor:
        """Unmasked keys, bool.  -> [batch or 1, head or 1, row, key]"""
        return self.read.allowed(start, stop)

    def weights(self, heads: Sequence[int] | None = None) -> Tensor:
        """All rows at once: N² numbers per head.  -> [batch, head, query, key]"""
        return self.rows(0, len(self.queries), heads)

    def only(self, heads: Sequence[int]) -> Attention:
        """The same call with these heads alone, renumbered from 0."""
        self._check(heads)
        only_heads = getattr(self.read, "only", None)  # of a source that can compute some heads alone
        read = only_heads(heads) if only_heads else SomeHeads(self.read, tuple(heads))
        statistics = self.statistics and self.statistics.only(heads)
        count = len(heads)
        return replace(self, heads=count, key_heads=count, read=read, statistics=statistics, values=None)

    def _check(self, heads: Sequence[int] | None) -> None:
        for head in heads or ():
            if not 0 <= head < self.heads:
                raise SelectionError(
                    f"no head {head} in {self.site.name}: this layer has heads 0-{self.heads - 1}"
                )


@dataclass(frozen=True, eq=False)
class HeldRows:
    """Rows of weights that already exist as one tensor, ``[batch, head, query, key]``.

    ``open_keys`` is the mask if it is known (bool, broadcastable to the weights). Without it, a key
    counts as open if its row gives it any weight in any head or text of the batch. ``call`` is what the
    kernel received, where known, or makes it; whether it reproduces these weights has not been checked.
    """

    weights: Tensor  # [batch, head, query, key]
    open_keys: Tensor | None = None
    call: AttentionCall | Callable[[], AttentionCall | None] | None = None

    def rows(self, start: int, stop: int, heads: Sequence[int] | None) -> Tensor:
        """A view of the rows.  -> [batch, head, row, key]"""
        rows = self.weights[:, :, start:stop]
        return rows if heads is None else rows[:, list(heads)]

    def allowed(self, start: int, stop: int) -> Tensor:
        """The mask of the rows, bool.  -> [batch or 1, head or 1, row, key]"""
        if self.open_keys is None:
            return (self.weights[:, :, start:stop] != 0).any(1, keepdim=True)
        return self.open_keys.expand(*self.open_keys.shape[:2], *self.weights.shape[2:])[:, :, start:stop]


@dataclass(frozen=True, eq=False)
class SomeHeads:
    """Some heads of another source of rows."""

    all: RowSource
    chosen: tuple[int, ...]

    def rows(self, start: int, stop: int, heads: Sequence[int] | None) -> Tensor:
        """Rows of these heads, renumbered from 0.  -> [batch, head, row, key]"""
        heads = self.chosen if heads is None else [self.chosen[head] for head in heads]
        return self.all.rows(start, stop, heads)

    def allowed(self, start: int, stop: int) -> Tensor:
        """The mask of the rows, bool.  -> [batch or 1, head or 1, row, key]"""
        mask = self.all.allowed(start, stop)
        return mask if mask.shape[1] == 1 else mask[:, list(self.chosen)]


def tensor_of(array: NDArray[Any]) -> Tensor:
    """An array as a tensor; copied if it is read-only, which torch warns of, or not contiguous."""
    import numpy as np

    return torch.from_numpy(np.require(array, requirements=("C", "W")))
