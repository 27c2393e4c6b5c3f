"""Replaces a function while threads listen to it, and restores it after the last one."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Generic, TypeAlias, TypeVar

Listener = TypeVar("Listener")


class Tap(Generic[Listener]):
    """A way to watch a method of a class, or a function of a module, without changing any object.

    ``watch(original, listeners)`` makes the replacement that is installed while any thread listens;
    ``listeners()`` gives those of the calling thread, outermost first. Without any, it must do what the
    original does.
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
        """The listeners of this thread, outermost first."""
        if not hasattr(self._threads, "stack"):
            self._threads.stack = []
        stack: list[Listener] = self._threads.stack
        return stack

    @contextmanager
    def listening(self, owner: type | ModuleType, listener: Listener) -> Iterator[None]:
        """Let ``listener`` watch the method of ``owner`` on this thread while the block runs."""
        stack = self.listeners()
        depth = len(stack)
        with self._lock:
            self._users += 1
            if self._users == 1:
                self._original = owner.__dict__[self.method]
                wrapped = functools.wraps(self._original)(self.watch(self._original, self.listeners))
                setattr(owner, self.method, wrapped)
        try:
            stack.append(listener)
            yield
        finally:
            del stack[depth:]
            with self._lock:
                self._users -= 1
                if self._users == 0:
                    setattr(owner, self.method, self._original)
                    self._original = None


KernelWatch: TypeAlias = Callable[[str, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
"""Calls a kernel of this name with these arguments, and returns its result."""


@contextmanager
def attention_functions(watch: KernelWatch) -> Iterator[None]:
    """Send every Hugging Face attention call on this thread through ``watch`` while the block runs.

    Does nothing, and does not import transformers, if the program has not imported it: then none of its
    models can run.
    """
    if "transformers.modeling_utils" not in sys.modules:
        yield
        return
    from transformers.modeling_utils import AttentionInterface

    with _tap.listening(AttentionInterface, watch):
        yield


def _watch(original: Callable[..., Any], listeners: Callable[[], list[KernelWatch]]) -> Callable[..., Any]:
    """The lookup method, returning functions that go through the listeners."""

    def get_interface(self: Any, attn_implementation: str, default: Callable[..., Any]) -> Any:
        kernel = original(self, attn_implementation, default)
        for watch in listeners():
            kernel = _observed(watch, str(attn_implementation or "eager"), kernel)
        return kernel

    return get_interface


def _observed(watch: KernelWatch, name: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
    """A function that calls the kernel through a watch."""

    @functools.wraps(kernel)
    def observed(*args: Any, **kwargs: Any) -> Any:
        return watch(name, kernel, args, kwargs)

    return observed


_tap: Tap[KernelWatch] = Tap("get_interface", _watch)
