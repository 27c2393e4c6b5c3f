"""Chains of steps from a tensor's entries back to their root, walked only on demand.

A node computes the *labels* of a tensor, float64 and of the tensor's shape: for every entry its position
(a running number over the texts of the root) or its channel (a running number among the outputs of the
last projection). 0 is no position: padding. Functions that move entries also move their labels, so the
model's own calls compute them. A mix of several positions gets the first of them, plus a half.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

Which: TypeAlias = Literal["position", "channel"]

STRETCH = float(2**40)
"""Positions of one root; float64 is exact over thousands of such stretches."""


@dataclass(frozen=True, eq=False)
class Root:
    """A tensor at which a chain begins, [text, ..., channel] or [text, channel, ...].

    Keys of a memory or a cache, [text, ...], have their positions along one axis.
    """

    number: int
    shape: torch.Size
    channel_axis: int
    device: torch.device
    along: int | None = None
    depth: int = 0
    parents: Sequence[Node] = ()

    @property
    def signature(self) -> Hashable:
        """Its number, unique in the pass, or its shape, to compare passes."""
        return self.number, self.shape, self.channel_axis, self.along

    @property
    def texts(self) -> int:
        """Entries of the batch; two-dimensional states are one text."""
        return self.shape[0] if len(self.shape) > 2 else 1

    @property
    def positions(self) -> int:
        """Positions of one text."""
        if self.along is not None:
            return self.shape[self.along]
        return self.shape.numel() // (self.texts * self.shape[self.channel_axis] or 1)

    @property
    def is_picture(self) -> bool:
        """Whether the channel axis is unknown: then each entry has a position."""
        return len(self.shape) > 3 and self.channel_axis == -1 and self.along is None

    def split(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """The text of each position, and its number there."""
        each = self.shape.numel() // self.texts if self.is_picture else self.positions
        return positions // each, positions % each

    def labels(self, which: Which) -> Tensor:
        """Every entry numbered over all axes except the channels, or along the one axis."""
        channels = self.channel_axis % len(self.shape)
        if which == "channel":
            count = torch.arange(1, self.shape[channels] + 1, dtype=torch.float64, device=self.device)
            return count.view([-1] + [1] * (len(self.shape) - channels - 1)).expand(self.shape)
        axes = [axis for axis in range(len(self.shape)) if axis != channels or self.is_picture]
        axes = axes if self.along is None else [0, self.along]
        sizes = [size if axis in axes else 1 for axis, size in enumerate(self.shape)]
        count = torch.arange(math.prod(sizes), dtype=torch.float64, device=self.device)
        return (count + self.number * STRETCH).view(sizes).expand(self.shape)


@dataclass(frozen=True, eq=False)
class Moved:
    """The result of a function that moves, cuts or copies; ``args`` hold nodes for its tensors."""

    func: Callable[..., Any]
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    part: int | None = None  # of a function with several results

    @cached_property
    def parents(self) -> list[Node]:
        """What was moved."""
        nested = [part for arg in self.args for part in (arg if isinstance(arg, (list, tuple)) else (arg,))]
        return [part for part in nested if isinstance(part, (Root, Moved, Contracted))]

    @cached_property
    def depth(self) -> int:
        """One more than the deepest parent."""
        return 1 + max((node.depth for node in self.parents), default=0)

    @cached_property
    def signature(self) -> Hashable:
        """Equal signatures mean equal labels; None if that depends on contents."""
        return _signature((self.name, self.part, *self.args, *sorted(self.kwargs.items())))

    def labels(self, which: Which) -> Tensor:
        """The function applied to the labels."""
        func = Tensor.reshape if self.name == "view" else self.func  # labels may have other strides
        args = [_filled(arg, which) for arg in self.args]
        if (self.name, len(args)) in (("roll", 3), ("cat", 2)) and type(args[-1]) is int:
            # rotations of channels copy no labels
            parts, axis = args[0] if self.name == "cat" else args[:1], args[-1]
            first: Tensor = parts[0].narrow(axis, 0, 1)
            if all(part.stride(axis) == 0 and torch.equal(first, part.narrow(axis, 0, 1)) for part in parts):
                shape = list(first.shape)
                shape[axis] = sum(part.shape[axis] for part in parts)
                return first.expand(shape)
        result = func(*args, **self.kwargs)
        labels: Tensor = result if self.part is None else result[self.part]
        return labels


def nothing(tensor: Tensor) -> Moved:
    """Entries without origin, such as padding: labels of 0."""
    kwargs = {"dtype": torch.float64, "device": tensor.device}
    return Moved(torch.zeros, "zeros", (tuple(tensor.shape),), kwargs)


@dataclass(frozen=True, eq=False)
class Contracted:
    """One factor of a product: the axes that stay, ``kept`` as (axis before, axis after).

    ``channels`` are the axes of the result that come from a parameter, and ``projection`` its number.
    """

    parent: Node
    kept: tuple[tuple[int, int], ...]
    shape: torch.Size
    channels: tuple[int, ...] = ()
    projection: int = 0

    @property
    def parents(self) -> list[Node]:
        """The factor."""
        return [self.parent]

    @cached_property
    def depth(self) -> int:
        """One more than the factor's."""
        return self.parent.depth + 1

    @cached_property
    def signature(self) -> Hashable:
        """The factor's signature, and the axes that stay."""
        before = self.parent.signature
        return None if before is None else (before, self.kept, self.shape, self.channels, self.projection)

    def labels(self, which: Which) -> Tensor:
        """The labels of the first entry along the summed axes."""
        if which == "channel" and self.channels:
            sizes = [size if axis in self.channels else 1 for axis, size in enumerate(self.shape)]
            device = beginnings(self.parent)[0].device
            count = torch.arange(1, math.prod(sizes) + 1, dtype=torch.float64, device=device)
            return (count + self.projection * STRETCH).view(sizes).expand(self.shape)
        labels = self.parent.labels(which)
        before = [axis for axis, _ in self.kept]
        for axis in reversed(range(labels.ndim)):
            if axis not in before:
                labels = _first(labels, axis, marked=which == "position")
        ranks = sorted(before)
        labels = labels.permute(
            [ranks.index(axis) for axis, _ in sorted(self.kept, key=lambda pair: pair[1])]
        )
        taken = {after for _, after in self.kept}
        for axis in range(len(self.shape)):
            if axis not in taken:
                labels = labels.unsqueeze(axis)
        return labels.expand(self.shape)


Node: TypeAlias = "Root | Moved | Contracted"
"""A node that computes labels."""


@dataclass(frozen=True, eq=False)
class Origin:
    """Where a tensor comes from. Equal ``state`` means the same numbers.

    Scores have two sides: ``node`` is that of the left factor, ``right`` that of the right one. Their
    state is the left one's.
    """

    node: Node
    state: int
    right: Node | None = None


@dataclass(frozen=True, eq=False)
class QueryKeyOrigin:
    """The origins of queries and keys; ``scored``: both nodes have the shape of scores, [..., query, key].

    ``arrange`` reshapes a tensor [..., query, ?] to [batch, head, query, ?].
    """

    query: Node | None
    key: Node | None
    state: int
    arrange: Callable[[Tensor], Tensor]
    scored: bool
    axes: int = 4  # of a kernel's arguments
    texts: tuple[int, ...] = ()  # possible numbers of texts, as far as known

    @property
    def signature(self) -> Hashable:
        """Equal for calls of one layout; None if that depends on the tensors."""
        query, key = (None if side is None else side.signature for side in (self.query, self.key))
        return None if query is None or key is None else (query, key)


def _first(labels: Tensor, axis: int, marked: bool) -> Tensor:
    """The labels at the start of an axis; ``marked``: plus a half if others follow.

    Raises ``ValueError`` if padding hides a position after it.
    """
    first = labels.select(axis, 0)
    if labels.stride(axis) == 0:
        return first
    hidden = first == 0
    if bool(hidden.any()) and bool((labels.amax(axis) > 0)[hidden].any()):
        raise ValueError("what begins with padding may be anywhere")
    if not marked:
        return first
    return torch.where((labels != first.unsqueeze(axis)).any(axis), first.floor() + 0.5, first)


def outputs(node: Node) -> int:
    """The number of outputs of a tensor's projection; 0: unknown."""
    if isinstance(node, Root):
        return node.shape[node.channel_axis]
    if isinstance(node, Contracted) and node.channels:
        return math.prod(node.shape[axis] for axis in node.channels)
    return max(map(outputs, node.parents), default=0)


def comes_from_projection(node: Node | None) -> bool:
    """Whether a tensor is a product with a parameter, or a sum or rearrangement of such."""
    if isinstance(node, Contracted) and node.channels:
        return True
    return node is not None and any(map(comes_from_projection, node.parents))


def beginnings(node: Node | None) -> list[Root]:
    """The roots of a node."""
    if isinstance(node, Root):
        return [node]
    return [] if node is None else [root for each in node.parents for root in beginnings(each)]


def _filled(arg: Any, which: Which) -> Any:
    """An argument with labels in place of nodes."""
    if isinstance(arg, (list, tuple)):
        parts = [_filled(part, which) for part in arg]
        return parts if isinstance(arg, list) else tuple(parts)
    return arg.labels(which) if isinstance(arg, (Root, Moved, Contracted)) else arg


def _signature(arg: Any) -> Hashable:
    """A comparable form of an argument; None if only its contents would tell."""
    if isinstance(arg, (list, tuple)):
        parts = tuple(map(_signature, arg))
        return None if None in parts else parts
    if isinstance(arg, (Root, Moved, Contracted)):
        return arg.signature
    return None if isinstance(arg, Tensor) else repr(arg)
