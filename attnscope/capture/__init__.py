"""Find every attention call inside a forward pass, with the model's own kernels untouched.

Each name is loaded on first use, so that records can be read without torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attnscope.capture.known_passes import KnownPasses
    from attnscope.capture.observers import Coarsen, RowSums
    from attnscope.capture.record import (
        FUSED,
        Failure,
        LayerWithoutAttention,
        Observer,
        Record,
        Replay,
        SiteRecord,
    )
    from attnscope.capture.recorder import recording
    from attnscope.capture.rows.steps import Steps

__all__ = ["FUSED", "Failure", "LayerWithoutAttention", "Observer", "Record", "Replay", "SiteRecord"]
__all__ += ["Coarsen", "KnownPasses", "RowSums", "Steps", "recording"]

_HOMES = {"Coarsen": "observers", "KnownPasses": "known_passes", "RowSums": "observers"}
_HOMES |= {"Steps": "rows.steps", "recording": "recorder"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'attnscope.capture' has no attribute {name!r}")
    return getattr(import_module(f"attnscope.capture.{_HOMES.get(name, 'record')}"), name)
