"""Where the way of a tensor's entries begins."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Literal

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
