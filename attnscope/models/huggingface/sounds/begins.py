"""When each token of a sound begins, where a language model's own file counts the tokens of any length."""

from __future__ import annotations

import inspect
import sys
from typing import Any

import torch
from torch import nn

from attnscope.models.huggingface.sounds.frames import LENGTHS

Seconds = tuple[float, ...]


def find_begins(module: nn.Module, steps: int, seconds: float, count: int) -> Seconds | None:
    """The second at which each of ``count`` tokens begins, of ``steps`` of ``seconds`` each.

    A token begins so long after the first as a sound has to be longer to have it. ``None`` where no encoder
    counts its tokens by a function of its file, or where that counts others.
    """
    for child in module.modules():
        counter = _counter(child)
        if counter is None:
            continue
        counts = counter(torch.arange(1, steps + 1))
        if int(counts[-1]) == count and bool((counts.diff() >= 0).all()):
            first = torch.searchsorted(counts, torch.arange(1, count + 1))  # the length that has each token
            return tuple(round(int(begin) * seconds, 6) for begin in first - first[0])
    return None


def _counter(child: nn.Module) -> Any:
    """From lengths to numbers of tokens, as the file of an encoder's class has it; ``None`` without."""
    file, config = sys.modules[type(child).__module__], getattr(child, "config", None)
    function = next((found for name in LENGTHS if (found := getattr(file, name, None)) is not None), None)
    if function is None or config is None:
        return None
    _, *others = inspect.signature(function).parameters
    known = {name: getattr(config, name) for name in others if hasattr(config, name)}
    return lambda lengths: function(lengths, **known)
