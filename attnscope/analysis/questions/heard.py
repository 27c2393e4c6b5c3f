"""The cross attention of a model that hears, from what is said to what is heard."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from attnscope.attention import Attention, Head, Token
from attnscope.errors import InputError, SelectionError
from attnscope.models import Model, ModelInput
from attnscope.models.huggingface.sounds.speech import SpeechModel


@dataclass(frozen=True, eq=False)
class Across:
    """The cross attention of some heads, from the token before the first that is said, to what is heard."""

    heads: tuple[Head, ...]
    weights: Tensor  # [head, row, frame], float32
    layers: int
    first: int  # row
    frames: int  # with padding


def require_speech(model: Model, prepared: ModelInput) -> SpeechModel:
    """The model that hears, inside of one that is weighed too. Raises ``InputError``."""
    inner = getattr(model, "model", model)
    if not isinstance(inner, SpeechModel) or "cross" not in prepared.axes or prepared.heard is None:
        raise InputError(
            f"{model.name} aligns no words by its heads: that takes a model that hears and writes, "
            "such as Whisper"
        )
    return inner


def said_in(prepared: ModelInput) -> tuple[Token, ...]:
    """What the decoder read."""
    axis = prepared.axes["cross"][0]
    return () if isinstance(axis, range) else axis


def says_something(prepared: ModelInput) -> bool:
    """Whether there is more in what the decoder read than special tokens."""
    return not all(token.special for token in said_in(prepared))


def look_across(model: Model, prepared: ModelInput, heads: Sequence[Head] | None) -> Across:
    """Run the model; of ``heads``, of those in the upper half of the layers if none are named, or of all."""
    said, keys = said_in(prepared), prepared.axes["cross"][1]
    heads = None if heads is None else [Head(head.layer, head.head) for head in heads]
    count = next((number for number, token in enumerate(said) if not token.special), len(said))
    if count == len(said):
        raise InputError("nothing is said: give it as the text, or leave that out for the model to write it")
    assert prepared.heard is not None
    rows = _CrossRows(count - 1, prepared.heard.frames, heads)
    record = model.run(prepared, [rows])
    layers = 1 + max(site.site.layer for site in record.sites if site.site.kind == "cross")
    found = rows.found
    for head in heads or ():
        if head not in found:
            raise SelectionError(f"no cross-attention head {head.name}: this model has layers 0-{layers - 1}")
    upper = heads is not None and not heads
    chosen = tuple(heads or (head for head in found if not upper or head.layer >= layers // 2))
    return Across(chosen, torch.stack([found[head] for head in chosen]), layers, count - 1, len(keys))


@dataclass(eq=False)
class _CrossRows:
    """Keeps the rows from ``first`` on of the cross-attention heads in ``wanted``, or of all."""

    first: int
    frames: int
    wanted: Sequence[Head] | None
    found: dict[Head, Tensor] = field(default_factory=dict)  # each [row, frame]

    def observe(self, attention: Attention) -> None:
        """Compute and keep them."""
        layer = attention.site.layer
        if attention.site.kind != "cross":
            return
        names = {number: Head(layer, number) for number in range(attention.heads)}
        numbers = [number for number, head in names.items() if not self.wanted or head in self.wanted]
        if not numbers:
            return
        rows = attention.rows(self.first, len(attention.queries), numbers)  # [text, head, row, key]
        for number, kept in zip(numbers, rows[0, :, :, : self.frames], strict=True):
            self.found[names[number]] = kept.detach().float().cpu().clone()
