"""Where the way of a tensor's entries begins, and its steps, to be walked only if somebody asks for it.

A node computes the *labels* of a tensor, float64 and laid out as the tensor: of every entry its place (a
running number in the tensor that the way began with) or its channel (a running number among the outputs of
the projection that it went through last). 0 is no place: padding. Functions that move entries move their
labels, so the labels are found by the model's own calls.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

Which = Literal["place", "position", "channel"]

MIXED = -1.0
"""The position of what was made of several."""

STRETCH = float(2**40)
"""Places of one beginning; float64 is exact over thousands of such stretches."""


@dataclass(frozen=True, eq=False)
class Root:
    """A tensor with which a way begins, [text, ..., channel] or [text, channel, ...]."""

    number: int
    shape: torch.Size
    channel_axis: int
    device: torch.device
    depth: int = 0

    @property
    def signature(self) -> Hashable:
        """The number, which no other tensor of the pass has, and the shape, for other passes."""
        return self.number, self.shape, self.channel_axis

    @property
    def texts(self) -> int:
        """Entries of the batch; states of two axes are one text."""
        return self.shape[0] if len(self.shape) > 2 else 1

    @property
    def positions(self) -> int:
        """Positions of one text."""
        return self.shape.numel() // (self.texts * self.shape[self.channel_axis] or 1)

    def split(self, places: Tensor) -> tuple[Tensor, Tensor]:
        """The text and the position that each of its places lies in."""
        channels = self.shape[self.channel_axis]
        each = self.positions * channels
        text, rest = places // each, places % each
        if self.channel_axis != -1:
            return text, rest % self.positions
        return text, rest if len(self.shape) > 3 else rest // channels  # of a picture, nobody knows the axis

    def labels(self, which: Which) -> Tensor:
        """Every entry numbered, over all axes, over all but that of the channels, or along that one."""
        if which == "channel":
            channels = self.shape[self.channel_axis]
            count = torch.arange(1, channels + 1, dtype=torch.float64, device=self.device)
            return count.view([-1] + [1] * (-1 - self.channel_axis % -len(self.shape))).expand(self.shape)
        channels = self.channel_axis % len(self.shape)
        known = len(self.shape) < 4 or self.channel_axis != -1  # else nobody knows the axis
        alone = which == "position" and known
        sizes = [1 if alone and axis == channels else size for axis, size in enumerate(self.shape)]
        count = torch.arange(math.prod(sizes), dtype=torch.float64, device=self.device)
        return (count + self.number * STRETCH).view(sizes).expand(self.shape)


@dataclass(frozen=True, eq=False)
class Filler:
    """What is put in front of or behind states and belongs to no text: a class token, a memory, a cache."""

    number: int
    shape: torch.Size
    axis: int
    device: torch.device
    depth: int = 0

    @property
    def signature(self) -> Hashable:
        """The shape tells all."""
        return ("filler", self.shape, self.axis)

    @property
    def positions(self) -> int:
        """Positions that it adds to each text."""
        return self.shape[self.axis]

    def labels(self, which: Which) -> Tensor:
        """Positions numbered along the axis, alike in all texts."""
        count = torch.arange(self.shape[self.axis], dtype=torch.float64, device=self.device)
        if which == "channel":
            count = torch.zeros_like(count)
        else:
            count = count + self.number * STRETCH
        shape = [1] * len(self.shape)
        shape[self.axis] = -1
        return count.view(shape).expand(self.shape)


@dataclass(frozen=True, eq=False)
class Nothing:
    """Entries that come from nowhere: padding."""

    shape: torch.Size
    device: torch.device
    depth: int = 0

    @property
    def signature(self) -> Hashable:
        """The shape tells all."""
        return ("nothing", self.shape)

    def labels(self, which: Which) -> Tensor:
        """Zeros."""
        return torch.zeros((), dtype=torch.float64, device=self.device).expand(self.shape)


class Node(Protocol):
    """What computes labels."""

    @property
    def depth(self) -> int:
        """How many steps it is from a beginning."""
        ...

    @property
    def signature(self) -> Hashable:
        """Where equal, the labels are equal; None where only contents would tell."""
        ...

    def labels(self, which: Which) -> Tensor:
        """-> laid out as the tensor"""
        ...


@dataclass(frozen=True, eq=False)
class Moved:
    """What a function that moves, cuts or copies made of others; ``args`` hold nodes for their tensors."""

    func: Callable[..., Any]
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    part: int | None  # of a function with several results
    depth: int
    signature: Hashable

    @staticmethod
    def by(
        func: Callable[..., Any],
        name: str,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        part: int | None = None,
    ) -> Moved:
        """The step of one call."""
        given = tuple(args)
        nodes = [node for arg in given for node in _nodes(arg)]
        said = tuple(_said(arg) for arg in (*given, *sorted(kwargs.items())))
        known = None if None in said or any(node.signature is None for node in nodes) else (name, said, part)
        return Moved(func, name, given, kwargs, part, 1 + max(node.depth for node in nodes), known)

    def labels(self, which: Which) -> Tensor:
        """What the function makes of the labels."""
        func = Tensor.reshape if self.name == "view" else self.func  # labels may lie elsewhere in memory
        result = func(*(_filled(arg, which) for arg in self.args), **self.kwargs)
        labels: Tensor = result if self.part is None else result[self.part]
        return labels


@dataclass(frozen=True, eq=False)
class Spread:
    """What a product made of one side: the axes that stay, ``kept`` as (axis before, axis after).

    ``channels`` are the axes of the result that a parameter brought in, and ``projection`` its number.
    """

    parent: Node
    kept: tuple[tuple[int, int], ...]
    shape: torch.Size
    channels: tuple[int, ...] = ()
    projection: int = 0

    @property
    def depth(self) -> int:
        """One more than the side."""
        return self.parent.depth + 1

    @property
    def signature(self) -> Hashable:
        """That of the side, and what stays of it."""
        before = self.parent.signature
        return None if before is None else (before, self.kept, self.shape, self.channels, self.projection)

    def labels(self, which: Which) -> Tensor:
        """Those of the first entry along the axes that were summed over."""
        if which == "channel" and self.channels:
            sizes = [self.shape[axis] if axis in self.channels else 1 for axis in range(len(self.shape))]
            device = beginnings(self.parent)[0].device
            count = torch.arange(1, torch.Size(sizes).numel() + 1, dtype=torch.float64, device=device)
            return (count + self.projection * STRETCH).view(sizes).expand(self.shape)
        labels = self.parent.labels(which)
        before = [axis for axis, _ in self.kept]
        for axis in reversed(range(labels.ndim)):
            if axis not in before:
                labels = _one(labels, axis) if which == "position" else _first(labels, axis)
        order = sorted(range(len(self.kept)), key=lambda place: self.kept[place][1])
        rank = sorted(before)
        labels = labels.permute([rank.index(self.kept[place][0]) for place in order])
        taken = [after for _, after in self.kept]
        for axis in range(len(self.shape)):
            if axis not in taken:
                labels = labels.unsqueeze(axis)
        return labels.expand(self.shape)


@dataclass(frozen=True, eq=False)
class Origin:
    """Where a tensor comes from. ``state`` tells whether two came from the same numbers.

    Scores have two sides: ``node`` is that of the left factor, ``right`` that of the right one. Their state
    is that of the left one.
    """

    node: Node
    state: int
    right: Node | None = None


def _one(labels: Tensor, axis: int) -> Tensor:
    """The positions that are alike along an axis; ``MIXED`` where they are not."""
    first = labels.select(axis, 0)
    if labels.stride(axis) == 0:
        return first
    return first.where((labels == first.unsqueeze(axis)).all(axis), MIXED)


def _first(labels: Tensor, axis: int) -> Tensor:
    """The labels at the start of an axis; raises ``ValueError`` where padding hides a place behind it."""
    first = labels.select(axis, 0)
    hidden = first == 0
    if bool(hidden.any()) and bool((labels.amax(axis) > 0)[hidden].any()):
        raise ValueError("what begins with padding may be any place")
    return first


def outputs(node: Any) -> int:
    """How many outputs the projection has that a tensor comes from; 0: none is known."""
    if isinstance(node, Spread):
        sizes = [node.shape[axis] for axis in node.channels]
        return math.prod(sizes) if sizes else outputs(node.parent)
    if isinstance(node, Moved):
        return max(outputs(part) for arg in node.args for part in _nodes(arg))
    return node.shape[node.channel_axis] if isinstance(node, Root) else 0


def comes_from_projection(node: Any) -> bool:
    """Whether a tensor went through a product with a parameter, or a sum or a move of such."""
    if isinstance(node, Spread):
        return bool(node.channels) or comes_from_projection(node.parent)
    return isinstance(node, Moved) and any(
        comes_from_projection(part) for arg in node.args for part in _nodes(arg)
    )


def is_mixed(node: Any, asking: Any, most: int = 4) -> bool:
    """Whether one of the last layers on its way alone made entries of several positions (Linformer).

    What a layer on the way of those ``asking`` made of several, such as patches that were merged, is a token
    of its own. Of a picture, nobody knows which axis its features are.
    """
    begun = [begin for begin in beginnings(node) if isinstance(begin, Root)]
    if any(len(begin.shape) > 3 and begin.channel_axis == -1 for begin in begun):
        return False
    shared = [*_way(asking)]
    for step in _way(node):
        if any(step is other for other in shared) or not most:
            return False
        if isinstance(step, Spread) and step.channels:
            most -= 1
            positions, kept = step.parent.labels("position"), [axis for axis, _ in step.kept]
            gone = (axis for axis in range(positions.ndim) if axis not in kept)
            if any(_mixes(step.parent, positions, axis) for axis in gone):
                return True
    return False


def _mixes(node: Node, positions: Tensor, axis: int) -> bool:
    """Whether entries along an axis stand at several positions, or were made of several at several places."""
    merged = (positions == MIXED).all(axis)
    if bool(((_one(positions, axis) == MIXED) & ~merged).any()):
        return True
    places = node.labels("place") if bool(merged.any()) else positions
    return bool((places != places.narrow(axis, 0, 1)).any(axis)[merged].any())


def _way(node: Any) -> Iterator[Moved | Spread]:
    """The steps that a tensor went through, the last first; of what was joined, those of the first part."""
    while isinstance(node, (Moved, Spread)):
        yield node
        node = node.parent if isinstance(node, Spread) else next(iter(node.args), None)


def beginnings(node: Any) -> list[Root | Filler]:
    """The tensors with which the ways to a node began."""
    if isinstance(node, (Root, Filler)):
        return [node]
    if isinstance(node, Spread):
        return beginnings(node.parent)
    if isinstance(node, Moved):
        return [begin for arg in node.args for part in _nodes(arg) for begin in beginnings(part)]
    return []


def _nodes(arg: Any) -> list[Any]:
    if isinstance(arg, (list, tuple)):
        return [node for part in arg for node in _nodes(part)]
    return [arg] if isinstance(arg, (Root, Filler, Nothing, Moved, Spread)) else []


def _filled(arg: Any, which: Which) -> Any:
    """An argument with labels in the place of nodes."""
    if isinstance(arg, (list, tuple)) and _nodes(arg):
        return [_filled(part, which) for part in arg]
    return arg.labels(which) if _nodes(arg) else arg


def _said(arg: Any) -> Hashable:
    """An argument as something to compare; None for what only its contents would tell."""
    if isinstance(arg, (list, tuple)):
        parts = tuple(_said(part) for part in arg)
        return None if None in parts else parts
    if isinstance(arg, (Root, Filler, Nothing, Moved, Spread)):
        return arg.signature
    if isinstance(arg, Tensor):
        return None
    return repr(arg)
