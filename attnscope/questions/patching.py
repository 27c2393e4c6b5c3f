"""What a head carries from one text into another: its output, or a part of it, put into the other pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from attnscope.attention import Attention, AttentionCall, Head
from attnscope.capture import Record, recording
from attnscope.capture.hooks.gate import edited
from attnscope.capture.rows.proof import mix
from attnscope.capture.rows.scores import ScoredRows
from attnscope.errors import InputError, ModelError
from attnscope.models import Model, ModelInput
from attnscope.models.targets import score_prediction
from attnscope.questions.cause import (
    BLOCK,
    SAME,
    Change,
    ChangedHead,
    Intervention,
    Made,
    Scored,
    calls_of,
    mixed_values,
    require_texts,
    sweep_heads,
)
from attnscope.questions.importance import gated_sites
from attnscope.questions.selection import Selection
from attnscope.questions.sentences import name_pass, quote_text, require_selected

What: TypeAlias = Literal["output", "q", "k", "v", "pattern"]
"""What of a head is put into another pass."""

PARTS: Mapping[What, tuple[str, Sequence[str]]] = {
    "output": ("outputs", ()),
    "q": ("queries", ("query",)),
    "k": ("keys", ("key",)),
    "v": ("values", ("value",)),
    "pattern": ("weights", ("query", "key")),
}
"""What each is in words, and which terms of the call it is."""


@dataclass(eq=False)
class OtherPass:
    """Observer: keeps of the other text's pass what a patch needs of every call."""

    what: What
    calls: list[AttentionCall | Tensor | None] = field(default_factory=list)

    def observe(self, attention: Attention) -> None:
        """Keep what a call received, where that is patched."""
        self.calls.append(None if self.what == "output" else _call(attention))

    def keep(self, number: int, output: Tensor) -> None:
        """Keep what a call returned, [batch, query, head, size], as [batch, head, query, size]."""
        if self.what == "output":
            self.calls[number] = output.detach().transpose(1, 2).clone()


def _call(attention: Attention) -> AttentionCall:
    if not isinstance(attention.read, ScoredRows):
        raise ModelError(
            f"{attention.site.name} shows weights without its queries and keys: patch --what output"
        )
    return attention.read.call


def patch_heads(other: OtherPass) -> Change:
    """Give every head what it had in another text's pass: all of its output, or a part of what makes it."""

    def change(number: int, attention: Attention) -> Made | None:
        if number >= len(other.calls):
            raise InputError("the passes of the two texts have different numbers of attention calls")
        theirs, count = other.calls[number], len(attention.queries)
        values, rows = mixed_values(attention), torch.arange(count)
        before = torch.cat(
            [mix(attention.rows(at, min(at + BLOCK, count)), values) for at in range(0, count, BLOCK)], 2
        )
        if isinstance(theirs, Tensor):
            return Made(rows, theirs, before)
        changed = replace(_call(attention), **{name: getattr(theirs, name) for name in PARTS[other.what][1]})
        read = ScoredRows(changed)
        blocks = [read.rows(at, min(at + BLOCK, count), None) for at in range(0, count, BLOCK)]
        return Made(rows, torch.cat([mix(block, changed.value) for block in blocks], 2), before)

    return change


def patch(
    model: Model,
    clean: ModelInput,
    corrupt: ModelInput,
    selection: Selection | None = None,
    *,
    heads: Sequence[Head] = (),
    what: What = "output",
    noise: bool = False,
    fast: bool = False,
    target: str | None = None,
    against: str | None = None,
) -> Intervention:
    """Put each head of one text into the pass of the other: how much of the difference comes with it.

    The prediction is that of ``clean``. Heads of ``clean`` go into the pass of ``corrupt``, or the other way
    with ``noise``. ``fast`` estimates all effects of outputs from one gradient. Raises ``InputError`` for
    texts of different lengths or with the same score.
    """
    selection = selection or Selection()
    require_texts(clean, corrupt)
    donor, base = (corrupt, clean) if noise else (clean, corrupt)
    other = OtherPass(what)
    with torch.no_grad(), model.threads(base):
        prediction = score_prediction(model, clean, target, against)
        theirs, mine = Scored(model, donor, prediction), Scored(model, base, prediction)
        with recording(model.module, [other], donor.axes, warn=False), edited(other.keep):
            reference = theirs.score(theirs.logits())
        score = mine.score(mine.logits())
        whole = float(reference - score)
        if abs(whole) < SAME:
            raise InputError(
                f"both texts give the same score ({float(score):.4g}): choose a target that they tell apart"
            )
        if fast:
            found, record = _estimate(mine, other, selection, heads, whole)
            together = None
        else:
            _, found, together, record = sweep_heads(mine, patch_heads(other), selection, heads, whole)
    return Intervention(
        changed=f"patch {PARTS[what][0]} of {'the other text into this' if noise else 'this into the other'}",
        prediction=prediction.description,
        unit=mine.unit,
        score=float(score),
        reference=float(reference),
        heads=tuple(found),
        together=together,
        estimated=fast,
        title=f"{name_pass(model, base)} ← {quote_text(donor)}",
        notes=(*model.notes, *clean.notes, *record.notes),
    )


def _estimate(
    scored: Scored, other: OtherPass, selection: Selection, heads: Sequence[Head], whole: float
) -> tuple[list[ChangedHead], Record]:
    """The effect of each head's output from one gradient: the slope of the score times the difference."""
    if other.what != "output":
        raise InputError("--fast estimates the effect of outputs: leave out --what")
    model, added, mine = scored.model, list[Tensor](), list[Tensor]()

    def add(number: int, output: Tensor) -> Tensor:
        mine.append(output.detach())
        added.append(torch.zeros_like(output, requires_grad=True))
        return output + added[-1]

    with (
        torch.enable_grad(),
        recording(model.module, warn=False) as record,
        edited(add) as gates,
    ):
        score = scored.score(scored.logits())
        slopes = torch.autograd.grad(score, added, allow_unused=True)
    sites = gated_sites(model, record, gates)
    found = []
    for head, calls in calls_of(sites, gates.heads, selection, heads).items():
        moved = 0.0
        for call in calls:
            theirs, slope = other.calls[call], slopes[call]
            if slope is not None and isinstance(theirs, Tensor):
                difference = theirs.transpose(1, 2) - mine[call]
                moved += float((slope * difference)[:, :, head.head].sum())
        found.append(ChangedHead(moved / whole, float(score.detach()) + moved, float("nan"), head))
    require_selected(found, record, selection)
    found.sort(key=lambda each: -abs(each.effect))
    return found, record
