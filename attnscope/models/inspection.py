"""What a module says of itself: where it lives, and what it takes."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import nn


def find_device(module: nn.Module) -> torch.device:
    """Where the first weights live; those that a device map keeps on disk live nowhere."""
    import torch

    places = (weights.device for weights in module.parameters())
    return next((place for place in places if place.type != "meta"), torch.device("cpu"))


def accepts(module: nn.Module, argument: str, entry: str = "__call__") -> bool:
    """Whether the module, or a method of it, takes an argument of that name."""
    method = module.forward if entry == "__call__" else getattr(module, entry)
    return argument in inspect.signature(method).parameters


def hears(module: nn.Module) -> bool:
    """Whether a module of transformers reads sound, by what it calls its main input."""
    return getattr(module, "main_input_name", None) in ("input_features", "input_values")
