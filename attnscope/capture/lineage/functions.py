"""What the functions of torch do to the entries of a tensor, by name."""

from __future__ import annotations

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
