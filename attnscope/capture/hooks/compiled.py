"""What ``torch.compile`` made is watched on the graph that it was made from, and stays compiled."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

COMPILED = "compiled modules were watched uncompiled: what they compute when compiled may differ in rounding"

_lock = threading.Lock()
_stances: list[Any] = []  # one for each recording that runs, on whatever thread; the first one holds


@contextmanager
def uncompiled() -> Iterator[None]:
    """Let compiled functions and modules run as they were written while the block runs.

    Torch knows one stance for all threads: it is taken by the first block and given back by the last one.
    Nothing happens, and torch's compiler is not imported, if the program has not imported it.
    """
    if "torch._dynamo" not in sys.modules:
        yield
        return
    import torch

    with _lock:
        _stances.append(None if _stances else torch.compiler.set_stance("force_eager"))
    try:
        yield
    finally:
        with _lock:
            first = _stances[0]
            _stances.pop()
            if not _stances:
                first.__exit__(None, None, None)


def is_compiled(module: nn.Module) -> bool:
    """Whether a module is compiled, by ``torch.compile`` or its own ``compile``."""
    return module._compiled_call_impl is not None or "_orig_mod" in module._modules


def original(module: nn.Module) -> nn.Module:
    """The module that ``torch.compile`` wrapped; any other as it is."""
    return getattr(module, "_orig_mod", module)
