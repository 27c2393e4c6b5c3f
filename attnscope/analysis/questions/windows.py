"""When each word is said in a sound that is longer than a model hears at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from attnscope.analysis.questions.align import Alignment, align_words
from attnscope.analysis.questions.heard import says_something
from attnscope.attention import Head
from attnscope.errors import InputError
from attnscope.models import Model, ModelInput
from attnscope.models.huggingface.sounds.speech import SpeechModel
from attnscope.models.inputs import Part
from attnscope.storage.sound import read_sound


def is_long(model: Model, path: Path, part: Part) -> bool:
    """Whether a part of a sound is longer than the model hears at once."""
    once = model.at_once if isinstance(model, SpeechModel) else math.inf
    return once < math.inf and read_sound(path, part.begin, part.end).seconds > once


def align_windows(
    model: Model,
    path: Path,
    write: Callable[[ModelInput], ModelInput],
    heads: Sequence[Head] = (),
    part: Part | None = None,
) -> Alignment:
    """When each word is said that the model writes, ``write``, one window of the sound after the other.

    The last word of a window may be cut, so that the next window begins with it, as far as that brings the
    sound on by half a window; times go on from the one before. Raises ``InputError`` where nothing is said.
    """
    assert isinstance(model, SpeechModel)
    asked = part or Part()
    whole = read_sound(path, asked.begin, asked.end)
    end = asked.begin + whole.seconds
    heard = list(_windows(model, path, write, heads, asked.begin, end))
    if not heard:
        raise InputError(f"nothing is said in {path}, as {model.name} hears it")
    notes = tuple(dict.fromkeys(note for each in heard for note in each.notes))
    written = sum(len(each.tokens) for each in heard)
    notes += (
        f"the model wrote {written:,} tokens",
        f"heard {model.at_once:g} seconds at once, in {len(heard)} windows: each begins with the last word "
        "of the one before it",
    )
    return replace(
        heard[0],
        tokens=tuple(said for each in heard for said in each.tokens),
        words=tuple(word for each in heard for word in each.words),
        seconds=end,
        notes=notes,
    )


def _windows(
    model: SpeechModel,
    path: Path,
    write: Callable[[ModelInput], ModelInput],
    heads: Sequence[Head],
    begin: float,
    end: float,
) -> Iterator[Alignment]:
    """The alignment of each window in which something is said, without the word that the next begins with."""
    while begin < end:
        stop = min(begin + model.at_once, end)
        heard = model.prepare_audio(path, part=Part(begin, stop))
        prepared = write(heard)
        following = stop
        if says_something(prepared):
            result = align_words(model, prepared, heads)
            result = replace(result, notes=(*model.notes, *heard.notes))  # the words say what was written
            last = result.words[-1].begin if result.words else stop
            if stop < end and last > begin + model.at_once / 2:
                following = last
                result = replace(
                    result,
                    words=tuple(word for word in result.words if word.begin < last),
                    tokens=tuple(said for said in result.tokens if said.begin < last),
                )
            yield result
        begin = following
