"""Find every attention call inside a forward pass, with the model's own kernels untouched."""

from attnscope.capture.observer import Observer
from attnscope.capture.observers.coarsen import CoarseMap, Coarsen
from attnscope.capture.observers.keep import Keep, Kept
from attnscope.capture.observers.row_sums import RowSum, RowSums
from attnscope.capture.record import Failure, LayerWithoutAttention, Record, SiteRecord
from attnscope.capture.recording import recording
from attnscope.capture.rows.capture import FUSED
from attnscope.capture.rows.steps import Replay, Steps

__all__ = [
    "FUSED",
    "CoarseMap",
    "Coarsen",
    "Failure",
    "Keep",
    "Kept",
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
