"""What a run over a file of questions adds up, and how a file keeps it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

from attnscope.analysis.gold.asked import Slots
from attnscope.analysis.gold.sums import GoldSums
from attnscope.attention import Kind


@dataclass
class GoldTotals:
    """Sums over batches, and what they are of: ``others`` are labels that were not asked for.

    ``lost`` pairs could not be asked, and attention of the kinds ``skipped`` is not over the tokens.
    """

    sums: GoldSums = field(default_factory=GoldSums)
    slots: Slots = field(default_factory=Slots)
    others: set[str] = field(default_factory=set)
    lost: int = 0
    skipped: set[Kind] = field(default_factory=set)

    def state(self) -> dict[str, Any]:
        """All of it as plain lists, which JSON keeps exactly."""
        return {
            "sums": self.sums.state(),
            "slots": list(self.slots.numbers),
            "others": sorted(self.others),
            "lost": self.lost,
            "skipped": sorted(self.skipped),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> GoldTotals:
        """What ``state`` wrote down. Raises ``ValueError`` or ``TypeError`` for anything else."""
        slots = Slots()
        for slot in state["slots"]:
            slots.number(slot if slot is None else (str(slot[0]), int(slot[1])), 0)
        lost, others, skipped = state["lost"], state["others"], state["skipped"]
        sound = type(lost) is int and lost >= 0 and all(isinstance(other, str) for other in others)
        sound &= len(slots.numbers) == len(state["slots"]) and set(skipped) <= set(get_args(Kind))
        sound &= all(slot is None or slot[1] in (0, 1) for slot in slots.numbers)
        if not sound:
            raise ValueError("the questions do not fit together")
        return cls(GoldSums.from_state(state["sums"], slots.count), slots, set(others), lost, set(skipped))
