"""Sound from WAV and FLAC files, as one channel at any rate; claimed lengths are not trusted."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from attnscope.axes import Array
from attnscope.errors import AttnscopeError, InputError, first_line
from attnscope.storage.files import reading

SIGNATURES = ((b"RIFF", b"WAVE"), (b"RIFX", b"WAVE"), (b"RF64", b"WAVE"), (b"fLaC", b""))
"""A file's first four bytes, and those from the ninth on; nothing else goes to a decoder."""

MOST_SECONDS = 1800  # most seconds that are read
RATES = range(1000, 768_001)  # allowed samples per second
MOST_CHANNELS = 64  # most channels
MOST_RATE = 48_000  # samples per second for that duration: a denser sound may have as many, no more

BLOCK_SAMPLES = 1 << 16  # samples per channel decoded at once


@dataclass(frozen=True, eq=False)
class Sound:
    """One channel of sound, ``rate`` samples per second, starting at the second ``begin`` of its file."""

    samples: Array  # [sample], float32
    rate: int
    begin: float = 0.0

    @property
    def seconds(self) -> float:
        """Its duration."""
        return len(self.samples) / self.rate

    def resample(self, rate: int) -> Sound:
        """The same at another rate."""
        if rate == self.rate:
            return self
        from scipy.signal import resample_poly

        # a filter has as many numbers as the ratio has samples: unusual rates are off by up to 2 ms
        ratio = Fraction(rate, self.rate).limit_denominator(4096)
        samples = resample_poly(self.samples, ratio.numerator, ratio.denominator)
        return replace(self, samples=samples.astype(np.float32), rate=rate)


def read_sound(path: Path, begin: float = 0.0, end: float | None = None) -> Sound:
    """Part of a sound file, in seconds, as the mean of its channels. Raises ``InputError``."""
    if not 0 <= begin < math.inf or (end is not None and not begin < end < math.inf):
        raise InputError(f"from {begin:g} to {end or math.inf:g} seconds there is no sound: give a later end")
    try:
        import soundfile
    except ModuleNotFoundError as error:
        if error.name != "soundfile":
            raise
        raise AttnscopeError(
            "reading sound needs soundfile, which is not installed: pip install 'attnscope[audio]'"
        ) from None
    with reading(path, "sound from"), path.open("rb") as opened:
        first = opened.read(12)
    if not any(first[:4] == head and first[8:].startswith(then) for head, then in SIGNATURES):
        raise InputError(f"{path} is {'not a WAV or FLAC file' if first else 'empty: it holds no sound'}")
    try:
        with soundfile.SoundFile(path) as file:
            rate = _require_honest(path, file, begin, end)
            if begin:
                file.seek(round(begin * rate))
            blocks = list(_mono(path, file, math.inf if end is None else round((end - begin) * rate)))
    except soundfile.SoundFileError as error:
        raise InputError(f"cannot read {path} as sound: {first_line(error)}") from error
    samples = np.concatenate([np.zeros(0, np.float32), *blocks])
    if not len(samples):
        behind = f" behind {begin:g} seconds" if begin else ""
        raise InputError(f"{path} holds no sound{behind}: it has no samples")
    if not np.isfinite(samples).all() or np.abs(samples).max() > 1e12:  # beyond 1, or any integer type
        why = "some of its samples are no numbers, or far too large"
        raise InputError(f"cannot read {path} as sound: {why}")
    return Sound(samples, rate, begin)


def _require_honest(path: Path, file: Any, begin: float, end: float | None) -> int:
    """The sampling rate. Raises ``InputError`` for impossible numbers, before decoding."""
    if file.samplerate not in RATES or not 1 <= file.channels <= MOST_CHANNELS:
        raise InputError(
            f"{path} claims {file.samplerate:,} samples a second in {file.channels:,} channels: "
            f"{RATES[0]:,} to {RATES[-1]:,} in at most {MOST_CHANNELS} are read"
        )
    rate = int(file.samplerate)
    if file.frames >= 1 << 36:  # more than a FLAC header can state: it states none
        raise InputError(f"{path} does not say how long it is, as from a pipe: write it anew")
    if begin * rate >= file.frames > 0:
        raise InputError(f"{path} ends at {file.frames / rate:.2f} seconds: {begin:g} is behind that")
    if (min(file.frames / rate, end or math.inf) - begin) * rate > _most(rate):
        raise _too_long(path)
    return rate


def _mono(path: Path, file: Any, most: float) -> Iterator[Array]:
    """The mean of the channels, block by block, up to ``most`` samples.  -> [sample]"""
    longest, count = _most(int(file.samplerate)), 0
    while len(block := file.read(min(BLOCK_SAMPLES, most - count), dtype="float32", always_2d=True)):
        count += len(block)
        if count > longest:
            raise _too_long(path)
        yield block.mean(1)


def _most(rate: int) -> int:
    """Most samples per channel: ``MOST_SECONDS`` seconds at no more than ``MOST_RATE`` per second."""
    return MOST_SECONDS * min(rate, MOST_RATE)


def _too_long(path: Path) -> InputError:
    return InputError(
        f"{path} is longer than {MOST_SECONDS // 60} minutes at {MOST_RATE:,} samples a second, and is not "
        "read: cut it, or choose a part with --from-second and --to-second"
    )
