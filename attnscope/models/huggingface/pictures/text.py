"""A text with pictures in it, as a vision-language model of transformers reads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from attnscope.attention import Axis, Kind, Token
from attnscope.axes.weights import Array
from attnscope.errors import InputError
from attnscope.models.huggingface.pictures.images import ask_processor, place_fields
from attnscope.models.huggingface.pictures.parts import find_parts
from attnscope.models.huggingface.pictures.prompts import IDS, Prompts
from attnscope.models.huggingface.pictures.tokens import PictureTokens
from attnscope.models.huggingface.reader import FolderReader
from attnscope.models.inputs import Chat, ModelInput
from attnscope.models.inspection import accepts
from attnscope.models.text.tokens import tokens_of_ids

if TYPE_CHECKING:
    from PIL.Image import Image

TYPES = "mm_token_type_ids"
"""What models call the kind of each token, word or picture; some processors give it only if asked."""

SAID = "image_embeds_position_mask"
"""What processors call the positions of a picture, if its ids there mean nothing."""

FORMER = {"image_patches": "pixel_values", "pixel_values_images": "pixel_values"}
"""What processors called the pixels before models took them by one name."""


@dataclass(frozen=True)
class PictureText:
    """Reads texts with pictures for the ``module``, with the ``processor`` of its folder.

    ``video``: the pictures are frames of a video.
    """

    name: str
    module: nn.Module
    processor: Any
    reader: FolderReader
    settings: Mapping[str, Any]
    video: bool = False

    def read(self, images: Sequence[Image], text: str, chat: Chat | None, device: torch.device) -> ModelInput:
        """The inputs and labelled axes of a text with pictures.

        They stand where the text has signs for them, or before the text; in a chat, where the template puts
        them. Raises ``InputError`` for what the processor refuses.
        """
        count = 1 if self.video else len(images)
        prompts = Prompts(self.name, self.processor, self.module, count, self.video)
        written = prompts.write(text) if chat is None else [prompts.write_chat(text, chat)]
        prompt, fields = self._choose(self._process_all(written, images), written[-1])
        inputs = place_fields(fields, self.module, device)
        ids = inputs["input_ids"][0].tolist()
        tokens = tokens_of_ids(self.reader.tokenizer, ids, self.reader.special_ids)
        counts = {
            name: value
            for name, value in fields.items()
            if isinstance(value, list) and accepts(self.module, name) and name not in inputs
        }  # of tiles, which some models take as plain numbers
        return replace(self, settings={**self.settings, **counts})._label(prompt, images, inputs, tokens)

    def _process_all(self, prompts: Sequence[str], images: Sequence[Image]) -> dict[str, Mapping[str, Any]]:
        """What the processor makes of each prompt that it takes. Raises ``InputError`` if it takes none."""
        made: dict[str, Mapping[str, Any]] = {}
        refused: InputError | None = None
        for prompt in prompts:
            try:
                made[prompt] = self._process(prompt, images)
            except InputError as error:
                refused = refused or error
        if not made:
            raise refused or InputError(f"{self.name} has no sign for a picture in a text")
        return made

    def _choose(self, made: Mapping[str, Mapping[str, Any]], text: str) -> tuple[str, Mapping[str, Any]]:
        """The text itself if the processor puts the pictures into it, else what becomes the most tokens.

        A processor that puts them itself reads a sign for them as a word more.
        """
        if text in made and self._said(made[text]):
            return text, made[text]
        chosen = max(made, key=lambda prompt: len(made[prompt]["input_ids"][0]))
        return chosen, made[chosen]

    def _said(self, fields: Mapping[str, Any]) -> set[int]:
        """The positions at which a text has an id that stands for a picture, or which are said to be one."""
        config: Any = self.module.config
        signs = {getattr(config, name, None) for name in IDS["video" if self.video else "image"]}
        said = fields[SAID][0].tolist() if SAID in fields else []
        at = {position for position, id_ in enumerate(fields["input_ids"][0].tolist()) if id_ in signs}
        return at | {position for position, is_picture in enumerate(said) if is_picture}

    def _process(self, prompt: str, images: Sequence[Image]) -> Mapping[str, Any]:
        return ask_processor(self.name, "picture", lambda: self._ask(prompt, images))

    def _ask(self, prompt: str, images: Sequence[Image]) -> Mapping[str, Any]:
        """What the processor makes of a text and its pictures."""
        given: dict[str, Any] = {"images": images[0] if len(images) == 1 else list(images)}
        if self.video:
            frames = np.stack([np.asarray(image) for image in images])  # [frame, row, column, 3]
            given = {"videos": [frames], "do_sample_frames": False}
        if accepts(self.module, TYPES):
            given[f"return_{TYPES}"] = True
        made = self.processor(text=prompt, **given, return_tensors="pt")
        return {name if accepts(self.module, name) else FORMER.get(name, name): made[name] for name in made}

    def _label(
        self, prompt: str, images: Sequence[Image], inputs: Mapping[str, Tensor], tokens: tuple[Token, ...]
    ) -> ModelInput:
        """The input with its axes: tokens of pictures are named by their row and column in them."""
        sizes = {name: value.numel() for name, value in inputs.items() if value.is_floating_point()}
        if not sizes:
            raise InputError(
                f"the processor of {self.name} makes nothing of the picture that the model reads"
            )
        kind, length, found = self._find(prompt, images, inputs, sorted(sizes, key=lambda n: -sizes[n]))
        axes: dict[Kind, tuple[Axis, Axis]] = {}
        named: Sequence[Token]
        if kind == "cross":
            named = found.name_across(length)
            axes["cross"] = tokens, tuple(named)
        else:
            tokens = found.name_in_text(tokens, self._standing(inputs, found))
            named = tokens
        axes["decoder"] = tokens, tokens  # the tower has other tokens, though they may be as many
        notes: tuple[str, ...] = ()
        if not found.placed:
            notes = ("no token stands for a part of the picture alone: those of the picture are numbered",)
        elif found.shared > 1:
            notes = (f"each token of the video stands for the same part of {found.shared} frames",)
        pictures = found.lay_out(images, named)
        return ModelInput(inputs, axes, tokens, notes, self.settings, pictures=pictures)

    def _find(
        self, prompt: str, images: Sequence[Image], inputs: Mapping[str, Tensor], fields: Sequence[str]
    ) -> tuple[Kind, int, PictureTokens]:
        """Which tokens, on which axis of how many tokens, stand for which parts of the pictures."""
        from PIL import Image as pillow

        word = "frame" if self.video else "image"
        if SAID in inputs:  # which says nothing of their parts
            return "decoder", inputs["input_ids"].shape[1], PictureTokens(word, [{} for _ in images])

        def prepare(arrays: Sequence[Array]) -> Mapping[str, Any]:
            return self._process(prompt, [pillow.fromarray(array) for array in arrays])

        shapes = [(image.height, image.width) for image in images]
        parts = find_parts(self.module, {**inputs, **self.settings}, fields, prepare, shapes)
        return parts.kind, parts.length, PictureTokens(word, parts.regions, parts.padding, parts.mixed)

    def _standing(self, inputs: Mapping[str, Tensor], found: PictureTokens) -> set[int]:
        """The positions that stand for pictures, those between the tokens of their parts among them."""
        ids = inputs["input_ids"][0].tolist()
        signs = {ids[position] for regions in found.regions for position in regions}
        return self._said(inputs) | {position for position, id_ in enumerate(ids) if id_ in signs}
