"""A text with a picture in it, as a vision-language model of transformers reads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from attnscope.attention import Kind, Token
from attnscope.axes.places import PICTURED, SEPARATOR
from attnscope.axes.weights import Array
from attnscope.errors import InputError, ModelError, first_line
from attnscope.models.huggingface.images import PREPARED, open_image, place_fields
from attnscope.models.huggingface.reader import FolderReader
from attnscope.models.inputs import Chat, ModelInput, Picture, text_axes
from attnscope.models.limits import bounded
from attnscope.models.regions import Region, find_coordinates, find_owners, find_regions
from attnscope.models.tokens import tokens_of_ids
from attnscope.models.trial import tried, try_first

if TYPE_CHECKING:
    from PIL.Image import Image

SIGNS = ("image_token_id", "image_token_index")
"""What configs call the id of a token that stands for a picture."""

SHARE = 3
"""Pixels of a picture that take as long to prepare as a byte of text, at most."""

LARGEST = 512
"""Pixels along the longer side of a picture that is drawn under attention, at most."""


@dataclass(frozen=True)
class PictureText:
    """Reads texts with a picture for the ``module``, with the ``processor`` of its folder."""

    name: str
    module: nn.Module
    processor: Any
    reader: FolderReader
    settings: Mapping[str, Any]

    def read(self, path: Path, text: str, chat: Chat | None, device: torch.device) -> ModelInput:
        """The inputs and labelled axes of a text with the picture in ``path``.

        The picture stands where the text has the processor's sign for it, or before the text; in a chat,
        where the template puts it. Raises ``InputError`` for what the processor refuses.
        """
        image = open_image(path)
        prompt = self._prompt(text, image) if chat is None else self._write_chat(text, chat)
        fields = self._try(prompt, image)
        inputs = place_fields(fields, self.module, device)
        ids = inputs["input_ids"][0].tolist()
        tokens = tokens_of_ids(self.reader.tokenizer, ids, self.reader.special_ids)
        return self._label(prompt, image, inputs, tokens)

    def _prompt(self, text: str, image: Image) -> str:
        """The text with the processor's sign for a picture: the one that becomes the most tokens."""
        signs = [
            getattr(self.processor, name, None) for name in ("boi_token", "image_token", "fake_image_token")
        ]
        known = [sign for sign in dict.fromkeys(signs) if isinstance(sign, str)]
        if any(sign in text for sign in known):
            return text
        prompts = [f"{sign}{text}" for sign in known] or [text]
        lengths: dict[str, int] = {}
        refused: InputError | None = None
        for prompt in prompts:
            try:
                lengths[prompt] = len(self._try(prompt, image)["input_ids"][0])
            except InputError as error:
                refused = error
        if not lengths:
            raise refused or InputError(
                f"{self.name} has no sign for a picture in a text: write it into the text"
            )
        return max(lengths, key=lambda prompt: lengths[prompt])

    def _write_chat(self, text: str, chat: Chat) -> str:
        if not getattr(self.processor, "chat_template", None):
            raise InputError(f"{self.name} has no chat format: leave out --chat to give it the text as it is")
        content = [{"type": "image"}, {"type": "text", "text": text}]
        messages: list[dict[str, Any]] = [{"role": "user", "content": content}]
        if chat.system is not None:
            messages.insert(0, {"role": "system", "content": [{"type": "text", "text": chat.system}]})

        def write() -> str:
            return str(
                self.processor.apply_chat_template(messages, tokenize=False, add_generation_prompt=chat.reply)
            )

        try:
            return tried(f"the chat template of {self.name}", write, len(text))
        except ModelError:
            raise
        except Exception as error:  # a template is a program, that may raise whatever it likes
            raise InputError(f"the chat template of {self.name} refuses this: {first_line(error)}") from error

    def _try(self, prompt: str, image: Image) -> Mapping[str, Any]:
        """``_process``, tried in a copy of the process first: a folder says how many tokens there are."""

        def work() -> None:
            torch.set_num_threads(1)  # a copy has no other threads
            self.processor(text=prompt, images=image, return_tensors="pt")

        try_first(f"the processor of {self.name}", work, image.width * image.height // SHARE)
        return self._process(prompt, image)

    def _process(self, prompt: str, image: Image) -> Mapping[str, Any]:
        try:
            with bounded(f"what the processor of {self.name} makes of the picture", PREPARED):
                return dict(self.processor(text=prompt, images=image, return_tensors="pt"))
        except ModelError:
            raise
        except Exception as error:
            raise InputError(f"the processor of {self.name} refuses this: {first_line(error)}") from error

    def _label(
        self, prompt: str, image: Image, inputs: Mapping[str, Tensor], tokens: tuple[Token, ...]
    ) -> ModelInput:
        """The input with its axes: tokens of the picture are named by their row and column in it."""
        pixels = next((name for name, value in inputs.items() if value.is_floating_point()), None)
        if pixels is None:
            raise InputError(
                f"the processor of {self.name} makes nothing of the picture that the model reads"
            )
        kind, length, regions, padding = self._find(prompt, image, inputs, pixels)
        ids = inputs["input_ids"][0].tolist()
        if kind == "cross":
            across = _name_all(length, regions)
            axes = text_axes(tokens)
            axes["cross"] = tokens, across
            named: Sequence[Token] = across
        else:
            stand = self._standing(ids, regions)
            tokens = _name_in_text(tokens, stand, regions, padding)
            axes, named = text_axes(tokens), tokens
        notes: tuple[str, ...] = ()
        if not regions:
            notes = ("no token stands for a part of the picture alone: those of the picture are numbered",)
        picture = _lay_out(image, named, regions)
        return ModelInput(inputs, axes, tokens, notes, self.settings, picture=picture)

    def _find(
        self, prompt: str, image: Image, inputs: Mapping[str, Tensor], pixels: str
    ) -> tuple[Kind, int, Mapping[int, Region], set[int]]:
        """Which tokens stand for which regions, on which axis of how many tokens; and those of padding."""
        from PIL import Image as images

        owners = find_owners(self.module, {**inputs, **self.settings}, pixels)
        if owners is None:
            return "decoder", inputs["input_ids"].shape[1], {}, set()

        def prepare(array: Array) -> Tensor:
            made: Tensor = self._process(prompt, images.fromarray(array))[pixels]
            return made

        where = find_coordinates(prepare, image.height, image.width)
        tokens = owners.tokens.cpu().numpy()
        regions = where and find_regions(tokens, where, image.height, image.width)
        owned = {int(number) for number in np.unique(tokens) if number >= 0}
        return owners.kind, owners.length, regions or {}, owned.difference(regions or ())

    def _standing(self, ids: Sequence[int], regions: Mapping[int, Region]) -> set[int]:
        """The positions at which the text has an id that stands for a picture."""
        config: Any = self.module.config
        signs: set[object] = {ids[position] for position in regions}
        signs |= {getattr(config, name, None) for name in SIGNS}
        return {position for position, id_ in enumerate(ids) if id_ in signs}


def stands_for_pictures(module: nn.Module) -> bool:
    """Whether a model has a token that stands for a picture in its text."""
    return any(getattr(module.config, name, None) is not None for name in SIGNS)


def _name(region: Region) -> str:
    return f"{'thumbnail' if region.level else 'image'} 1 · {region.row},{region.column}"


def _name_in_text(
    tokens: Sequence[Token], stand: set[int], regions: Mapping[int, Region], padding: set[int]
) -> tuple[Token, ...]:
    """The tokens of a text, of which those that stand for the picture have names of their own."""
    named = []
    for position, token in enumerate(tokens):
        if position in regions:
            token = Token(_name(regions[position]), PICTURED + position, segment=token.segment)
        elif position in padding:
            token = Token("image 1 · padding", SEPARATOR + position, special=True, segment=token.segment)
        elif position in stand and regions:
            token = Token("image 1 · row end", SEPARATOR + position, special=True, segment=token.segment)
        elif position in stand:
            number = sum(other < position for other in stand)
            token = Token(f"image 1 · {number}", PICTURED + position, segment=token.segment)
        named.append(token)
    return tuple(named)


def _name_all(count: int, regions: Mapping[int, Region]) -> tuple[Token, ...]:
    """The tokens of a picture that is looked at across a model."""
    return tuple(
        Token(_name(regions[number]), PICTURED + number)
        if number in regions
        else Token(f"image 1 · {number} of no place", SEPARATOR + number, special=bool(regions))
        for number in range(count)
    )


def _lay_out(image: Image, tokens: Sequence[Token], regions: Mapping[int, Region]) -> Picture:
    """The picture as far as its finest tokens reach, with those tokens row by row."""
    finest = {number: region for number, region in regions.items() if region.level == 0}
    boxes = {tokens[number].id: region.box for number, region in regions.items()}
    rows, columns = (
        1 + max((getattr(region, side) for region in finest.values()), default=-1)
        for side in ("row", "column")
    )
    whole = Picture(np.asarray(image), None, (), boxes)
    if not finest or len(finest) != rows * columns:
        return whole
    order = sorted(finest, key=lambda number: (finest[number].row, finest[number].column))
    first, last = finest[order[0]].box, finest[order[-1]].box
    part = image.crop((round(first[0]), round(first[1]), round(last[2]), round(last[3])))
    part.thumbnail((LARGEST, LARGEST))
    return replace(
        whole, pixels=np.asarray(part), grid=(rows, columns), tokens=tuple(tokens[n] for n in order)
    )
