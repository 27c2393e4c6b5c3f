"""Shares of a whole, one line above the other: what each token looks at, by parts."""

from __future__ import annotations

from dataclasses import dataclass

from attnscope.axes.weights import Array


@dataclass(frozen=True, eq=False)
class Stack:
    """A line for each label, made up of a share for each part."""

    parts: tuple[str, ...]
    labels: tuple[str, ...]
    shares: Array  # [label, part]
    title: str = ""
    subtitle: str = ""
    notes: tuple[str, ...] = ()
