"""Chains of steps from a tensor's entries back to their root, walked only on demand.

A node computes the *labels* of a tensor, float64 and of the tensor's shape: for every entry its position
(a running number over the texts of the root) or its channel (a running number among the outputs of the
last projection). 0 is no position: padding. Functions that move entries also move their labels, so the
model's own calls compute them. A mix of several positions gets the first of them, plus a half.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

Which: TypeAlias = Literal["position", "channel"]

STRETCH = float(2**40)  # positions of one root; float64 is exact over thousands of such stretches

UNMOVABLE = RuntimeError, TypeError, IndexError, ValueError
"""Exceptions of a function that can move numbers but not labels."""


class Node:
    """A tensor of a chain, whose labels follow from those of its ``parents``."""

    shape: torch.Size

    @cached_property
    def parents(self) -> Sequence[Node]:
        """What it was made of."""
        return ()

    @cached_property
    def depth(self) -> int:
        """The longest way to a root, in steps."""
        return max((parent.depth + 1 for parent in self.parents), default=0)

    @cached_property
    def roots(self) -> tuple[Root, ...]:
        """Where the chain begins."""
        if isinstance(self, Root):
            return (self,)
        return tuple(dict.fromkeys(root for parent in self.parents for root in parent.roots))

    @cached_property
    def channels(self) -> Sequence[int]:
        """The axes of a product that are the outputs of a parameter."""
        return ()

    @cached_property
    def outputs(self) -> int:
        """The number of outputs of the projection that it comes from; 0: unknown."""
        if self.channels:
            return math.prod(self.shape[axis] for axis in self.channels)
        return max((parent.outputs for parent in self.parents), default=0)

    @cached_property
    def is_projected(self) -> bool:
        """Whether it is a product with a parameter, or a sum or rearrangement of such."""
        return bool(self.channels) or any(parent.is_projected for parent in self.parents)

    def labels(self, which: Which) -> Tensor:
        """The position or the channel of each entry; raises one of ``UNMOVABLE`` if nothing tells."""
        raise NotImplementedError

    @property
    def positions(self) -> Tensor | None:
        """The position of each entry; None if a function can move numbers but not labels."""
        try:
            return self.labels("position")
        except UNMOVABLE:
            return None


@dataclass(frozen=True, eq=False)
class Root(Node):
    """A tensor at which a chain begins, [text, ..., channel] or [text, channel, ...].

    Keys of a memory or a cache, [text, ...], have their positions along one axis.
    """

    number: int
    shape: torch.Size
    channel_axis: int
    device: torch.device
    along: int | None = None

    @property
    def texts(self) -> int:
        """Entries of the batch; two-dimensional states are one text."""
        return self.shape[0] if len(self.shape) > 2 else 1

    @property
    def length(self) -> int:
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
        each = self.shape.numel() // self.texts if self.is_picture else self.length
        places = positions - self.number * STRETCH
        return places // each, places % each

    def labels(self, which: Which) -> Tensor:
        """Every entry numbered over all axes except the channels, or along the one axis."""
        channels = self.channel_axis % len(self.shape)
        if which == "channel":
            return numbered(self.shape, [channels], 1, self.device)
        axes = [axis for axis in range(len(self.shape)) if axis != channels or self.is_picture]
        axes = axes if self.along is None else [0, self.along]
        return numbered(self.shape, axes, self.number * STRETCH, self.device)


@dataclass(frozen=True, eq=False)
class Moved(Node):
    """The result of a function that moves, cuts or copies; ``args`` hold nodes for its tensors."""

    func: Callable[..., Any]
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    part: int | None = None  # of a function with several results

    @cached_property
    def parents(self) -> Sequence[Node]:
        """What was moved."""
        return [leaf for leaf in tree_leaves(self.args) if isinstance(leaf, Node)]

    def labels(self, which: Which) -> Tensor:
        """The function applied to the labels."""
        func = Tensor.reshape if self.name == "view" else self.func  # labels may have other strides
        args = tree_map_only(Node, lambda node: node.labels(which), self.args)
        if self.name == "cat" and type(args[-1]) is int:  # halves of channels, turned: copies no labels
            parts, axis = args
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
class Contracted(Node):
    """One factor of a product: for each axis of the result the factor's axis, or None.

    If the other factor is a parameter, ``projection`` is its number, and those axes are its outputs.
    """

    parent: Node
    axes: tuple[int | None, ...]
    shape: torch.Size
    projection: int | None = None

    @cached_property
    def parents(self) -> Sequence[Node]:
        """The factor."""
        return [self.parent]

    @cached_property
    def channels(self) -> Sequence[int]:
        """The axes of a projection's outputs."""
        return [] if self.projection is None else [at for at, axis in enumerate(self.axes) if axis is None]

    def labels(self, which: Which) -> Tensor:
        """The labels of the first entry along the summed axes."""
        if which == "channel" and self.channels:
            start = 1 + (self.projection or 0) * STRETCH
            return numbered(self.shape, self.channels, start, self.roots[0].device)
        labels = self.parent.labels(which)
        gone = [axis for axis in range(labels.ndim) if axis not in self.axes]
        for axis in reversed(gone):
            labels = _first(labels, axis, marked=which == "position")
        labels = labels.permute(*(axis for axis in self.axes if axis is not None), *gone)
        for _ in gone:
            labels = labels.select(-1, 0)
        for at, kept in enumerate(self.axes):
            labels = labels.unsqueeze(at) if kept is None else labels
        return labels.expand(self.shape)


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


def numbered(shape: torch.Size, axes: Sequence[int], start: float, device: torch.device) -> Tensor:
    """Running numbers over some axes of a shape, equal along the others."""
    sizes = [size if axis in axes else 1 for axis, size in enumerate(shape)]
    count = torch.arange(math.prod(sizes), dtype=torch.float64, device=device)
    return (count + start).view(sizes).expand(shape)


def _first(labels: Tensor, axis: int, marked: bool) -> Tensor:
    """The labels at the start of an axis, which stays; ``marked``: plus a half if others follow.

    Raises ``ValueError`` if padding hides a position after it.
    """
    first = labels.narrow(axis, 0, 1)
    if labels.stride(axis) == 0:
        return first
    hidden = first == 0
    if bool(hidden.any()) and bool((labels.amax(axis, keepdim=True) > 0)[hidden].any()):
        raise ValueError("what begins with padding may be anywhere")
    if not marked:
        return first
    return torch.where((labels != first).any(axis, keepdim=True), first.floor() + 0.5, first)


def is_constant(labels: Tensor, axis: int) -> bool:
    """Whether labels are alike along an axis."""
    if labels.shape[axis] == 1 or labels.stride(axis) == 0:
        return True
    return bool((labels == labels.narrow(axis, 0, 1)).all())
