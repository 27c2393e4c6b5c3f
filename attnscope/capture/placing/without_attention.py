"""Layers without attention, and modules that cannot be observed because their code does not run in Python."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule

from attnscope.capture.record import LayerWithoutAttention, Record, is_within

ATTENDING = ["softmax", "_softmax", "scaled_dot_product_attention", "_native_multi_head_attention"]
ATTENDING += ["_transformer_encoder_layer_fwd"]
"""Operators of graphs that attend."""


def why_opaque(module: nn.Module) -> str | None:
    """Why nothing that a module computes is seen; None if it is."""
    if isinstance(module, torch.jit.ScriptModule):
        made = "traced or scripted (torch.jit), which runs outside of Python"
    elif isinstance(module, GraphModule) and any(
        isinstance(node.target, torch._ops.OpOverload) for node in module.graph.nodes
    ):
        made = "exported (torch.export), which calls torch's kernels directly"
    else:
        return None
    return f"it is {made}: watch the original module"


def find_opaque(model: nn.Module, ran: set[str]) -> list[LayerWithoutAttention]:
    """The outermost modules that ran unseen and attend as far as their graph tells."""
    found: list[LayerWithoutAttention] = []
    for path, module in model.named_modules():
        reason = why_opaque(module) if path in ran else None
        inside = any(is_within(path, outer.name) for outer in found)
        if reason is not None and not inside and any(name in op for op in _ops(module) for name in ATTENDING):
            found.append(LayerWithoutAttention.at(path, reason))
    return found


def _ops(module: nn.Module) -> Iterator[str]:
    """The names of the operators in a module's graph."""
    if isinstance(module, GraphModule):
        yield from (str(node.target) for node in module.graph.nodes)
    elif hasattr(module, "inlined_graph"):
        graph: Any = module.inlined_graph  # its nodes live as long as it does
        yield from [name for name in ATTENDING if graph.findAllNodes(f"aten::{name}")]


def why_empty(model: nn.Module, record: Record, ran: bool = True) -> str:
    """What failed, what cannot be observed, or what the model has in place of attention.

    ``ran`` says whether the model was called at all.
    """
    if record.failures:
        return "; ".join(record.notes)
    if (reason := next(filter(None, map(why_opaque, model.modules())), None)) is not None:
        return reason
    if not ran:
        return "it was not called while it was watched, or ran on another thread"
    if record.without_attention:
        layers = {layer.reason: layer for layer in reversed(record.without_attention)}  # the first of each
        return "; ".join(f"in {layer.name or 'it'}, {reason}" for reason, layer in reversed(layers.items()))
    listed = [layer for each in model.modules() if isinstance(each, nn.ModuleList) for layer in each]
    if not listed:
        return f"its forward pass ({type(model).__name__}) computes none"
    inside = {type(part).__name__ for layer in listed for part in layer.children()}
    return f"its layers are made of {', '.join(sorted(inside))}"


INSTEAD = (
    (r"mamba|ssm|state_?space|(?-i:S[46])", "a state-space model"),
    (r"delta_?(net|att)|linear_?att|lightning|retention|gated_?linear|performer|kda", "linear attention"),
    (r"fourier|fnet|fft", "a Fourier transform"),
    (r"rwkv|recurrent|rg_?lru|lstm|gru|xlstm", "a recurrence"),
    (r"deformable", "attention over a few sampled points"),
    (r"hyena|short_?conv|conv", "a convolution"),
)
"""Name fragments of token mixers other than attention, and what they are; the first match is used."""

PAST = "tokens also mix outside the attention that is shown: {names}: {details}"

POOLED = "it weighs values and sums them itself (pooling, or gathered keys): its weights are not shown"

UNSEEN, NO_SOFTMAX = "no attention was seen in it", "no softmax in it weighed values"

LISTS = nn.ModuleList, nn.ModuleDict

ATTENTION = re.compile(r"att(entio)?n|attend", re.I)

ORDINARY = re.compile(
    r"norm|mlp|feed_?forward|ffn|dropout|drop_?path|linear$|identity|activation|expert|moe", re.I
)

FEED_FORWARD = re.compile(r"feed_?forward|mlp|ffn|glu", re.I)


def note_layers(record: Record, model: nn.Module, ran: set[str], mixing: Mapping[str, str]) -> None:
    """Note the layers of the model that ran without attention, in the order of the model.

    ``ran`` are the paths of the modules that were called, ``mixing`` those that mix tokens without
    weights, and how. A layer around one of these is named by it; the note says if it also attends. A
    telling class name comes first.
    """
    known = {site.site.name for site in record.sites} | {failure.name for failure in record.failures}
    known |= {layer.name for layer in record.without_attention}
    named = {layer.name: layer for layer in find_layers(model, ran, known)}
    shown = {site.site.layer for site in record.sites}
    shown_at = {site.site.name for site in record.sites}
    for name, reason in mixing.items():
        around = [path for path in named if is_within(name, path)]
        if name in shown_at or (name not in known and _inside(name, known)):  # it attends besides
            record.note_place(PAST, name, reason)
        if _inside(name, known) or any(_is_told(named[path].reason) for path in around):
            continue
        told = describe(model.get_submodule(name))
        layer = LayerWithoutAttention.at(name, told if _is_told(told) else reason)
        if around:
            layer = replace(layer, layer=named.pop(around[0]).layer)
        if around or layer.layer not in shown:
            named[name] = layer
        else:
            record.note_place(PAST, name, layer.reason)
    record.without_attention += named.values()


def find_layers(model: nn.Module, ran: set[str], attended: set[str]) -> list[LayerWithoutAttention]:
    """The layers that ran without attention.

    ``ran`` are the paths of the modules that were called, ``attended`` those at which attention was seen.
    An entry of a module list counts if another one attends, or if nothing in the whole model does; of
    lists inside lists only the outermost counts. Elsewhere (``nn.Sequential``, attributes) a module counts
    if a sibling made of the same modules attends; if it was not called, the module around it may have run
    its parts, and then attends.
    """
    layers: list[LayerWithoutAttention] = []
    outer: list[str] = []
    paths = [path.split(".") for path in ran]
    entered = {".".join(parts[: end + 1]) for parts in paths for end in range(len(parts))}
    for path, module in model.named_modules():
        if any(path.startswith(prefix) for prefix in outer):
            continue
        prefix, listed = path + "." if path else "", isinstance(module, nn.ModuleList)
        alike: dict[object, list[str]] = {}
        for name, child in module.named_children():
            if prefix + name in (entered if listed or isinstance(child, LISTS) else ran):
                make = None if listed else tuple(type(part) for part in child.modules())
                alike.setdefault(make, []).append(name)
        for names in alike.values():
            without = [name for name in names if not _inside(prefix + name, attended)]
            if len(without) == len(names) and (attended or not listed):
                continue
            if listed:
                outer.append(prefix)
            if listed and _has_numbers_inside(prefix, attended):  # not numbered by their places in it
                without = [name for name in without if not _is_feed_forward(module.get_submodule(name))]
            for name in without:
                number = int(name) if listed else names.index(name)
                reason = describe(module.get_submodule(name))
                layers.append(LayerWithoutAttention(prefix + name, number, reason))
    return layers


def find_unseen(model: nn.Module, attended: set[str]) -> list[str]:
    """The outermost modules that look like attention, with none seen in or around them.

    Their class name says attention, and they hold two matrices or more. Only an audit can tell whether
    they mix tokens.
    """
    unseen: list[str] = []
    for path, module in model.named_modules():
        matrices = sum(weights.ndim == 2 for weights in module.parameters())
        if not ATTENTION.search(type(module).__name__) or matrices < 2:
            continue
        if not _inside(path, attended) and not any(_inside(outer, {path}) for outer in (*attended, *unseen)):
            unseen.append(path)
    return unseen


def describe(layer: nn.Module) -> str:
    """What a layer without attention contains, in one phrase with the class's own name."""
    for pattern, phrase in INSTEAD:
        for module in (*list(layer.modules())[1:], layer):
            name = type(module).__name__
            if re.search(pattern, name, re.I) and not ORDINARY.search(name) and not is_torchs_own(module):
                return f"{phrase} ({name})"
    parts = [type(child).__name__ for child in layer.children()]
    parts = [part for part in parts if not ORDINARY.search(part)]  # no norm, feed-forward or single function
    if not parts:
        return f"{UNSEEN} ({type(layer).__name__})"
    return f"{NO_SOFTMAX} ({', '.join(dict.fromkeys(parts))})"


def _is_told(reason: str) -> bool:
    """Whether a class name told what a layer contains."""
    return not reason.startswith((UNSEEN, NO_SOFTMAX))


def _has_numbers_inside(prefix: str, attended: set[str]) -> bool:
    """Whether attention was seen in lists inside the entries of a list."""
    inside = (path.removeprefix(prefix) for path in attended if path.startswith(prefix))
    return any(part.isdigit() for path in inside for part in path.split(".")[1:])


def _is_feed_forward(layer: nn.Module) -> bool:
    """Whether all matrices in a layer belong to one feed-forward network."""
    networks = [part for part in layer.modules() if FEED_FORWARD.search(type(part).__name__)]
    if not networks:
        return False
    own = {id(weights) for weights in networks[0].parameters()}
    return all(weights.ndim < 2 or id(weights) in own for weights in layer.parameters())


def is_torchs_own(module: nn.Module) -> bool:
    """Whether a module is one of torch's own that many layers hold beside attention."""
    return type(module).__module__.startswith("torch.nn")


def _inside(name: str, attended: set[str]) -> bool:
    return any(is_within(site, name) for site in attended)
