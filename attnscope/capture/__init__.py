"""Find every attention call inside a forward pass, with the model's own kernels untouched.

Each name is loaded on first use, so that records can be read without torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attnscope.capture.known_passes import KnownPasses
    from attnscope.capture.observer import Observer
    from attnscope.capture.observers.coarsen import CoarseMap, Coarsen
    from attnscope.capture.observers.rows import Keep, Kept, RowSum, RowSums
    from attnscope.capture.passes import recording
    from attnscope.capture.record import FUSED, Failure, LayerWithoutAttention, Record, Replay, SiteRecord
    from attnscope.capture.rows.steps import Steps

__all__ = [
    "FUSED",
    "CoarseMap",
    "Coarsen",
    "Failure",
    "Keep",
    "Kept",
    "KnownPasses",
    "LayerWithoutAttention",
    "Observer",
    "Record",
    "Replay",
    "RowSum",
    "RowSums",
    "SiteRecord",
    "Steps",
    "recording",
]

_HOMES = {
    "known_passes": ("KnownPasses",),
    "observer": ("Observer",),
    "observers.coarsen": ("CoarseMap", "Coarsen"),
    "observers.rows": ("Keep", "Kept", "RowSum", "RowSums"),
    "passes": ("recording",),
    "record": ("FUSED", "Failure", "LayerWithoutAttention", "Record", "Replay", "SiteRecord"),
    "rows.steps": ("Steps",),
}


def __getattr__(name: str) -> Any:
    home = next((home for home, names in _HOMES.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module 'attnscope.capture' has no attribute {name!r}")
    return getattr(import_module(f"attnscope.capture.{home}"), name)
