"""Torch's fused encoder layers, watched without being switched off.

``nn.MultiheadAttention``, ``nn.TransformerEncoderLayer`` and ``nn.TransformerEncoder`` run one fused function
each in the place of their own code, which gives other numbers: padded tokens are left out and come back as
zeros. Before that they ask whether a function mode, or a tensor of a kind of its own, would miss what happens
inside. The mode of a recording misses nothing, as it knows the fused functions, so for it the answer is no.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import _get_current_function_mode_stack

from attnscope.capture.hooks.tap import Tap

ASKING = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerEncoder)
FUSED_FUNCTIONS = frozenset({"_native_multi_head_attention", "_transformer_encoder_layer_fwd"})


class WatchingMode(torch.overrides.TorchFunctionMode):
    """A function mode that knows the fused functions, and changes nothing."""


def fast_path(module: nn.Module) -> AbstractContextManager[None]:
    """Let a module take its fast path under a watching mode, as it would without."""
    asks = isinstance(module, ASKING)
    return _tap.listening(torch.overrides, asks) if asks or _tap.listeners() else nullcontext()


def _watch(original: Callable[..., Any], listeners: Callable[[], list[bool]]) -> Callable[..., Any]:
    """The function that says no for a watching mode while one of the asking modules runs its own code."""

    def has_torch_function(tensors: tuple[object, ...]) -> Any:
        asked = listeners()
        return original(tensors) and not (asked and asked[-1] and _is_watched_alone(tensors))

    return has_torch_function


def _is_watched_alone(tensors: tuple[object, ...]) -> bool:
    """Whether nothing but watching modes would see the functions of some plain tensors."""
    modes: list[Any] = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
    plain = all(tensor is None or type(tensor) in (Tensor, nn.Parameter) for tensor in tensors)
    return plain and all(isinstance(mode, WatchingMode) for mode in modes)


_tap: Tap[bool] = Tap("has_torch_function", _watch)
