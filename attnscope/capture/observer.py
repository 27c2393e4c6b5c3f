"""The observer protocol, and how our own arithmetic is hidden from recordings."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Protocol

import torch
from torch.overrides import _get_current_function_mode, _pop_mode_temporarily

from attnscope.attention import Attention
from attnscope.capture.hooks.fast_path import WatchingMode

_quiet = threading.local()  # .depth: how deep this thread is in our own work


class Observer(Protocol):
    """What reads attention during a pass."""

    def observe(self, attention: Attention) -> None:
        """Read what is needed immediately; called inside the forward pass, right after the kernel ran.

        The attention holds the kernel's own tensors, so it must not be kept when this returns.
        """
        ...


@contextmanager
def quietly() -> Iterator[None]:
    """Our own work, without gradients and hidden from the recording.

    The recording's mode is off meanwhile; otherwise it would record itself endlessly.
    """
    _quiet.depth = getattr(_quiet, "depth", 0) + 1
    mode = _get_current_function_mode()  # type: ignore[no-untyped-call]
    try:
        with torch.no_grad(), _pop_mode_temporarily() if isinstance(mode, WatchingMode) else nullcontext():
            yield
    finally:
        _quiet.depth -= 1


def is_quiet() -> bool:
    """Whether this thread is inside ``quietly``."""
    return bool(getattr(_quiet, "depth", 0))
