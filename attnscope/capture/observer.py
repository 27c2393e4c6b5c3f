"""What looks at attention, in quiet: its own arithmetic is no attention of the model."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import torch

from attnscope.attention import Attention

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
    """The recording or an observer at work: its own arithmetic needs no gradient and is not recorded."""
    _quiet.depth = getattr(_quiet, "depth", 0) + 1
    try:
        with torch.no_grad():
            yield
    finally:
        _quiet.depth -= 1


def is_quiet() -> bool:
    """Whether this thread is inside ``quietly``."""
    return bool(getattr(_quiet, "depth", 0))
