"""What goes into a model, and what it predicts: the data that all kinds of models share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from attnscope.attention import Axis, Kind, Token
from attnscope.axes import HEARD, Array
from attnscope.figures import HeadFigures
from attnscope.models.text.tokens import Vocabulary
from attnscope.storage.trace.layout import Message

if TYPE_CHECKING:
    from torch import Tensor

    from attnscope.capture import Replay


Paths: TypeAlias = Path | Sequence[Path]  # one file, or several


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


class Limit(NamedTuple):
    """How many tokens of a text are read; one with more is refused, or cut with a note to ``truncate``."""

    max_tokens: int | None = None
    truncate: bool = False


WHOLE = Limit()  # whole texts are read, and those that are too long refused


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
class Heard:
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
    trace: then nothing runs again, and ``figures`` (and ``words``, with pieces of words merged) come from the
    trace. ``arrays`` is a short trace with NumPy rows, for views without torch. ``pictures`` are the images,
    ``heard`` the sound, ``entry`` the method to call instead of the whole forward. ``written`` is the number
    of the first generated token, if any. ``text`` is the plain text, ``messages`` are those of a chat.
    """

    inputs: Mapping[str, Tensor]  # each [batch, token]
    axes: Mapping[Kind, tuple[Axis, Axis]]
    tokens: tuple[Token, ...]
    notes: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    arguments: tuple[Tensor, ...] = ()
    replay: Replay | None = None
    pictures: tuple[Picture, ...] = ()
    heard: Heard | None = None
    entry: str = "__call__"
    figures: tuple[HeadFigures, ...] | None = None
    words: tuple[HeadFigures, ...] = ()
    arrays: Replay | None = None
    written: int | None = None
    text: str | None = None
    messages: tuple[Message, ...] = ()

    @property
    def picture(self) -> Picture | None:
        """The first picture; ``None`` if there is none."""
        return self.pictures[0] if self.pictures else None

    @property
    def read(self) -> int:
        """How many of ``tokens`` were read; generated ones follow."""
        axes = self.axes.get("decoder")
        follows = axes is not None and axes[0] == self.tokens
        return len(self.tokens) if self.written is None or not follows else self.written

    @property
    def lead(self) -> Kind | None:
        """The kind of attention to show first: with a picture or sound in its text, or among its keys."""
        found = self.axes["cross"][1] if "cross" in self.axes else ()
        inside = self.picture is not None and self.tokens != self.picture.tokens
        heard = found and not isinstance(found, range) and found[0].id >= HEARD
        if heard or (inside and found == self.tokens):
            return "cross"
        inside |= self.heard is not None and any(token.id < HEARD for token in self.tokens)
        return "decoder" if inside else None


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
        where = self.input
        return prepared.inputs[where] if isinstance(where, str) else prepared.arguments[where]


def text_axes(tokens: tuple[Token, ...]) -> dict[Kind, tuple[Axis, Axis]]:
    """The axes of a model that reads one text, causal or not."""
    return {"encoder": (tokens, tokens), "decoder": (tokens, tokens)}
