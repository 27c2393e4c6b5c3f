"""What the functions of torch do to the entries of a tensor, by name."""

from __future__ import annotations

from attnscope.capture.hooks.softmax import RESHAPING

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
