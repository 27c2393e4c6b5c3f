"""Find every attention call inside a forward pass, with the model's own kernels untouched."""

from attnscope.capture.keep import Keep, Kept
from attnscope.capture.pool import Pool, Pooled
from attnscope.capture.record import Hole, Record, SiteRecord
from attnscope.capture.recorder import Observer
from attnscope.capture.recording import recording
from attnscope.capture.reported import fault
from attnscope.capture.rowsums import RowSum, RowSums
from attnscope.capture.steps import Replay, Steps

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
    "fault",
    "recording",
]
