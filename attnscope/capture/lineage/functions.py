"""What the functions of torch do to the entries of a tensor, by name, and the axes of products."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from attnscope.capture.hooks.modules import PLAIN, Call

SOFTMAX = frozenset({"softmax", "_softmax", "_safe_softmax"})
PRODUCTS = frozenset({"matmul", "__matmul__", "__rmatmul__", "bmm", "mm", "baddbmm", "einsum"})

# fmt: off
RESHAPING = frozenset((
    "view", "reshape", "view_as", "reshape_as", "permute", "transpose", "transpose_", "swapaxes",
    "swapdims", "movedim", "moveaxis", "t", "mT", "flatten", "unflatten", "squeeze", "unsqueeze", "expand",
    "expand_as", "contiguous", "clone", "detach", "__getitem__", "narrow", "select", "index_select",
    "chunk", "split", "split_with_sizes", "tensor_split", "unbind", "repeat_interleave", "roll", "__get__",
))
# fmt: on
"""Functions that move, cut or copy weights; the mask follows through the same call."""

# fmt: off
ELEMENTWISE = frozenset((
    "to", "type", "type_as", "float", "half", "bfloat16", "double", "cpu", "cuda", "dropout", "dropout_",
    "feature_dropout", "alpha_dropout", "masked_fill", "masked_fill_", "where", "mul", "mul_", "__mul__",
    "__rmul__", "__imul__", "multiply", "div", "div_", "__truediv__", "__itruediv__", "add", "__add__",
    "__radd__", "sub", "__sub__", "nan_to_num", "nan_to_num_", "clamp", "clamp_", "tril", "triu",
))
# fmt: on
"""Functions that keep weights in their places."""

CARRYING = RESHAPING | ELEMENTWISE

MOVING = (RESHAPING - {"contiguous", "clone", "detach"}) | {
    *("flip", "fliplr", "flipud", "rot90", "gather", "take_along_dim", "repeat", "tile", "hstack", "vstack"),
    *("unfold", "adjoint", "ravel", "diagonal", "dsplit", "hsplit", "vsplit"),
    *("squeeze_", "unsqueeze_", "__getitem__", "index", "select_copy", "pixel_unshuffle", "pixel_shuffle"),
}
"""Functions that move, cut or copy entries."""

REDUCING = frozenset({"amax", "amin", "mean", "sum"})
JOINING = frozenset({"cat", "concat", "concatenate", "stack"})
MIXING = frozenset({"sort", "cumsum", "matrix_exp", "inverse", "multi_head_attention_forward", "fft", "ifft"})
"""Functions whose result may have its argument's shape, with other entries in it."""


@dataclass(eq=False)
class Products:
    """What modules that are running multiplied with what may be weights, which they may show at their end."""

    _of: dict[Call, Any] = field(default_factory=dict)

    def see(
        self, calls: Sequence[Call], name: str, args: Sequence[Any], kwargs: dict[str, Any], result: Tensor
    ) -> None:
        """Keep values and what they gave, if the factor before them ends with axes of queries and keys."""
        call = next((call for call in reversed(calls) if not isinstance(call.module, PLAIN)), None)
        spelled = None if call is None else spell(name, args, kwargs, result)
        if call is None or spelled is None:
            return
        (weights, values), (ours, theirs), out = spelled
        if weights.ndim < 3 or not call.lengths.issuperset(weights.shape[-2:]):
            return
        usual = ours[-1] == theirs[-2] and out == ours[:-1] + theirs[-1]
        if usual and ours[-1] not in out and ours[-2] not in theirs:
            known = self._of.setdefault(call, WeakTensorKeyDictionary())
            known[weights] = values.detach(), result.detach()

    def of(self, call: Call, weights: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """The values that a module multiplied these weights with, and what they gave; else nothing."""
        known: tuple[Tensor, Tensor] | None = self._of.get(call, {}).get(weights)
        return known or (None, None)

    def leave(self, call: Call) -> None:
        """A module ends, and what it multiplied is let go."""
        self._of.pop(call, None)


class Projections:
    """Numbers the parameters that entries went through; parts of one have numbers of their own."""

    def __init__(self) -> None:
        self._parameters: Any = WeakTensorKeyDictionary()
        self._numbers: defaultdict[Hashable, int] = defaultdict(count(1).__next__)

    def number(self, weight: Tensor) -> int:
        """The number of a parameter, or of a part of one."""
        whole = weight if weight._base is None else weight._base
        parameter = self._parameters.setdefault(whole, len(self._parameters))
        return self._numbers[parameter, weight.storage_offset()]


def spell(
    name: str, args: Sequence[Any], kwargs: dict[str, Any], result: Tensor
) -> tuple[tuple[Tensor, Tensor], tuple[str, str], str] | None:
    """The two factors of a product, a letter for each of their axes, and those of the result."""
    if name == "einsum":
        factors = list(args[1]) if len(args) > 1 and isinstance(args[1], (list, tuple)) else list(args[1:])
        if len(factors) != 2 or not isinstance(args[0], str):
            return None
        inputs, arrow, out = spell_out(args[0], factors).partition("->")
        ours, theirs = inputs.split(",")
        return ((factors[0], factors[1]), (ours, theirs), out) if arrow else None
    given = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
    if name in ("baddbmm", "addmm"):
        given = given[1:]
    if name == "__rmatmul__":
        given = given[1::-1]
    if len(given) < 2 or given[0].ndim < 2 or given[1].ndim < 2:
        return None
    left, right = given[:2]
    batch = "abcdefgh"
    if name == "linear":
        lead = batch[: left.ndim - 1]
        return (left, right), (lead + "x", "yx"), lead + "y"
    lead = batch[: result.ndim - 2]
    ours = lead[len(lead) - (left.ndim - 2) :] + "ix"
    if name == "cdist":
        return (left, right), (ours, lead[len(lead) - (right.ndim - 2) :] + "jx"), lead + "ij"
    if name == "scaled_dot_product_attention":
        return (left, right), (ours, lead[len(lead) - (right.ndim - 2) :] + "jx"), lead + "iy"
    theirs = lead[len(lead) - (right.ndim - 2) :] + "xj"
    return (left, right), (ours, theirs), lead + "ij"


def spell_out(equation: str, operands: Sequence[Tensor]) -> str:
    """An einsum equation with letters in the place of its dots."""
    equation = equation.replace(" ", "")
    if "..." not in equation:
        return equation
    first = equation.split("->")[0].split(",")[0]
    count = operands[0].ndim - len(first.replace("...", ""))
    free = [letter for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZ" if letter not in equation]
    return equation.replace("...", "".join(free[:count]))
