"""Find every attention call inside a forward pass, with the model's own kernels untouched."""

from attnscope.capture.observers.keep import Keep, Kept
from attnscope.capture.observers.pool import Pool, Pooled
from attnscope.capture.observers.row_sums import RowSum, RowSums
from attnscope.capture.record import Hole, Record, SiteRecord
from attnscope.capture.recorder import Observer
from attnscope.capture.recording import recording
from attnscope.capture.rows.steps import Replay, Steps

__all__ = [
    "Hole",
    "Keep",
    "Kept",
    "Observer",
    "Pool",
    "Pooled",
    "Record",
    "Replay",
    "RowSum",
    "RowSums",
    "SiteRecord",
    "Steps",
    "recording",
]
