"""A function that listeners of the calling thread watch, and that is put back when the last one leaves."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Generic, Protocol, TypeVar

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


class KernelListener(Protocol):
    """What wants to see the calls of attention functions on its thread."""

    def kernel_call(
        self, name: str, kernel: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Call ``kernel`` with these arguments and return what it returns."""
        ...


@contextmanager
def attention_functions(listener: KernelListener) -> Iterator[None]:
    """Tell ``listener`` of every Hugging Face attention call on this thread while the block runs.

    Nothing happens, and transformers is not imported, if the program has not imported it: then no model
    of its can run.
    """
    if "transformers.modeling_utils" not in sys.modules:
        yield
        return
    from transformers.modeling_utils import AttentionInterface

    with _tap.listening(AttentionInterface, listener):
        yield


def _watch(original: Callable[..., Any], listeners: Callable[[], list[KernelListener]]) -> Callable[..., Any]:
    """The method that hands out functions which go by way of the listeners."""

    def get_interface(self: Any, attn_implementation: str, default: Callable[..., Any]) -> Any:
        kernel = original(self, attn_implementation, default)
        for listener in listeners():
            kernel = _observed(listener, str(attn_implementation or "eager"), kernel)
        return kernel

    return get_interface


def _observed(listener: KernelListener, name: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
    """A function that calls the kernel by way of the listener."""

    @functools.wraps(kernel)
    def observed(*args: Any, **kwargs: Any) -> Any:
        return listener.kernel_call(name, kernel, args, kwargs)

    return observed


_tap: Tap[KernelListener] = Tap("get_interface", _watch)
