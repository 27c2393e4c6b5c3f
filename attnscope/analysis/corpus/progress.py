"""How far a run over a corpus is."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Progress:
    """How far a run is: ``done`` in the corpus's own unit, ``entries`` read of it, and what they held.

    The fused pass computed ``taken`` of ``calls`` of attention. ``skipped`` texts could not be read;
    ``places`` says where the first of them stand. ``cut`` texts were longer than the model reads, ``notes``
    says what else was done to texts, ``layout`` is what ran, in words.
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
