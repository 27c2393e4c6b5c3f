"""What a layer without attention has in its place, and modules whose code does not run in Python."""

from __future__ import annotations

import re

import torch
from torch import nn
from torch.fx import GraphModule

from attnscope.capture.record import Record, is_within


def why_opaque(module: nn.Module) -> str | None:
    """Why nothing that a module computes is seen; None if it is."""
    if isinstance(module, torch.jit.ScriptModule):
        form = "traced or scripted (torch.jit), which runs outside Python"
    elif isinstance(module, GraphModule) and any(
        isinstance(node.target, torch._ops.OpOverload) for node in module.graph.nodes
    ):
        form = "exported (torch.export), which calls torch's kernels directly"
    else:
        return None
    return f"it is {form}: record the original module"


def is_training(module: nn.Module) -> bool:
    """Whether a part of a module is in training mode, which says nothing of one that runs unseen."""
    parts = dict(module.named_modules())
    opaque = [path for path, part in parts.items() if why_opaque(part)]
    trained = (path for path, part in parts.items() if part.training)
    return not all(any(is_within(path, outer) for outer in opaque) for path in trained)


def why_empty(model: nn.Module, record: Record, ran: bool = True) -> str:
    """What failed, what cannot be observed, or what the model has in place of attention.

    ``ran`` says whether the model was called at all.
    """
    if record.failures:
        return "; ".join(record.notes)
    if (reason := next(filter(None, map(why_opaque, model.modules())), None)) is not None:
        return reason
    if not ran:
        return "it was not called during the recording, or ran on another thread"
    if record.without_attention:
        layers = {layer.reason: layer for layer in reversed(record.without_attention)}  # the first of each
        return "; ".join(f"in {layer.name or 'it'}, {reason}" for reason, layer in reversed(layers.items()))
    listed = [layer for each in model.modules() if isinstance(each, nn.ModuleList) for layer in each]
    if not listed:
        return f"its forward pass ({type(model).__name__}) computes none"
    reasons = dict.fromkeys(reason for reason in map(describe, listed) if not reason.startswith(UNKNOWN))
    inside = {type(part).__name__ for layer in listed for part in layer.children()}
    return f"its layers hold {', '.join(reasons or sorted(inside))}"


INSTEAD = (
    (r"mamba|ssm|state_?space|(?-i:S[46])", "a state-space model"),
    (r"delta_?(net|att)|linear_?att|lightning|retention|gated_?linear|performer|kda", "linear attention"),
    (r"fourier|fnet|fft", "a Fourier transform"),
    (r"rwkv|recurrent|rg_?lru|lstm|gru|xlstm", "a recurrence"),
    (r"deformable", "attention over a few sampled points"),
    (r"hyena|short_?conv|conv", "a convolution"),
)
"""Name fragments of token mixers other than attention, and what they are; the first match is used."""

UNSEEN, NO_SOFTMAX = UNKNOWN = "no attention was seen in it", "no softmax in it was applied to values"

ATTENTION = re.compile(r"att(entio)?n|attend", re.I)

ORDINARY = re.compile(
    r"norm|mlp|feed_?forward|ffn|dropout|drop_?path|linear$|identity|activation|expert|moe", re.I
)


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


def is_torchs_own(module: nn.Module) -> bool:
    """Whether a module is one of torch's own that many layers hold beside attention."""
    return type(module).__module__.startswith("torch.nn")
