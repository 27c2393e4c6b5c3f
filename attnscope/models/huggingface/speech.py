"""Models of transformers that hear: encoders of sound, and those with a decoder that writes what is said."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from attnscope.attention import Axis, Head, Kind, Token
from attnscope.axes.places import HEARD
from attnscope.axes.weights import Array
from attnscope.errors import InputError, ModelError, first_line
from attnscope.models.huggingface.model import HuggingFaceModel
from attnscope.models.huggingface.reader import start_token
from attnscope.models.inputs import Heard, ModelInput
from attnscope.models.limits import bounded
from attnscope.models.tokens import tokens_of_ids
from attnscope.storage.sound import RATES, Sound, read_sound

LENGTHS = ("_get_feat_extract_output_lengths", "_get_subsampling_output_length")
"""What modules call the function from the length of their input to the number of frames."""

PREPARED = 2 << 30
"""Bytes that preparing a sound may take: a folder says how."""

MANY = 10**9
"""A length that is so large that its number of frames tells how long a frame is."""


@dataclass(frozen=True)
class Frames:
    """The frames of an encoder: how long each is, and the first ``heard`` of them are sound, not padding."""

    count: int
    heard: int
    seconds: float  # of one

    @property
    def tokens(self) -> tuple[Token, ...]:
        """A token for each, named by the time when it begins; no two are equal."""
        digits = 2 if self.seconds >= 0.01 else 3
        return tuple(
            Token(f"{number * self.seconds:.{digits}f} s", HEARD + number, special=number >= self.heard)
            for number in range(self.count)
        )


class SpeechModel(HuggingFaceModel):
    """A transformers model that hears, with its feature extractor, and its tokenizer if it writes.

    ``preferred`` is the folder's generation config: languages, tasks, and the heads that align words.
    """

    def __init__(self, *given: Any, preferred: Any = None, **named: Any) -> None:
        super().__init__(*given, **named)
        self.preferred = preferred
        if self.encoder_decoder and self.positions is None:
            limit = getattr(self.module.config, "max_target_positions", None)
            self.positions = limit if isinstance(limit, int) and limit > 0 else None

    def prepare(
        self, text: str, second: str | None = None, *, max_tokens: int | None = None, truncate: bool = False
    ) -> ModelInput:
        """Raises ``InputError``: there is nothing to hear in a text."""
        raise InputError(f"{self.name} hears: give it a sound with --audio FILE")

    def prepare_audio(self, path: Path, text: str | None = None, *, truncate: bool = False) -> ModelInput:
        """A sound file as the model hears it, and ``text``, what is said, as its decoder reads it."""
        if text is not None and not self.encoder_decoder:
            raise InputError(f"{self.name} hears and reads no text: leave out the text beside --audio")
        extractor = self._load_processor()
        extractor = getattr(extractor, "feature_extractor", extractor)
        sound, notes = self._listen(path, extractor, truncate)
        name = str(getattr(self.module, "main_input_name", ""))
        values, heard = self._extract(path, sound, extractor, name)
        frames = self._frames(values, heard, sound, extractor)
        heard_as: tuple[Token, ...] = frames.tokens if frames is not None else ()
        axis: Axis = heard_as or range(0)
        inputs, axes = {name: values}, dict[Kind, tuple[Axis, Axis]]()
        if frames is None:
            notes += (f"how long a frame of {self.name} is is not known: they are numbered",)
        else:
            axes["encoder"] = (axis, axis)
        if self.encoder_decoder:
            said, more = self._said(values, name, text, truncate)
            notes += more
            inputs["decoder_input_ids"] = self._tensor([token.id for token in said])
            axes["decoder"] = (said, said)
            if frames is not None:
                axes["cross"] = (said, axis)
        heard_for = None
        if frames is not None:
            heard_for = Heard(frames.seconds, frames.heard, _bands(values, frames.count))
        return ModelInput(inputs, axes, heard_as, notes, self.settings, heard=heard_for)

    @property
    def alignment_heads(self) -> tuple[Head, ...]:
        """The heads that align words with the sound, as the folder names them; none if it does not."""
        named = getattr(self.preferred, "alignment_heads", None)
        pairs = named if isinstance(named, list | tuple) else ()
        return tuple(
            Head(*pair)
            for pair in pairs
            if isinstance(pair, list | tuple) and len(pair) == 2 and all(type(one) is int for one in pair)
        )

    def _listen(self, path: Path, extractor: Any, truncate: bool) -> tuple[Sound, tuple[str, ...]]:
        """The sound at the rate of the extractor, as long as the model hears at once."""
        rate: Any = getattr(extractor, "sampling_rate", None)
        if rate not in RATES:
            raise ModelError(f"the feature extractor of {self.name} asks for {rate!r} samples a second")
        sound = read_sound(path).resample(rate)
        most = getattr(extractor, "n_samples", None)
        if not isinstance(most, int) or len(sound.samples) <= most:
            return sound, ()
        if not truncate:
            raise InputError(
                f"{path} has {sound.seconds:.1f} seconds and {self.name} hears at most {most / rate:g} at "
                "once: cut it, or pass --truncate to hear its beginning"
            )
        note = f"cut: the first {most / rate:g} of {sound.seconds:.1f} seconds are heard"
        return replace(sound, samples=sound.samples[:most]), (note,)

    def _extract(self, path: Path, sound: Sound, extractor: Any, name: str) -> tuple[Tensor, int | None]:
        """What the model is given of a sound, and how many steps of it are no padding."""
        try:
            with bounded(f"what the feature extractor makes of {path}", PREPARED):
                fields = extractor(
                    sound.samples,
                    sampling_rate=sound.rate,
                    return_tensors="pt",
                    return_attention_mask=True,
                )
            values, mask = fields[name], fields.get("attention_mask")
        except ModelError:
            raise
        except Exception as error:
            raise InputError(
                f"the feature extractor of {self.name} refuses {path}: {first_line(error)}"
            ) from error
        dtypes = (weights.dtype for weights in self.module.parameters() if weights.is_floating_point())
        values = values.to(self.device, next(dtypes, torch.float32))
        return values, None if mask is None else int(mask[0].sum())

    def _frames(self, values: Tensor, heard: int | None, sound: Sound, extractor: Any) -> Frames | None:
        """The frames of the encoder, by the module's own function from lengths to frames."""
        count = _frame_counter(self.module)
        if count is None:
            return None
        wide = values.ndim == 3 and values.shape[1] == getattr(extractor, "feature_size", None)
        steps = values.shape[-1] if wide or values.ndim == 2 else values.shape[1]
        if count(steps) < 1:
            raise InputError(
                f"{sound.seconds:.3f} seconds are too short for {self.name}: its encoder makes no frame of it"
            )
        if values.ndim == 2:
            step = 1 / sound.rate
        elif hop := getattr(extractor, "hop_length", None):
            step = hop / sound.rate
        else:
            step = round(sound.seconds / steps, 3)
        long, full = round(MANY / count(MANY), 3), count(steps)  # steps in a frame
        known = (
            full if heard is None else min(count(heard), int(heard / long))
        )  # the last may be half padding
        return Frames(full, min(full, max(1, known)), step * long)

    def _said(
        self, values: Tensor, name: str, text: str | None, truncate: bool
    ) -> tuple[tuple[Token, ...], tuple[str, ...]]:
        """What the decoder reads: the tokens that it starts with, and those of the text."""
        if self.reader.tokenizer is None:
            raise ModelError(f"{self.name} has no tokenizer for what its decoder reads")
        start, notes = self._start(values, name)
        if text is None:
            return start, notes
        written = f" {text.strip()}" if hasattr(self.reader.tokenizer, "prefix_tokens") else text
        encoded = self.reader.read([written], templated=True)
        keep, cut = self._fit(len(start) + len(encoded.tokens), max_tokens=None, truncate=truncate)
        return (*start, *encoded.tokens)[:keep], (*notes, *encoded.notes, *cut)

    def _start(self, values: Tensor, name: str) -> tuple[tuple[Token, ...], tuple[str, ...]]:
        """The tokens that a decoder starts with: for Whisper, also the language, which the model hears."""
        tokenizer = self.reader.tokenizer
        prefix = getattr(tokenizer, "prefix_tokens", None)
        if not prefix:
            return (start_token(self.module, tokenizer),), ()
        languages = _ids(getattr(self.preferred, "lang_to_id", None), len(tokenizer))
        notes: tuple[str, ...] = ()
        if languages and len(prefix) == 2 and self.writer is not None:
            first = self._tensor(prefix[:1])
            with torch.inference_mode():
                scores = self.writer(**{name: values}, decoder_input_ids=first).logits[0, -1]
            ids = list(languages.values())
            language = ids[int(scores[torch.tensor(ids, device=scores.device)].argmax())]
            task = _ids(getattr(self.preferred, "task_to_id", None), len(tokenizer)).get("transcribe")
            prefix = [prefix[0], language, *([] if task is None else [task]), prefix[1]]
            notes = (f"the language is {tokenizer.convert_ids_to_tokens(language)}, as the model hears it",)
        return tokens_of_ids(tokenizer, prefix, set(prefix)), notes

    def generate(
        self, prepared: ModelInput, count: int, *, temperature: float = 0.0, seed: int = 0
    ) -> ModelInput:
        """What is said as the model writes it, recorded while it does."""
        if not self.encoder_decoder:
            raise ModelError(f"{self.name} hears and writes nothing on: leave out --generate")
        return super().generate(prepared, count, temperature=temperature, seed=seed)


def _bands(values: Tensor, frames: int) -> Array | None:
    """How loud each band is, where the model is given that.  [1, band, step] -> [band, frame]"""
    if values.ndim != 3 or values.shape[-1] % frames:
        return None
    bands: Array = values[0].float().cpu().numpy()
    means: Array = bands.reshape(len(bands), frames, -1).mean(-1)
    return means


def _ids(named: Any, below: int) -> Mapping[str, int]:
    """Token numbers by their names, those that a vocabulary has."""
    if not isinstance(named, Mapping):
        return {}
    return {str(name): id_ for name, id_ in named.items() if isinstance(id_, int) and 0 <= id_ < below}


def _frame_counter(module: nn.Module) -> Any:
    """From a length to a number of frames, before any adapter; ``None`` if no module says it."""
    for child in module.modules():
        for name in LENGTHS:
            method = getattr(child, name, None)
            if method is None:
                continue
            alone = {"add_adapter": False} if "add_adapter" in inspect.signature(method).parameters else {}

            def count(length: int, method: Any = method, alone: Mapping[str, bool] = alone) -> int:
                return int(method(torch.tensor(length), **alone))

            return count
    return None
