"""A trace: what one pass showed, ready to be looked at without the model, and without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from attnscope.attention import Axis, Head
from attnscope.axes.weights import Array
from attnscope.errors import SelectionError
from attnscope.storage.trace.layout import Call, Description, Positions
from attnscope.storage.trace.rows import allowed_of, rows_of


@dataclass(frozen=True, eq=False)
class Trace:
    """A description and the arrays that it names, in memory or read from a file when they are asked for."""

    description: Description
    arrays: Mapping[str, Array]

    @property
    def metadata(self) -> Mapping[str, str]:
        """What else its file says; nothing in memory."""
        found: Mapping[str, str] = getattr(self.arrays, "metadata", {})
        return found

    def axis(self, number: int) -> Axis:
        """The tokens of an axis, or its bare positions."""
        axis = self.description.axes[number]
        return range(axis.start, axis.stop) if isinstance(axis, Positions) else axis

    def call(self, head: Head) -> Call:
        """The call that a head is of; the first where several kinds have it. Raises ``SelectionError``."""
        calls = self.description.calls
        for call in calls:
            if head.kind in (None, call.kind) and call.layer == head.layer and head.head < call.heads:
                return call
        kinds = " and ".join(dict.fromkeys(call.kind for call in calls))
        raise SelectionError(
            f"no head {head}: this trace has layers 0-{max(call.layer for call in calls)}, "
            f"heads 0-{max(call.heads for call in calls) - 1}, {kinds} attention"
        )

    def weights(self, head: Head) -> Array:
        """All rows of one head, the mean where the call had a batch.  -> [query, key]"""
        call = self.call(head)
        rows = rows_of(call.rows, self.arrays, 0, self.size(call)[0], [head.head])
        mean: Array = rows[0, 0] if len(rows) == 1 else rows.mean(0)[0]
        return mean

    def allowed(self, head: Head) -> Array:
        """Where the mask left something open to a head, bool.  -> [query, key]"""
        call = self.call(head)
        opened = allowed_of(call.rows, self.arrays, 0, self.size(call)[0])
        mask: Array = opened[:, 0 if opened.shape[1] == 1 else head.head].max(0)
        return mask

    def size(self, call: Call) -> tuple[int, int]:
        """How many queries and keys a call has."""
        return len(self.axis(call.queries)), len(self.axis(call.keys))
