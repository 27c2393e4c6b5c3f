"""A limit on the time that work on foreign input may take."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class OutOfTime(BaseException):
    """Time is over. No ``Exception``, so that no foreign code takes it for one of its own."""


@contextmanager
def time_limited(seconds: float | None) -> Iterator[None]:
    """Raise ``OutOfTime`` in the body after so much processor time, on the main thread of any Unix."""
    main = threading.current_thread() is threading.main_thread()
    if seconds is None or not main or not hasattr(signal, "setitimer"):
        yield
        return
    if signal.getitimer(signal.ITIMER_PROF)[0]:  # somebody else's clock runs
        yield
        return

    def stop(number: int, frame: Any) -> None:
        raise OutOfTime

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
