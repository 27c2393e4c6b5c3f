"""The frames of models that hear and do not say how long one is: they are let hear noise that falls quiet."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple

from torch import Tensor, nn

from attnscope.attention import Kind, Token
from attnscope.axes.places import HEARD, READ
from attnscope.axes.weights import Array
from attnscope.errors import AttnscopeError
from attnscope.models.huggingface.pictures.images import BEFORE, special_tokens
from attnscope.models.huggingface.sounds.frames import Frames
from attnscope.models.regions import FirstMoments, find_first_moments, make_noise, watch_lengths
from attnscope.storage.sound import Sound

CLIP = 2
"""Seconds of noise: many frames of any model, and fewer than any hears."""


class Watched(NamedTuple):
    """The frames that a sound is looked at in, and the tokens of each kind of attention that looks at it."""

    frames: Frames
    axes: Mapping[Kind, tuple[Token, ...]]


def watch_frames(
    module: nn.Module,
    inputs: Mapping[str, Tensor],
    name: str,
    prepare: Callable[[Array], Mapping[str, Tensor]],
    sound: Sound,
    entry: str,
) -> Watched | None:
    """The frames of what attends first, and of what looks across from a text: of neighbours that are joined.

    ``prepare`` is what a model is given of other samples. ``None`` where time does not go evenly through
    them, or the model does not read such noise.
    """
    samples = CLIP * sound.rate
    try:
        clip = {**inputs, **prepare(make_noise(samples))}
        first = find_first_moments(
            module, clip, name, lambda wave: prepare(wave)[name], samples, sound.rate, entry
        )
        lengths, _ = watch_lengths(module, inputs, entry)
    except AttnscopeError:
        raise
    except Exception:  # it cannot read this: then nothing is known
        return None
    if first is None or first.kind not in lengths:
        return None
    return _name(module, first, lengths, sound)


def _name(
    module: nn.Module, first: FirstMoments, lengths: Mapping[Kind, int], sound: Sound
) -> Watched | None:
    """The tokens of a sound that has so many of them, at the pace that was found."""
    length = lengths[first.kind]
    across = first.across if first.rows > 1 else length - first.begin
    if across < 1 or first.begin + first.rows * across != length:
        return None
    frames = _frames(across, first.seconds, sound)
    if "cross" not in lengths or first.kind == "cross":
        return Watched(frames, {first.kind: _tokens(module, first, frames, length, 1)})
    joined = max(1, round(first.lengths[first.kind] / first.lengths["cross"]))  # a convolution's steps
    looked = _frames(lengths["cross"], round(first.seconds * joined, 3), sound)
    heard = _tokens(module, first, frames, length, joined)
    return Watched(looked, {first.kind: heard, "cross": looked.tokens})


def _frames(count: int, seconds: float, sound: Sound) -> Frames:
    known = int(round(sound.seconds / seconds, 6))  # the last may be half padding
    return Frames(count, min(count, max(1, known)), seconds, sound.begin)


def _tokens(
    module: nn.Module, first: FirstMoments, frames: Frames, length: int, joined: int
) -> tuple[Token, ...]:
    """A token for each frame in each row, with those before and behind that hear nothing by themselves."""
    before = special_tokens(module, BEFORE)
    if len(before) != first.begin:
        before = tuple(Token(f"before · {number}", number, special=True) for number in range(first.begin))
    heard = []
    for row in range(first.rows):
        for number, token in enumerate(frames.tokens):
            name = token.text if first.rows == 1 else f"{token.text.removesuffix(' s')}{READ}band {row + 1}"
            heard.append(replace(token, text=name, id=HEARD + number // joined))
    return (*before, *heard)
