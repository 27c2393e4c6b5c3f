"""Compiled models: they run uncompiled while a recording is open, and stay compiled."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any

import torch
from torch import nn

from attnscope.capture.hooks.functions import Tap

COMPILED = "compiled code was run uncompiled: compiled results may differ in rounding"

FLEX = "torch.nn.attention.flex_attention"

_lock = threading.Lock()
_stances: list[Any] = []  # one per running recording, on any thread; the first one holds


@contextmanager
def uncompiled() -> Iterator[None]:
    """Run compiled functions and modules uncompiled while the block runs.

    Torch's compiler is not imported if the program has not imported it: then the stance is set as soon as
    the block's thread compiles something, as ``flex_attention`` does whenever it runs.
    """
    with ExitStack() as stack:
        if "torch._dynamo" in sys.modules:
            stack.enter_context(_eager_stance())
        else:
            stack.enter_context(_tap.listening(torch, lambda: stack.enter_context(_eager_stance())))
        yield


@contextmanager
def _eager_stance() -> Iterator[None]:
    """Torch has one stance for all threads: the first block sets it, the last one restores it."""
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


def _watch(
    original: Callable[..., Any], listeners: Callable[[], list[Callable[[], None]]]
) -> Callable[..., Any]:
    """Wrap ``torch.compile``, so that listeners set the stance before it compiles anything."""

    def compile(*args: Any, **kwargs: Any) -> Any:
        for listener in listeners():
            listener()
        return original(*args, **kwargs)

    return compile


_tap: Tap[Callable[[], None]] = Tap("compile", _watch)


def is_compiled(module: nn.Module) -> bool:
    """Whether a module is compiled: by ``torch.compile``, its own ``compile``, or its ``forward`` alone."""
    if module._compiled_call_impl is not None or "_orig_mod" in module._modules:
        return True
    return hasattr(module.forward, "_torchdynamo_orig_callable")


def runs_as_written() -> bool:
    """Whether this is called inside compiled code that runs uncompiled.

    Torch's flex attention compiles parts of itself; those compute the same numbers and do not count.
    """
    frame = sys._getframe() if "torch._dynamo" in sys.modules else None
    while frame is not None and frame.f_back is not None:
        inside, frame = frame, frame.f_back
        if (
            inside.f_code.co_name == "compile_wrapper"
            and _module(inside) == "torch._dynamo.eval_frame"
            and _module(frame) != FLEX
        ):
            return True
    return False


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__"))


def original(module: nn.Module) -> nn.Module:
    """The module that ``torch.compile`` wrapped; any other module as it is."""
    return getattr(module, "_orig_mod", module)
