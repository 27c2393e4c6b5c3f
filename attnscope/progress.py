"""How far a long task has come: the task reports, and a listener shows it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeAlias

Listener: TypeAlias = Callable[[str, int, int], None]  # unit, number done, total: ("layer", 3, 12)

_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


def report(unit: str, done: int, total: int) -> None:
    """Report how many are done. Does nothing without a listener."""
    listener = _listener.get()
    if listener is not None:
        listener(unit, done, total)


@contextmanager
def listening(listener: Listener | None) -> Iterator[None]:
    """Send this thread's reports inside the block to ``listener``; ``None`` silences them."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)
