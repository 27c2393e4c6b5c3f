"""Shares of a whole, one line above the other: what each token looks at, by parts."""

from __future__ import annotations

from dataclasses import dataclass

from attnscope.axes.weights import Array
from attnscope.text import clean

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, eq=False)
class Stack:
    """A line for each label, made up of a share for each part."""

    parts: tuple[str, ...]
    labels: tuple[str, ...]
    shares: Array  # [label, part]
    title: str = ""
    subtitle: str = ""
    notes: tuple[str, ...] = ()

    @property
    def letters(self) -> tuple[str, ...]:
        """A letter for each part."""
        return tuple(LETTERS[part % len(LETTERS)] for part in range(len(self.parts)))

    @property
    def tones(self) -> tuple[float, ...]:
        """A place on the colour map for each part, 0 to 1, neighbours far apart."""
        count = len(self.parts)
        order = [(part * 5) % count if count % 5 else part for part in range(count)]
        return tuple(0.15 + 0.75 * place / max(1, count - 1) for place in order)

    @property
    def legend(self) -> str:
        """Which letter is which part, and its mean share."""
        named = zip(self.letters, self.parts, self.shares.mean(0).tolist(), strict=True)
        return " · ".join(f"{letter} {clean(name)} {mean:.2f}" for letter, name, mean in named)
