"""Modules that cannot be watched, because their own code does not run in Python."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule

from attnscope.capture.record import LayerWithoutAttention

ATTENDING = (
    "softmax",
    "_softmax",
    "scaled_dot_product_attention",
    "_native_multi_head_attention",
    "_transformer_encoder_layer_fwd",
)
"""Operators of graphs that attend."""


def why_opaque(module: nn.Module) -> str | None:
    """Why nothing that a module computes is seen; None where it is."""
    if isinstance(module, torch.jit.ScriptModule):
        return _unwatched("traced or scripted (torch.jit)", "runs outside of Python")
    if isinstance(module, GraphModule) and _is_exported(module):
        return _unwatched("exported (torch.export)", "calls torch's kernels directly")
    return None


def find_opaque(model: nn.Module, ran: set[str]) -> list[LayerWithoutAttention]:
    """The outermost modules that ran unseen, and attend as far as their graph tells."""
    found: list[LayerWithoutAttention] = []
    for path, module in model.named_modules():
        reason = why_opaque(module) if path in ran else None
        inside = any(not outer.name or path.startswith(f"{outer.name}.") for outer in found)
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


def _unwatched(made: str, how: str) -> str:
    return f"it is {made}, which {how}: watch the module that it was made from"


def _is_exported(module: GraphModule) -> bool:
    """Whether the operators of a graph are those of torch's core."""
    return any(isinstance(node.target, torch._ops.OpOverload) for node in module.graph.nodes)
