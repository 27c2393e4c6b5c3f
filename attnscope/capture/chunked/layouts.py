"""Which modules attend in chunks, and who puts them together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from torch import Tensor

from attnscope.capture.chunked import longformer, pegasus_x, reformer
from attnscope.capture.chunked.chunks import ChunkedRows, Notes

Layout: TypeAlias = Callable[[Any, tuple[Tensor, ...], Notes], "ChunkedRows | None"]
"""Makes rows of a module, the tensors that it was given and what it computed; None where it cannot."""

LAYOUTS: dict[str, Layout] = {
    "LEDEncoderSelfAttention": longformer.lay_out,
    "LSHSelfAttention": reformer.lay_out_hashed,
    "LocalSelfAttention": reformer.lay_out_local,
    "LongformerSelfAttention": longformer.lay_out,
    "PegasusXGlobalLocalAttention": pegasus_x.lay_out,
}
"""By the class's name, for classes of transformers."""


def layout_of(module: object) -> Layout | None:
    """Who puts a module's attention together; None for all modules that attend in one chunk."""
    cls = type(module)
    return LAYOUTS.get(cls.__name__) if cls.__module__.startswith("transformers.models.") else None
