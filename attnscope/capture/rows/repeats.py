"""Attention that a module computes once, and weighs several values with."""

from __future__ import annotations

import torch
from torch import Tensor

from attnscope.attention import AttentionCall
from attnscope.capture.hooks.modules import Call
from attnscope.capture.rows.proof import sample_rows
from attnscope.capture.rows.scores import ScoredRows
from attnscope.capture.tracker import Pass, Taken, Tracker


class Repeats(Tracker):
    """Knows the attention that a module's call showed last."""

    def __init__(self, recorder: Pass) -> None:
        super().__init__(recorder)
        self._latest: tuple[Call, AttentionCall, Tensor] | None = None

    def take(self, taken: Taken) -> bool:
        """Whether a module weighed other values with the very same weights a second time in one call.

        The same tensors alone do not say so: the module may have written new numbers into them. So a few
        rows of weights are compared too.
        """
        before, capture, module = self._latest, taken.capture, self.recorder.call_of(taken.name)
        if module is None or not isinstance(capture.read, ScoredRows):
            return False
        call, rows = capture.read.call, capture.read.pick(sample_rows(capture.queries))
        self._latest = module, call, rows
        if before is None or before[0] is not module:
            return False
        same = before[1].query is call.query and before[1].key is call.key
        return same and torch.equal(rows, before[2])

    def leave(self, call: Call, output: object) -> None:
        """A module's call ends, and its tensors are let go."""
        if self._latest is not None and self._latest[0] is call:
            self._latest = None
