"""Show observers some heads and hide the others from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from attnscope.attention import Attention, Site
from attnscope.capture.recorder import Observer


@dataclass(frozen=True, eq=False)
class Only:
    """Passes on the heads that ``select`` names, numbered anew from 0, and nothing of other calls.

    ``select`` is asked once a call with its site and its number of heads; ``None`` or an empty answer
    passes nothing on. What is not passed on is not computed.
    """

    select: Callable[[Site, int], Sequence[int] | None]
    observers: Sequence[Observer]

    def observe(self, attention: Attention) -> None:
        """Pass the chosen heads of one call on to every observer."""
        heads = self.select(attention.site, attention.heads)
        if heads:
            chosen = attention.only(heads)
            for observer in self.observers:
                observer.observe(chosen)
