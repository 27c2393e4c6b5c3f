"""Pictures inside a text: the processor's placeholders, or its chat template."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from torch import Tensor, nn

from attnscope.attention import Axis, Kind, Token
from attnscope.axes import PICTURE_ID, SEPARATOR_ID, Array
from attnscope.errors import InputError, ModelError
from attnscope.models.huggingface import reader as readers
from attnscope.models.inputs import Chat, ModelInput, Picture
from attnscope.models.model import accepts
from attnscope.models.regions import (
    InputEntry,
    Region,
    find_coordinates,
    find_dependents,
    find_entry,
    find_regions,
)
from attnscope.models.text.tokens import tokens_of_ids

if TYPE_CHECKING:
    from PIL.Image import Image


DRAWN_PIXELS = 512  # most pixels along the longer side of a picture drawn under attention

IDS = {"image": ("image_token_id", "image_token_index"), "video": ("video_token_id", "video_token_index")}
"""Config fields for the id of a token that stands for a picture or a video."""

PLACEHOLDERS = {
    "image": ("boi_token", "image_token", "fake_image_token", "image_placeholder_token"),
    "video": ("video_token",),
}
"""Processor attributes for the placeholder of a picture or a video."""


def reads_pictures_in_texts(module: nn.Module) -> bool:
    """Whether a model has an image token in its text, or cross-attends from its text to a picture."""
    has_image_token = any(getattr(module.config, name, None) is not None for name in IDS["image"])
    one_tower = hasattr(module, "get_image_features") and not hasattr(module, "get_text_features")
    return has_image_token or one_tower or accepts(module, "image_attention_mask")


@dataclass(frozen=True)
class PictureTokens:
    """Which tokens, on the axis of ``kind`` with ``length`` tokens, stand for which parts of pictures.

    ``regions`` has those of each picture by token number; frames of a video may share tokens. ``padding``
    are tokens of padding around the pictures, ``mixed`` those that depend on the pictures without a
    place. ``word`` is image or frame.
    """

    word: str
    kind: Kind
    length: int
    regions: Sequence[Mapping[int, Region]]
    padding: Collection[int] = ()
    mixed: Collection[int] = ()

    @property
    def placed(self) -> bool:
        """Whether any token stands for a part of one picture."""
        return any(self.regions)

    @property
    def shared(self) -> int:
        """The most pictures that share one token."""
        numbers = [number for regions in self.regions for number in regions]
        return max(map(numbers.count, numbers[:1] + numbers[-1:]), default=1)

    @property
    def notes(self) -> tuple[str, ...]:
        """What is said of pictures whose parts are not told apart, or of frames that share tokens."""
        if not self.placed:
            return ("no token covers one image region alone: image tokens are numbered",)
        if self.shared > 1:
            return (f"each video token covers the same region of {self.shared} frames",)
        return ()

    def name(self, number: int) -> str | None:
        """The name of a token for a part of a picture; ``None`` for any other token."""
        at = [place for place, regions in enumerate(self.regions, 1) if number in regions]
        if not at:
            return None
        region = self.regions[at[0] - 1][number]
        word = "thumbnail" if region.level else self.word
        which = f"{word} {at[0]}" if len(at) == 1 else f"{word}s {at[0]}-{at[-1]}"
        return f"{which} · {region.row},{region.column}"

    def name_in_text(self, tokens: Sequence[Token], stand: Collection[int]) -> tuple[Token, ...]:
        """The tokens of a text, with those at ``stand`` and in regions named by their part."""
        result, order, pictures = [], sorted(stand), len(self.regions)
        for position, token in enumerate(tokens):
            name, special = self.name(position), False
            if name is None and (position in self.padding or (position in stand and self.placed)):
                name, special = self._name_beside(position), True
            elif name is None and position in stand:  # all pictures have equally many tokens
                number, (each, more) = order.index(position), divmod(len(order), pictures)
                which = f"s 1-{pictures}" if more else f" {number // each + 1}"
                name = f"{self.word}{which} · {number if more else number % each}"
            if name is not None:
                id_ = (SEPARATOR_ID if special else PICTURE_ID) + position
                token = Token(name, id_, special=special, segment=token.segment)
            result.append(token)
        return tuple(result)

    def _name_beside(self, position: int) -> str:
        """The name of a token between those of regions: its picture, and its role there."""
        last = [max((number for number in each if number < position), default=-1) for each in self.regions]
        what = "padding" if position in self.padding else "row end"
        if position in self.mixed:
            what = f"{sorted(self.mixed).index(position)} of no place"
        return f"{self.word} {last.index(max(last)) + 1} · {what}"

    def name_across(self) -> tuple[Token, ...]:
        """The tokens of pictures that a model cross-attends to."""

        def token(number: int) -> Token:
            if (name := self.name(number)) is not None:
                return Token(name, PICTURE_ID + number)
            return Token(f"{self.word} 1 · {number} of no place", SEPARATOR_ID + number, special=self.placed)

        return tuple(map(token, range(self.length)))

    def place_pictures(self, images: Sequence[Image], tokens: Sequence[Token]) -> Iterator[Picture]:
        """Each picture up to where its finest tokens reach, with those tokens row by row."""
        for place, (image, regions) in enumerate(zip(images, self.regions, strict=True), 1):
            boxes = {tokens[number].id: region.box for number, region in regions.items()}
            whole = Picture(np.asarray(image), None, (), boxes, f"{self.word} {place}")
            finest = sorted((*region[:3], number) for number, region in regions.items() if region.level == 0)
            rows, columns = (1 + max((each[side] for each in finest), default=-1) for side in (1, 2))
            if not finest or len(finest) != rows * columns:
                yield whole
                continue
            order = [number for *_, number in finest]
            (left, top, *_), (*_, right, bottom) = regions[order[0]].box, regions[order[-1]].box
            left, top = int(left), int(top)
            part = image.crop((left, top, max(round(right), left + 1), max(round(bottom), top + 1)))
            part.thumbnail((DRAWN_PIXELS, DRAWN_PIXELS))
            patches = tuple(tokens[number] for number in order)
            yield replace(whole, pixels=np.asarray(part), grid=(rows, columns), tokens=patches)


class FieldOrigins(NamedTuple):
    """For each number of a field: the token that owns it, and where in each picture it comes from."""

    owners: Array  # [number]
    origins: Sequence[Array]  # [x | y, number] of each picture


TYPE_IDS = "mm_token_type_ids"
"""Model inputs for the kind of each token, word or picture; some processors return them only on request."""

POSITION_MASK = "image_embeds_position_mask"
"""Processor outputs for the positions of a picture, where its ids there mean nothing."""


@dataclass(frozen=True)
class PictureText:
    """Reads texts with pictures, or the frames of a ``video``, with the ``processor`` of a folder."""

    module: nn.Module
    processor: Any
    reader: readers.FolderReader
    settings: Mapping[str, Any]
    video: bool = False

    @property
    def what(self) -> str:
        """The content type in chat templates."""
        return "video" if self.video else "image"

    def read(self, paths: Sequence[Path], text: str, chat: Chat | None) -> ModelInput:
        """The inputs and labelled axes of a text with pictures, or with the frames of a video.

        Pictures go where the text has placeholders, or before the text; in a chat, where the template
        puts them. Raises ``InputError``, also for what the processor refuses.
        """
        images, notes = self._open(paths)
        count = 1 if self.video else len(images)
        prompts = self._write(text, count) if chat is None else [self._write_chat(text, count, chat)]
        prompt, fields = self._process_first(prompts, images)
        inputs = readers.place_fields(fields, self.module)
        counts = {
            name: value
            for name, value in fields.items()
            if isinstance(value, list) and accepts(self.module, name) and name not in inputs
        }  # numbers of tiles, which some models take as plain integers
        settings = {**self.settings, **counts}
        places = self._find(prompt, images, inputs, settings)
        ids = inputs["input_ids"][0].tolist()
        tokens = tokens_of_ids(self.reader.tokenizer, ids, self.reader.special_ids)
        axes: dict[Kind, tuple[Axis, Axis]] = {}
        if places.kind == "cross":
            labels = places.name_across()
            axes["cross"] = tokens, labels
        else:
            image_ids = {ids[position] for regions in places.regions for position in regions}
            beside = {position for position, id_ in enumerate(ids) if id_ in image_ids}  # between parts, too
            labels = tokens = places.name_in_text(tokens, self._placeholder_positions(inputs) | beside)
        axes["decoder"] = tokens, tokens  # the tower has other tokens, even if equally many
        pictures = tuple(places.place_pictures(images, labels))
        return ModelInput(inputs, axes, tokens, (*places.notes, *notes), settings, pictures=pictures)

    def _open(self, paths: Sequence[Path]) -> tuple[list[Image], tuple[str, ...]]:
        """The pictures, or the frames of the video with a note on those left out. Raises ``InputError``."""
        if not self.video:
            return [readers.open_image(path) for path in paths], ()
        if getattr(self.processor, "video_processor", None) is None:
            advice = "give frames with --image, or choose a model that does"
            raise InputError(f"{self.reader.name} does not read videos: {advice}")
        return readers.open_frames(paths[0])

    def _process_first(
        self, prompts: Sequence[str], images: Sequence[Image]
    ) -> tuple[str, Mapping[str, Any]]:
        """The prompt that is meant, with what the processor makes of it. Raises ``InputError``."""
        processed: dict[str, Mapping[str, Any]] = {}
        refusals: list[InputError] = []
        for prompt in prompts:
            try:
                processed[prompt] = self._process(prompt, images)
            except InputError as error:
                refusals.append(error)
        if not processed:
            raise refusals[0]
        last = prompts[-1]  # the text itself, if the processor inserts the pictures
        if last in processed and self._placeholder_positions(processed[last]):
            return last, processed[last]
        # a processor may read a placeholder as an extra word: the longest
        longest = max(processed, key=lambda prompt: len(processed[prompt]["input_ids"][0]))
        return longest, processed[longest]

    def _write(self, text: str, count: int) -> list[str]:
        """Possible prompts for a text with ``count`` pictures; among equal lengths the first is meant.

        Pictures go where the text has the processor's placeholders or ``<image>``, or before it; then the
        processor may insert them. Raises ``InputError`` if the text has more or fewer placeholders than
        pictures.
        """
        placeholders, plain, usual = *self._placeholders(), f"<{self.what}>"
        written = [placeholder for placeholder in (*placeholders, *plain) if placeholder in text]
        if written:
            if all(text.count(placeholder) != count for placeholder in written):
                self._refuse(text.count(written[0]), written[0], count)
            return [text]
        places = text.count(usual)
        if places not in (0, count):
            self._refuse(places, usual, count)
        if places:
            return [text.replace(usual, placeholder) for placeholder in placeholders] or [text]
        return [*(placeholder * count + text for placeholder in placeholders), text]

    def _write_chat(self, text: str, count: int, chat: Chat) -> str:
        """The text as a user's message with its pictures, in the processor's chat template."""
        if not getattr(self.processor, "chat_template", None):
            raise InputError(
                f"{self.reader.name} has no chat format: leave out --chat to give it the text as it is"
            )
        parts = text.split(f"<{self.what}>")
        if len(parts) == 1:
            parts = [*[""] * count, text]
        elif len(parts) != count + 1:
            self._refuse(len(parts) - 1, f"<{self.what}>", count)
        content: list[Mapping[str, str]] = []
        for number, part in enumerate(parts):
            content += [{"type": self.what}] if number else []
            content += [_text(part)] if part.strip() else []
        system = [] if chat.system is None else [{"role": "system", "content": [_text(chat.system)]}]
        messages = [*system, {"role": "user", "content": content}]
        return readers.write_chat(self.reader.name, self.processor, messages, chat.reply)

    def _refuse(self, places: int, placeholder: str, count: int) -> None:
        raise InputError(
            f"the text has {places} × {placeholder} and there {'is' if count == 1 else 'are'} {count} "
            f"{self.what}{'s' * (count > 1)}: write one for each, or none to have them "
            "before the text"
        )

    def _placeholders(self) -> tuple[list[str], list[str]]:
        """The template's text for a picture, other names of one, and the processor's placeholder."""
        config: Any = self.module.config
        tokenizer = getattr(self.processor, "tokenizer", None)

        def spell(name: str) -> Any:
            id_ = getattr(config, name, None)
            return tokenizer.convert_ids_to_tokens(id_) if tokenizer and isinstance(id_, int) else None

        def texts(spellings: Iterable[Any]) -> list[str]:
            return [each for each in dict.fromkeys(spellings) if isinstance(each, str) and each]

        plain = texts(getattr(self.processor, name, None) for name in PLACEHOLDERS[self.what])
        placeholders = texts([self._template_placeholder(), *plain, *map(spell, IDS[self.what])])
        for what in ("vision", self.what):
            names = [f"{what}_{side}_token" for side in ("start", "end")]
            start, end = (spell(f"{name}_id") or getattr(tokenizer, name, None) for name in names)
            if isinstance(start, str) and isinstance(end, str):  # they separate pictures
                return [each if start in each else start + each + end for each in placeholders], plain
        return placeholders, plain

    def _template_placeholder(self) -> str | None:
        """What the chat template puts between two texts for a picture, if it has one."""
        if not getattr(self.processor, "chat_template", None):
            return None
        message = {"role": "user", "content": [_text("one"), {"type": self.what}, _text("two")]}
        try:
            written = readers.write_chat(self.reader.name, self.processor, [message], reply=False)
        except (InputError, ModelError):
            return None
        between = re.search(r"one(.*)two", written, re.DOTALL)
        return between[1].strip() or None if between else None

    def _placeholder_positions(self, fields: Mapping[str, Any]) -> set[int]:
        """Positions of ids that stand for a picture, or that are marked as one."""
        config: Any = self.module.config
        placeholders = {getattr(config, name, None) for name in IDS[self.what]}
        mask = fields[POSITION_MASK][0].tolist() if POSITION_MASK in fields else []
        at = {position for position, id_ in enumerate(fields["input_ids"][0].tolist()) if id_ in placeholders}
        return at | {position for position, is_picture in enumerate(mask) if is_picture}

    def _process(self, prompt: str, images: Sequence[Image]) -> Mapping[str, Any]:
        """What the processor makes of a text and its pictures."""
        arguments: dict[str, Any] = {"images": images[0] if len(images) == 1 else list(images)}
        if self.video:
            frames = np.stack([np.asarray(image) for image in images])  # [frame, row, column, 3]
            arguments = {"videos": [frames], "do_sample_frames": False}
        if accepts(self.module, TYPE_IDS):
            arguments[f"return_{TYPE_IDS}"] = True
        return readers.ask_processor(self.reader.name, "picture", self.processor, text=prompt, **arguments)

    def _find(
        self, prompt: str, images: Sequence[Image], inputs: Mapping[str, Tensor], settings: Mapping[str, Any]
    ) -> PictureTokens:
        """Which tokens stand for which parts of the pictures, by experiment, largest fields first.

        Tiles and a thumbnail may be separate fields: each that places tokens adds its own. If one of two
        towers for the same tokens mixes them, the other still places them.
        """

        if not any(value.is_floating_point() for value in inputs.values()):
            name = self.reader.name
            raise InputError(f"the processor of {name} makes nothing of the picture that the model reads")
        word, shapes = "frame" if self.video else "image", [(image.height, image.width) for image in images]
        if POSITION_MASK in inputs:  # it says nothing about their parts
            return PictureTokens(word, "decoder", inputs["input_ids"].shape[1], [{} for _ in images])

        def place(owners: Array, origins: Sequence[Array]) -> list[dict[int, Region]]:
            """The regions of each picture's tokens; empty if they cannot be told apart."""
            sized = zip(origins, shapes, strict=True)
            return [find_regions(owners, each, *shape) or {} for each, shape in sized]

        arguments, axis, token_set = {**inputs, **settings}, None, set[int]()
        read, field_origins = list[str](), list[FieldOrigins]()
        for field, entry in self._enter_fields(inputs, arguments):
            axis = entry.kind, len(entry.states)
            read.append(field)
            origins = self._find_origins(prompt, field, entry, shapes)
            if origins is None:
                continue
            tokens = {*np.unique(origins.owners[origins.owners >= 0]).tolist()}
            if token_set.isdisjoint(tokens) and any(place(*origins)):
                field_origins.append(origins)
                token_set |= tokens
        kind, length = axis or ("decoder", 0)
        if not field_origins:
            return PictureTokens(word, kind, length, [{} for _ in shapes])
        by_picture = zip(*(each.origins for each in field_origins), strict=True)
        owners = np.concatenate([each.owners for each in field_origins])
        regions = place(owners, [np.concatenate(each, axis=1) for each in by_picture])
        padding = token_set.difference(*regions)
        unplaced = find_dependents(self.module, arguments, read) - padding if kind == "decoder" else set()
        return PictureTokens(word, kind, length, regions, padding, unplaced.difference(*regions))

    def _enter_fields(
        self, inputs: Mapping[str, Tensor], arguments: Mapping[str, Any]
    ) -> Iterator[tuple[str, InputEntry]]:
        """The fields that enter the language model on one axis, largest first, and how each does."""
        sizes = {name: value.numel() for name, value in inputs.items() if value.is_floating_point()}
        axis = None
        for field in sorted(sizes, key=lambda name: -sizes[name]):
            entry = find_entry(self.module, arguments, field)
            if entry is not None and axis in (None, (entry.kind, len(entry.states))):
                axis = entry.kind, len(entry.states)
                yield field, entry  # the others are e.g. the times of frames

    def _find_origins(
        self, prompt: str, field: str, entry: InputEntry, shapes: Sequence[tuple[int, int]]
    ) -> FieldOrigins | None:
        """Where the numbers of a field come from and end up; ``None`` if their origin is unknown."""
        from PIL import Image as pillow

        def prepare(arrays: Sequence[Array]) -> Tensor:
            numbers: Tensor = self._process(prompt, [pillow.fromarray(array) for array in arrays])[field]
            return numbers

        where = find_coordinates(prepare, shapes)
        if where is None or where[0].shape[1:] != tuple(entry.given.shape):
            return None
        return FieldOrigins(
            entry.token_owners().cpu().numpy().ravel(), [each.reshape(2, -1) for each in where]
        )


def _text(words: str) -> Mapping[str, str]:
    return {"type": "text", "text": words}
