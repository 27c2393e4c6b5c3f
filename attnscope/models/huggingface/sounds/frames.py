"""The frames of models that hear: how many there are of a sound, and how long each is."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from attnscope.attention import Token
from attnscope.axes.places import HEARD
from attnscope.axes.weights import Array
from attnscope.errors import InputError
from attnscope.storage.sound import Sound

LENGTHS = ("_get_subsampling_output_length", "_get_feat_extract_output_lengths")
"""What modules call the function from the length of their input to the number of frames.

The first stands in the encoder itself; the other may be copied from a model of another input.
"""

MANY = 10**9
"""A length that is so large that its number of frames tells how long a frame is."""

LOST = 4
"""Frames that a sound may be shorter or longer than all of its own together: convolutions cut its ends."""

EXACT = 1e-4
"""Seconds that hundredths may be off."""

BANDS = 64
"""Bands that a wave is taken apart into."""

QUIET = 1e-6
"""The share of the loudest that counts as silence: 60 decibels."""


@dataclass(frozen=True)
class Frames:
    """The frames of an encoder: how long each is, and the first ``heard`` of them are sound, not padding.

    The first begins at the second ``begin`` of the file.
    """

    count: int
    heard: int
    seconds: float  # of one
    begin: float

    @property
    def tokens(self) -> tuple[Token, ...]:
        """A token for each, named by the time when it begins; no two are equal."""
        return tuple(
            Token(
                name_moment(self.begin + number * self.seconds, self.seconds), HEARD + number, special=special
            )
            for number, special in enumerate(number >= self.heard for number in range(self.count))
        )


def name_moment(time: float, *steps: float) -> str:
    """When something begins, with as many digits as tell it from neighbours at ``steps`` from each other."""
    exact = all(abs(step - round(step, 2)) < EXACT for step in steps)
    return f"{time:.{2 if exact else 3}f} s"


def find_frames(
    name: str, module: nn.Module, values: Tensor, heard: int | None, sound: Sound, extractor: Any
) -> Frames | None:
    """The frames of an encoder, by the module's own function from lengths to frames.

    ``None`` if it has none. Raises ``InputError`` for a sound that is too short.
    """
    count = _frame_counter(module)
    if count is None:
        return None
    wide = values.ndim == 3 and values.shape[1] == getattr(extractor, "feature_size", None)
    steps = values.shape[-1] if wide or _is_wave(values) else values.shape[1]
    if count(steps) < 1:
        raise InputError(
            f"{sound.seconds:.3f} seconds are too short for {name}: its encoder makes no frame of it"
        )
    step = _step_seconds(values, steps if heard is None else heard, sound, extractor)
    joined = getattr(module.config, "squeeze_factor", 1)  # neighbours that an encoder makes one
    long, full = joined * round(MANY / count(MANY), 3), count(steps) // joined  # steps in a frame
    if abs(full * long - steps) > LOST * long or (_is_wave(values) and long == 1):
        return None  # the function counts frames of something else
    if heard is None:
        heard = min(steps, math.ceil(round(sound.seconds / step, 6)))
    known = min(count(heard) // joined, int(heard / long))  # the last may be half padding
    return Frames(full, min(full, max(1, known)), step * long, sound.begin)


def _step_seconds(values: Tensor, steps: int, sound: Sound, extractor: Any) -> float:
    """How long a step of what the model is given lasts; ``steps`` of them are the sound, or more."""
    if _is_wave(values):
        return 1 / sound.rate
    hop = getattr(extractor, "hop_length", None)
    if not isinstance(hop, int):
        return round(sound.seconds / steps, 3)
    stacked = max(1, round(sound.seconds * sound.rate / hop / steps))  # hops that an extractor makes one step
    return stacked * hop / sound.rate


def _is_wave(values: Tensor) -> bool:
    """Whether a model is given the wave itself, [1, step] or [1, channel, step]."""
    return values.ndim == 2 or (values.ndim == 3 and values.shape[1] == 1)


def find_bands(values: Tensor, frames: Frames, sound: Sound, extractor: Any) -> Array | None:
    """How loud each band is in each frame, of what the model is given: the wave itself, or a spectrogram.

    [1, sample] or [1, band, step] or [1, step, band] -> [band, frame]
    """
    if _is_wave(values):
        wave = values.flatten().float().cpu()
        return _bands_of_wave(wave, frames.count, round(frames.seconds * sound.rate))
    bands = getattr(extractor, "feature_size", None)
    bands = bands if isinstance(bands, int) and bands > 0 else getattr(extractor, "num_mel_bins", 0)
    if values.ndim != 3 or not isinstance(bands, int) or bands < 1:
        return None
    loud = values[0].float().cpu()
    if values.shape[1] != bands and values.shape[2] % bands == 0:
        loud = loud.reshape(len(loud), -1, bands).mean(1).mT  # neighbours that are stacked in a step
    elif values.shape[1] != bands:
        return None
    long = max(1, round(loud.shape[1] / frames.count))  # steps in a frame
    hop = getattr(extractor, "hop_length", None)
    if isinstance(hop, int) and values.shape[1] == bands:
        long = max(1, round(frames.seconds * sound.rate / hop))
    missing = frames.count * long - loud.shape[1]
    if abs(missing) > LOST * long:
        return None
    whole = functional.pad(loud[None], (0, missing), mode="replicate")[0] if missing > 0 else loud
    means: Array = whole[:, : frames.count * long].reshape(bands, frames.count, long).mean(-1).numpy()
    return means


def _bands_of_wave(wave: Tensor, frames: int, step: int) -> Array:
    """The logarithm of how loud it is, in equal bands up to the highest tone.  [sample] -> [band, frame]"""
    window = max(1 << step.bit_length(), 2 * BANDS)  # samples: about two frames of speech
    padded = functional.pad(wave, (window // 2 - step // 2, window + step))  # the middle of each frame first
    spectrum = torch.stft(
        padded, window, step, window=torch.hann_window(window), center=False, return_complex=True
    )
    power = spectrum.abs().square()[:, :frames]  # [tone, frame]
    pooled = functional.adaptive_avg_pool1d(power.mT, BANDS).mT
    loud = pooled.clamp(min=max(float(pooled.max()) * QUIET, 1e-20)).log10()
    bands: Array = functional.pad(loud, (0, frames - loud.shape[1]), value=float(loud.min())).numpy()
    return bands


def _frame_counter(module: nn.Module) -> Any:
    """From a length to a number of frames, before any adapter; ``None`` if no module says it."""
    for name in LENGTHS:
        for child in module.modules():
            method = getattr(child, name, None)
            if method is None:
                continue
            alone = {"add_adapter": False} if "add_adapter" in inspect.signature(method).parameters else {}

            def count(length: int, method: Any = method, alone: Mapping[str, bool] = alone) -> int:
                return int(method(torch.tensor(length), **alone))

            return count
    return None
