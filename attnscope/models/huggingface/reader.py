"""Texts and images as the tokenizer and the processors of a folder read them: tokens, pixels, patches."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from attnscope.attention import Axis, Kind, Token
from attnscope.axes import PICTURE_ID, Array
from attnscope.errors import InputError, ModelError, first_line
from attnscope.limits import MOST_VIDEO_FRAMES
from attnscope.models.inputs import ModelInput, Picture
from attnscope.models.model import Fit, accepts, find_device
from attnscope.models.text.tokens import (
    NUMBERS,
    TextTokens,
    Vocabulary,
    mark_unknown,
    tokens_of_encoding,
    tokens_of_ids,
)
from attnscope.models.untrusted_folder import foreign_work, input_work
from attnscope.storage.files import reading
from attnscope.text import MOST_CHARACTERS

if TYPE_CHECKING:
    from PIL.Image import Image


MARGIN = 64  # tokens behind a cut that may change those before it; if they do, the whole text is read again


@dataclass(frozen=True)
class FolderReader:
    """Reads text with the tokenizer of the model ``name``; ``found`` is it, or why there is none."""

    name: str
    found: Any

    @property
    def tokenizer(self) -> Any:
        """The tokenizer. Raises ``ModelError`` in a folder without one, whose model still reads tensors."""
        if isinstance(self.found, ModelError):
            raise self.found
        return self.found

    def read(self, texts: Sequence[str], fit: Fit | None = None, *, templated: bool = False) -> TextTokens:
        """Tokenize a text or a pair, and keep as many tokens as ``fit`` allows.

        A ``templated`` text already has its special tokens. Raises ``InputError`` for an empty text,
        ``ModelError`` if the tokenizer fails, as a damaged one does.
        """
        texts = [text[:MOST_CHARACTERS] for text in texts]
        fields = self._encode(texts, templated, None)
        if not fields["input_ids"]:
            raise InputError(f"the tokenizer of {self.name} finds no token in the text")
        keep, cut = fit(len(fields["input_ids"])) if fit else (None, ())
        if keep is not None:
            fields = self._cut(texts, templated, keep, fields)
        if fields.encodings is not None:
            tokens = tokens_of_encoding(fields.encodings[0], texts)
        else:
            tokens = tokens_of_ids(self.tokenizer, fields["input_ids"], self.tokenizer.all_special_ids)
        tokens, notes = mark_unknown(tokens, self.tokenizer.unk_token_id, self.tokenizer.unk_token)
        special = self.special_ids if templated else ()  # no tokenizer splits its own special tokens
        tokens = tuple(replace(one, special=True, word=None) if one.id in special else one for one in tokens)
        return TextTokens(
            tokens[:keep], (*notes, *cut), {name: field[:keep] for name, field in fields.items()}
        )

    def _cut(self, texts: Sequence[str], templated: bool, keep: int, whole: Any) -> Any:
        """The first ``keep`` tokens of texts, whose ``whole`` encoding is known: a book is not read twice."""
        ids = whole["input_ids"]
        if len(texts) == 1 and whole.encodings is not None and keep + MARGIN < len(ids):
            _, end = whole.encodings[0].offsets[keep + MARGIN]
            beginning = self._encode([texts[0][:end]], templated, keep)
            special = beginning.encodings[0].special_tokens_mask[::-1]
            own = keep - special.index(0) if 0 in special else 0  # those before the last special ones
            if own and len(special) == keep and beginning["input_ids"][:own] == ids[:own]:
                return beginning
        return self._encode(texts, templated, keep)

    def _encode(self, texts: Sequence[str], templated: bool, keep: int | None) -> Any:
        """Tokenize texts, keeping at most this many tokens, special ones included."""
        cut = {} if keep is None else {"truncation": True, "max_length": keep}
        try:
            with foreign_work(f"the tokenizer of {self.name}"):
                return self.tokenizer(*texts, verbose=False, add_special_tokens=not templated, **cut)
        except ModelError:  # there is none; the error says why
            raise
        except Exception as error:
            raise ModelError(f"the tokenizer of {self.name} fails: {first_line(error)}") from error

    @property
    def special_ids(self) -> set[int]:
        """The tokens that stand for no text."""
        added = self.tokenizer.added_tokens_decoder
        return {*self.tokenizer.all_special_ids, *(id_ for id_, token in added.items() if token.special)}

    @property
    def vocabulary(self) -> Vocabulary:
        """How the tokenizer spells and reads numbers."""
        if self.found is None or isinstance(self.found, ModelError):
            return NUMBERS
        return Vocabulary(
            self.tokenizer.convert_ids_to_tokens,
            lambda ids: str(self.tokenizer.decode(ids, clean_up_tokenization_spaces=False)),
            self.special_ids,
        )


def write_chat(
    name: str, writer: Any, messages: Sequence[Mapping[str, Any]], reply: bool, **more: Any
) -> str:
    """Messages, and ``more`` such as tools, in a chat template. Raises ``InputError`` for what it refuses."""
    with input_work(f"the chat template of {name}", f"the chat template of {name} refuses this"):
        return str(writer.apply_chat_template(messages, tokenize=False, add_generation_prompt=reply, **more))


def start_token(module: Any, tokenizer: Any) -> Token:
    """The token with which a decoder begins. Raises ``ModelError`` for a number outside any vocabulary."""
    candidates = (
        getattr(module.config, "decoder_start_token_id", None),
        getattr(getattr(module, "generation_config", None), "decoder_start_token_id", None),
        getattr(module.config, "bos_token_id", None),
        getattr(module.config, "pad_token_id", None),
        getattr(tokenizer, "pad_token_id", None),
    )
    start = next((id_ for id_ in candidates if isinstance(id_, int)), 0)
    if not 0 <= start < 1 << 31:
        raise ModelError(f"the decoder begins with token {start:,}, which no vocabulary has")
    name = f"id {start}" if tokenizer is None else tokenizer.convert_ids_to_tokens(start)
    return Token(name, start, special=True)


FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
"""Formats that are opened; some other readers of Pillow run external programs."""

BEFORE = {
    "cls_token": "CLS",
    "class_token": "CLS",
    "class_embedding": "CLS",
    "distillation_token": "DIST",
    "register_tokens": "REG",
}
"""Names of parameters that stand as tokens before the patches, and of those tokens; in their order."""

AFTER = {"detection_tokens": "DET"}  # those that stand after the patches


def open_image(path: Path) -> Image:
    """An image from a file, upright and in colour. Raises ``InputError``."""
    with _opened(path) as image:
        return _upright(image)


def open_frames(path: Path) -> tuple[list[Image], tuple[str, ...]]:
    """The frames of an animated image, or the images of a folder by name; with notes on omitted ones."""
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.is_file() and not file.name.startswith("."))
        if not files:
            raise InputError(f"the folder {path} has no frames: give image files, named in order")
        numbers = _spread(len(files))
        frames, count = [open_image(files[number]) for number in numbers], len(files)
    else:
        with _opened(path) as image:
            count = getattr(image, "n_frames", 1)
            numbers, frames = _spread(count), []
            for number in numbers:
                image.seek(number)
                frames.append(_upright(image))
    if len({frame.size for frame in frames}) > 1:
        raise InputError(f"the frames of {path} differ in size: give frames of one size")
    if len(frames) == count:
        return frames, ()
    which = ", ".join(str(number + 1) for number in numbers)
    return frames, (f"the model reads {len(frames)} of {count:,} frames: {which}",)


def _spread(count: int) -> list[int]:
    """At most ``MOST_VIDEO_FRAMES`` of a number of frames, evenly spread."""
    most = min(count, MOST_VIDEO_FRAMES)
    return [(2 * number + 1) * count // (2 * most) for number in range(most)]


def _upright(image: Image) -> Image:
    """An image in colour, turned as its metadata says; 16-bit images keep their upper 8 bits."""
    from PIL import Image, ImageOps

    turned = ImageOps.exif_transpose(image)
    if turned.mode.startswith("I;16"):
        turned = Image.fromarray((np.asarray(turned) >> 8).astype(np.uint8))
    return turned.convert("RGB")


@contextmanager
def _opened(path: Path) -> Iterator[Image]:
    """An image file; any failure to read it is an ``InputError``."""
    from PIL import Image, UnidentifiedImageError

    with reading(path, "an image from"), warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        try:
            with Image.open(path, formats=FORMATS) as image:
                yield image
        except UnidentifiedImageError:
            raise ValueError(f"it is none of {', '.join(FORMATS)}") from None
        except (Image.DecompressionBombWarning, Image.DecompressionBombError):
            raise ValueError(f"it has more than {Image.MAX_IMAGE_PIXELS:,} pixels: scale it down") from None


def read_image(path: Path, processor: Any, module: nn.Module, entry: str = "__call__") -> ModelInput:
    """An image file prepared for a module, or for its method ``entry``. Raises ``InputError``."""
    image = open_image(path)
    with input_work(f"what the image processor makes of {path}", f"the image processor refuses {path}"):
        fields = dict(processor(images=image, return_tensors="pt"))
    values, pixels, grid, tokens = fields.get("pixel_values"), np.asarray(image), None, tuple[Token, ...]()
    if isinstance(values, Tensor) and values.ndim == 4 and values.shape[1] == 3:
        pixels, grid = _pixels(values[0], processor), _patch_grid(module, *values.shape[-2:])
    axes: dict[Kind, tuple[Axis, Axis]] = {}
    if grid is not None:  # none of which are equal, and for a head that pools them
        patches = (
            Token(f"{at // grid[1]},{at % grid[1]}", PICTURE_ID + at) for at in range(grid[0] * grid[1])
        )
        tokens = *_special_tokens(module, BEFORE), *patches, *_special_tokens(module, AFTER, PICTURE_ID // 2)
        axes = {"encoder": (tokens, tokens), "cross": (range(1), tokens)}
    picture, inputs = Picture(pixels, grid, tokens), place_fields(fields, module, entry)
    return ModelInput(inputs, axes, tokens, pictures=(picture,), entry=entry)


def ask_processor(name: str, what: str, processor: Any, *arguments: Any, **how: Any) -> dict[str, Any]:
    """What a model's processor makes of ``what`` and its text. Raises ``InputError`` for what it refuses."""
    work = f"what the processor of {name} makes of the {what}"
    with input_work(work, f"the processor of {name} refuses this"):
        return dict(processor(*arguments, **how, return_tensors="pt"))


def place_fields(fields: Mapping[str, Any], module: nn.Module, entry: str = "__call__") -> dict[str, Tensor]:
    """A processor's tensors that the module takes, on its device and in its dtype."""
    dtypes = (weights.dtype for weights in module.parameters() if weights.is_floating_point())
    device, dtype = find_device(module), next(dtypes, torch.float32)
    return {
        name: values.to(device, dtype if values.is_floating_point() else None)
        for name, values in fields.items()
        if isinstance(values, Tensor) and accepts(module, name, entry)
    }


def _pixels(values: Tensor, processor: Any) -> Array:
    """A prepared image converted back to an image.  [3, row, column] -> [row, column, 3]"""
    pixels: Array = values.float().cpu().numpy().transpose(1, 2, 0)
    if getattr(processor, "do_normalize", False):
        pixels = pixels * np.asarray(processor.image_std) + np.asarray(processor.image_mean)
    if getattr(processor, "do_rescale", False):
        pixels = pixels / processor.rescale_factor
    if getattr(processor, "do_flip_channel_order", False):
        pixels = pixels[..., ::-1]
    return np.clip(np.rint(pixels), 0, 255).astype(np.uint8)


def _patch_grid(module: nn.Module, rows: int, columns: int) -> tuple[int, int] | None:
    """The patches that a module's first convolution over the three colours cuts, by rows and columns."""
    for child in module.modules():
        if isinstance(child, nn.Conv2d) and child.in_channels == 3 and child.kernel_size[0] > 1:
            padding = (0, 0) if isinstance(child.padding, str) else child.padding
            down, right = (
                (size + 2 * padding[side] - child.kernel_size[side]) // child.stride[side] + 1
                for side, size in enumerate((rows, columns))
            )
            return (down, right) if min(down, right) > 0 else None
    return None


def _special_tokens(module: nn.Module, called: Mapping[str, str], first: int = 0) -> Iterator[Token]:
    """The tokens that a module adds to the patches, by the names of its parameters."""
    parameters = {name.rpartition(".")[2]: weights for name, weights in module.named_parameters()}
    names: list[str] = []
    for parameter, name in called.items():
        if parameter in parameters:
            weights = parameters[parameter]
            count = weights.shape[-2] if weights.ndim > 1 else 1
            names += [f"[{name}]"] if count == 1 else [f"[{name}{number}]" for number in range(count)]
    return (Token(name, number, special=True) for number, name in enumerate(names, first))
