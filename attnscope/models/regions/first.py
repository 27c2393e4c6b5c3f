"""Which moment of a sound each token stands for that a model attends to first, found by experiment."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from attnscope.attention import Attention, Kind
from attnscope.axes.weights import Array
from attnscope.capture import recording
from attnscope.models.regions.moments import DIPS, NOTHING, QUIETER, Prepare, dips, make_noise

FAINT = 0.1
"""The share of the most below which a token answers to what a dip does to the whole sound, as its norm."""

CLOSE = 0.03
"""The share of its length that a token may differ from its part of the sound: convolutions cut the ends."""

BESIDE = 0.75
"""Tokens that a dip may lie beside the line through all of them."""


class FirstMoments(NamedTuple):
    """The time of what a model attends to first: each token lasts ``seconds``, the token ``begin`` from 0 on.

    There may be ``rows`` of tokens, one after the other, of which each goes through the sound anew: a
    spectrogram that is cut in bands, too. A row is ``across`` tokens long, the silence behind the sound too.
    ``lengths`` are those of the keys of each kind of attention.
    """

    begin: int
    seconds: float
    rows: int
    across: int
    kind: Kind
    lengths: Mapping[Kind, int]


def find_first_moments(
    module: nn.Module,
    inputs: Mapping[str, Any],
    name: str,
    prepare: Prepare,
    samples: int,
    rate: int,
    entry: str,
) -> FirstMoments | None:
    """Let a model hear noise that is quiet for a moment, and see what of its first attention's input moves.

    ``inputs[name]`` is what is prepared of so many samples. ``None`` if nothing there hears, or time does not
    go through it evenly.
    """
    run = getattr(module, entry)
    lengths, first = watch_lengths(module, inputs, entry)
    answer = _answers(module.get_submodule(first), lambda given: run(**{**inputs, name: given}))
    loud = answer(prepare(make_noise(samples)))
    if loud is None:
        return None

    def moved(wave: Array) -> Array:
        states = answer(prepare(wave))
        assert states is not None
        found: Array = (states - loud).double().norm(dim=-1).cpu().numpy()
        return found

    heard = moved(make_noise(samples) * QUIETER)
    tokens = np.flatnonzero(heard > NOTHING * heard.max(initial=0))
    if not len(tokens):
        return None
    runs = np.split(tokens, np.flatnonzero(np.diff(tokens) > 1) + 1)
    steps = {int(step) for step in np.diff([run[0] for run in runs])}
    if len({len(run) for run in runs}) > 1 or len(steps) > 1:
        return None
    middles, times = np.full(DIPS, np.nan), np.zeros(DIPS)
    for number, (wave, middle) in enumerate(dips(samples)):
        times[number] = middle / rate
        share = (moved(wave)[tokens] ** 2).reshape(len(runs), -1).sum(0)
        share[share < FAINT * share.max()] = 0
        if share.sum() > 0:
            middles[number] = (share * np.arange(len(share))).sum() / share.sum()
    seconds = _even_pace(middles, times, samples / rate / len(runs[0]), samples / rate / DIPS / 8)
    if seconds is None:
        return None
    begin = int(tokens[0])
    across = steps.pop() if steps else len(loud) - begin
    return FirstMoments(begin, seconds, len(runs), across, next(iter(lengths)), lengths)


def watch_lengths(module: nn.Module, inputs: Mapping[str, Any], entry: str) -> tuple[Mapping[Kind, int], str]:
    """The number of keys of each kind of attention that a pass has, the first kind first, and its module."""
    lengths = _Lengths({})
    with torch.inference_mode(), recording(module, [lengths], warn=False) as record:
        getattr(module, entry)(**inputs)
    return lengths.found, next(iter(record.calls), "")


class _Lengths(NamedTuple):
    found: dict[Kind, int]

    def observe(self, attention: Attention) -> None:
        """Keep that of the first attention of a kind."""
        self.found.setdefault(attention.site.kind, len(attention.keys))


class _Reached(Exception):
    """The first module that attends is about to run."""


def _answers(first: nn.Module, run: Callable[[Tensor], object]) -> Callable[[Tensor], Tensor | None]:
    """What a module is given, of one text, as a function of what a model is given.  -> [token, feature]"""

    def answer(given: Tensor) -> Tensor | None:
        seen: list[Tensor] = []

        def arrive(module: nn.Module, args: Any, kwargs: Mapping[str, Any]) -> None:
            values = (*args, *kwargs.values())
            seen.extend(one for one in values if isinstance(one, Tensor) and one.is_floating_point())
            raise _Reached

        handle = first.register_forward_pre_hook(arrive, with_kwargs=True)
        try:
            with torch.inference_mode():
                run(given)
        except _Reached:
            pass
        finally:
            handle.remove()
        return seen[0][0] if seen and seen[0].ndim == 3 and len(seen[0]) == 1 else None

    return answer


def _even_pace(middles: Array, times: Array, each: float, near: float) -> float | None:
    """The seconds of a token, of which there are as many as fill the sound: about ``each``.

    All dips lie ``near`` one line, wherever that begins: convolutions that look back alone answer late.
    """
    known = np.isfinite(middles)
    if known.sum() < DIPS // 2 or np.ptp(middles[known]) < BESIDE:
        return None
    slope, begin = np.polyfit(middles[known], times[known], 1)
    beside = np.abs(times[known] - slope * middles[known] - begin).max()
    rounded = (round(float(slope), digits) for digits in (2, 3))
    seconds = next((found for found in rounded if abs(found / each - 1) < CLOSE), None)
    return seconds if seconds is not None and beside < max(near, BESIDE * seconds) else None
