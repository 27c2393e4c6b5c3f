"""A function that listeners of the calling thread watch, and that is put back when the last one leaves."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Generic, TypeVar

Listener = TypeVar("Listener")


class Tap(Generic[Listener]):
    """A way to watch one method of one class, or one function of a module, without a change to any object.

    ``watch(original, listeners)`` makes the method that stands in while anybody listens, on whatever
    thread; ``listeners()`` gives those of the thread that calls it, outermost first. With none there it
    must do what the original does.
    """

    def __init__(
        self,
        method: str,
        watch: Callable[[Callable[..., Any], Callable[[], list[Listener]]], Callable[..., Any]],
    ) -> None:
        self.method = method
        self.watch = watch
        self._lock = threading.Lock()
        self._users = 0
        self._original: Any = None
        self._threads = threading.local()

    def listeners(self) -> list[Listener]:
        """Those who listen on this thread, outermost first."""
        if not hasattr(self._threads, "stack"):
            self._threads.stack = []
        stack: list[Listener] = self._threads.stack
        return stack

    @contextmanager
    def listening(self, owner: type | ModuleType, listener: Listener) -> Iterator[None]:
        """Let ``listener`` watch the method of ``owner`` on this thread while the block runs."""
        stack = self.listeners()
        depth = len(stack)
        self._begin(owner)
        try:
            stack.append(listener)
            yield
        finally:
            del stack[depth:]
            self._end(owner)

    def _begin(self, owner: type | ModuleType) -> None:
        with self._lock:
            self._users += 1
            if self._users == 1:
                self._original = owner.__dict__[self.method]
                wrapped = functools.wraps(self._original)(self.watch(self._original, self.listeners))
                setattr(owner, self.method, wrapped)

    def _end(self, owner: type | ModuleType) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0:
                setattr(owner, self.method, self._original)
                self._original = None
