"""Which modules attend in pieces, and who puts them together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from torch import Tensor

from attnscope.capture.chunked import longformer, pegasus_x, reformer
from attnscope.capture.chunked.pieces import PiecedRows, Trace

Placer: TypeAlias = Callable[[Any, tuple[Tensor, ...], Trace], "PiecedRows | None"]
"""Makes rows of a module, the tensors that it was given and what it computed; None where it cannot."""

PLACERS: dict[str, Placer] = {
    "LEDEncoderSelfAttention": longformer.placed,
    "LSHSelfAttention": reformer.hashed,
    "LocalSelfAttention": reformer.local,
    "LongformerSelfAttention": longformer.placed,
    "PegasusXGlobalLocalAttention": pegasus_x.placed,
}
"""By the class's name, for classes of transformers."""


def placer_of(module: object) -> Placer | None:
    """Who puts a module's attention together; None for all modules that attend in one piece."""
    cls = type(module)
    return PLACERS.get(cls.__name__) if cls.__module__.startswith("transformers.models.") else None
