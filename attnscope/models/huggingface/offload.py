"""Models larger than memory: how much each device may hold; the rest is read from disk, layer by layer."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from attnscope.errors import readable
from attnscope.limits import free_memory

HELD = 0.5
"""The share of free memory for weights; a layer from disk and the pass need the rest."""


def find_room() -> dict[int | str, int]:
    """Bytes of weights that each device may hold."""
    from accelerate.utils import get_max_memory

    room: dict[int | str, int] = get_max_memory()
    free = free_memory()
    if free is not None and "cpu" in room:
        room["cpu"] = min(room["cpu"], int(HELD * free))
    return room


@contextmanager
def unmapped() -> Iterator[None]:
    """Make accelerate read only the weights it needs, during loading and in every later pass.

    By default it maps whole files, all at once, and mapped memory counts as taken.
    """
    from accelerate import big_modeling
    from safetensors import safe_open
    from transformers import modeling_utils

    read: Any = lambda *asked, **more: safe_open(*asked, **{**more, "backend": "pread"})  # noqa: E731

    class FileWeights(big_modeling.OffloadedWeightsLoader):  # type: ignore[misc]
        def __getitem__(self, key: str) -> Any:
            place = self.index[key]
            if "safetensors_file" not in place:  # merged from several weights, in a separate folder
                return super().__getitem__(key)
            with read(place["safetensors_file"], framework="pt") as file:
                weights = file.get_tensor(place["weight_name"])
            return weights.to(getattr(torch, place["dtype"]))

    said = logging.getLogger(big_modeling.__name__)  # reports weights on disk, as our note does
    before, level = (modeling_utils.safe_open, big_modeling.OffloadedWeightsLoader), said.level
    said.setLevel(logging.ERROR)
    modeling_utils.safe_open, big_modeling.OffloadedWeightsLoader = read, FileWeights
    try:
        yield
    finally:
        modeling_utils.safe_open, big_modeling.OffloadedWeightsLoader = before
        said.setLevel(level)


def note_offloaded(module: nn.Module) -> list[str]:
    """A note on the weights that stay on disk."""
    size = sum(each.numel() * each.itemsize for each in module.parameters() if each.device.type == "meta")
    return [f"{readable(size)} of the weights stay on disk and are read in each pass"] if size else []
