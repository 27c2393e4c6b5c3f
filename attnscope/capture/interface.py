"""Step 1: see every call of a Hugging Face attention function, without a change to any of them.

``AttentionInterface.get_interface`` hands a model the attention function that it runs. While a recording
is active it is wrapped, and hands the recording's own thread a function that tells the recording before
and after it calls the real one with the same arguments. Other threads get the real one.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

_lock = threading.Lock()
_users = 0
_original: Any = None
_threads = threading.local()


class Listener(Protocol):
    """What wants to see the calls of attention functions on its thread."""

    def kernel_call(
        self, name: str, kernel: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Call ``kernel`` with these arguments and return what it returns."""
        ...


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Tell ``listener`` of every Hugging Face attention call on this thread while the block runs.

    Nothing happens, and transformers is not imported, if the program has not imported it: then no model
    of its can run.
    """
    if "transformers.modeling_utils" not in sys.modules:
        yield
        return
    stack = _listeners()
    _wrap()
    stack.append(listener)
    try:
        yield
    finally:
        stack.remove(listener)
        _unwrap()


def _listeners() -> list[Listener]:
    """The listeners of this thread, outermost first."""
    if not hasattr(_threads, "stack"):
        _threads.stack = []
    stack: list[Listener] = _threads.stack
    return stack


def _wrap() -> None:
    """Put the wrapped method in place; the first of all recordings does it."""
    global _users, _original
    from transformers.modeling_utils import AttentionInterface

    with _lock:
        _users += 1
        if _users == 1:
            original = _original = AttentionInterface.get_interface

            @functools.wraps(original)
            def get_interface(self: Any, attn_implementation: str, default: Callable[..., Any]) -> Any:
                kernel = original(self, attn_implementation, default)
                for listener in _listeners():
                    kernel = _told(listener, str(attn_implementation or "eager"), kernel)
                return kernel

            AttentionInterface.get_interface = get_interface


def _unwrap() -> None:
    """Put the model's own method back; the last of all recordings does it."""
    global _users, _original
    from transformers.modeling_utils import AttentionInterface

    with _lock:
        _users -= 1
        if _users == 0:
            AttentionInterface.get_interface = _original
            _original = None


def _told(listener: Listener, name: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
    """A function that calls the kernel by way of the listener."""

    @functools.wraps(kernel)
    def observed(*args: Any, **kwargs: Any) -> Any:
        return listener.kernel_call(name, kernel, args, kwargs)

    return observed
