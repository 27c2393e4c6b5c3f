"""Chains of steps from a tensor's entries back to their root, walked only on demand.

A node computes the *labels* of a tensor, float64 and of its shape: for every entry its position (a running
number over the texts of the root) or its channel (among the outputs of the last projection). The model's own
calls move them, too. 0 is no position: padding. A mix of several positions has the first, plus a half.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, TypeAlias, cast

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from attnscope.attention import Section

Which: TypeAlias = Literal["position", "channel"]

MEMORY = "memory"  # the name of states that are the same for every input
ROOT_OFFSET = float(2**40)  # positions of one root; float64 is exact over thousands of such stretches


class Node:
    """A tensor of a chain, whose labels follow from those of its ``parents``."""

    shape: torch.Size
    args: tuple[Any, ...]  # nodes for the tensors that it was made of, and other arguments
    projection: int | None = None  # the number of the parameter that was the other factor of a product

    @cached_property
    def parents(self) -> Sequence[Node]:
        """What it was made of."""
        return [leaf for leaf in tree_leaves(self.args) if isinstance(leaf, Node)]

    @property
    def channels(self) -> Sequence[int]:
        """The axes of a product that are the outputs of a parameter."""
        axes = self.axes if isinstance(self, Contracted) and self.projection is not None else ()
        return [at for at, axis in enumerate(axes) if axis is None]

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
    def outputs(self) -> int:
        """The number of outputs of the projection that it comes from; 0: of none."""
        if self.channels:
            return math.prod(self.shape[axis] for axis in self.channels)
        return max((parent.outputs for parent in self.parents), default=0)

    def grid_along(self, axis: int) -> tuple[int, int] | None:
        """The rows and columns of a picture whose patches stand along an axis, row by row."""
        labels = self.labels() if [root.grid for root in self.roots if root.grid] else None
        parts = () if labels is None else self.sections(labels.movedim(axis, 0).flatten(1)[:, 0])
        return parts[0].grid if len(parts) == 1 else None

    def sections(self, row: Tensor) -> tuple[Section, ...]:
        """The parts of an axis with these positions, each from one root; none unless all stand in order."""
        begins = {root.number * ROOT_OFFSET: root for root in self.roots}
        parts, at = list[Section](), 0
        while at < len(row):
            root = begins.get(float(row[at]))
            if root is None or not bool((row[at : at + root.length].diff() == 1).all()):
                return ()
            parts += beside_learned(root, root.length)
            at += root.length
        return tuple(parts) if at == len(row) else ()

    def labels(self, which: Which = "position") -> Tensor | None:
        """The position or the channel of each entry; None if a function can move numbers but not labels."""
        try:
            return self.walk(which)
        except (RuntimeError, TypeError, IndexError, ValueError):
            return None

    def walk(self, which: Which) -> Tensor:
        """The same; raises an exception if nothing tells."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class Root(Node):
    """A tensor at which a chain begins, [text, ..., channel] or [text, channel, ...]."""

    number: int
    shape: torch.Size
    channel_axis: int
    device: torch.device
    before: int = 0  # positions that are learned, before and behind the others
    behind: int = 0
    grid: tuple[int, int] | None = None  # of a picture, whose patches the others are, row by row
    args = ()

    @property
    def texts(self) -> int:
        """Entries of the batch; two-dimensional states are one text."""
        return self.shape[0] if len(self.shape) > 2 else 1

    @property
    def length(self) -> int:
        """Positions of one text."""
        return self.shape.numel() // (self.texts * self.shape[self.channel_axis] or 1)

    def split(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """The text of each position, and its number there."""
        places = positions - self.number * ROOT_OFFSET
        return places // self.length, places % self.length

    def walk(self, which: Which) -> Tensor:
        """Every entry numbered over all axes except the channels."""
        channels = self.channel_axis % len(self.shape)
        if which == "channel":
            return numbered(self.shape, [channels], 1, self.device)
        axes = [axis for axis in range(len(self.shape)) if axis != channels]
        return numbered(self.shape, axes, self.number * ROOT_OFFSET, self.device)


@dataclass(frozen=True, eq=False)
class Moved(Node):
    """The result of a function that moves, cuts or copies; ``args`` hold nodes for its tensors."""

    func: Callable[..., Any]
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    part: int | None = None  # of a function with several results

    def walk(self, which: Which) -> Tensor:
        """The function applied to the labels."""
        func = Tensor.reshape if self.name == "view" else self.func  # labels may have other strides
        args = tree_map_only(Node, lambda node: node.walk(which), self.args)
        result: Any = func(*args, **self.kwargs)
        return cast(Tensor, result if self.part is None else result[self.part])


@dataclass(frozen=True, eq=False)
class Beside(Node):
    """States beside others that are not followed; ``before`` and ``behind`` them, learned ones stand."""

    before: int = 0
    behind: int = 0
    grid: None = None
    args = ()


@dataclass(frozen=True, eq=False)
class Contracted(Node):
    """One factor of a product; if the other one is a parameter, new axes are its outputs."""

    args: tuple[Node]
    axes: tuple[int | None, ...]
    shape: torch.Size
    projection: int | None = None

    def walk(self, which: Which) -> Tensor:
        """The labels of the first entry along the summed axes."""
        if which == "channel" and self.channels:
            start = 1 + (self.projection or 0) * ROOT_OFFSET
            return numbered(self.shape, self.channels, start, self.roots[0].device)
        return (self._positions if which == "position" else self._contract(which)).expand(self.shape)

    @cached_property
    def _positions(self) -> Tensor:  # kept: chains of later layers lead through here
        return self._contract("position")

    def _contract(self, which: Which) -> Tensor:
        labels = self.args[0].walk(which)
        axes = [axis for axis in self.axes if axis is not None]
        for axis in reversed(range(labels.ndim)):
            labels = labels if axis in axes else _first(labels, axis, marked=which == "position")
        labels = labels.permute(*(sorted(axes).index(axis) for axis in axes))
        return labels[tuple(None if axis is None else slice(None) for axis in self.axes)]


@dataclass(frozen=True, eq=False)
class Pooled(Node):
    """States that are each made of several others: a root of their own, in the order of the last of these."""

    args: tuple[Node]
    shape: torch.Size
    last: Callable[[Tensor], Tensor]
    root: Root
    places: Tensor

    @classmethod
    def from_source(
        cls, node: Node, shape: torch.Size, last: Callable[[Tensor], Tensor], number: int
    ) -> Pooled | None:
        """States of which ``last`` takes the last of each; None unless all texts have as many."""
        labels = node.labels()
        if labels is None or len(node.roots) != 1:
            return None
        once = labels[tuple(slice(1 if is_constant(labels, axis) else None) for axis in range(labels.ndim))]
        pooled, (source,) = last(once.floor()), node.roots
        places, which = torch.unique(pooled, return_inverse=True)
        real = places > 0
        counts = torch.bincount(source.split(places[real])[0].long(), minlength=source.texts)
        if (
            pooled.numel() == once.numel()
            or int((pooled > 0).sum()) > int(real.sum())
            or not is_constant(counts, 0)
        ):
            return None
        numbers = (real.double().cumsum(0) - 1 + number * ROOT_OFFSET) * real
        root = Root(number, torch.Size((source.texts, int(counts[0]), 1)), -1, labels.device)
        return cls((node,), shape, last, root, numbers[which].expand(shape))

    @cached_property
    def roots(self) -> tuple[Root, ...]:
        """Its own root alone."""
        return (self.root,)

    def walk(self, which: Which) -> Tensor:
        """The places of the pools, or the channels of the last of each."""
        return self.places if which == "position" else self.last(self.args[0].walk(which))


@dataclass(frozen=True, eq=False)
class Origin:
    """Where a tensor comes from; scores have two sides: ``node`` is that of the left factor."""

    node: Node
    right: Node | None = None
    state: object = field(default_factory=object)  # equal for the same numbers; of scores the left one's


@dataclass(frozen=True, eq=False)
class CallOrigin:
    """The origins of queries and keys, in the axes [batch, head, query or 1, key or 1]."""

    query: Node | None = None
    key: Node | None = None
    state: object = None
    axes: int = 4  # of a kernel's arguments
    axes_known: bool = False  # whether the function says which axes are texts, heads and positions

    @property
    def sides(self) -> tuple[Node, ...]:
        """The origins that are known, of queries and keys."""
        return tuple(side for side in (self.query, self.key) if side is not None)

    def sections(self, count: int, branches: bool) -> tuple[Section, ...]:
        """The parts of so many keys, if some are learned; ``branches``: or if they have several roots."""
        node = self.key
        while isinstance(node, (Moved, Contracted)) and len(node.parents) == 1:
            node = node.parents[0]
        if isinstance(node, (Beside, Root)):
            return beside_learned(node, count) if node.before or node.behind else ()
        labels = self.key.labels() if branches and self.key is not None else None
        return () if labels is None or self.key is None else self.key.sections(labels[0, 0, 0])


def beside_learned(node: Root | Beside, count: int) -> tuple[Section, ...]:
    """So many states that begin in one place, with the learned ones before and behind the others."""
    own, apart = count - node.before - node.behind, isinstance(node, Beside)
    grid = node.grid if node.grid and math.prod(node.grid) == own else None
    before, behind = (Section(learned, MEMORY, apart) for learned in (node.before, node.behind))
    return tuple(part for part in (before, Section(own, "", apart, grid), behind) if part.length > 0)


def numbered(shape: torch.Size, axes: Sequence[int], start: float, device: torch.device) -> Tensor:
    """Running numbers over some axes of a shape, equal along the others."""
    sizes = [size if axis in axes else 1 for axis, size in enumerate(shape)]
    count = torch.arange(math.prod(sizes), dtype=torch.float64, device=device)
    return (count + start).view(sizes).expand(shape)


def _first(labels: Tensor, axis: int, marked: bool) -> Tensor:
    """The labels at the start of an axis, without it; ``marked``: plus a half if others follow."""
    first = labels.select(axis, 0)
    if labels.stride(axis) == 0:
        return first
    if bool(((first == 0) & (labels.amax(axis) > 0)).any()):
        raise ValueError("what begins with padding may be anywhere")
    mixed = marked & (labels != first.unsqueeze(axis)).any(axis)
    return torch.where(mixed, first.floor() + 0.5, first)


def join_labels(parts: Sequence[Tensor], axis: int) -> Tensor:
    """Labels side by side; axes along which all of them repeat are not written out."""
    shape, axis = parts[0].shape, axis % parts[0].ndim
    alike = [at != axis and all(part.stride(at) == 0 for part in parts) for at in range(len(shape))]
    once = tuple(slice(1) if same else slice(None) for same in alike)
    labels = torch.cat([part[once] for part in parts], axis)
    return labels.expand([size if same else -1 for size, same in zip(shape, alike, strict=True)])


def is_constant(labels: Tensor, axis: int) -> bool:
    """Whether labels are alike along an axis."""
    if labels.shape[axis] == 1 or labels.stride(axis) == 0:
        return True
    return bool((labels == labels.narrow(axis, 0, 1)).all())
