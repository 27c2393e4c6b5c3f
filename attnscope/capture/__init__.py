"""Find every attention call inside a forward pass, with the model's own kernels untouched.

Each name is loaded on first use, so that records can be read without torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attnscope.capture.known_passes import KnownPasses
    from attnscope.capture.observers import Coarsen, Keep, Kept, RowSums
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

__all__ = [
    "FUSED",
    "Coarsen",
    "Failure",
    "Keep",
    "Kept",
    "KnownPasses",
    "LayerWithoutAttention",
    "Observer",
    "Record",
    "Replay",
    "RowSums",
    "SiteRecord",
    "Steps",
    "recording",
]

_HOMES = {
    "known_passes": ("KnownPasses",),
    "observers": ("Coarsen", "Keep", "Kept", "RowSums"),
    "recorder": ("recording",),
    "record": ("FUSED", "Failure", "LayerWithoutAttention", "Observer", "Record", "Replay", "SiteRecord"),
    "rows.steps": ("Steps",),
}


def __getattr__(name: str) -> Any:
    home = next((home for home, names in _HOMES.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module 'attnscope.capture' has no attribute {name!r}")
    return getattr(import_module(f"attnscope.capture.{home}"), name)
