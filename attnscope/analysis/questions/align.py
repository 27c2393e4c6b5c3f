"""When each word is said: from the cross attention of a model that hears and writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from attnscope.analysis.questions.said import SaidToken, Word, join_words
from attnscope.attention import Attention, Head, Token
from attnscope.axes import Array
from attnscope.comparison.warping import first_columns, most_on_way
from attnscope.errors import InputError, SelectionError
from attnscope.models import Model, ModelInput
from attnscope.models.huggingface.speech import SpeechModel

WIDTH = 7
"""Frames that a median is taken over, where the model does not say how many."""

WIDEST = 99


@dataclass(frozen=True, eq=False)
class Alignment:
    """When each token and each word is said; ``way`` says by which heads."""

    tokens: tuple[SaidToken, ...]
    words: tuple[Word, ...]
    heads: tuple[Head, ...]
    way: str
    title: str
    seconds: float
    notes: tuple[str, ...]


@dataclass(frozen=True)
class MonotoneHead:
    """How much of a head's attention lies on the best way that only goes forward through the sound.

    ``share`` is that of each token, on average, ``baseline`` the same of even attention.
    """

    head: Head
    share: float
    baseline: float


@dataclass(frozen=True, eq=False)
class _Seen:
    """The cross attention of some heads, from the token before the first that is said, to what is heard."""

    heads: tuple[Head, ...]
    weights: Tensor  # [head, row, frame], float32
    layers: int
    first: int  # row
    frames: int  # with padding


def align_words(model: Model, prepared: ModelInput, heads: Sequence[Head] = ()) -> Alignment:
    """When each word is said, by ``heads``, or those that the model names, or half of all heads.

    Raises ``InputError`` where nothing is said, ``SelectionError`` for a head that does not exist.
    """
    speech = _require_speech(model, prepared)
    way = "chosen"
    if not heads:
        heads, way = speech.alignment_heads, "the alignment heads that the model names"
    seen = _look(model, prepared, heads)
    if not heads:
        half = seen.layers // 2
        way = f"all heads of the layers {half}-{seen.layers - 1}, as the model names no alignment heads"
    assert prepared.heard is not None
    seconds = prepared.heard.seconds
    frames = token_frames(seen.weights, getattr(model.module.config, "median_filter_width", WIDTH))
    times = [round(int(frame) * seconds, 6) for frame in frames]
    said = _said(prepared)[seen.first + 1 :]
    tokens = tuple(map(SaidToken, said, times, times[1:]))  # a row looks for the token after its own
    words = join_words(tokens, speech.reader.vocabulary)
    notes = (*model.notes, *prepared.notes)
    length = prepared.heard.frames * seconds
    return Alignment(tokens, words, seen.heads, way, model.title, length, notes)


def rank_monotone(model: Model, prepared: ModelInput) -> tuple[MonotoneHead, ...]:
    """All heads by how much of their attention goes forward through the sound, the most first."""
    _require_speech(model, prepared)
    seen = _look(model, prepared, None)
    rows, frames = seen.weights.shape[1:]
    shares = most_on_way(seen.weights.numpy()) / rows
    baseline = (rows + frames - 1) / (rows * seen.frames)
    found = zip(seen.heads, map(float, shares), strict=True)
    ranked = sorted(found, key=lambda each: -each[1])
    return tuple(MonotoneHead(head, share, baseline) for head, share in ranked)


def token_frames(weights: Tensor, width: int) -> Array:
    """The frame in which each row's search begins.  [head, row, frame] -> [row]

    Each head's weights are standardized over the rows, smoothed by a median over ``width`` frames, averaged,
    and followed by dynamic time warping: as transformers does it for Whisper.
    """
    from scipy.ndimage import median_filter

    spread = torch.std(weights, dim=-2, keepdim=True, unbiased=False)
    clear = (weights - torch.mean(weights, dim=-2, keepdim=True)) / spread
    clear = torch.where(spread > 0, clear, 0)  # where no row stands out
    smooth = clear.numpy()
    width = width if isinstance(width, int) and 0 < width <= WIDEST and width % 2 else WIDTH
    if smooth.shape[-1] > width // 2:
        smooth = median_filter(smooth, size=(1, 1, width), mode="mirror")
    return first_columns(-torch.from_numpy(smooth).mean(0).double().numpy())


def _require_speech(model: Model, prepared: ModelInput) -> SpeechModel:
    """The model that hears, inside of one that is weighed too. Raises ``InputError``."""
    inner = getattr(model, "model", model)
    if not isinstance(inner, SpeechModel) or "cross" not in prepared.axes or prepared.heard is None:
        raise InputError(
            f"{model.name} aligns no words: that takes a model that hears and writes, such as Whisper"
        )
    return inner


def _said(prepared: ModelInput) -> tuple[Token, ...]:
    """What the decoder read."""
    axis = prepared.axes["cross"][0]
    return () if isinstance(axis, range) else axis


def _look(model: Model, prepared: ModelInput, heads: Sequence[Head] | None) -> _Seen:
    """Run the model; of ``heads``, of those in the upper half of the layers if none are named, or of all."""
    said, keys = _said(prepared), prepared.axes["cross"][1]
    count = next((number for number, token in enumerate(said) if not token.special), len(said))
    if count == len(said):
        raise InputError("nothing is said: give it as the text, or leave that out for the model to write it")
    assert prepared.heard is not None
    rows = _CrossRows(count - 1, prepared.heard.frames, heads)
    record = model.run(prepared, [rows])
    layers = 1 + max(seen.site.layer for seen in record.sites if seen.site.kind == "cross")
    found = rows.found
    for head in heads or ():
        if head not in found:
            raise SelectionError(f"no cross-attention head {head.name}: this model has layers 0-{layers - 1}")
    upper = heads is not None and not heads
    chosen = tuple(heads or (head for head in found if not upper or head.layer >= layers // 2))
    return _Seen(chosen, torch.stack([found[head] for head in chosen]), layers, count - 1, len(keys))


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
