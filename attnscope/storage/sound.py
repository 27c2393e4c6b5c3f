"""Sound from WAV and FLAC files, as one channel at any rate; no claimed length is believed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from attnscope.axes.weights import Array
from attnscope.errors import AttnscopeError, InputError, first_line
from attnscope.storage.regular import name_other

BEGINS = ((b"RIFF", b"WAVE"), (b"RIFX", b"WAVE"), (b"RF64", b"WAVE"), (b"fLaC", b""))
"""The first four bytes of a file, and those from the ninth on; nothing else is handed to a decoder."""

LONGEST = 1800
"""Seconds that are read, at most."""

RATES = range(1000, 768_001)
"""Samples a second that a file may have."""

CHANNELS = 64
"""Channels that it may have."""

BLOCK = 1 << 16
"""Samples of a channel that are decoded at once."""


@dataclass(frozen=True, eq=False)
class Sound:
    """One channel of sound, ``rate`` samples a second."""

    samples: Array  # [sample], float32
    rate: int

    @property
    def seconds(self) -> float:
        """How long it is."""
        return len(self.samples) / self.rate

    def resample(self, rate: int) -> Sound:
        """The same at another rate."""
        if rate == self.rate:
            return self
        from scipy.signal import resample_poly

        shared = math.gcd(rate, self.rate)
        samples = resample_poly(self.samples, rate // shared, self.rate // shared)
        return Sound(samples.astype(np.float32), rate)


def read_sound(path: Path) -> Sound:
    """A sound file, the mean of its channels. Raises ``InputError`` for what is none, or is too long."""
    try:
        import soundfile
    except ModuleNotFoundError as error:
        if error.name != "soundfile":
            raise
        raise AttnscopeError(
            "reading sound needs soundfile, which is not installed: pip install 'attnscope[audio]'"
        ) from None
    _require_sound(path)
    try:
        with soundfile.SoundFile(path) as file:
            _require_honest(path, file)
            blocks = list(_mono(path, file))
            rate = int(file.samplerate)
    except soundfile.SoundFileError as error:
        raise InputError(f"{path} cannot be read as sound: {first_line(error)}") from error
    samples = np.concatenate([np.zeros(0, np.float32), *blocks])
    if not len(samples):
        raise InputError(f"{path} holds no sound: it has no samples")
    if not np.isfinite(samples).all():
        raise InputError(f"{path} cannot be read as sound: some of its samples are no numbers")
    return Sound(samples, rate)


def _require_sound(path: Path) -> None:
    """Raise ``InputError`` for a file that does not begin as one of sound does."""
    try:
        other = name_other(path)
        if other is not None:
            raise InputError(f"{path} is {other}: give a WAV or FLAC file")
        with path.open("rb") as file:
            begin = file.read(12)
    except FileNotFoundError:
        raise InputError(f"no such file: {path}") from None
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
    if not any(begin[:4] == first and begin[8:].startswith(then) for first, then in BEGINS):
        raise InputError(f"{path} is no WAV or FLAC file" if begin else f"{path} is empty: it holds no sound")


def _require_honest(path: Path, file: Any) -> None:
    """Raise ``InputError`` for a header with numbers that no recording has, before anything is decoded."""
    if file.samplerate not in RATES or not 1 <= file.channels <= CHANNELS:
        raise InputError(
            f"{path} claims {file.samplerate:,} samples a second in {file.channels:,} channels: "
            f"{RATES[0]:,} to {RATES[-1]:,} in at most {CHANNELS} are read"
        )
    if file.format != "FLAC" and file.frames > LONGEST * file.samplerate:  # FLAC may leave it unsaid
        raise _too_long(path)


def _mono(path: Path, file: Any) -> Iterator[Array]:
    """The mean of the channels, block by block.  -> [sample]"""
    rest = LONGEST * int(file.samplerate)
    while len(block := file.read(BLOCK, dtype="float32", always_2d=True)):
        rest -= len(block)
        if rest < 0:
            raise _too_long(path)
        yield block.mean(1)


def _too_long(path: Path) -> InputError:
    return InputError(f"{path} is longer than {LONGEST // 60} minutes, and is not read: cut it")
