"""Which part of a picture or a sound each token stands for, found by experiment."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from attnscope.attention import Kind
from attnscope.axes import Array
from attnscope.models.lattice import (
    Entered,
    Region,
    enter,
    find_coordinates,
    find_moved,
    find_owners,
    find_regions,
)

DIPS = 12
"""Moments at which a noise is made quiet, one after the other."""

QUIETER = 0.1
"""What a dip leaves of the noise."""

NOTHING = 1e-6
"""Tokens that answer less than this share of the most do not hear."""

BESIDE = 0.75
"""Tokens that a dip may lie beside the line through all of them."""

NEARLY = 0.2
"""Tokens that rounder numbers may be worse by."""

Prepare = Callable[[Array], Tensor]
"""What a processor makes of a sound, [sample] in float32."""


class Moments(NamedTuple):
    """The tokens that hear, on an axis of ``length``, in order; each lasts ``seconds``, the first from 0 on.

    ``seconds`` is ``None`` where time does not go through them evenly.
    """

    tokens: tuple[int, ...]
    seconds: float | None
    kind: Kind
    length: int


def find_moments(
    module: nn.Module, inputs: Mapping[str, Any], name: str, prepare: Prepare, samples: int, rate: int
) -> Moments | None:
    """Let a model hear noise that is quiet for a moment, and see which tokens answer while attention is held.

    How far a token moves with what such a dip changes in ``inputs[name]`` is a derivative: that of the
    gradient by its weights. The middle of the tokens that answer belongs to the time of the dip; all dips
    together lie on a line, the tokens' time. ``None`` if nothing that enters the language model hears.
    """
    entered = enter(module, inputs, name)
    if entered is None:
        return None
    loud = prepare(make_noise(samples))
    answer = _responses(entered)
    heard = answer(prepare(make_noise(samples) * QUIETER) - loud)
    tokens = np.flatnonzero(heard > NOTHING * heard.max(initial=0))
    if not len(tokens):
        return None
    middles, times = np.full(DIPS, np.nan), np.zeros(DIPS)
    for number, (wave, middle) in enumerate(dips(samples)):
        times[number] = middle / rate
        moved = answer(prepare(wave) - loud)[tokens] ** 2
        if moved.sum() > 0:
            middles[number] = (moved * np.arange(len(tokens))).sum() / moved.sum()
    pace = samples / rate if len(tokens) == 1 else _pace(middles, times)  # one is the whole sound
    return Moments(tuple(tokens.tolist()), pace, entered.kind, len(entered.states))


def make_noise(samples: int) -> Array:
    """Noise that is the same each time.  -> [sample]"""
    noise: Array = np.random.default_rng(0).standard_normal(samples).astype(np.float32) * 0.1
    return noise


def dips(samples: int) -> Iterator[tuple[Array, float]]:
    """The noise with each of its moments made quiet, with the middle of that moment, in samples."""
    width = max(1, samples // (4 * DIPS))
    for start in ((np.arange(DIPS) + 0.5) / DIPS * samples).astype(int) - width // 2:
        wave = make_noise(samples)
        wave[start : start + width] *= QUIETER
        yield wave, start + width / 2


def _responses(entered: Entered) -> Callable[[Tensor], Array]:
    """How far each token moves with a change of what is given.  [given] -> [token]"""
    states, given, _ = entered
    weights = torch.zeros_like(states, requires_grad=True)
    (gradient,) = torch.autograd.grad(states, given, weights, create_graph=True)

    def answer(change: Tensor) -> Array:
        (moved,) = torch.autograd.grad(
            (gradient * change.to(gradient)).sum(), weights, retain_graph=True, allow_unused=True
        )
        norms: Array = np.zeros(len(states)) if moved is None else moved.double().norm(dim=-1).cpu().numpy()
        return norms

    return answer


def _pace(middles: Array, times: Array) -> float | None:
    """The seconds of a token, if all dips lie on one line that begins at 0: in hundredths if these fit."""
    known = np.isfinite(middles)
    if known.sum() < DIPS // 2:
        return None
    middles, times = middles[known], times[known]
    if np.ptp(middles) < BESIDE:  # all dips in one token
        return None
    slope = float(np.polyfit(middles, times, 1)[0])
    fits = {}
    for digits in (3, 2):
        seconds = round(slope, digits)
        if seconds > 0:
            places = times / seconds - middles  # of the first token's middle, in tokens, by each dip
            begin = float(places.mean()) - 0.5
            fits[digits] = seconds, max(float(np.abs(places - places.mean()).max()), abs(begin))
    if not fits or fits[3][1] > BESIDE:
        return None
    return fits[2][0] if 2 in fits and fits[2][1] < fits[3][1] + NEARLY else fits[3][0]


__all__ = [
    "Moments",
    "Region",
    "find_coordinates",
    "find_moments",
    "find_moved",
    "find_owners",
    "find_regions",
]
