"""One call of a torch function as trackers see it, and the axes of the factors of a product."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import Tensor

LETTERS = "abcdefghABCDEFGHIJKLMNOPQRSTUVWXYZ"  # for the axes of tensors

SOFTMAX = frozenset({"softmax", "_softmax", "_safe_softmax"})
PRODUCTS = frozenset({"matmul", "__matmul__", "__rmatmul__", "bmm", "mm", "baddbmm", "einsum"})

# fmt: off
RESHAPING = frozenset((
    "view", "reshape", "view_as", "reshape_as", "permute", "transpose", "transpose_", "swapaxes",
    "swapdims", "movedim", "moveaxis", "t", "mT", "flatten", "unflatten", "squeeze", "unsqueeze", "expand",
    "expand_as", "contiguous", "clone", "detach", "__getitem__", "narrow", "select", "index_select",
    "chunk", "split", "split_with_sizes", "tensor_split", "unbind", "repeat_interleave", "roll", "__get__",
    "gather", "take_along_dim", "flip",
))
"""Functions that move, cut or copy weights; the mask follows through the same call."""

ELEMENTWISE = frozenset((
    "to", "type", "type_as", "float", "half", "bfloat16", "double", "cpu", "cuda", "dropout", "dropout_",
    "feature_dropout", "alpha_dropout", "masked_fill", "masked_fill_", "where", "mul", "mul_", "__mul__",
    "__rmul__", "__imul__", "multiply", "div", "div_", "__truediv__", "__itruediv__", "add", "__add__",
    "__radd__", "sub", "__sub__", "nan_to_num", "nan_to_num_", "clamp", "clamp_", "tril", "triu",
))
# fmt: on
"""Functions that keep weights in place."""

MOVING = (RESHAPING - {"contiguous", "clone", "detach"}) | {
    *("repeat", "tile", "unfold", "ravel", "squeeze_", "unsqueeze_", "pixel_unshuffle", "pixel_shuffle"),
}
"""Functions that move, cut or copy entries."""

JOINING = frozenset({"cat", "concat", "concatenate", "stack"})
MIXING = {
    *("sort", "cumsum", "matrix_exp", "inverse", "fft", "ifft", "multi_head_attention_forward"),
    *("flex_attention", "amax", "amin", "mean", "sum", "index_add", "index_add_", "index_copy", "scatter"),
    *("index_copy_", "scatter_", "scatter_add", "scatter_add_", "zeros_like", "empty_like"),
}
"""Functions whose result may have its argument's shape, with other entries in it."""


@dataclass(frozen=True, eq=False)
class Product:
    """A product of two factors in the form of ``einsum``: a letter for each axis."""

    left: Tensor
    right: Tensor
    left_axes: str
    right_axes: str
    out: str

    @property
    def sides(self) -> tuple[tuple[Tensor, str, Tensor, str], ...]:
        """Each factor with its axes, and the other one."""
        left, right = (self.left, self.left_axes), (self.right, self.right_axes)
        return (*left, *right), (*right, *left)

    def axes(self, letters: str) -> tuple[int | None, ...]:
        """For each axis of the result that of a factor, or None."""
        return tuple(letters.index(each) if each in letters else None for each in self.out)


@dataclass(eq=False)
class TorchCall:
    """One call of a torch function: its arguments, its result, and what was seen inside it."""

    name: str
    func: Callable[..., Any]
    args: Sequence[Any]
    kwargs: dict[str, Any]
    result: Any
    inside: Any = None

    def arguments(self, *names: str) -> dict[str, Any]:
        """The arguments by name; positional ones are named in this order, and NumPy's axis as torch does."""
        named = {"dim" if name == "axis" else name: value for name, value in self.kwargs.items()}
        return dict(zip(names, self.args, strict=False)) | named

    @property
    def is_nested(self) -> bool:
        """Whether one of its tensors is nested, which has no shape."""
        return any(isinstance(part, Tensor) and part.is_nested for part in (*self.args, self.result))

    @cached_property
    def tensors(self) -> list[Tensor]:
        """Its tensor arguments, including those in lists."""
        parts = [part for arg in self.args for part in (arg if isinstance(arg, (list, tuple)) else (arg,))]
        return [part for part in parts if isinstance(part, Tensor)]

    @cached_property
    def product(self) -> Product | None:
        """The call as a product of two factors; None for any other function."""
        name, tensors = self.name, [*self.tensors, *self.kwargs.values()]
        tensors = [value for value in tensors if isinstance(value, Tensor)]
        if name == "einsum":
            return self._einsum(tensors)
        if name in ("baddbmm", "addmm"):
            tensors = tensors[1:]
        if name == "__rmatmul__":
            tensors = tensors[1::-1]
        if len(tensors) < 2 or tensors[0].ndim < 2 or tensors[1].ndim < 2:
            return None
        left, right = tensors[:2]
        if name == "linear":
            lead = LETTERS[: left.ndim - 1]
            return Product(left, right, lead + "x", "yx", lead + "y")
        lead = LETTERS[: self.result.ndim - 2]
        left_axes, right_axes = (lead[len(lead) - (factor.ndim - 2) :] for factor in (left, right))
        axes = {"cdist": ("jx", "ij"), "scaled_dot_product_attention": ("jx", "iy")}.get(name, ("xj", "ij"))
        return Product(left, right, left_axes + "ix", right_axes + axes[0], lead + axes[1])

    def _einsum(self, factors: list[Tensor]) -> Product | None:
        """The product that an einsum spells out, with letters in place of its dots."""
        if len(factors) != 2 or not isinstance(self.args[0], str):
            return None
        equation = self.args[0].replace(" ", "")
        free = [letter for letter in LETTERS if letter not in equation]
        more = factors[0].ndim - len(equation.partition(",")[0].replace("...", ""))
        inputs, arrow, out = equation.replace("...", "".join(free[:more])).partition("->")
        left_axes, right_axes = inputs.split(",")
        return Product(factors[0], factors[1], left_axes, right_axes, out) if arrow else None
