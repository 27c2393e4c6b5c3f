"""Why a recording saw no attention."""

from __future__ import annotations

from torch import nn

from attnscope.capture.record import Record


def why_empty(model: nn.Module, record: Record) -> str:
    """What failed, or else what stands where attention would: the classes of the deepest repeated blocks."""
    if record.notes:
        return "; ".join(record.notes)
    blocks = [child for child in model.modules() if isinstance(child, nn.ModuleList) and len(child)]
    if not blocks:
        return f"its forward pass ({type(model).__name__}) computes none"
    inside = {type(part).__name__ for block in blocks for layer in block for part in layer.children()}
    return f"its layers are made of {', '.join(sorted(inside))}"
