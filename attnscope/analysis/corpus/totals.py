"""What a run over a corpus adds up, and the file that keeps it while the run goes on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic
from typing import Any, TypeVar

from attnscope.analysis.corpus.processes import Processes
from attnscope.analysis.corpus.progress import Progress
from attnscope.analysis.intervention.importance import Importances
from attnscope.analysis.intervention.removal import Removals
from attnscope.errors import AttnscopeError, InputError
from attnscope.measures import Measurement
from attnscope.storage import checkpoint as checkpoints

EVERY = 20.0
"""Seconds after which the sums are written again, at the latest when the batches that run have ended."""


Sums = TypeVar("Sums")


@dataclass
class Totals:
    """Sums over batches. They are added batch by batch, in one order whatever the number of processes."""

    measured: Measurement
    importances: Importances
    removals: Removals

    @classmethod
    def of(cls, names: Sequence[str]) -> Totals:
        """Nothing yet, of the measures with these names."""
        return cls(Measurement(names), Importances(), Removals())

    def merge(self, other: Totals) -> None:
        """Add another batch."""
        self.measured.merge(other.measured)
        self.importances.merge(other.importances)
        self.removals.merge(other.removals)

    def __reduce__(self) -> tuple[Any, ...]:  # what another process is sent
        return Totals.from_state, (self.state(),)

    def state(self) -> dict[str, Any]:
        """The sums as plain lists, which JSON keeps exactly."""
        return {name: getattr(self, name).state() for name in ("measured", "importances", "removals")}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Totals:
        """What ``state`` wrote down."""
        return cls(
            Measurement.from_state(state["measured"]),
            Importances.from_state(state["importances"]),
            Removals.from_state(state["removals"]),
        )


def read_totals(state: Mapping[str, Any], names: Sequence[str]) -> Totals:
    """What ``Totals.state`` wrote down, of the measures with these names; anything else raises an error."""
    totals = Totals.from_state(state)
    totals.measured.merge(Measurement(names))  # refuses another set of measures
    totals.measured.figures()
    totals.importances.figures()
    totals.removals.figures()
    return totals


@dataclass
class Kept:
    """The file of a checkpoint, if there is one: read by process 0 when the run begins, and written by it."""

    path: Path | None
    identity: Mapping[str, Any]
    processes: Processes
    written: float = 0.0

    def load(self, read: Callable[[Mapping[str, Any]], Sums]) -> tuple[Sums, Progress] | None:
        """Where an earlier run came to, if there was one; ``read`` makes its sums. Raises ``InputError``."""
        found = None
        if self.path is not None and self.processes.number == 0:
            found = checkpoints.load(self.path, self.identity)
        found = self.processes.broadcast(found)
        self.written = monotonic()
        if found is None:
            return None
        try:
            return read(found["sums"]), Progress.from_state(found["progress"])
        except (
            AttnscopeError,
            ArithmeticError,
            AttributeError,
            LookupError,
            RuntimeError,
            TypeError,
            ValueError,
        ):
            raise InputError(
                f"{self.path} holds sums that this command never wrote: delete it, or name another file"
            ) from None

    def is_due(self) -> bool:
        """Whether this process writes the file, and has not done so for a while."""
        mine = self.path is not None and self.processes.number == 0
        return mine and monotonic() - self.written >= EVERY

    def save(self, state: Callable[[], Mapping[str, Any]], progress: Progress) -> None:
        """Write the file, if this process does; ``state`` tells the sums. Raises ``OutputError``."""
        if self.path is None or self.processes.number > 0:
            return
        checkpoints.save(self.path, self.identity, {"sums": state(), "progress": asdict(progress)})
        self.written = monotonic()
