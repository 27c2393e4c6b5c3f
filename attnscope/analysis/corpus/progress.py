"""How far a run over a corpus is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

MOST = 1 << 53
"""A number above all counts of texts and tokens."""


@dataclass
class Progress:
    """How far a run is: ``done`` in the corpus's own unit, ``entries`` read of it, and what they held.

    The fused pass computed ``taken`` of ``calls`` of attention. ``skipped`` texts could not be read;
    ``places`` says where the first of them stand. ``cut`` texts were longer than the model reads, ``notes``
    says what else was done to texts, ``layout`` is what ran, in words. ``batches`` of the next window are
    counted already.
    """

    done: int = 0
    entries: int = 0
    texts: int = 0
    tokens: int = 0
    skipped: int = 0
    places: list[str] = field(default_factory=list)
    cut: int = 0
    notes: list[str] = field(default_factory=list)
    taken: int = 0
    calls: int = 0
    layout: list[str] = field(default_factory=list)
    batches: int = 0

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Progress:
        """What a file says. Raises ``ValueError`` or ``TypeError`` if that is nothing like it."""
        found = cls(**state)
        for each in fields(found):
            value = getattr(found, each.name)
            if isinstance(each.default, int):
                sound = type(value) is int and 0 <= value < MOST
            else:
                sound = isinstance(value, list) and all(isinstance(text, str) for text in value)
            if not sound or (each.name == "layout" and len(value) not in (0, 2)):
                raise ValueError(f"{each.name} is {value!r}")
        return found
