"""Why a recording saw no attention."""

from __future__ import annotations

from torch import nn

from attnscope.capture.placing.opaque import why_opaque
from attnscope.capture.record import Record


def why_empty(model: nn.Module, record: Record, ran: bool = True) -> str:
    """What failed, what cannot be watched, or else what stands where attention would.

    ``ran`` says whether the model was called at all.
    """
    if record.failures:
        return "; ".join(record.notes)
    modules = list(model.modules())
    for module in modules:
        if (reason := why_opaque(module)) is not None:
            return reason
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
