"""Weights whose rows do not sum to 1 when they meet their values: what they gave may be divided yet.

A softmax may be written as ``exp(scores) @ values / exp(scores).sum(-1)``, or over one part of the keys after
another (an online softmax: sums that are scaled anew whenever a higher score comes). So what such weights
gave is followed until their module ends: through moves of its entries, sums with what others gave, and
factors that are alike within a row. The weights shown are those that count in the end: scaled as their rows
were, side by side. They are held against what the module made of its values; where that cannot be followed,
or differs, the module is named instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from attnscope.capture.hooks.modules import Call
from attnscope.capture.lineage.follow import Lineage
from attnscope.capture.lineage.written.mixing import find_mixing
from attnscope.capture.lineage.written.parts import Sum, gives
from attnscope.capture.lineage.written.sums import Sums
from attnscope.capture.lineage.written.weights import Written, find_written, innermost
from attnscope.capture.observer import quietly
from attnscope.capture.rows.weighing import Weighing

LATE = "what its weights gave is scaled row by row in ways that are not followed: nobody knows the weights"
SIGNED = "it weighs values by products of queries and keys, some of them negative: no distribution over keys"
MAPPED = "it weighs values without a softmax inside of torch.vmap, which hides whether weights are negative"
MADE = "its keys are made of several tokens each, so that its weights stand at no tokens"


@dataclass(eq=False)
class Late:
    """Holds such weights until their module ends, and then emits them or says why it is named instead.

    ``ask`` is called before a module is named; ``mixing`` are modules without weights to show, and why.
    """

    emit: Callable[[Weighing, Tensor], None]
    ask: Callable[[], None]
    mixing: dict[str, str] = field(default_factory=dict)

    def begin_pass(self, lineage: Lineage) -> None:
        """Nothing is held."""
        self._lineage, self._sums = lineage, Sums(lineage)
        self._held: dict[Call, list[Written]] = {}

    def weigh(
        self, calls: Sequence[Call], name: str, args: Sequence[Any], kwargs: dict[str, Any], result: Tensor
    ) -> Weighing | None:
        """The weights of a product that no softmax made, if they are whole; others are held or named."""
        written = find_written(self._lineage, calls, name, args, kwargs, result)
        if written is None:
            return None
        if written.mapped:
            self.name(written.call, MAPPED)
            return None
        if written.made or (written.signed and written.tokens and not written.alone):
            self.name(written.call, MADE if written.made else SIGNED)
        if written.made or written.signed:
            return None
        if written.sums_to_one and not written.alone:
            return written.weighing
        if written.named or written.tokens:
            self._held.setdefault(written.call, []).append(written)
            if written.order:
                self._sums.begin(written, result)
        return None

    def name(self, call: Call, reason: str) -> None:
        """A module mixes tokens, and has no weights to show."""
        self.ask()
        self.mixing.setdefault(call.name, reason)

    def see(
        self,
        calls: Sequence[Call],
        name: str,
        func: Callable[..., Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
        result: Any,
    ) -> None:
        """Follow one function, and name its module if it mixes tokens without any weights."""
        why, call = find_mixing(self._lineage, name, args, kwargs, result), innermost(calls)
        if why is not None and call is not None:
            self.name(call, why)
        self._sums.see(name, func, args, kwargs, result)

    def leave(self, call: Call) -> None:
        """A module ends: what it weighed is complete."""
        sums, done = self._sums.end(call), set[Written]()
        whole: list[Weighing | str] = []
        for written in self._held.pop(call, ()):
            mine = [each for each in sums if any(part.written is written for part in each.parts)]
            if written in done or (written.alone and all(len(each.parts) < 2 for each in mine)):
                continue
            found: Weighing | str = LATE
            if len(mine) == 1 and not mine[0].lost:
                found = self._join(mine[0])
                done |= {part.written for part in mine[0].parts} if found != LATE else set()
            known = not any(each.lost or each.scaled for each in mine) and (mine or not written.order)
            if found == LATE and known and gives(written.weighing):
                found = written.weighing
            whole.append(found)
        if why := next((each for each in whole if isinstance(each, str)), None):
            return self.name(call, why)
        with quietly():
            for each in whole:
                assert not isinstance(each, str)
                self.emit(each, each.weights)

    def _join(self, known: Sum) -> Weighing | str:
        """The weights of a sum, or why there are none."""
        with quietly(), torch.no_grad():
            whole = self._sums.choose(known)
        if whole is None:
            return LATE
        return SIGNED if float(whole.weights.amin()) < 0 else whole
