"""Models of transformers that hear: encoders of sound, and those with a decoder that writes what is said."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attnscope.attention import Axis, Head, Kind, Token
from attnscope.errors import InputError, ModelError
from attnscope.models.huggingface.model import HuggingFaceModel
from attnscope.models.huggingface.pictures.images import place_fields
from attnscope.models.huggingface.reader import start_token
from attnscope.models.huggingface.sounds.features import extract_features, require_room
from attnscope.models.huggingface.sounds.frames import LOST, find_bands, find_frames
from attnscope.models.huggingface.sounds.letters import is_ctc, name_letters, spell_letters
from attnscope.models.inputs import Heard, ModelInput, Objective, Part
from attnscope.models.inspection import find_sound_input
from attnscope.models.text.tokens import tokens_of_ids
from attnscope.storage.sound import RATES, Sound, read_sound


class SpeechModel(HuggingFaceModel):
    """A transformers model that hears, with its feature extractor, and its tokenizer if it writes.

    ``preferred`` is the folder's generation config: languages, tasks, and the heads that align words;
    ``entry`` the method of the module that hears, where that is not the whole forward.
    """

    def __init__(self, *given: Any, preferred: Any = None, entry: str = "__call__", **named: Any) -> None:
        super().__init__(*given, **named)
        self.preferred = preferred
        self.entry = entry
        if self.encoder_decoder and self.positions is None:
            limit = getattr(self.module.config, "max_target_positions", None)
            self.positions = limit if isinstance(limit, int) and limit > 0 else None

    def prepare(
        self, text: str, second: str | None = None, *, max_tokens: int | None = None, truncate: bool = False
    ) -> ModelInput:
        """Raises ``InputError``: there is nothing to hear in a text."""
        raise InputError(f"{self.name} hears: give it a sound with --audio FILE")

    def prepare_audio(self, path: Path, text: str | None = None, part: Part | None = None) -> ModelInput:
        """A sound file as the model hears it, and ``text``, what is said, as its decoder reads it."""
        if text is not None and not self.encoder_decoder:
            raise InputError(f"{self.name} hears and reads no text: leave out the text beside --audio")
        part = part or Part()
        sound, notes = self._listen(path, part)
        name = find_sound_input(self.module) or ""
        values, heard, beside = self._extract(path, sound, name)
        inputs, axes = {name: values, **beside}, dict[Kind, tuple[Axis, Axis]]()
        if self.encoder_decoder and self.entry == "__call__":
            said, more = self._said(values, name, text, part.truncate)
            notes += more
            inputs["decoder_input_ids"] = self._tensor([token.id for token in said])
            axes["decoder"] = (said, said)
        heard_for, looks = None, dict[Kind, tuple[Token, ...]]()
        frames = find_frames(self.name, self.module, values, heard, sound, self._extractor)
        if frames is None:
            notes += (
                f"what looks at the sound is numbered, without times: {self.name} does not say how long a "
                "frame is",
            )
        else:
            kinds: tuple[Kind, ...] = ("encoder", "cross") if "decoder_input_ids" in inputs else ("encoder",)
            looks = dict.fromkeys(kinds, frames.tokens)
            end = frames.count * frames.seconds
            if sound.seconds > end + LOST * frames.seconds:  # its extractor cut it, and did not say so
                notes += self._note_cut(path, sound, end, part)
            bands = find_bands(values, frames, sound, self._extractor)
            heard_for = Heard(frames.seconds, frames.heard, bands, sound.begin)
        for kind, tokens in looks.items():
            if kind not in axes:
                axes[kind] = (axes["decoder"][0] if kind == "cross" else tokens, tokens)
        heard_as = next(iter(looks.values()), ())
        settings = self.settings if self.entry == "__call__" else {}
        prepared = ModelInput(inputs, axes, heard_as, notes, settings, heard=heard_for, entry=self.entry)
        return (
            self._read_letters(prepared) if heard_for is not None and is_ctc(self.module.config) else prepared
        )

    def _read_letters(self, prepared: ModelInput) -> ModelInput:
        """The same with what the CTC head reads at each frame in the names of the frames: one pass."""
        assert prepared.heard is not None
        frames, heard = prepared.tokens, prepared.heard
        if self.reader.tokenizer is None or self.writer is None:
            lacks = "vocabulary" if self.writer is not None else "weights"
            return replace(prepared, notes=(*prepared.notes, f"no letters: the CTC head has no {lacks} here"))
        self._require_memory(prepared)
        with torch.inference_mode(), self.threads(prepared), self._quoting(prepared):
            ids = self.writer(**prepared.inputs).logits[0].argmax(-1).cpu().numpy()
        each = len(ids) // len(frames)
        letters = spell_letters(ids, heard.seconds / each, self.reader.tokenizer) if each else None
        if letters is None:
            why = "its vocabulary has no blank" if each else "its frames are longer than those of the encoder"
            return replace(prepared, notes=(*prepared.notes, f"no letters of the CTC head: {why}"))
        named = name_letters(frames, letters)
        axes: dict[Kind, tuple[Axis, Axis]] = {"encoder": (named, named)}
        return replace(prepared, tokens=named, axes=axes, heard=replace(heard, letters=letters))

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

    @cached_property
    def _extractor(self) -> Any:
        """What prepares a sound. Raises ``ModelError`` for one that asks for what no sound has."""
        extractor = self._load_processor()
        extractor = getattr(extractor, "feature_extractor", extractor)
        rate: Any = getattr(extractor, "sampling_rate", None)
        if rate not in RATES:
            raise ModelError(f"the feature extractor of {self.name} asks for {rate!r} samples a second")
        return extractor

    @property
    def at_once(self) -> float:
        """How many seconds it hears at once; those that only look at a whole sound have no limit."""
        limits = (getattr(self._extractor, limit, None) for limit in ("n_samples", "nb_max_samples"))
        most = next((limit for limit in limits if limit is not None), None)
        return most / self._extractor.sampling_rate if isinstance(most, int) and most > 0 else math.inf

    def _listen(self, path: Path, part: Part) -> tuple[Sound, tuple[str, ...]]:
        """The sound at the rate of the extractor, as long as the model hears at once."""
        sound = read_sound(path, part.begin, part.end).resample(self._extractor.sampling_rate)
        if sound.seconds <= self.at_once:
            require_room(self.name, self.module, sound)
            return sound, ()
        notes = self._note_cut(path, sound, self.at_once, part)
        most = round(self.at_once * sound.rate)
        return replace(sound, samples=sound.samples[:most]), notes

    def _note_cut(self, path: Path, sound: Sound, end: float, part: Part) -> tuple[str, ...]:
        """That only the beginning is heard. Raises ``InputError`` where nobody asked for that."""
        if not part.truncate:
            raise InputError(
                f"{path} has {sound.seconds:.1f} seconds and {self.name} hears at most {end:g} at once: "
                "choose a part with --from-second and --to-second, or pass --truncate to hear its beginning"
            )
        return (f"cut: the first {end:g} of {sound.seconds:.1f} seconds are heard",)

    def _extract(
        self, path: Path, sound: Sound, name: str
    ) -> tuple[Tensor, int | None, Mapping[str, Tensor]]:
        """What the model is given of a sound, how many steps of it are no padding, and what else it takes."""
        made = extract_features(self.name, self._extractor, self.module.config, path, sound)
        if name not in made.fields:
            raise ModelError(
                f"{self.name} reads {name}, and its feature extractor makes {', '.join(made.fields)}"
            )
        beside = place_fields(made.fields, self.module, self.device, self.entry)
        return beside.pop(name), made.heard, beside

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

        def fit(count: int) -> tuple[int | None, tuple[str, ...]]:
            keep, cut = self._fit(len(start) + count, len(text), max_tokens=None, truncate=truncate)
            return None if keep is None else max(1, keep - len(start)), cut

        encoded = self.reader.read([written], fit, templated=True)
        return (*start, *encoded.tokens)[: self.positions], (*notes, *encoded.notes)

    def _start(self, values: Tensor, name: str) -> tuple[tuple[Token, ...], tuple[str, ...]]:
        """The tokens that a decoder starts with: for Whisper, also the language, which the model hears."""
        tokenizer = self.reader.tokenizer
        prefix = getattr(tokenizer, "prefix_tokens", None)
        if not prefix:
            return (start_token(self.module, tokenizer),), ()
        languages = _ids(getattr(self.preferred, "lang_to_id", None), len(tokenizer))
        notes: tuple[str, ...] = ()
        if languages and len(prefix) == 2 and self.writer is not None:
            asked = {name: values, "decoder_input_ids": self._tensor(prefix[:1])}
            with torch.inference_mode(), self._quoting(ModelInput(asked, {}, ())):
                scores = self.writer(**asked).logits[0, -1]
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

    @property
    def objective(self) -> Objective:
        """Raises ``ModelError`` for a model that writes nothing on."""
        if not self.encoder_decoder:
            raise ModelError(f"{self.name} hears and predicts no next token")
        return super().objective


def _ids(named: Any, below: int) -> Mapping[str, int]:
    """Token numbers by their names, those that a vocabulary has."""
    if not isinstance(named, Mapping):
        return {}
    return {str(name): id_ for name, id_ in named.items() if isinstance(id_, int) and 0 <= id_ < below}
