"""Models that read texts and sounds: a sound inside a text, or in its place."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from attnscope.attention import Token
from attnscope.axes import HEARD
from attnscope.errors import InputError
from attnscope.models.huggingface.images import ask_processor, place_fields
from attnscope.models.huggingface.model import HuggingFaceModel
from attnscope.models.huggingface.sounds import (
    LENGTHS,
    SpeechModel,
    name_moment,
    sampling_rate,
    step_seconds,
    time_axis,
)
from attnscope.models.inputs import Heard, ModelInput, SoundPart, text_axes
from attnscope.models.model import SOUNDS
from attnscope.models.regions import MIDDLES, find_middles
from attnscope.models.text.tokens import tokens_of_ids
from attnscope.storage.sound import Sound, read_sound

Seconds = tuple[float, ...]


def find_begins(module: nn.Module, steps: int, seconds: float, count: int) -> Seconds | None:
    """The second at which each of ``count`` tokens begins, in steps of ``seconds``.

    A token begins at the length from which a sound has it. ``None`` if no encoder gives its token count
    as a function of length, or if that function counts something else.
    """
    for child in module.modules():
        file, config = sys.modules[type(child).__module__], getattr(child, "config", None)
        counter = next((found for name in LENGTHS if (found := getattr(file, name, None)) is not None), None)
        if counter is None or config is None:
            continue
        _, *others = inspect.signature(counter).parameters
        known = {name: getattr(config, name) for name in others if hasattr(config, name)}
        counts = counter(torch.arange(1, steps + 1), **known)
        if int(counts[-1]) == count and bool((counts.diff() >= 0).all()):
            first = torch.searchsorted(counts, torch.arange(1, count + 1))  # length at each token
            return tuple(round(int(begin) * seconds, 6) for begin in first - first[0])
    return None


SOUND_IDS = ("audio_token_id", "audio_token_index")
"""Config fields for the id of a token that stands for a sound."""


def stands_for_sounds(config: Any) -> bool:
    """Whether a model has a sound token in its text."""
    return any(getattr(config, name, None) is not None for name in SOUND_IDS)


MOST_BESIDE_LINE = 0.5  # how far, in tokens, a token's middle may lie from the line through all of them


class SoundTextModel(HuggingFaceModel):
    """A transformers language model with a sound token in its text."""

    def prepare_audio(self, path: Path, text: str | None = None, part: SoundPart | None = None) -> ModelInput:
        """A text with a sound file in it, as the model reads it.

        The sound goes where the text has the processor's placeholder, or before the text. Raises
        ``InputError`` for what the processor refuses.
        """
        if text is None:
            raise InputError(f"{self.name} reads a text beside the sound: give both")
        part = part or SoundPart()
        rate = sampling_rate(self.name, self._extractor, 16000)
        sound = read_sound(path, part.begin, part.end).resample(rate)
        signs = {getattr(self.module.config, name, None) for name in SOUND_IDS}
        fields, notes = self._read_both(self._prompt(text), sound, signs)
        inputs = place_fields(fields, self.module)
        name = next((name for name, value in inputs.items() if value.is_floating_point()), None)
        if name is None or "input_ids" not in inputs:
            raise InputError(f"the processor of {self.name} makes nothing of the sound that the model reads")
        ids = inputs["input_ids"][0].tolist()
        stand = [position for position, id_ in enumerate(ids) if id_ in signs]
        begins, unknown = self._find_begins(inputs, name, sound, stand)
        if begins is None:
            notes = (f"{unknown}: those of the sound are numbered", *notes)
        tokens = list(tokens_of_ids(self.reader.tokenizer, ids, self.reader.special_ids))
        for number, position in enumerate(stand):
            begin = 0.0 if begins is None else begins[number]
            spelled = f"sound · {number}" if begins is None else name_moment(sound.begin + begin, *begins)
            padding, segment = begin >= sound.seconds, tokens[position].segment
            tokens[position] = Token(spelled, HEARD + number, special=padding, segment=segment)
        heard = None
        if begins is not None:
            pace = begins[-1] / (len(begins) - 1) if len(begins) > 1 else sound.seconds
            heard = Heard(pace, sum(begin < sound.seconds for begin in begins), None, sound.begin)
        labelled = tuple(tokens)
        return ModelInput(inputs, text_axes(labelled), labelled, notes, self.settings, heard=heard)

    @cached_property
    def _processor(self) -> Any:
        return self.load_processor("text")

    @property
    def _extractor(self) -> Any:
        names = "feature_extractor", "audio_processor"
        return next(filter(None, (getattr(self._processor, name, None) for name in names)), None)

    def _prompt(self, text: str) -> str:
        """The text with the processor's placeholder for a sound."""
        sign = getattr(self._processor, "audio_token", None)
        if not isinstance(sign, str):
            raise InputError(
                f"{self.name} has no sign for a sound in a text: it cannot be shown with --audio"
            )
        begin, end = (getattr(self._processor, f"audio_{name}_token", None) or "" for name in ("bos", "eos"))
        return text if sign in text else f"{begin}{sign}{end}{text}"

    def _read_both(
        self, prompt: str, sound: Sound, signs: set[Any]
    ) -> tuple[Mapping[str, Any], tuple[str, ...]]:
        """The model's input for both, from the processor, or built without it where it refuses (with a note).

        Some processors take a sound in chats alone. Then the text gets as many placeholders as the model
        makes vectors.
        """
        both = {"text": [prompt], "audio": [sound.samples]}
        find: Any = getattr(self.module, "get_audio_features", None)
        try:
            return ask_processor(self.name, "sound", self._processor, **both), ()
        except InputError as error:
            refusal, extractor = error, self._extractor
            if extractor is None or find is None:
                raise
        read = self.reader.tokenizer(prompt)["input_ids"]
        if signs.isdisjoint(read):
            raise refusal
        most = getattr(extractor, "n_samples", None)
        if isinstance(most, int) and len(sound.samples) > most:
            once = f"{self.name} hears at most {most / sound.rate:g} seconds in a text here"
            raise InputError(f"{once}: choose a part with --from-second and --to-second")
        fields = ask_processor(self.name, "sound", extractor, sound.samples, sampling_rate=sound.rate)
        try:
            with torch.inference_mode():
                vectors: Tensor = find(
                    **place_fields(fields, self.module, "get_audio_features")
                ).pooler_output
        except Exception:  # it needs more than the sound: the processor's own error is the answer
            raise refusal from None
        count = vectors.flatten(0, -2).shape[0]
        written = [id_ for one in read for id_ in ([one] * count if one in signs else [one])]
        note = (
            f"its processor refuses a sound beside a text: {count:,} tokens stand for it, as the model asks"
        )
        return {**fields, "input_ids": torch.tensor([written])}, (note,)

    def _find_begins(
        self, inputs: Mapping[str, Tensor], name: str, sound: Sound, stand: Sequence[int]
    ) -> tuple[Seconds | None, str]:
        """When each token of the sound begins, as the model counts or evenly; otherwise why not."""
        values, count = inputs[name], len(stand)
        axis = time_axis(values, self._extractor)
        steps = values.shape[axis]
        masks = (mask for mask in inputs.values() if not mask.is_floating_point())
        mask = next((mask for mask in masks if mask.shape == (1, steps)), None)
        real = steps if mask is None else int(mask.sum())
        step = step_seconds(values, real, sound, self._extractor)
        counted = find_begins(self.module, real, step, count)
        if counted is not None or not count:
            return counted, "no token stands for the sound"
        some = np.unique(np.linspace(0, count - 1, MIDDLES).round().astype(int))
        given = {**inputs, **self.settings}
        middles = find_middles(self.module, given, name, [stand[number] for number in some], axis)
        if middles is None or np.isnan(middles).any():
            return None, "no token stands for a moment of the sound alone"
        pace = round(float(np.polyfit(some, middles, 1)[0])) if count > 1 else steps
        if pace < 1 or (count > 1 and np.abs(middles / pace - some - 0.5).max() > MOST_BESIDE_LINE):
            return None, "time does not go evenly through the tokens of the sound"
        return tuple(round(number * pace * step, 6) for number in range(count)), ""


def hears_too(module: nn.Module) -> bool:
    """Whether a module takes a sound, under any name."""
    parameters = inspect.signature(module.forward).parameters
    return any(name in SOUNDS or "audio" in name for name in parameters)


class HearingModel(HuggingFaceModel):
    """A transformers model that reads texts and sounds."""

    def prepare_audio(self, path: Path, text: str | None = None, part: SoundPart | None = None) -> ModelInput:
        """A sound for the encoder of a model that generates from texts and sounds alike."""
        from transformers import AutoModelForSpeechSeq2Seq

        writes = type(self.module.config) in AutoModelForSpeechSeq2Seq._model_mapping
        if not (writes and self.encoder_decoder):
            raise InputError(
                f"{self.name} hears, but where a sound stands in its text, or beside it, is not known here: "
                "give what its processor makes of both with --inputs FILE"
            )
        speech = SpeechModel(
            self.name,
            self.module,
            self.reader.tokenizer,
            self.notes,
            positions=self.positions,
            writer=self.writer,
            load_processor=self.load_processor,
        )
        return speech.prepare_audio(path, text, part)
