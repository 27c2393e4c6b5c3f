"""A hook: it counts the attention calls of every pass."""

from attnscope.capture.rows.capture import CapturedCall
from attnscope.capture.tracker import Tracker


class CountCalls(Tracker):
    """Says in the record how many calls it was notified of."""

    calls = 0

    def on_capture(self, capture: CapturedCall) -> None:
        """One more call."""
        self.calls += 1

    def finish(self) -> None:
        """Say how many there were."""
        self.recorder.record.note_change(f"attnscope-sample saw {self.calls} calls")
