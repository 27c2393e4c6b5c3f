"""How far a long piece of work has come: whoever does it tells, and whoever shows it listens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeAlias

Listener: TypeAlias = Callable[[str, int, int], None]
"""Is told of what there are how many, how many are done, and how many there are: ``("layer", 3, 12)``."""

_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


def tell(what: str, done: int, of: int) -> None:
    """Say how many are done. Nothing happens where nobody listens."""
    listener = _listener.get()
    if listener is not None:
        listener(what, done, of)


@contextmanager
def listening(listener: Listener | None) -> Iterator[None]:
    """Let ``listener`` hear what this thread tells inside the block; ``None`` hears nothing."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)
