"""Step 1: see every call of a Hugging Face attention function, without a change to any of them.

``AttentionInterface.get_interface`` hands a model the attention function that it runs. While a recording
is active it hands the recording's own thread a function that tells the recording before and after it
calls the real one with the same arguments. Other threads get the real one.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from attnscope.capture.hooks.tap import Tap


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
