"""What the first pass of an audit showed, and what the later ones made of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from attnscope.analysis.audit.mend import Share, share_out
from attnscope.analysis.audit.moves import Moves, Place
from attnscope.capture import Record


@dataclass(eq=False)
class First:
    """What the first pass showed: its numbers, and every captured call with what it was given and its result.

    ``modules`` are those whose attention was seen when they had run: what they return is the result.
    ``hidden`` are those whose attention was seen and is not shown, because it is none over tokens.
    """

    moves: Moves = field(default_factory=Moves)
    calls: dict[tuple[str, int], tuple[list[Tensor], Any]] = field(default_factory=dict)
    modules: set[str] = field(default_factory=set)
    softmaxes: dict[tuple[str, int], Tensor] = field(default_factory=dict)
    written: set[str] = field(default_factory=set)  # modules that wrote out a softmax which was captured
    hidden: dict[str, str] = field(default_factory=dict)  # and why
    asked: set[tuple[str, int]] = field(default_factory=set)  # calls whose queries another token moved
    shares: dict[tuple[Place, int], dict[int, Share]] = field(default_factory=dict)
    owners: dict[tuple[Place, int], Tensor] = field(default_factory=dict)  # the pass whose token has a place
    functions: dict[str, set[str]] = field(default_factory=dict)  # of torch, that run in a module itself

    def hide(self, record: Record) -> None:
        """Forget the calls of modules that no picture shows: nothing may be held there."""
        shown = {site.site.name for site in record.sites}
        reasons = {layer.name: layer.reason for layer in record.without_attention}
        self.hidden = {name: reason for name, reason in reasons.items() if name not in shown}
        self.calls = {key: call for key, call in self.calls.items() if key[0] not in self.hidden}
        self.modules -= self.hidden.keys()
        self.written -= self.hidden.keys()

    def begin(self) -> None:
        """Begin another round of passes."""
        self.moves.forget()
        self.asked.clear()
        self.shares.clear()

    def share_out(self) -> bool:
        """Give the places that held modules mixed to one token each; whether any are new."""
        new = {key: share_out(shares) for key, shares in self.shares.items() if key not in self.owners}
        self.owners |= new
        return bool(new)
