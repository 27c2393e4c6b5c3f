"""How a gradient passes one node of torch's graph, what multiplies the stream being held.

Torch's own nodes are called where they are linear. Of a product one side is followed and the other held as it
was in the pass: a norm's spread, a gate, a weight. So is the slope ``f(x) / x`` of an activation.
"""

from __future__ import annotations

import re
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.graph import Node
from torch.nn import functional as F

# fmt: off
LINEAR = frozenset((
    "Add", "Sub", "Rsub", "Neg", "View", "UnsafeView", "Reshape", "ReshapeAlias", "Transpose", "T", "Permute",
    "Unsqueeze", "Squeeze", "Slice", "Select", "Index", "IndexSelect", "Gather", "Expand", "Repeat", "Clone",
    "ToCopy", "Cat", "Stack", "Split", "SplitWithSizes", "Unbind", "Sum", "Mean", "Alias", "AsStrided",
    "Narrow", "Flip", "Roll", "MaskedFill", "Unfold", "Diagonal", "Copy", "MaskedScatter", "LiftFresh",
    "ConstantPadNd", "UnsafeSplit", "CopySlices", "IndexAdd", "IndexPut", "IndexCopy", "Scatter",
    "ScatterAdd",
))
# fmt: on
"""Nodes that are linear in all that goes into them."""

PRODUCTS = frozenset(("Mul", "Div", "Mm", "Addmm", "Bmm", "Mv", "NativeLayerNorm", "FusedRmsNorm"))
"""Nodes of which one side is followed; what is held must not be the stream, too."""

ACTIVATIONS = frozenset(("Gelu", "Silu", "Relu", "Tanh"))
"""Functions of single numbers that are 0 at 0."""

SIDES = {"Addmm": 1}
"""How many of a node's first inputs are added to its product."""

NORMS = frozenset(("NativeLayerNorm", "FusedRmsNorm"))
"""Nodes whose first input is divided by its own spread; their weights are held, their bias is added."""


def kind(node: Node) -> str:
    """The function that a node is of: ``Mul`` of ``MulBackward0``."""
    return re.sub(r"(Backward\d*)$", "", node.name().rpartition("::")[2])


def shape_of(node: Node, output: int) -> tuple[int, ...]:
    """The shape of what a node made."""
    return tuple(node._input_metadata[output].shape)


def is_spread(node: Node, side: int) -> bool:
    """Whether a side of a product is one number for each row, as a norm's spread is."""
    if kind(node) in ("Mul", "Div"):
        held = getattr(node, "_saved_self" if side == 0 else "_saved_other", None)
        if not isinstance(held, Tensor):
            return True
        return held.ndim == 0 or held.shape[-1] == 1 or held.stride(-1) == 0
    return False


def pull(node: Node, grads: list[Tensor | None]) -> list[Tensor | None]:
    """The gradients of what went into a node, from those of what it made; what is held has none."""
    name, saved = kind(node), cast(Any, node)
    given = next((grad for grad in grads if grad is not None), None)
    if given is None:
        return [None] * len(node.next_functions)
    if name == "Mul":
        return [_times(given, saved._saved_other), _times(given, saved._saved_self)]
    if name == "Div":
        return [given / saved._saved_other, None]
    if name == "Mm":
        return [_product(given, saved._saved_mat2), _turned(saved._saved_self, given)]
    if name == "Addmm":
        left = _product(given, saved._saved_mat2)
        right = _turned(saved._saved_mat1, given)
        alpha = saved._saved_alpha
        return [
            given * saved._saved_beta,
            None if left is None else left * alpha,
            None if right is None else right * alpha,
        ]
    if name == "Bmm":
        return [_product(given, saved._saved_mat2), _turned(saved._saved_self, given)]
    if name in NORMS:
        return _pull_norm(name, saved, given)
    if name in ACTIVATIONS:
        return [given * _slope(name, saved)]
    pulled = saved(*grads)
    return list(pulled) if isinstance(pulled, tuple) else [pulled]


def _times(given: Tensor, other: object) -> Tensor | None:
    return None if other is None else given * other  # type: ignore[operator]


def _product(given: Tensor, right: Tensor | None) -> Tensor | None:
    """A gradient behind ``x @ right`` as that of x; where one row alone has any, of that row alone."""
    if right is None:
        return None
    if given.ndim == 2 and len(given) > 1:
        some = given.detach().abs().amax(-1).nonzero().flatten()
        if len(some) == 1:
            row = given[some] @ right.mT
            return row.new_zeros(len(given), row.shape[-1]).index_copy(0, some, row)
    return given @ right.mT


def _turned(left: Tensor | None, given: Tensor) -> Tensor | None:
    return None if left is None or left.ndim == 2 else left.mT @ given


def _pull_norm(name: str, saved: Any, given: Tensor) -> list[Tensor | None]:
    weight = saved._saved_weight
    axes = tuple(range(-len(saved._saved_normalized_shape), 0))
    inner = given if weight is None else given * weight
    if name == "FusedRmsNorm":
        return [inner * saved._saved_result1, None]
    inner = inner * saved._saved_result2
    return [inner - inner.mean(axes, keepdim=True), None, given]


def _slope(name: str, saved: Any) -> Tensor:
    """f(x) / x of an activation; 1 at 0 of those that are steep as that there."""
    if name == "Tanh":
        made = saved._saved_result.double()
        return torch.where(made == 0, 1.0, made / torch.atanh(made)).to(saved._saved_result.dtype)
    if name == "Relu":
        made = saved._saved_result
        return torch.where(made > 0, torch.ones_like(made), torch.zeros_like(made))
    given: Tensor = saved._saved_self
    if name == "Silu":
        return given.sigmoid()
    made = F.gelu(given, approximate=saved._saved_approximate)
    return torch.where(given == 0, torch.full_like(given, 0.5), made / given)
