"""How much memory a model's weights and its pass will take, and how many threads pay for it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

SMALL_PASS = 4e9
"""Floating-point operations of a pass below which threads cost more than they bring."""


def weights_size(name: str, revision: str | None, dtype: torch.dtype | None) -> int:
    """Bytes of the safetensors weights in a folder, or in the cache of the hub, once they are ``dtype``.

    ``None`` keeps the type they are stored in. 0 where there are none, as before a download.
    """
    files = sorted(_folder(name, revision).glob("*.safetensors"))
    if dtype is None:
        return sum(file.stat().st_size for file in files)
    return sum(math.prod(shape) for file in files for shape in _shapes(file)) * dtype.itemsize


class Stored(NamedTuple):
    """What the files of weights hold: bytes, and the number of their tensors."""

    size: int
    tensors: int


def stored_weights(name: str, revision: str | None) -> Stored:
    """The weights in a folder, or in the cache of the hub; the tensors of pickled files are estimated."""
    folder = _folder(name, revision)
    files, pickled = list(folder.glob("*.safetensors")), list(folder.glob("*.bin"))
    size = sum(file.stat().st_size for file in (*files, *pickled))
    return Stored(size, sum(len(_shapes(file)) for file in files) or size // 1000)


def pass_size(module: nn.Module, texts: int, tokens: int) -> int:
    """Bytes that a pass over ``texts`` of so many tokens cannot do without: its widest moment, not its sum.

    That is the widest linear layer, of which input and output exist together, or, with eager attention, the
    scores of one layer and their softmax. What else a model holds meanwhile is not known beforehand.
    """
    config = getattr(module, "config", None)
    vocabulary = getattr(config, "vocab_size", None)  # an output head may see the last token only
    linear = (one.weight for one in module.modules() if type(one).__name__ in ("Linear", "Conv1D"))
    shapes = (weights.shape for weights in linear if isinstance(weights, Tensor))
    wide = max((sum(shape) for shape in shapes if vocabulary not in shape), default=0)
    heads, kernel = getattr(config, "num_attention_heads", 0), getattr(config, "_attn_implementation", None)
    scores = 2 * heads * tokens * tokens if isinstance(heads, int) and kernel == "eager" else 0
    bytes_ = next((weights.itemsize for weights in module.parameters() if weights.is_floating_point()), 4)
    return texts * max(tokens * wide, scores) * bytes_


def trace_size(module: nn.Module, tokens: int) -> int | None:
    """Bytes of the queries and keys of all layers, at most; ``None`` where no config tells it."""
    config = getattr(module, "config", None)
    text = getattr(config, "get_text_config", None)
    config = text() if callable(text) else config
    width = getattr(config, "hidden_size", getattr(config, "width", None))
    layers = getattr(config, "num_hidden_layers", getattr(config, "layers", None))
    if not isinstance(width, int) or not isinstance(layers, int):
        return None
    both = 3 if getattr(config, "is_encoder_decoder", False) else 1  # encoder, decoder, across
    bytes_ = next((weights.itemsize for weights in module.parameters() if weights.is_floating_point()), 4)
    return 2 * both * layers * width * tokens * bytes_


def _folder(name: str, revision: str | None) -> Path:
    if Path(name).is_dir():
        return Path(name)
    import huggingface_hub as hub

    found = hub.try_to_load_from_cache(name, "config.json", revision=revision)
    return Path(found).parent if isinstance(found, str) else Path(name)


def _shapes(file: Path) -> list[list[int]]:
    """The shapes in a file, of which only the header is read; none if it is damaged, as loading will say."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, "pt") as tensors:
            names = tensors.keys()
            return [tensors.get_slice(name).get_shape() for name in names]
    except (SafetensorError, OSError):
        return []


@contextmanager
def few_threads(module: nn.Module, device: torch.device, tokens: int) -> Iterator[None]:
    """One thread for a short text on the CPU, where several would only wait for each other."""
    operations = 2.0 * sum(weights.numel() for weights in module.parameters()) * tokens
    before = torch.get_num_threads()
    if operations > SMALL_PASS or device.type != "cpu" or before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
