"""Why a recording saw no attention."""

from __future__ import annotations

import torch
from torch import nn
from torch.fx import GraphModule

from attnscope.capture.record import Record


def why_empty(model: nn.Module, record: Record, ran: bool = True) -> str:
    """What failed, what cannot be watched, or else what stands where attention would.

    ``ran`` says whether the model was called at all.
    """
    if record.failures:
        return "; ".join(record.notes)
    modules = list(model.modules())
    if any(isinstance(module, torch.jit.ScriptModule) for module in modules):
        return _unwatched("traced or scripted (torch.jit)", "runs outside of Python")
    if any(isinstance(module, GraphModule) and _is_exported(module) for module in modules):
        return _unwatched("exported (torch.export)", "calls torch's kernels directly")
    if not ran:
        return "it was not called while it was watched, or not on the thread that watches"
    if record.without_attention:
        layers = {layer.reason: layer for layer in reversed(record.without_attention)}  # the first of each
        return "; ".join(f"in {layer.name or 'it'}, {reason}" for reason, layer in reversed(layers.items()))
    blocks = [child for child in modules if isinstance(child, nn.ModuleList) and len(child)]
    if not blocks:
        return f"its forward pass ({type(model).__name__}) computes none"
    inside = {type(part).__name__ for block in blocks for layer in block for part in layer.children()}
    return f"its layers are made of {', '.join(sorted(inside))}"


def _unwatched(made: str, how: str) -> str:
    return f"it is {made}, which {how}: watch the module that it was made from"


def _is_exported(module: GraphModule) -> bool:
    """Whether the operators of a graph are those of torch's core."""
    return any(isinstance(node.target, torch._ops.OpOverload) for node in module.graph.nodes)
