"""Models that read sound, alone or in a text: its frames, their length, and what a CTC head reads in them."""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from attnscope.attention import Axis, Head, Kind, Token
from attnscope.axes import SOUND_ID, TIME_MARK, Array
from attnscope.errors import InputError, ModelError
from attnscope.models.huggingface.model import HuggingFaceModel
from attnscope.models.huggingface.reader import ask_processor, place_fields, start_token
from attnscope.models.inputs import (
    NO_LIMIT,
    Letters,
    Limit,
    ModelInput,
    Objective,
    SoundFrames,
    SoundPart,
    text_axes,
)
from attnscope.models.model import SOUNDS, find_sound_input, reads_sound
from attnscope.models.regions import MIDDLES, find_middles
from attnscope.models.text.tokens import BEGINS, GREEDY, Sampling, tokens_of_ids
from attnscope.models.untrusted_folder import input_work
from attnscope.storage.sound import RATES, Sound, read_sound

LENGTHS = ("_get_subsampling_output_length", "_get_feat_extract_output_lengths")
"""Names of the function from input length to number of frames.

The first belongs to the encoder itself; the other may be copied from a model of another input.
"""

LONG_INPUT = 10**9  # a length large enough for its number of frames to give the length of one
FRAMES_CUT = 4  # how many frames a sound may differ from the sum of its frames: convolutions cut its ends
BANDS = 64  # frequency bands of a wave
SILENT_SHARE = 1e-6  # the share of the maximum that counts as silence: 60 decibels


def name_moment(time: float, *steps: float) -> str:
    """A time in seconds, with as many digits as separate it from neighbours ``steps`` away."""
    exact = all(abs(step - round(step, 2)) < 1e-4 for step in steps)
    return f"{time:.{2 if exact else 3}f} s"


def find_frames(
    name: str, module: nn.Module, values: Tensor, sound_steps: int | None, sound: Sound, extractor: Any
) -> tuple[SoundFrames, tuple[Token, ...]] | None:
    """A sound in an encoder's frames, by its own function from lengths to frames; ``None`` if it has none.

    With a token for each frame, named by its start time; no two are equal.
    """
    methods = (getattr(child, name, None) for name in LENGTHS for child in module.modules())
    if (method := next((method for method in methods if method is not None), None)) is None:
        return None
    base = {"add_adapter": False} if "add_adapter" in inspect.signature(method).parameters else {}

    def count(length: int) -> int:
        return int(method(torch.tensor(length), **base))

    steps = values.shape[time_axis(values, extractor)]
    if count(steps) < 1:
        raise InputError(
            f"{sound.seconds:.3f} seconds are too short for {name}: its encoder makes no frame of it"
        )
    step = step_seconds(values, steps if sound_steps is None else sound_steps, sound, extractor)
    squeeze = getattr(module.config, "squeeze_factor", 1)  # neighbours that the encoder joins into one
    long = squeeze * round(LONG_INPUT / count(LONG_INPUT), 3)  # steps of a frame
    full = count(steps) // squeeze
    if abs(full * long - steps) > FRAMES_CUT * long or (_is_wave(values) and long == 1):
        return None  # the function counts frames of something else
    if sound_steps is None:
        sound_steps = min(steps, math.ceil(round(sound.seconds / step, 6)))
    whole_frames = min(count(sound_steps) // squeeze, int(sound_steps / long))  # the last may be half padding
    frames = SoundFrames(step * long, min(full, max(1, whole_frames)), begin=sound.begin)
    names = [name_moment(frames.begin + at * frames.seconds, frames.seconds) for at in range(full)]
    return frames, tuple(
        Token(name, SOUND_ID + at, special=at >= frames.frames) for at, name in enumerate(names)
    )


def time_axis(values: Tensor, extractor: Any) -> int:
    """The time axis of the model's input: a wave, or a spectrogram either way round."""
    wide = values.ndim == 3 and values.shape[1] == getattr(extractor, "feature_size", None)
    return values.ndim - 1 if wide or _is_wave(values) else 1


def step_seconds(values: Tensor, steps: int, sound: Sound, extractor: Any) -> float:
    """The duration of one input step; ``steps`` of them cover the sound, or more."""
    if _is_wave(values):
        return 1 / sound.rate
    hop = getattr(extractor, "hop_length", None)
    if not isinstance(hop, int):
        return round(sound.seconds / steps, 3)
    stacked = max(1, round(sound.seconds * sound.rate / hop / steps))  # hops per step
    return stacked * hop / sound.rate


def _is_wave(values: Tensor) -> bool:
    """Whether the model's input is the wave itself, [1, step] or [1, channel, step]."""
    return values.ndim == 2 or (values.ndim == 3 and values.shape[1] == 1)


def find_bands(values: Tensor, frames: int, seconds: float, rate: int, extractor: Any) -> Array | None:
    """Loudness in each frame.  [1, sample] or [1, band, step] or [1, step, band] -> [band, frame]"""
    if _is_wave(values):
        wave = values.flatten().float().cpu()
        return _bands_of_wave(wave, frames, round(seconds * rate))
    bands = getattr(extractor, "feature_size", None)
    bands = bands if isinstance(bands, int) and bands > 0 else getattr(extractor, "num_mel_bins", 0)
    if values.ndim != 3 or not isinstance(bands, int) or bands < 1:
        return None
    loud = values[0].float().cpu()
    if values.shape[1] != bands and values.shape[2] % bands == 0:
        loud = loud.reshape(len(loud), -1, bands).mean(1).mT  # neighbours that are stacked in a step
    elif values.shape[1] != bands:
        return None
    long = max(1, round(loud.shape[1] / frames))  # input steps per frame
    hop = getattr(extractor, "hop_length", None)
    if isinstance(hop, int) and values.shape[1] == bands:
        long = max(1, round(seconds * rate / hop))
    if abs(missing := frames * long - loud.shape[1]) > FRAMES_CUT * long:
        return None
    whole = functional.pad(loud[None], (0, missing), mode="replicate")[0]  # or cut, if there are more
    means: Array = whole.reshape(bands, frames, long).mean(-1).numpy()
    return means


def _bands_of_wave(wave: Tensor, frames: int, step: int) -> Array:
    """Logarithmic loudness in equal bands up to the highest frequency.  [sample] -> [band, frame]"""
    window = max(1 << step.bit_length(), 2 * BANDS)  # samples: about two frames of speech
    padded = functional.pad(wave, (window // 2 - step // 2, window + step))  # the middle of each frame first
    spectrum = torch.stft(
        padded, window, step, window=torch.hann_window(window), center=False, return_complex=True
    )
    power = spectrum.abs().square()[:, :frames]  # [tone, frame]
    pooled = functional.adaptive_avg_pool1d(power.mT, BANDS).mT
    loud = pooled.clamp(min=max(float(pooled.max()) * SILENT_SHARE, 1e-20)).log10()
    bands: Array = functional.pad(loud, (0, frames - loud.shape[1]), value=float(loud.min())).numpy()
    return bands


def sampling_rate(name: str, extractor: Any, default: int | None = None) -> int:
    """The sampling rate of a feature extractor. Raises ``ModelError`` for an impossible one."""
    rate: Any = getattr(extractor, "sampling_rate", default)
    if rate not in RATES:
        raise ModelError(f"the feature extractor of {name} asks for {rate!r} samples a second")
    return int(rate)


BOUNDARY = "|"  # the word separator in CTC vocabularies


def was_saved_as(automatic: Any, config: Any) -> bool:
    """Whether a folder was saved with the class that an auto class makes of its type."""
    model_class = automatic._model_mapping.get(type(config), ())
    classes = model_class if isinstance(model_class, tuple) else (model_class,)
    return any(each.__name__ in (config.architectures or ()) for each in classes)


def is_ctc(config: Any) -> bool:
    """Whether a folder was saved with a CTC head."""
    from transformers import AutoModelForCTC

    return was_saved_as(AutoModelForCTC, config)


def spell_letters(ids: Array, scores: Array, seconds: float, tokenizer: Any) -> Letters | None:
    """CTC tokens of frames of ``seconds``; ``None`` if no token is the blank."""
    blank = getattr(tokenizer, "pad_token_id", None)  # the blank of transformers' CTC tokenizers
    if not isinstance(blank, int):
        return None
    distinct = list(dict.fromkeys(ids.tolist()))
    spellings = zip(distinct, tokenizer.convert_ids_to_tokens(distinct), strict=True)
    begin = frozenset(id_ for id_, spelling in spellings if (spelling or "").startswith(BEGINS))
    read = {token.id: token.text for token in tokens_of_ids(tokenizer, distinct, ())}
    boundary = getattr(tokenizer, "word_delimiter_token_id", None)
    return Letters(ids, scores, seconds, blank, read, boundary if isinstance(boundary, int) else None, begin)


def name_letters(tokens: Sequence[Token], letters: Letters) -> tuple[Token, ...]:
    """Frames named by time and tokens, repetitions once and without blanks: ``0.42 s · h``."""
    each = len(letters.ids) // len(tokens)
    labels = []
    for number, token in enumerate(tokens):
        inside = (id_ for id_, _ in groupby(letters.ids[number * each : (number + 1) * each].tolist()))
        text = "".join(
            BOUNDARY * (id_ in letters.begin) + letters.read[id_] for id_ in inside if id_ != letters.blank
        )
        name = token.text.removesuffix(" s") + TIME_MARK + text
        labels.append(token if token.special or not text else replace(token, text=name))
    return tuple(labels)


class SpeechModel(HuggingFaceModel):
    """A transformers model that reads sound, with its feature extractor, and its tokenizer if it writes."""

    def prepare(self, text: str, second: str | None = None, limit: Limit = NO_LIMIT) -> ModelInput:
        """A text, for a model that reads texts, too. Raises ``InputError`` for any other."""
        if not reads_sound(self.module):
            return super().prepare(text, second, limit)
        raise InputError(f"{self.name} takes sound: give it with --audio FILE")

    def prepare_audio(self, path: Path, text: str | None = None, part: SoundPart | None = None) -> ModelInput:
        """A sound file as the model reads it, and ``text``, its transcript, for the decoder."""
        from transformers import AutoModelForSpeechSeq2Seq as Speech

        writes = self.encoder_decoder and type(self.module.config) in Speech._model_mapping
        if not (writes or reads_sound(self.module)):
            raise InputError(
                f"{self.name} takes sound, but how it joins sound and text is not known: pass what its "
                "processor makes of both with --inputs FILE"
            )
        if text is not None and not self.encoder_decoder:
            raise InputError(f"{self.name} takes sound, not text: leave out the text beside --audio")
        part = part or SoundPart()
        sound = read_sound(path, part.begin, part.end).resample(self._extractor.sampling_rate)
        notes: tuple[str, ...] = ()
        if sound.seconds > self.most_seconds:
            notes = self._note_cut(path, sound, self.most_seconds, part)
            sound = replace(sound, samples=sound.samples[: round(self.most_seconds * sound.rate)])
        name = find_sound_input(self.module) or ""
        values, sound_steps, beside = self._extract(path, sound, name)
        inputs, axes = {name: values, **beside}, dict[Kind, tuple[Axis, Axis]]()
        written: tuple[Token, ...] | None = None
        if self.encoder_decoder:
            written, more = self._decoder_tokens(values, name, text, part.truncate)
            notes += more
            inputs["decoder_input_ids"] = self._tensor([token.id for token in written])
            axes["decoder"] = written, written
        reading = find_frames(self.name, self.module, values, sound_steps, sound, self._extractor)
        if reading is None:
            notes += (
                f"sound positions are numbered, without times: {self.name} does not say how long a frame is",
            )
            samples = sound.samples.copy()
            samples[-max(1, len(samples) // 10) :] = 0
            silenced = self._extract(path, replace(sound, samples=samples), name)[0]
            if (samples != sound.samples).any() and torch.equal(values, silenced):
                notes += (f"the end of the sound is not read: {self.name}'s feature extractor cuts it off",)
            return ModelInput(inputs, axes, (), notes, self.settings)
        frames, tokens = reading
        axes["encoder"] = tokens, tokens
        if written is not None:
            axes["cross"] = written, tokens
        end = len(tokens) * frames.seconds
        if sound.seconds > end + FRAMES_CUT * frames.seconds:  # the extractor cut it without saying so
            notes += self._note_cut(path, sound, end, part)
        bands = find_bands(values, len(tokens), frames.seconds, sound.rate, self._extractor)
        frames = replace(frames, bands=bands)
        prepared = ModelInput(inputs, axes, tokens, notes, self.settings, sound=frames)
        return self._read_letters(prepared, frames) if is_ctc(self.module.config) else prepared

    def spell_transcript(self, text: str, letters: Letters) -> Letters:
        """A transcript spelled as the CTC head would write it. Raises ``InputError`` for letters it lacks."""
        tokenizer = self.reader.tokenizer
        plain = " ".join("".join(each for each in text if each.isalnum() or each in " '").split())
        for spelling in (
            case(each) for each in (text.strip(), plain) for case in (str, str.upper, str.lower)
        ):
            ids = tokenizer(spelling, add_special_tokens=False).input_ids
            if ids and tokenizer.unk_token_id not in ids:
                reading = spell_letters(np.array(ids), letters.scores, letters.seconds, tokenizer)
                assert reading is not None
                return reading
        raise InputError(f"the CTC head of {self.name} has no letters for {plain or text!r}")

    def _read_letters(self, prepared: ModelInput, frames: SoundFrames) -> ModelInput:
        """The same with the CTC head's reading in the names of the frames: one pass."""
        if self.reader.tokenizer is None or self.writer is None:
            lacks = "vocabulary" if self.writer is not None else "weights"
            return replace(prepared, notes=(*prepared.notes, f"no letters: the CTC head has no {lacks} here"))
        with torch.inference_mode(), self.threads(prepared), self._quoting(prepared):
            logits = self.writer(**prepared.inputs).logits[0].cpu()
        ids, scores = logits.argmax(-1).numpy(), logits.float().log_softmax(-1).numpy()
        each = len(ids) // len(prepared.tokens)
        letters = spell_letters(ids, scores, frames.seconds / each, self.reader.tokenizer) if each else None
        if letters is None:
            why = "its vocabulary has no blank" if each else "its frames are longer than those of the encoder"
            return replace(prepared, notes=(*prepared.notes, f"no letters of the CTC head: {why}"))
        labels = name_letters(prepared.tokens, letters)
        axes: dict[Kind, tuple[Axis, Axis]] = {"encoder": (labels, labels)}
        return replace(prepared, tokens=labels, axes=axes, sound=replace(frames, letters=letters))

    @property
    def alignment_heads(self) -> tuple[Head, ...]:
        """The heads that align words with the sound, as the folder names them; empty if it does not."""
        value = getattr(self.preferred, "alignment_heads", None)
        entries = value if isinstance(value, list | tuple) else ()
        pairs = [pair for pair in entries if isinstance(pair, list | tuple)]
        return tuple(Head(*pair) for pair in pairs if list(map(type, pair)) == [int, int])

    @cached_property
    def _extractor(self) -> Any:
        """The feature extractor. Raises ``ModelError`` for one with an impossible sampling rate."""
        extractor = self.load_processor("sound")
        extractor = getattr(extractor, "feature_extractor", extractor)
        sampling_rate(self.name, extractor)
        return extractor

    @property
    def most_seconds(self) -> float:
        """The most seconds in one pass; ``None`` for models without a limit."""
        most = getattr(self._extractor, "n_samples", None)
        most = getattr(self._extractor, "nb_max_samples", None) if most is None else most
        return most / self._extractor.sampling_rate if isinstance(most, int) and most > 0 else math.inf

    def _note_cut(self, path: Path, sound: Sound, end: float, part: SoundPart) -> tuple[str, ...]:
        """The note that only the beginning is read. Raises ``InputError`` unless that was asked for."""
        if not part.truncate:
            raise InputError(
                f"{path} has {sound.seconds:.1f} seconds and {self.name} reads at most {end:g} in one pass: "
                "choose a part with --from-second and --to-second, or pass --truncate to read its beginning"
            )
        return (f"cut: the first {end:g} of {sound.seconds:.1f} seconds are read",)

    def _extract(
        self, path: Path, sound: Sound, name: str
    ) -> tuple[Tensor, int | None, Mapping[str, Tensor]]:
        """The model's input for a sound, how many of its steps are sound (if known), and more inputs."""
        from transformers.models.auto.processing_auto import PROCESSOR_MAPPING

        extractor, config = self._extractor, self.module.config
        # inputs that the processor of a type needs: a mask if the extractor has one
        masks = getattr(extractor, "return_attention_mask", True) is not False
        defaults = getattr(PROCESSOR_MAPPING.get(type(config), None), "audio_kwargs", None)
        both = {**({"return_attention_mask": True} if masks else {}), **(defaults or {})}
        parameters = inspect.signature(extractor.__call__).parameters
        free = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
        how = {setting: value for setting, value in both.items() if free or setting in parameters}
        how |= {"sampling_rate": sound.rate, "return_tensors": "pt"}
        source = f"the feature extractor of {self.name}"
        with input_work(f"what {source} makes of {path}", f"{source} refuses {path}"):
            fields = dict(extractor(sound.samples, **how))
            mask = fields.get("attention_mask")
            sound_steps = None if mask is None else int(mask[0].sum())
        for values in fields.values():
            if isinstance(values, Tensor) and not bool(torch.isfinite(values).all()):
                raise InputError(f"{source} makes values of {path} that are not numbers")
        if mask is not None and len(mask) > 1:
            raise InputError(
                f"{self.name} cuts {path} into {len(mask)} pieces that it reads apart: choose a part with "
                "--from-second and --to-second"
            )
        if name not in fields:
            raise ModelError(f"{self.name} reads {name}, and its feature extractor makes {', '.join(fields)}")
        beside = place_fields(fields, self.module)
        return beside.pop(name), sound_steps, beside

    def _decoder_tokens(
        self, values: Tensor, name: str, text: str | None, truncate: bool
    ) -> tuple[tuple[Token, ...], tuple[str, ...]]:
        """The tokens with which a decoder starts, the language that it detects among them, and the text's."""
        if self.reader.tokenizer is None:
            raise ModelError(f"{self.name} has no tokenizer for what its decoder reads")
        tokenizer, notes = self.reader.tokenizer, tuple[str, ...]()
        prefix = getattr(tokenizer, "prefix_tokens", None)
        languages = _ids(getattr(self.preferred, "lang_to_id", None), len(tokenizer))
        if prefix and languages and len(prefix) == 2 and self.writer is not None:
            inputs = {name: values, "decoder_input_ids": self._tensor(prefix[:1])}
            with torch.inference_mode(), self._quoting(ModelInput(inputs, {}, ())):
                scores = self.writer(**inputs).logits[0, -1]
            ids = list(languages.values())
            language = ids[int(scores[torch.tensor(ids, device=scores.device)].argmax())]
            task = _ids(getattr(self.preferred, "task_to_id", None), len(tokenizer)).get("transcribe")
            prefix = [prefix[0], language, *([] if task is None else [task]), prefix[1]]
            notes = (f"the language is {tokenizer.convert_ids_to_tokens(language)}, as the model detects it",)
        started = tokens_of_ids(tokenizer, prefix, set(prefix)) if prefix else ()
        start = started or (start_token(self.module, tokenizer),)
        if text is None:
            return start, notes
        written = f" {text.strip()}" if hasattr(tokenizer, "prefix_tokens") else text
        fit = self.fit([text], Limit(truncate=truncate))

        def fit_behind(count: int) -> tuple[int | None, tuple[str, ...]]:
            keep, cut = fit(len(start) + count)
            return None if keep is None else max(1, keep - len(start)), cut

        encoded = self.reader.read([written], fit_behind, templated=True)
        return (*start, *encoded.tokens)[: self.positions], (*notes, *encoded.notes)

    def generate(self, prepared: ModelInput, count: int, sampling: Sampling = GREEDY) -> ModelInput:
        """The generated transcript, recorded during generation."""
        if reads_sound(self.module) and not self.encoder_decoder:
            raise ModelError(f"{self.name} transcribes without a decoder: leave out --generate")
        return super().generate(prepared, count, sampling)

    @property
    def objective(self) -> Objective:
        """Raises ``ModelError`` for a model that does not generate."""
        if reads_sound(self.module) and not self.encoder_decoder:
            raise ModelError(f"{self.name} takes sound and predicts no next token")
        return super().objective


def _ids(ids_by_name: Any, below: int) -> Mapping[str, int]:
    """Token ids by name, for names in the vocabulary."""
    items = ids_by_name.items() if isinstance(ids_by_name, Mapping) else ()
    return {str(name): id_ for name, id_ in items if isinstance(id_, int) and 0 <= id_ < below}


def find_begins(module: nn.Module, steps: int, seconds: float, count: int) -> tuple[float, ...] | None:
    """The second at which each of ``count`` tokens begins, in steps of ``seconds``.

    A token begins at the length from which a sound has it. ``None`` if no encoder gives its token count
    as a function of length, or if that function counts something else.
    """
    for child in module.modules():
        file, config = sys.modules[type(child).__module__], getattr(child, "config", None)
        counter = next((getattr(file, name) for name in LENGTHS if hasattr(file, name)), None)
        if counter is None or config is None:
            continue
        _, *others = inspect.signature(counter).parameters
        settings = {name: getattr(config, name) for name in others if hasattr(config, name)}
        counts = counter(torch.arange(1, steps + 1), **settings)
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
        """A text with a sound file in it: where the text has the processor's placeholder, or before it."""
        if text is None:
            raise InputError(f"{self.name} reads a text beside the sound: give both")
        part = part or SoundPart()
        rate = sampling_rate(self.name, self._extractor, 16000)
        sound = read_sound(path, part.begin, part.end).resample(rate)
        signs = {getattr(self.module.config, name, None) for name in SOUND_IDS}
        both: dict[str, Any] = {"text": [self._prompt(text)], "audio": [sound.samples]}
        inputs = place_fields(ask_processor(self.name, "sound", self._processor, **both), self.module)
        name = next((name for name, value in inputs.items() if value.is_floating_point()), None)
        if name is None or "input_ids" not in inputs:
            raise InputError(f"the processor of {self.name} makes nothing of the sound that the model reads")
        ids = inputs["input_ids"][0].tolist()
        stand = [position for position, id_ in enumerate(ids) if id_ in signs]
        begins, unknown = self._find_begins(inputs, name, sound, stand)
        notes = () if begins is not None else (f"{unknown}: sound tokens are numbered",)
        tokens = list(tokens_of_ids(self.reader.tokenizer, ids, self.reader.special_ids))
        for number, position in enumerate(stand):
            begin = 0.0 if begins is None else begins[number]
            spelling = f"sound · {number}" if begins is None else name_moment(sound.begin + begin, *begins)
            padding, segment = begin >= sound.seconds, tokens[position].segment
            tokens[position] = Token(spelling, SOUND_ID + number, special=padding, segment=segment)
        frames = None
        if begins is not None:
            pace = begins[-1] / (len(begins) - 1) if len(begins) > 1 else sound.seconds
            frames = SoundFrames(pace, sum(begin < sound.seconds for begin in begins), None, sound.begin)
        sequence = tuple(tokens)
        return ModelInput(inputs, text_axes(sequence), sequence, notes, self.settings, sound=frames)

    @cached_property
    def _processor(self) -> Any:
        return self.load_processor("text")

    @property
    def _extractor(self) -> Any:
        extractor = getattr(self._processor, "feature_extractor", None)
        return extractor or getattr(self._processor, "audio_processor", None)

    def _prompt(self, text: str) -> str:
        """The text with the processor's placeholder for a sound."""
        sign = getattr(self._processor, "audio_token", None)
        if not isinstance(sign, str):
            raise InputError(
                f"{self.name} has no sign for a sound in a text: it cannot be shown with --audio"
            )
        begin, end = (getattr(self._processor, f"audio_{name}_token", None) or "" for name in ("bos", "eos"))
        return text if sign in text else f"{begin}{sign}{end}{text}"

    def _find_begins(
        self, inputs: Mapping[str, Tensor], name: str, sound: Sound, stand: Sequence[int]
    ) -> tuple[tuple[float, ...] | None, str]:
        """When each token of the sound begins, as the model counts or evenly; otherwise why not."""
        values, count = inputs[name], len(stand)
        axis = time_axis(values, self._extractor)
        steps = values.shape[axis]
        masks = (mask for mask in inputs.values() if not mask.is_floating_point())
        mask = next((mask for mask in masks if mask.shape == (1, steps)), None)
        real = steps if mask is None else int(mask.sum())
        step = step_seconds(values, real, sound, self._extractor)
        begins = find_begins(self.module, real, step, count)
        if begins is not None or not count:
            return begins, "no token covers the sound"
        some = np.unique(np.linspace(0, count - 1, MIDDLES).round().astype(int))
        arguments = {**inputs, **self.settings}
        middles = find_middles(self.module, arguments, name, [stand[number] for number in some], axis)
        if middles is None or np.isnan(middles).any():
            return None, "no token covers one moment of the sound alone"
        pace = round(float(np.polyfit(some, middles, 1)[0])) if count > 1 else steps
        if pace < 1 or (count > 1 and np.abs(middles / pace - some - 0.5).max() > MOST_BESIDE_LINE):
            return None, "sound tokens are not evenly spaced in time"
        return tuple(round(number * pace * step, 6) for number in range(count)), ""


def accepts_sound(module: nn.Module) -> bool:
    """Whether a module takes a sound, under any name."""
    parameters = inspect.signature(module.forward).parameters
    return any(name in SOUNDS or "audio" in name for name in parameters)
