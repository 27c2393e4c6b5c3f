"""What a module says of itself: where it lives, and what it takes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
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


def takes(function: Callable[..., object], argument: str) -> bool:
    """Whether a function takes an argument of that name, among whatever else it takes."""
    parameters = inspect.signature(function).parameters
    return argument in parameters or any(one.kind is one.VAR_KEYWORD for one in parameters.values())


SOUNDS = ("input_features", "input_values")
"""What modules of transformers call a sound."""


def find_sound_input(module: nn.Module) -> str | None:
    """What a module of transformers, or its encoder, calls the sound that it reads; ``None`` without."""
    mains = (getattr(part, "main_input_name", None) for part in (module, getattr(module, "encoder", None)))
    taken = [name for name in SOUNDS if accepts(module, name)]
    return next((str(name) for name in (*mains, *taken) if name in taken), None)


def hears(module: nn.Module) -> bool:
    """Whether a module of transformers reads sound, and nothing else that could stand alone."""
    return find_sound_input(module) is not None and not accepts(module, "input_ids")
