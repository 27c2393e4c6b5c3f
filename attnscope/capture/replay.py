"""A pass that was kept: observers see it again as if it ran."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attnscope.attention import Attention
from attnscope.capture.record import Record
from attnscope.progress import tell

if TYPE_CHECKING:
    from attnscope.capture.observer import Observer


@dataclass(frozen=True, eq=False)
class Replay:
    """One attention a site, of a trace or of a recorded generation, ready to be observed again and again."""

    attentions: tuple[Attention, ...]
    record: Record

    def shown_to(self, observers: Sequence[Observer]) -> Record:
        """Show every attention to each observer, as a recording of one pass would."""
        if not observers:
            return self.record
        with self._inference():
            for done, attention in enumerate(self.attentions, 1):
                for observer in observers:
                    observer.observe(attention)
                tell("layer", done, len(self.attentions))
        return self.record

    def _inference(self) -> AbstractContextManager[object]:
        if all(attention.arrays for attention in self.attentions):
            return nullcontext()
        import torch

        return torch.inference_mode()
