"""Records torch's fused encoder layers without switching them off.

``nn.MultiheadAttention``, ``nn.TransformerEncoderLayer`` and ``nn.TransformerEncoder`` each call one fused
function instead of their own code, with slightly different results: padded tokens are skipped and come back
as zeros. Before that they check for function modes or tensor subclasses that would miss what happens inside.
A recording's mode knows the fused functions and misses nothing, so the check is made to pass.

Inside run operators of torch, which ``FusedProducts`` sees.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from attnscope.capture.hooks.functions import Tap

ASKING = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerEncoder)
FUSED_FUNCTIONS = frozenset({"_native_multi_head_attention", "_transformer_encoder_layer_fwd"})
OPERATORS = frozenset(getattr(torch.ops.aten, name).default for name in FUSED_FUNCTIONS)
MULTIPLYING = frozenset({torch.ops.aten.mm.default, torch.ops.aten.addmm.default})
BY_TEXT = torch.ops.aten.bmm.default  # may project non-contiguous (transposed) states; after that, it attends
TURNING = torch.ops.aten.t.default


class WatchingMode(torch.overrides.TorchFunctionMode):
    """A function mode that knows the fused functions, and changes nothing."""


class FusedProducts(TorchDispatchMode):
    """The products around the attention inside a fused function, which runs unchanged.

    ``projected`` is the output of the first products: queries, keys and values of all positions together,
    [token, 3·size], with bias unless ``bare``; one product if all three come from the same states.
    ``mixed`` is the input of the last one: weights times values of all heads, [token, size]. Texts are
    concatenated along the tokens, without padding where states are nested. Nothing is seen if another
    mode would see the operators inside, too.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.projected: list[Tensor] = []
        self.bare = False
        self.mixed: Tensor | None = None

    @staticmethod
    def run(kernel: Callable[..., Any], args: Any, kwargs: Any) -> tuple[Any, FusedProducts]:
        """The result of a fused function, and what was seen inside."""
        products = FusedProducts()
        modes: list[Any] = _get_current_dispatch_mode_stack()
        with products if all(isinstance(mode, FusedProducts) for mode in modes) else nullcontext():
            return kernel(*args, **kwargs), products

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operator; those of a fused function run under this mode, which is off inside this method."""
        if func in OPERATORS:
            below = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.Python)
            with self:
                return func.redispatch(torch._C._dispatch_keys(args[0]) & below, *args, **(kwargs or {}))
        result = func(*args, **(kwargs or {}))
        if func is TURNING and torch.is_inference_mode_enabled():  # a product asks how to run it
            result.requires_grad_(args[0].requires_grad)
        if func in MULTIPLYING | {BY_TEXT} and self.mixed is None:
            given, weight = args[-2:]
            if sum(part.shape[1] for part in self.projected) < 3 * weight.shape[-2]:
                self.projected.append(result.flatten(0, -2))
                self.bare = len(args) == 2  # a bias would come before the two factors
            elif func in MULTIPLYING:
                self.mixed = given
        return result


def fast_path(module: nn.Module) -> AbstractContextManager[None]:
    """Let a module take its fast path under a recording mode, as it would without."""
    asks = isinstance(module, ASKING)
    return _tap.listening(torch.overrides, asks) if asks or _tap.listeners() else nullcontext()


def _watch(original: Callable[..., Any], listeners: Callable[[], list[bool]]) -> Callable[..., Any]:
    """The check, answering no for a recording mode while one of the checking modules runs its own code."""

    def has_torch_function(tensors: tuple[object, ...]) -> Any:
        asked = listeners()
        return original(tensors) and not (asked and asked[-1] and _is_watched_alone(tensors))

    return has_torch_function


def _is_watched_alone(tensors: tuple[object, ...]) -> bool:
    """Whether only recording modes would see functions of these plain tensors."""
    modes: list[Any] = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
    plain = all(tensor is None or type(tensor) in (Tensor, nn.Parameter) for tensor in tensors)
    return plain and all(isinstance(mode, WatchingMode) for mode in modes)


_tap: Tap[bool] = Tap("has_torch_function", _watch)
