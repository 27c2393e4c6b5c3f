"""A call that the fused pass computes in the kernel's place."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from attnscope.capture.record import tolerance
from attnscope.capture.rows.capture import Capture
from attnscope.capture.rows.scores import ScoredRows
from attnscope.fused.fused_pass import FusedPass, Refusal


def fuse(fused: FusedPass | None, capture: Capture) -> tuple[Tensor | None, Capture]:
    """The output and statistics of the fused pass; no output, and why, where the kernel has to run."""
    if fused is None or not isinstance(capture.read, ScoredRows):
        return None, capture
    call = capture.read.call
    try:
        output, statistics = fused.attend(call)
    except Refusal as refusal:
        return None, replace(capture, refusal=str(refusal))
    computed = capture.fused(statistics).proved(call.value, output)
    if computed.difference is not None and computed.difference > tolerance(call.query.dtype):
        reason = f"rows of its output differ from their formula by {computed.difference:.2g}"
        return None, replace(capture, refusal=reason)
    return output, computed
