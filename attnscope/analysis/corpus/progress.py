"""How far a run over a corpus is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from attnscope.models.text.tokens import read_unknown, say_unknown

NAMED = 3
"""Places of texts that were left out which a note names."""

MOST = 1 << 53
"""A number above all counts of texts and tokens."""


@dataclass
class Progress:
    """How far a run is: ``done`` in the corpus's own unit, ``entries`` read of it, and what they held.

    The fused pass computed ``taken`` of ``calls`` of attention. ``skipped`` texts could not be read;
    ``places`` says where the first of them stand. ``cut`` texts were longer than the model reads, ``unknown``
    tokens are none of its vocabulary, which spells them as ``lacks``, ``notes`` says what else was done to
    texts, ``layout`` is what ran, in words. ``batches`` of the next window are
    counted already.
    """

    done: int = 0
    entries: int = 0
    texts: int = 0
    tokens: int = 0
    skipped: int = 0
    places: list[str] = field(default_factory=list)
    cut: int = 0
    unknown: int = 0
    lacks: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    taken: int = 0
    calls: int = 0
    layout: list[str] = field(default_factory=list)
    batches: int = 0

    def skip(self, where: str) -> None:
        """Count a text that could not be read."""
        self.skipped += 1
        self.places += [where] if len(self.places) < NAMED else []

    def note(self, notes: Sequence[str]) -> None:
        """Count a text that was cut, and unknown tokens; keep whatever else a model says of a text, once."""
        for note in notes:
            unknown = read_unknown(note)
            if note.startswith("cut:"):
                self.cut += 1
            elif unknown is not None:
                self.unknown += unknown[0]
                self.lacks = [unknown[1]]
            elif note not in self.notes:
                self.notes.append(note)

    @property
    def left_out(self) -> tuple[str, ...]:
        """What was noted, and how many texts were skipped or cut, in words."""
        notes = [*self.notes]
        notes += [say_unknown(self.unknown, self.tokens, spelling) for spelling in self.lacks]
        if self.skipped:
            more = ", ..." if self.skipped > len(self.places) else ""
            notes.append(f"{_texts(self.skipped)} could not be read: {', '.join(self.places)}{more}")
        if self.cut:
            notes.append(
                f"{_texts(self.cut)} {'was' if self.cut == 1 else 'were'} cut at the limit of tokens"
            )
        return tuple(notes)

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


def _texts(count: int) -> str:
    return "1 text" if count == 1 else f"{count:,} texts"
