"""What looks at attention, in quiet: its own arithmetic is no attention of the model."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Protocol

import torch
from torch.overrides import _get_current_function_mode, _pop_mode_temporarily

from attnscope.attention import Attention
from attnscope.capture.hooks.fast_path import WatchingMode

_quiet = threading.local()  # .depth: how deep this thread is in work of our own


class Observer(Protocol):
    """What looks at attention while it passes by."""

    def observe(self, attention: Attention) -> None:
        """Read what is needed, at once; called inside the forward pass, right after the kernel ran.

        The attention holds the kernel's own tensors, so it must not be kept when this returns.
        """
        ...


@contextmanager
def quietly() -> Iterator[None]:
    """The recording or an observer at work: its own arithmetic needs no gradient and is not recorded.

    The mode of the recording is off meanwhile, as it would be told of every function to no end.
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
