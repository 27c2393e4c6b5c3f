"""What a model's attention is by torch's own functions, with no part of the capture: the oracle."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

EACH = 2
"""Tensors of one shape that are kept: layers are alike."""


class Units(TorchFunctionMode):
    """Weights of all kernels, recomputed by a plain softmax in float64, and the results of all softmaxes.

    ``kernels`` are those of ``scaled_dot_product_attention`` and ``multi_head_attention_forward``, laid out
    as their queries; ``softmaxes`` whatever a softmax returned, attention or not.
    """

    def __init__(self) -> None:
        super().__init__()
        self.kernels: list[Tensor] = []
        self.softmaxes: list[Tensor] = []
        self.owners: set[str] = set()  # the paths of the modules that called kernels
        self._names: list[str] = []
        self._counts: Counter[Any] = Counter()

    @contextmanager
    def watch(self, model: nn.Module) -> Iterator[None]:
        """Keep what runs in a model while the block runs."""
        handles = []
        for path, module in model.named_modules():
            handles.append(module.register_forward_pre_hook(lambda *_, path=path: self._names.append(path)))
            handles.append(module.register_forward_hook(lambda *_: self._leave(), always_call=True))
        with self:
            yield
        for handle in handles:
            handle.remove()

    def _leave(self) -> None:
        self._names.pop()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run ``func`` and keep what it weighed with."""
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        if name == "scaled_dot_product_attention":
            self._own()
            keys = (args[1] if len(args) > 1 else kwargs["key"]).shape
            self._keep(self.kernels, lambda: plain_weights(*args, **kwargs), (result.shape, keys))
        elif name == "multi_head_attention_forward":
            self._own()
            asked = kwargs | {"need_weights": True, "average_attn_weights": False}
            self._keep(self.kernels, lambda: func(*args, **asked)[1], (result[0].shape, args[1].shape))
        elif name in ("softmax", "_softmax") and isinstance(result, Tensor) and result.ndim >= 3:
            self._keep(self.softmaxes, lambda: result.detach().clone(), result.shape)
        return result

    def _own(self) -> None:
        self.owners |= set(self._names[-1:])

    def _keep(self, kept: list[Tensor], make: Callable[[], Tensor], shape: object) -> None:
        self._counts[shape] += 1
        if self._counts[shape] <= EACH:
            kept.append(make())


@torch.no_grad()
def plain_weights(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """The weights of one call, by the formula in torch's documentation.  -> [..., query, key]"""
    if enable_gqa:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
    scores = query.double() @ key.double().mT * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if is_causal:
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -torch.inf)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, -torch.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    return F.softmax(scores, -1).nan_to_num().float()
