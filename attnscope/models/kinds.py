"""A pass over two tokens, for what a text of one token cannot show: which kind each attention is."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING
from weakref import WeakSet

import torch
from torch import Tensor, nn

from attnscope.errors import AttnscopeError
from attnscope.limits import out_of_memory

if TYPE_CHECKING:
    from attnscope.models.inputs import ModelInput

_asked: WeakSet[nn.Module] = WeakSet()


def show_kinds(module: nn.Module, prepared: ModelInput) -> None:
    """Run a model once on its one token written twice, so that the recording knows its kinds.

    Only a text of one token needs it, and only the first one of a model; the run changes no random number
    of later ones. Where the model fails on two tokens, a warning says so: the kinds are then what the
    modules say of themselves.
    """
    from attnscope.capture import recording

    if len(prepared.tokens) > 1:
        return
    short = [name for name, tensor in prepared.inputs.items() if _is_one_token(tensor)]
    if not (short or any(map(_is_one_token, prepared.arguments))) or module in _asked:
        return
    twice: Mapping[str, Tensor] = {name: _twice(tensor) for name, tensor in prepared.inputs.items()}
    devices = {tensor.device for tensor in twice.values() if tensor.device.type == "cuda"}
    try:
        with torch.inference_mode(), torch.random.fork_rng(list(devices)), recording(module, warn=False):
            run = getattr(module, prepared.entry)
            run(*map(_twice, prepared.arguments), **twice, **prepared.settings)
    except Exception as error:
        if isinstance(error, AttnscopeError) or out_of_memory(error):
            raise
        reason = f"{type(error).__name__}: {error}"
        warnings.warn(f"which kind of attention a text of one token has is not known: {reason}", stacklevel=3)
    _asked.add(module)


def _is_one_token(tensor: Tensor) -> bool:
    """Whether a tensor is the ids or the mask of texts of one token, [batch, 1]."""
    return tensor.ndim == 2 and tensor.shape[1] == 1 and not tensor.is_floating_point()


def _twice(tensor: Tensor) -> Tensor:
    """The same texts with their one token written twice.  [batch, 1] -> [batch, 2]"""
    return tensor.repeat(1, 2) if _is_one_token(tensor) else tensor
