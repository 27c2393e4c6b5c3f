"""When each word is said: from the cross attention of a model that hears and writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attnscope.analysis.questions.heard import look_across, require_speech, said_in
from attnscope.analysis.questions.said import SaidToken, Word, join_words
from attnscope.attention import Head
from attnscope.axes import Array
from attnscope.comparison.warping import first_columns, most_on_way
from attnscope.models import Model, ModelInput

WIDTH = 7
"""Frames that a median is taken over, where the model does not say how many."""

WIDEST = 99


@dataclass(frozen=True, eq=False)
class Alignment:
    """When each token and each word is said; ``way`` says by which heads.

    The sound is heard from the second ``begin`` of its file to the second ``seconds``.
    """

    tokens: tuple[SaidToken, ...]
    words: tuple[Word, ...]
    heads: tuple[Head, ...]
    way: str
    title: str
    begin: float
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


def align_words(model: Model, prepared: ModelInput, heads: Sequence[Head] = ()) -> Alignment:
    """When each word is said, by ``heads``, or those that the model names, or half of all heads.

    Raises ``InputError`` where nothing is said, ``SelectionError`` for a head that does not exist.
    """
    speech = require_speech(model, prepared)
    way = "chosen"
    if not heads:
        heads, way = speech.alignment_heads, "the alignment heads that the model names"
    result = look_across(model, prepared, heads)
    if not heads:
        half = result.layers // 2
        way = f"all heads of the layers {half}-{result.layers - 1}, as the model names no alignment heads"
    assert prepared.heard is not None
    seconds = prepared.heard.seconds
    frames = token_frames(result.weights, getattr(model.module.config, "median_filter_width", WIDTH))
    times = [round(prepared.heard.begin + int(frame) * seconds, 6) for frame in frames]
    said = said_in(prepared)[result.first + 1 :]
    tokens = tuple(map(SaidToken, said, times, times[1:]))  # a row looks for the token after its own
    words = join_words(tokens, speech.reader.vocabulary)
    notes = (*model.notes, *prepared.notes)
    end = prepared.heard.begin + prepared.heard.frames * seconds
    return Alignment(tokens, words, result.heads, way, model.title, prepared.heard.begin, end, notes)


def rank_monotone(model: Model, prepared: ModelInput) -> tuple[MonotoneHead, ...]:
    """All heads by how much of their attention goes forward through the sound, the most first."""
    require_speech(model, prepared)
    result = look_across(model, prepared, None)
    rows, frames = result.weights.shape[1:]
    shares = most_on_way(result.weights.numpy()) / rows
    baseline = (rows + frames - 1) / (rows * result.frames)
    found = zip(result.heads, map(float, shares), strict=True)
    ranked = sorted(found, key=lambda each: -each[1])
    return tuple(MonotoneHead(head, share, baseline) for head, share in ranked)


def token_frames(weights: Tensor, width: object) -> Array:
    """The frame in which each row's search begins.  [head, row, frame] -> [row]

    Each head's weights are standardized over the rows, smoothed by a median over ``width`` frames, averaged,
    and followed by dynamic time warping: as transformers does it for Whisper.
    """
    return first_columns(-torch.from_numpy(smooth_rows(weights, width)).mean(0).double().numpy())


def smooth_rows(weights: Tensor, width: object) -> Array:
    """What stands out of each head's rows, smoothed.  [head, row, frame] -> [head, row, frame]"""
    from scipy.ndimage import median_filter

    spread = torch.std(weights, dim=-2, keepdim=True, unbiased=False)
    clear = (weights - torch.mean(weights, dim=-2, keepdim=True)) / spread
    smooth: Array = torch.where(spread > 0, clear, 0).numpy()  # 0 where no row stands out
    width = width if isinstance(width, int) and 0 < width <= WIDEST and width % 2 else WIDTH
    if smooth.shape[-1] > width // 2:
        smooth = median_filter(smooth, size=(1, 1, width), mode="mirror")
    return smooth
