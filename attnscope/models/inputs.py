"""What goes into a model, alone or in batches, and what it predicts: data that all kinds of models share.

Labels name positions that are not text: genes, table cells, joints, time steps, nodes of a graph.
"""

from __future__ import annotations

import csv
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from attnscope.attention import Axis, Kind, Token
from attnscope.axes import GROUP_MARK, PICTURE_ID, SOUND_ID, Array
from attnscope.errors import InputError
from attnscope.lazy import torch
from attnscope.models.text.tokens import Vocabulary
from attnscope.scores import HeadScores
from attnscope.storage.files import read_lines
from attnscope.storage.trace.layout import Message

if TYPE_CHECKING:
    from torch import Tensor, nn

    from attnscope.capture import Replay


Paths: TypeAlias = Path | Sequence[Path]  # one file, or several
Axes: TypeAlias = Mapping[Kind, tuple[Axis, Axis]]  # of the queries and of the keys of each kind


@dataclass(frozen=True, eq=False)
class Picture:
    """An image as the model sees it: cropped and scaled, in ``grid`` patches, rows by columns.

    ``tokens`` are the patches row by row, named by row and column, after the special ones. ``grid`` is
    ``None`` and ``tokens`` empty if the module does not say how it cuts the image. ``boxes`` has left,
    top, right and bottom of a token's part, by token id, in pixels of the original image; ``name`` tells
    pictures apart: image 2, or frame 3 of a video.
    """

    pixels: Array  # [row, column, 3], uint8
    grid: tuple[int, int] | None
    tokens: tuple[Token, ...]
    boxes: Mapping[int, tuple[float, float, float, float]] = field(default_factory=dict)
    name: str = "image 1"


class PatchGrid(NamedTuple):
    """How an axis of positions lies on a picture, behind ``special`` ones."""

    rows: int
    columns: int
    special: int


class Limit(NamedTuple):
    """How many tokens of a text are read; one with more is refused, or cut with a note to ``truncate``."""

    max_tokens: int | None = None
    truncate: bool = False


NO_LIMIT = Limit()  # whole texts are read, and those that are too long refused


class SoundPart(NamedTuple):
    """The seconds of a sound that are read; ``truncate`` cuts what is too long for the model."""

    begin: float = 0.0
    end: float | None = None
    truncate: bool = False


@dataclass(frozen=True, eq=False)
class Letters:
    """What a CTC head reads in a sound: the most likely token of each frame of ``seconds``.

    ``scores`` are log probabilities of all tokens per frame. ``blank`` is the blank token, ``read`` the
    text of the others, ``boundary`` the word separator, if any; tokens in ``begin`` begin a word.
    """

    ids: Array  # [frame of the head]
    scores: Array  # [frame of the head, token]
    seconds: float
    blank: int
    read: Mapping[int, str]
    boundary: int | None
    begin: frozenset[int]


@dataclass(frozen=True)
class SoundFrames:
    """A sound as a model reads it: ``frames`` of ``seconds`` each, possibly followed by padding.

    They begin at the second ``begin`` of the file. ``bands`` is the loudness by frequency, ``None`` if
    unknown. ``letters`` is what a CTC head reads in it.
    """

    seconds: float
    frames: int
    bands: Array | None = None  # [band, frame, padding too]
    begin: float = 0.0
    letters: Letters | None = None


@dataclass(frozen=True)
class Chat:
    """Marks a text as a user's message, after one of a ``system``; ``reply`` opens the model's turn."""

    system: str | None = None
    reply: bool = False


@dataclass(frozen=True)
class ModelInput:
    """A text, an image or tensors as a model reads them.

    ``inputs`` are keyword arguments of the model's forward, ``axes`` label the queries and keys of every kind
    of attention, ``tokens`` is the text itself, ``notes`` say what was done to it (cut, joined), ``settings``
    are further keyword arguments, ``arguments`` positional ones. ``replay`` holds a recorded generation or a
    trace: then nothing runs again, and ``scores`` (and ``words``, with pieces of words merged) come from the
    trace. ``array_replay`` is a short trace with NumPy rows, for views without torch. ``pictures`` are the
    images, ``sound`` the sound as the model reads it, ``entry`` the method to call instead of the whole
    forward. ``written`` is the number of the first generated token, if any. ``text`` is the plain text,
    ``messages`` are those of a chat, and ``request`` is the ``InputRequest`` that it was made of.
    ``batch_texts`` are read at once, and are ``beams`` of one if they changed places.
    """

    inputs: Mapping[str, Tensor]  # each [batch, token]
    axes: Axes
    tokens: tuple[Token, ...]
    notes: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    arguments: tuple[Tensor, ...] = ()
    replay: Replay | None = None
    pictures: tuple[Picture, ...] = ()
    sound: SoundFrames | None = None
    entry: str = "__call__"
    scores: tuple[HeadScores, ...] | None = None
    words: tuple[HeadScores, ...] = ()
    array_replay: Replay | None = None
    written: int | None = None
    text: str | None = None
    messages: tuple[Message, ...] = ()
    request: Any = None
    batch_texts: int = 1
    beams: bool = False

    @property
    def picture(self) -> Picture | None:
        """The first picture; ``None`` if there is none."""
        return self.pictures[0] if self.pictures else None

    def name_parts(self, count: int) -> str:
        """What so many parts of a batch are."""
        if count != self.batch_texts:
            return "parts, each of which attends within itself"
        return "beams of one text" if self.beams else "texts of the batch"

    @property
    def tensors(self) -> dict[str | int, Tensor]:
        """Every tensor that the model is given, by its name or position."""
        return dict((*self.inputs.items(), *enumerate(self.arguments)))

    def with_tensors(self, others: Mapping[str | int, Tensor]) -> ModelInput:
        """The same input with other tensors in place of some."""
        by_name = {name: tensor for name, tensor in others.items() if isinstance(name, str)}
        arguments = tuple(others.get(at, tensor) for at, tensor in enumerate(self.arguments))
        return replace(self, inputs={**self.inputs, **by_name}, arguments=arguments)

    def call(self, module: nn.Module) -> Any:
        """The module's output for this input."""
        return getattr(module, self.entry)(*self.arguments, **self.inputs, **self.settings)

    def texts(self, rows: Tensor, **others: Tensor) -> ModelInput:
        """Some of its texts, by number, in new tensors; ``others`` take the place of inputs."""
        tensors = {name: tensor[rows] for name, tensor in self.tensors.items()}
        tensors.update(others.items())
        return self.with_tensors(tensors)

    @property
    def labels(self) -> Mapping[Any, tuple[Axis, Axis]]:
        """The axes, and those of other lengths on which a picture lies that is read alone."""
        alone = self.picture is not None and self.picture.tokens == self.tokens
        grids = {each.tokens: (each.tokens, each.tokens) for each in self.pictures[1:] if alone}
        return {**self.axes, **grids}

    def axes_of(self, kind: Kind) -> tuple[Axis, Axis] | None:
        """The labels of a kind of attention; a mixer has those of the decoder, or else of the encoder."""
        kinds: tuple[Kind, ...] = ("decoder", "encoder") if kind == "mixer" else (kind,)
        return next((self.axes[each] for each in kinds if each in self.axes), None)

    @property
    def read_count(self) -> int:
        """How many of ``tokens`` were read; generated ones follow."""
        axes = self.axes.get("decoder")
        follows = axes is not None and axes[0] == self.tokens
        return len(self.tokens) if self.written is None or not follows else self.written

    @property
    def first_kind(self) -> Kind | None:
        """The kind of attention to show first: with a picture or sound in its text, or among its keys."""
        keys = self.axes["cross"][1] if "cross" in self.axes else ()
        inside = self.picture is not None and self.tokens != self.picture.tokens
        of_sound = keys and not isinstance(keys, range) and keys[0].id >= SOUND_ID
        if of_sound or (inside and keys == self.tokens):
            return "cross"
        inside |= self.sound is not None and any(token.id < SOUND_ID for token in self.tokens)
        return "decoder" if inside else None


BATCH_TOKENS = 4096  # tokens per pass: enough to keep the processor busy, few enough for its caches


class Batch(NamedTuple):
    """Texts of one length: what the model reads, and the tokens of the queries and keys of each text."""

    prepared: ModelInput
    labels: Mapping[Kind, tuple[Sequence[Sequence[Token]], Sequence[Sequence[Token]]]]
    texts: int
    tokens: int
    numbers: Sequence[int] = ()  # of the texts that were put into batches


def batches(prepared: Iterable[ModelInput]) -> list[Batch]:
    """The texts in batches, longest first; the same texts always make the same batches."""
    alike: dict[tuple[object, ...], list[tuple[int, ModelInput]]] = {}
    for number, one in enumerate(prepared):
        shape = (len(one.tokens), *((name, tensor.shape) for name, tensor in one.tensors.items()))
        alike.setdefault(shape, []).append((number, one))
    groups = sorted(alike.values(), key=lambda group: -len(group[0][1].tokens))
    result = []
    for group in groups:
        size = max(1, BATCH_TOKENS // len(group[0][1].tokens))
        for start in range(0, len(group), size):
            numbers, texts = zip(*group[start : start + size], strict=True)
            result.append(join_texts(texts)._replace(numbers=numbers))
    return result


def join_texts(texts: Sequence[ModelInput]) -> Batch:
    """One batch of texts whose inputs have the same shapes."""
    first = texts[0]
    inputs = {name: torch.cat([text.inputs[name] for text in texts]) for name in first.inputs}
    arguments = tuple(torch.cat(parts) for parts in zip(*(text.arguments for text in texts), strict=True))
    labels: dict[Kind, tuple[Sequence[Sequence[Token]], Sequence[Sequence[Token]]]] = {}
    for kind in first.axes:
        axes = [text.axes[kind] for text in texts]
        queries = [queries for queries, _ in axes if not isinstance(queries, range)]
        keys = [keys for _, keys in axes if not isinstance(keys, range)]
        if len(queries) == len(keys) == len(texts):
            one_sequence = all(queries is keys for queries, keys in axes)  # then their facts are had once
            labels[kind] = (queries, queries) if one_sequence else (queries, keys)
    tokens = tuple(token for text in texts for token in text.tokens)
    how: dict[str, Any] = {"settings": first.settings, "entry": first.entry}
    prepared = ModelInput(inputs, {}, tokens, arguments=arguments, **how)
    return Batch(prepared, labels, len(texts), len(tokens))


class Objective(NamedTuple):
    """How a model predicts tokens.

    ``input`` names the ids among its inputs, or is their position among its arguments. ``mask`` is the id
    of the mask token, at whose place the model predicts; ``None`` if it predicts next tokens.
    """

    input: str | int
    mask: int | None
    vocabulary: Vocabulary

    def ids(self, prepared: ModelInput) -> Tensor:
        """The input tokens.  -> [text, token]"""
        return prepared.tensors[self.input]


def text_axes(tokens: tuple[Token, ...]) -> dict[Kind, tuple[Axis, Axis]]:
    """The axes of a model that reads one text, causal or not."""
    return {"encoder": (tokens, tokens), "decoder": (tokens, tokens)}


COLUMNS = ("label", "group", "special")  # the columns of a table of labels; only the first is required
YES = ("1", "true", "yes", "special")


class Label(NamedTuple):
    """The label of a position, its group if any, and whether it is special."""

    text: str
    group: str = ""
    special: bool = False


def read_labels(path: Path) -> tuple[Label, ...]:
    """A label per line, or a table with the columns label, group, special. Raises ``InputError``."""
    lines = []
    for line in read_lines(path):
        if line.fault:
            raise InputError(f"{path}, line {line.number:,}: {line.fault}")
        lines.append(line.text)
    while lines and not lines[-1].strip():
        lines.pop()
    if not lines:
        raise InputError(f"{path} is empty: write one label per line")
    header = [name.strip().lower() for name in lines[0].split("\t")]
    if "label" not in header or not set(header) <= set(COLUMNS):
        return tuple(Label(line) for line in lines)
    labels = []
    for number, row in enumerate(csv.reader(lines[1:], delimiter="\t", quoting=csv.QUOTE_NONE), 2):
        if len(row) != len(header):
            raise InputError(f"{path}, line {number:,}: it has {len(row)} columns, not {len(header)}")
        cells: Mapping[str, str] = dict(zip(header, row, strict=True))
        special = cells.get("special", "").strip().lower() in YES
        labels.append(Label(cells["label"], cells.get("group", "").strip(), special))
    return tuple(labels)


def tokens_of_labels(labels: Sequence[Label]) -> tuple[Token, ...]:
    """Labels as tokens; equal ones are the same token; a group precedes its labels."""
    numbers = {label: number for number, label in enumerate(dict.fromkeys(labels))}
    names = [f"{label.group}{GROUP_MARK}{label.text}" if label.group else label.text for label in labels]
    return tuple(
        Token(name, numbers[label], special=label.special, word=place)
        for place, (name, label) in enumerate(zip(names, labels, strict=True))
    )


def relabel(axis: Axis, tokens: tuple[Token, ...]) -> Axis:
    """An axis with its positions labelled; ids that were read stay."""
    if len(axis) != len(tokens):
        return axis
    if isinstance(axis, range):
        return tokens
    return tuple(replace(label, id=token.id) for token, label in zip(axis, tokens, strict=True))


def label_input(prepared: ModelInput, labels: Sequence[Label]) -> ModelInput:
    """A model's input with its positions labelled. Raises ``InputError`` for another number of them."""
    tokens = tokens_of_labels(labels)
    axes: dict[Kind, tuple[Axis, Axis]] = {
        kind: (relabel(queries, tokens), relabel(keys, tokens))
        for kind, (queries, keys) in prepared.axes.items()
    }
    if axes and axes == prepared.axes:
        counts = sorted({len(each) for two in axes.values() for each in two})
        lengths = " or ".join(f"{count:,}" for count in counts)
        raise InputError(f"there are {len(tokens):,} labels for {lengths} positions")
    sequence = relabel(prepared.tokens, tokens)
    assert not isinstance(sequence, range)
    return replace(prepared, axes=axes or text_axes(tokens), tokens=sequence or tokens)


def with_grids(prepared: ModelInput, grids: Mapping[int, PatchGrid | None]) -> ModelInput:
    """A picture with the grids of axes by length, the first of them its tokens; ``None``: its own grid."""
    (picture,), begin = prepared.pictures, PICTURE_ID + len(prepared.tokens)
    pictures = [picture] if len(picture.tokens) in grids else []
    for grid in filter(None, grids.values()):
        special = (Token("[special]", number, special=True) for number in range(grid.special))
        names = (f"{row},{column}" for row in range(grid.rows) for column in range(grid.columns))
        tokens = *special, *(Token(name, number) for number, name in enumerate(names, begin))
        pictures.append(replace(picture, grid=(grid.rows, grid.columns), tokens=tokens))
        begin += len(tokens)
    tokens = pictures[0].tokens if pictures else prepared.tokens
    axes: Axes = {"encoder": (tokens, tokens), "cross": (range(1), tokens)} if pictures else prepared.axes
    return replace(prepared, axes=axes, tokens=tokens, pictures=tuple(pictures) or prepared.pictures)


def note_unplaced(axes: Axes, lengths: Collection[int]) -> tuple[str, ...]:
    """Sentences on labels that no axis of these lengths has."""
    existing = " or ".join(f"{length:,}" for length in sorted(lengths))
    counts = dict.fromkeys(len(axis) for two in axes.values() for axis in two if isinstance(axis, tuple))
    absent = (count for count in counts if count not in lengths)
    return tuple(f"the {count:,} labels fit no axis: there are {existing} positions" for count in absent)


def place_images(axes: Axes, images: Mapping[str, Any]) -> tuple[Axes, tuple[Picture, ...]]:
    """Axes on which labels that name an image become its patches; and the images with them.

    The grid is the one nearest to the image's shape. Raises ``InputError``.
    """
    label_axes = dict.fromkeys(axis for two in axes.values() for axis in two if isinstance(axis, tuple))
    pictures, patches, first = list[Picture](), dict[str, tuple[Token, ...]](), PICTURE_ID
    for name, image in images.items():
        pixels = _read_image(name, image)
        count = max((sum(token.text == name for token in axis) for axis in label_axes), default=0)
        if not count:
            advice = f"repeat its name once per patch, tokens=['arm', *[{name!r}] * 300]"
            raise InputError(f"no token is named {name!r}: {advice}")
        high, wide = pixels.shape[:2]
        able = [rows for rows in range(1, count + 1) if count % rows == 0]
        rows = min(able, key=lambda rows: abs(np.log(rows * rows * wide / (count * high))))
        grid = rows, count // rows
        patches[name] = tuple(
            Token(f"{name}{GROUP_MARK}{at // grid[1]},{at % grid[1]}", first + at) for at in range(count)
        )
        pictures.append(Picture(pixels, grid, patches[name], name=name))
        first += count

    def place(axis: Axis) -> Axis:
        left = {name: iter(tokens) for name, tokens in patches.items()}
        return axis if isinstance(axis, range) else tuple(next(left.get(t.text, iter(())), t) for t in axis)

    return {kind: (place(queries), place(keys)) for kind, (queries, keys) in axes.items()}, tuple(pictures)


def images_of_pass(images: Mapping[str, Any], number: int, count: int) -> dict[str, Any]:
    """Each camera's image in one of several passes. Raises ``InputError``."""
    chosen_images = {}
    for name, image in images.items():
        each = image if isinstance(image, list) else [image] * count
        if len(each) != count:
            passes = "there was 1 pass" if count == 1 else f"there were {count:,} passes"
            raise InputError(f"{name} has {len(each):,} images, and {passes}: give one for each")
        chosen_images[name] = each[number]
    return chosen_images


def _read_image(name: str, image: Any) -> Array:
    """An array, a tensor or a PIL image, channels first or last, as bytes.  -> [row, column, 3]"""
    array: Array = np.asarray(image.detach().cpu() if hasattr(image, "detach") else image)
    array = array[0] if array.ndim == 4 and len(array) == 1 else array
    if array.ndim == 3 and array.shape[0] == 3 != array.shape[-1]:
        array = np.moveaxis(array, 0, -1)
    if array.ndim != 3 or array.shape[-1] != 3 or not array.size:
        raise InputError(f"the image {name} has the shape {list(array.shape)}: give [row, column, 3]")
    if array.dtype == np.uint8:
        return array
    if not (array.min() >= 0 and array.max() <= 1):
        raise InputError(f"the image {name} has values outside 0 to 1: give it before it is normalized")
    return np.asarray(np.rint(255 * array), np.uint8)
