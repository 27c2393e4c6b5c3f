"""How a trace lies in its file: its description, as it stands in JSON.

Each class is an object of JSON with these fields, all of them; a text named ``array`` or after what it holds
(``query``, ``key``, ...) names an array of the file. Shapes are those of ``attnscope.attention``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from attnscope.attention import Kind, Source, Token
from attnscope.figures import HeadFigures

FORMAT = 5
"""The version of the layout. A reader refuses any other."""

Tokens: TypeAlias = tuple[Token, ...]


@dataclass(frozen=True)
class Mask:
    """Which keys are open, of every row, or the same for all rows where the array has one row.

    ``runs``: int32 [batch, head, query, 2], the first open key and the one after the last, of rows whose open
    keys are neighbours. ``bits``: uint8 [batch, head, query, key / 8], packed, the first key the highest bit.
    """

    form: Literal["runs", "bits"]
    array: str
    keys: int


@dataclass(frozen=True)
class Bias:
    """What is added to the scores: an array [..., query, key]; with ``open``, its one number where closed."""

    array: str
    open: Mask | None


@dataclass(frozen=True)
class Scores:
    """Weights that are computed again, as ``AttentionCall`` says.

    ``stop``: only so many keys of the array belong to this call (null: all). ``scale`` is a number, or
    names an array that broadcasts to the queries.
    """

    form: Literal["scores"]
    query: str
    key: str
    stop: int | None
    scale: float | str
    biases: tuple[Bias, ...]
    masks: tuple[Mask, ...]
    diagonal: int | None
    softcap: float | None
    sinks: str | None


@dataclass(frozen=True)
class Held:
    """Weights as they came, where there was nothing else.  [batch, head, query, key]

    Without ``open`` every key counts as open that has any weight in its row.
    """

    form: Literal["weights"]
    array: str
    open: Mask | None


@dataclass(frozen=True)
class Joined:
    """Several parts as the heads of one layer; ``counts`` says how many heads each part has."""

    form: Literal["heads"]
    parts: tuple[Rows, ...]
    counts: tuple[int, ...]


@dataclass(frozen=True)
class Stepped:
    """The steps of a generation under each other.

    ``starts`` are the rows at which parts begin and the last one ends, ``shifts`` how far their keys move.
    """

    form: Literal["steps"]
    parts: tuple[Rows, ...]
    starts: tuple[int, ...]
    shifts: tuple[int, ...]
    keys: int


Rows: TypeAlias = Scores | Held | Joined | Stepped


@dataclass(frozen=True)
class Call:
    """One attention call: the fields of ``SiteRecord``, the numbers of its two axes, and its rows."""

    name: str
    call: int
    kind: Kind
    layer: int
    step: int
    source: Source
    kernel: str
    batch: int
    heads: int
    key_heads: int
    offset: int | None
    dtype: str
    window: int | None
    refusal: str | None
    difference: float | None
    queries: int
    keys: int
    rows: Rows


@dataclass(frozen=True)
class About:
    """The model that ran: its name, class, revision on the hub, number of weights, and device."""

    name: str
    class_: str
    revision: str | None
    parameters: int
    device: str


@dataclass(frozen=True)
class Positions:
    """An axis of bare positions."""

    start: int
    stop: int


@dataclass(frozen=True)
class Box:
    """Left, top, right and bottom of what the token with that id stands for, in pixels of an image."""

    id: int
    edges: tuple[float, float, float, float]


@dataclass(frozen=True)
class Image:
    """An image as the model saw it: uint8 [row, column, 3], its grid of patches, their tokens' axis."""

    name: str
    array: str
    grid: tuple[int, int] | None
    tokens: int
    boxes: tuple[Box, ...]


@dataclass(frozen=True)
class Sound:
    """A sound as the model heard it: ``frames`` of ``seconds`` each from the second ``begin`` of its file on.

    ``array`` is how loud it is, float32 [band, frame]; null where the model was given the wave itself.
    """

    seconds: float
    frames: int
    begin: float
    array: str | None


@dataclass(frozen=True)
class Message:
    """A message of a chat."""

    role: str
    content: str


@dataclass(frozen=True)
class Labels:
    """The numbers of the axes of queries and keys that a kind of attention has."""

    kind: Kind
    queries: int
    keys: int


@dataclass(frozen=True)
class Fault:
    """A module at which the recording failed, and with what."""

    name: str
    reason: str


@dataclass(frozen=True)
class Without:
    """A layer without attention, and why."""

    name: str
    layer: int
    reason: str


@dataclass(frozen=True)
class Description:
    """Everything but the arrays.

    ``kept`` is the time, in UTC; ``weighed`` how weights were weighed, as a title says it, empty where they
    were not; ``text`` the plain text that was read, where it was one, ``messages`` those
    of a chat; ``tokens`` the number of the text's axis; ``written`` the number of the first token that the
    model wrote itself, if it did. ``figures`` are of the tokens, ``words`` of the words of a short text, none
    where they were not measured.
    """

    trace: int
    attnscope: str
    kept: str
    model: About
    model_notes: tuple[str, ...]
    weighed: str
    text_notes: tuple[str, ...]
    text: str | None
    messages: tuple[Message, ...]
    tokens: int
    written: int | None
    labels: tuple[Labels, ...]
    images: tuple[Image, ...]
    heard: Sound | None
    axes: tuple[Positions | Tokens, ...]
    calls: tuple[Call, ...]
    without_attention: tuple[Without, ...]
    failures: tuple[Fault, ...]
    changes: tuple[str, ...]
    figures: tuple[HeadFigures, ...]
    words: tuple[HeadFigures, ...]
