"""What the cross attention of one sound shows of each word: where it looks most, and when it is said."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch

from attnscope.analysis.gold.asked import group_tokens
from attnscope.analysis.questions.align import smooth_rows
from attnscope.analysis.questions.heard import look_across, require_speech, said_in
from attnscope.attention import Head
from attnscope.axes import Array
from attnscope.comparison.warping import first_columns
from attnscope.models import Model, ModelInput
from attnscope.storage.gold import TimedText
from attnscope.storage.gold.texts import Span

EDGE = 1e-6
"""Frames that a word must reach into another to be there: times are rounded."""

HEADS_AT_ONCE = 16
"""Heads that are aligned together: the ways through one at length take some megabytes."""


@dataclass(frozen=True, eq=False)
class Moments:
    """The words of one sound, and how well each head finds them.

    ``right``: the strongest moment of a word lies inside of it; ``weight``: what goes inside; ``off``: how
    many seconds its begin and end lie beside the true ones, if this head alone aligns it. ``even`` is the
    weight on even attention. ``rows`` are the first row of a word and the one behind its last, ``times`` when
    it begins and ends; ``pace`` is how many seconds the sound has for each row. ``lost`` words lack tokens.
    """

    heads: tuple[Head, ...]
    right: Array  # [head, word]
    weight: Array  # [head, word]
    off: Array  # [head, word]
    even: Array  # [word]
    rows: Array  # [word, 2]
    times: Array  # [word, 2]
    pace: float
    lost: int


def find_moments(model: Model, prepared: ModelInput, text: TimedText) -> Moments:
    """Run the model once, and ask every cross-attention head where it looks before each word is written.

    A word is looked for from the tokens before its own: a row belongs to the token that it predicts, as in
    the alignment of Whisper. Raises ``InputError`` where there is no such attention.
    """
    require_speech(model, prepared)
    result = look_across(model, prepared, None)
    assert prepared.heard is not None
    seconds = prepared.heard.seconds
    groups = group_tokens(said_in(prepared), text.text, _places(text))
    pieces: dict[int, list[int]] = {}
    for token, group in enumerate(groups.of_token):
        pieces.setdefault(group, []).append(token - result.first - 1)
    found = [
        (word, pieces[groups.of_word[number]])
        for number, word in enumerate(text.words)
        if number in groups.of_word
    ]
    rows = np.array([(each[0], each[-1] + 1) for _, each in found]).reshape(-1, 2)
    times = np.array([(word.begin, word.end) for word, _ in found]).reshape(-1, 2)
    weights = result.weights.numpy()  # [head, row, frame]
    frames, edges = np.arange(weights.shape[2]), times / seconds
    inside = (frames < edges[:, 1:] - EDGE) & (frames + 1 > edges[:, :1] + EDGE)  # [word, frame]
    averaged = [weights[:, start:stop].mean(1) for start, stop in rows]  # [head, frame] each
    looks = np.stack(averaged, 1) if averaged else weights[:, :0]  # [head, word, frame]
    best = looks.argmax(-1)  # [head, word]
    width = getattr(model.module.config, "median_filter_width", None)
    parts = torch.split(result.weights, HEADS_AT_ONCE)
    ways = [first_columns(-smooth_rows(part, width).astype(np.float64)) for part in parts]
    way = np.concatenate(ways) * seconds  # [head, row]
    return Moments(
        result.heads,
        inside[np.arange(len(rows)), best],
        (looks * inside).sum(-1),
        np.abs(way[:, rows] - times).mean(-1),
        inside.sum(-1) / result.frames,
        rows,
        times,
        prepared.heard.frames * seconds / weights.shape[1],
        len(text.words) - len(found),
    )


def _places(text: TimedText) -> list[Span]:
    """Where its words stand in what is said."""
    ends = accumulate(len(word.text) + 1 for word in text.words)
    return [(end - 1 - len(word.text), end - 1) for word, end in zip(text.words, ends, strict=True)]
