"""What goes into a model, and what it is to predict: the data that every kind of model shares."""

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


Paths: TypeAlias = Path | Sequence[Path]
"""One file, or several."""


@dataclass(frozen=True, eq=False)
class Picture:
    """An image as the model sees it: cropped and scaled, in ``grid`` patches, rows by columns.

    ``tokens`` are the patches row by row, named by row and column, with the special ones before them.
    ``grid`` is ``None``, and ``tokens`` are none, where the module does not say how it cuts the image.
    ``boxes`` has left, top, right and bottom of what a token stands for, by the token's id, in pixels of the
    image as it was given; ``name`` tells it from others: image 2, or frame 3 of a video.
    """

    pixels: Array  # [row, column, 3], uint8
    grid: tuple[int, int] | None
    tokens: tuple[Token, ...]
    boxes: Mapping[int, tuple[float, float, float, float]] = field(default_factory=dict)
    name: str = "image 1"


class SoundPart(NamedTuple):
    """From which second of a sound to which it is heard; ``None`` is its end.

    With ``truncate`` only the beginning of what is too long for the model.
    """

    begin: float = 0.0
    end: float | None = None
    truncate: bool = False


@dataclass(frozen=True, eq=False)
class Letters:
    """What a CTC head reads in a sound: the likeliest token of each of its frames, of ``seconds`` each.

    ``scores`` are the logarithms of the probabilities of all tokens in each frame. ``blank`` is the token
    that says nothing, ``read`` is how the others read, ``boundary`` stands between words if it is not
    ``None``, and those in ``begin`` begin a word.
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
    """A sound as a model hears it: ``frames`` of ``seconds`` each, behind which there may be padding.

    They begin at the second ``begin`` of the file. ``bands`` is how loud it is, ``None`` where that cannot be
    told. ``letters`` is what a CTC head reads in it.
    """

    seconds: float
    frames: int
    bands: Array | None = None  # [band, frame, padding too]
    begin: float = 0.0
    letters: Letters | None = None


@dataclass(frozen=True)
class Chat:
    """That a text is a user's message, after that of a ``system``; ``reply`` opens the model's turn."""

    system: str | None = None
    reply: bool = False


@dataclass(frozen=True)
class ModelInput:
    """A text, an image or tensors as a model reads them.

    ``inputs`` go into the model's forward as keywords, ``axes`` labels the queries and keys of every
    kind of attention, ``tokens`` is the text itself, ``notes`` says what was done to it (cut, joined),
    ``settings`` are further keywords, ``arguments`` go in by position. ``replay`` holds a generation that
    was recorded while it ran, or a trace: then nothing runs again, and ``figures`` are those of the trace, as
    are ``words``, of heads whose pieces of words were merged. ``arrays`` is a short trace whose rows come as
    NumPy arrays, for looks that need no torch.
    ``pictures`` are the images that were read, ``heard`` the sound, ``entry`` the method of the module to
    call where that is not the whole forward. ``written`` is the number of the first token that the model
    wrote itself, if it wrote any. ``text`` is the plain text that was read, ``messages`` are those of a chat.
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
        """The first picture, ``None`` without any."""
        return self.pictures[0] if self.pictures else None

    @property
    def read(self) -> int:
        """How many of ``tokens`` were read: what the model wrote itself stands behind them."""
        axes = self.axes.get("decoder")
        follows = axes is not None and axes[0] == self.tokens
        return len(self.tokens) if self.written is None or not follows else self.written

    @property
    def lead(self) -> Kind | None:
        """The kind to show first: that of a text with a picture or sound in it.

        Of a sound, and of pictures among other things that an encoder reads, what finds them.
        """
        found = self.axes["cross"][1] if "cross" in self.axes else ()
        inside = self.picture is not None and self.tokens != self.picture.tokens
        heard = found and not isinstance(found, range) and found[0].id >= HEARD
        if heard or (inside and found == self.tokens):
            return "cross"
        inside |= self.heard is not None and any(token.id < HEARD for token in self.tokens)
        return "decoder" if inside else None


class Objective(NamedTuple):
    """How a model predicts tokens.

    ``input`` names the ids among its inputs, or is their number among its arguments. ``mask`` is the id that
    stands for a token that is masked, and predicted at its place; ``None`` if the model predicts each next
    token.
    """

    input: str | int
    mask: int | None
    vocabulary: Vocabulary

    def ids(self, prepared: ModelInput) -> Tensor:
        """The tokens that are read.  -> [text, token]"""
        where = self.input
        return prepared.inputs[where] if isinstance(where, str) else prepared.arguments[where]


def text_axes(tokens: tuple[Token, ...]) -> dict[Kind, tuple[Axis, Axis]]:
    """The axes of a model that reads one text, whichever way it looks."""
    return {"encoder": (tokens, tokens), "decoder": (tokens, tokens)}
