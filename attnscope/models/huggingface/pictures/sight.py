"""Pictures for a model of transformers: alone, beside a text, or in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from attnscope.attention import Axis, Kind, Token
from attnscope.errors import InputError
from attnscope.models.huggingface.pictures.images import open_frames, open_image, read_image
from attnscope.models.huggingface.pictures.text import PictureText
from attnscope.models.huggingface.reader import Encoded, FolderReader
from attnscope.models.inputs import Chat, ModelInput
from attnscope.models.inspection import accepts, find_device
from attnscope.models.regions import find_owners


def begin_decoder(prepared: ModelInput, tokens: tuple[Token, ...], device: torch.device) -> ModelInput:
    """What an encoder reads, a picture among it, with the tokens that its decoder begins with."""
    axes: dict[Kind, tuple[Axis, Axis]] = {**prepared.axes, "decoder": (tokens, tokens)}
    if prepared.tokens:
        axes |= {"encoder": (prepared.tokens, prepared.tokens), "cross": (tokens, prepared.tokens)}
    ids = torch.tensor([[token.id for token in tokens]], device=device)
    return replace(prepared, inputs={**prepared.inputs, "decoder_input_ids": ids}, axes=axes)


@dataclass(frozen=True)
class Sight:
    """What a model sees by; ``load_processor`` brings what prepares images, or images in texts if asked."""

    name: str
    module: nn.Module
    reader: FolderReader
    load_processor: Callable[..., Any]
    settings: Mapping[str, Any]

    def see(self, paths: Sequence[Path], *, tower: bool) -> ModelInput:
        """One picture alone, by the image ``tower`` of a model that reads texts too, or by the whole."""
        if tower and not hasattr(self.module, "get_image_features"):
            raise InputError(f"{self.name} reads a text beside the image: give both")
        return self._see_one(paths, "get_image_features" if tower else "__call__")

    def see_beside(self, paths: Sequence[Path], encoded: Encoded) -> ModelInput:
        """One picture and a text, each by a tower of its own."""
        prepared = self._see_one(paths)
        fields = {name: ids for name, ids in encoded.fields.items() if accepts(self.module, name)}
        inputs = dict(prepared.inputs) | {
            name: torch.tensor([list(ids)], device=self._device) for name, ids in fields.items()
        }
        axes = dict(prepared.axes) | {"decoder": (encoded.tokens, encoded.tokens)}
        if not hasattr(self.module, "get_text_features"):  # one model for both
            return self._join(
                replace(prepared, inputs=inputs, axes=axes, notes=encoded.notes), encoded.tokens
            )
        return replace(prepared, inputs=inputs, axes=axes, notes=encoded.notes)

    def _join(self, prepared: ModelInput, words: tuple[Token, ...]) -> ModelInput:
        """A picture that a text looks at across, or whose tokens stand before it."""
        seen, axes = prepared.tokens, dict(prepared.axes)
        owners = find_owners(self.module, prepared.inputs, "pixel_values") if seen else None
        if owners is None:
            return prepared
        if owners.kind == "cross" and owners.length == len(seen):
            return replace(prepared, axes=axes | {"cross": (words, seen)})
        if owners.length == len(seen) + len(words) and int(owners.tokens.max()) < len(seen):
            both = (*seen, *words)
            return replace(prepared, axes=axes | {"decoder": (both, both)}, tokens=both)
        return prepared

    def read(self, paths: Sequence[Path], text: str, chat: Chat | None, *, video: bool) -> ModelInput:
        """Pictures in a text, or the frames of a video. Raises ``InputError``."""
        notes: tuple[str, ...] = ()
        processor = self.load_processor(True)
        if not video:
            images = [open_image(path) for path in paths]
        elif getattr(processor, "video_processor", None) is not None:
            images, notes = open_frames(paths[0])
        else:
            raise InputError(
                f"{self.name} sees no videos: give frames with --image, or choose a model that does"
            )
        reader = PictureText(self.name, self.module, processor, self.reader, self.settings, video)
        prepared = reader.read(images, text, chat, self._device)
        return replace(prepared, notes=(*prepared.notes, *notes))

    def _see_one(self, paths: Sequence[Path], entry: str = "__call__") -> ModelInput:
        if len(paths) != 1:
            raise InputError(f"{self.name} reads one image at a time here: there are {len(paths)}")
        return read_image(paths[0], self.load_processor(), self.module, self._device, entry)

    @property
    def _device(self) -> torch.device:
        return find_device(self.module)
