"""Whether a map that was put together has its rows and keys at their true places: the module itself says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from attnscope.capture import Kept

TRIED = 3
"""Tokens that are changed."""
SEEN = 1e-3
"""The weight from which a change must be seen."""


def is_placed(model: nn.Module, arguments: Sequence[Any], inputs: dict[str, Any], kept: Kept) -> bool | None:
    """Whether a change of token j moves just the rows that give j a weight, in some module around the map.

    None where no module around it is given states of so many tokens, or all of them mix otherwise as well.
    """
    parts = kept.site.name.split(".")
    paths = [".".join(parts[:end]) for end in range(len(parts), 0, -1)]
    given: dict[str, tuple[Any, Any]] = {}
    handles = [
        model.get_submodule(path).register_forward_pre_hook(_noting(path, given), with_kwargs=True)
        for path in paths
    ]
    with torch.inference_mode():
        model(*arguments, **inputs)
        for handle in handles:
            handle.remove()
        said: list[bool] = []
        for path in paths:
            answer = _agrees(model.get_submodule(path), *given[path], kept) if path in given else None
            if answer:
                return True
            said += [] if answer is None else [answer]
    return False if said else None


def _noting(path: str, given: dict[str, tuple[Any, Any]]) -> Any:
    def note(module: nn.Module, args: Any, kwargs: Any) -> None:
        given.setdefault(path, (args, kwargs))

    return note


def _agrees(module: nn.Module, args: Any, kwargs: Any, kept: Kept) -> bool | None:
    """Whether one module moves as the map says; None where its states have other axes, or more moves."""
    count = kept.weights.shape[-1]
    if not args or not isinstance(args[0], Tensor):
        return None
    before, states = module(*args, **kwargs), args[0]
    laid = [_tokens(each, count) for each in (states, before)]
    if laid[0] is None or laid[1] is None:
        return None
    weights = kept.weights[0].amax(0)  # [query, key]
    torch.manual_seed(5)
    mixes = False
    for token in range(0, count, max(1, count // TRIED)):
        changed = states.clone(memory_format=torch.contiguous_format)
        view = _tokens(changed, count, view=True)
        assert view is not None
        view[0, token] += torch.randn(view.shape[-1])
        after = _tokens(module(changed, *args[1:], **kwargs), count)
        if after is None or after.shape != laid[1].shape:
            return None
        moved = (after - laid[1])[0].abs().amax(-1) > 1e-6 * float(laid[1].abs().amax())
        open_ = weights[:, token] > 0
        open_[token] = True
        if not bool(moved[weights[:, token] > SEEN].all()):
            return False
        mixes |= bool((moved & ~open_).any())
    return None if mixes else True


def _tokens(states: Any, count: int, view: bool = False) -> Tensor | None:
    """States as [text, token, channel], if they have so many tokens, and if they can be viewed so."""
    if isinstance(states, (tuple, list)) and states:
        states = states[0]
    if not isinstance(states, Tensor) or not states.is_floating_point() or states.shape[0] != 2:
        return None
    if states.ndim == 3 and states.shape[1] == count:
        return states
    if states.ndim != 4 or (view and not states.is_contiguous()):
        return None
    if states.shape[1] * states.shape[2] == count:
        return states.flatten(1, 2)
    return states.flatten(2).mT if states.shape[2] * states.shape[3] == count else None
