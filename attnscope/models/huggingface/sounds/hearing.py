"""Models of transformers that read texts and hear, too: a sound goes in where a text would, or beside it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

from attnscope.errors import InputError
from attnscope.models.huggingface.model import HuggingFaceModel
from attnscope.models.huggingface.sounds.speech import SpeechModel
from attnscope.models.inputs import ModelInput, Part
from attnscope.models.inspection import SOUNDS

TOWERS = ("get_audio_features", "get_text_features")
"""The methods of a model with a tower for sounds and one for texts, as CLAP has them."""


def hears_too(module: nn.Module) -> bool:
    """Whether a module takes a sound, whatever it is called."""
    parameters = inspect.signature(module.forward).parameters
    return any(name in SOUNDS or "audio" in name for name in parameters)


class HearingModel(HuggingFaceModel):
    """A transformers model that reads texts and hears; ``load_extractor`` brings what prepares sounds."""

    def __init__(self, *given: Any, load_extractor: Callable[..., Any], **named: Any) -> None:
        super().__init__(*given, **named)
        self._load_extractor = load_extractor

    def prepare_audio(self, path: Path, text: str | None = None, part: Part | None = None) -> ModelInput:
        """A sound for the tower of sounds, or for the encoder of what writes from texts and sounds alike."""
        from transformers import AutoModelForSpeechSeq2Seq

        towers = all(hasattr(self.module, name) for name in TOWERS)
        if towers and text is not None:
            raise InputError(f"{self.name} hears a sound alone: leave out the text beside --audio")
        writes = type(self.module.config) in AutoModelForSpeechSeq2Seq._model_mapping
        if not towers and not (writes and self.encoder_decoder):
            raise InputError(
                f"{self.name} hears, but where a sound stands in its text is not known here: give what its "
                "processor makes of both with --inputs FILE"
            )
        speech = SpeechModel(
            self.name,
            self.module,
            self.reader.tokenizer,
            self.notes,
            positions=self.positions,
            writer=self.writer,
            load_processor=self._load_extractor,
            entry=TOWERS[0] if towers else "__call__",
        )
        return speech.prepare_audio(path, text, part)
