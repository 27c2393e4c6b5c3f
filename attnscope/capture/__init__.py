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

_WHERE = {
    "FUSED": "record",
    "CoarseMap": "observers.coarsen",
    "Coarsen": "observers.coarsen",
    "Failure": "record",
    "Keep": "observers.rows",
    "Kept": "observers.rows",
    "KnownPasses": "known_passes",
    "LayerWithoutAttention": "record",
    "Observer": "observer",
    "Record": "record",
    "Replay": "record",
    "RowSum": "observers.rows",
    "RowSums": "observers.rows",
    "SiteRecord": "record",
    "Steps": "rows.steps",
    "recording": "passes",
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'attnscope.capture' has no attribute {name!r}")
    return getattr(import_module(f"attnscope.capture.{_WHERE[name]}"), name)
