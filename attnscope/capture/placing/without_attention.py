"""Layers in which no attention was seen, and what they hold instead."""

from __future__ import annotations

import re
from collections.abc import Iterator

from torch import nn

from attnscope.capture.record import LayerWithoutAttention

INSTEAD = (
    (r"mamba|ssm|state_?space|s4|s6", "a state-space model"),
    (r"delta_?net|linear_?att|lightning|retention|gated_?linear|performer|kda", "linear attention"),
    (r"fourier|fnet|fft", "a Fourier transform"),
    (r"rwkv|recurrent|rg_?lru|lstm|gru|xlstm", "a recurrence"),
    (r"deformable", "attention over a few sampled points"),
    (r"hyena|short_?conv|conv", "a convolution"),
)
"""Names of token mixers that are no attention, and what they are; the first that fits is said."""

ORDINARY = re.compile(
    r"norm|mlp|feed_?forward|ffn|dropout|drop_?path|linear$|identity|activation|expert|moe", re.I
)


def find_layers(model: nn.Module, ran: set[str], attended: set[str]) -> list[LayerWithoutAttention]:
    """The entries of the model's module lists that ran without attention, in the order of the model.

    ``ran`` are the paths of the modules that were called, ``attended`` those at which attention was seen.
    A list counts if another of its entries attends, or if nothing in the whole model does; of lists inside
    lists only the outermost counts.
    """
    layers: list[LayerWithoutAttention] = []
    outer: list[str] = []
    for path, module in model.named_modules():
        if not isinstance(module, nn.ModuleList) or any(path.startswith(prefix) for prefix in outer):
            continue
        called = [(index, f"{path}.{index}") for index in range(len(module)) if f"{path}.{index}" in ran]
        without = [(index, name) for index, name in called if not _inside(name, attended)]
        if len(without) == len(called) and attended:
            continue
        outer.append(path + ".")
        layers += [LayerWithoutAttention(name, index, describe(module[index])) for index, name in without]
    return layers


def without_layout(name: str, module: nn.Module) -> LayerWithoutAttention:
    """The note of a call that attended in chunks which could not be put at their keys."""
    what = f"{type(module).__name__} attends in chunks"
    return LayerWithoutAttention.at(name, f"{what}, and those of this call cannot be put at their keys")


def describe(layer: nn.Module) -> str:
    """What a layer without attention holds, in one phrase with the class's own name."""
    for pattern, phrase in INSTEAD:
        for module in (*list(layer.modules())[1:], layer):
            if re.search(pattern, type(module).__name__, re.I) and not _plain(module):
                return f"{phrase} ({type(module).__name__})"
    parts = [type(child).__name__ for child in _mixers(layer)]
    if not parts:
        return f"no attention was seen in it ({type(layer).__name__})"
    return f"no softmax in it weighed values ({', '.join(dict.fromkeys(parts))})"


def _mixers(layer: nn.Module) -> Iterator[nn.Module]:
    """The children that are no norm, no feed-forward network and no single function."""
    for child in layer.children():
        if not ORDINARY.search(type(child).__name__):
            yield child


def _plain(module: nn.Module) -> bool:
    """Whether a module is one of torch's own, which many layers hold beside attention."""
    return type(module).__module__.startswith("torch.nn")


def _inside(name: str, attended: set[str]) -> bool:
    return any(site == name or site.startswith(name + ".") for site in attended)
