"""The layout of a trace's file: its description in JSON.

Each class is a JSON object with exactly these fields; a text named ``array`` or after its content (``query``,
``key``, ...) is the name of an array in the file. Shapes are those of ``attnscope.attention``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Literal, TypeAlias

import numpy as np

from attnscope.attention import Axis, Kind, Site, Source, Token
from attnscope.axes import Array
from attnscope.capture.record import Failure, LayerWithoutAttention, SiteRecord
from attnscope.records import Meaning, record
from attnscope.scores import HeadScores
from attnscope.version import __version__

FORMAT = 6  # the version of the layout. A reader refuses any other.

Tokens: TypeAlias = tuple[Token, ...]


@dataclass(frozen=True)
class Mask:
    """Which keys are open, of every row, or the same for all rows where the array has one row.

    ``runs``: int32 [batch, head, query, 2], the first open key and the one after the last, for rows whose
    open keys are one run. ``bits``: uint8 [batch, head, query, key / 8], packed, the first key the
    highest bit.
    """

    form: Literal["runs", "bits"]
    array: str
    keys: int


@dataclass(frozen=True)
class Bias:
    """A term of the scores: an array [..., query, key]; or a mask ``open`` and its number where closed."""

    array: str
    open: Mask | None


@dataclass(frozen=True)
class TracedScores:
    """Weights that are recomputed as described in ``AttentionCall``.

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
class TracedWeights:
    """Weights as captured, if they cannot be recomputed.  [batch, head, query, key]"""

    form: Literal["weights"]
    array: str
    open: Mask | None  # None: a key counts as open if its row gives it any weight


@dataclass(frozen=True)
class TracedHeads:
    """Several parts as the heads of one layer; ``counts`` is how many heads each part has."""

    form: Literal["heads"]
    parts: tuple[TracedRows, ...]
    counts: tuple[int, ...]


@dataclass(frozen=True)
class TracedSteps:
    """The steps of a generation, stacked."""

    form: Literal["steps"]
    parts: tuple[TracedRows, ...]
    starts: tuple[int, ...]  # the first rows of the parts, and the end of the last
    shifts: tuple[int, ...]  # the offsets of their keys
    keys: int


TracedRows: TypeAlias = TracedScores | TracedWeights | TracedHeads | TracedSteps


@dataclass(frozen=True, kw_only=True)
class TracedCall(Site):
    """One attention call: the fields of ``SiteRecord`` except the numbers of its two axes, and its rows."""

    step: int = 0
    source: Source
    kernel: str
    batch: int = 1
    heads: int
    key_heads: int
    offset: int | None
    dtype: str
    window: int | None = None
    refusal: str | None = None
    difference: float | None = None
    queries: int
    keys: int
    rows: TracedRows

    @staticmethod
    def from_record(record: SiteRecord, queries: int, keys: int, rows: TracedRows) -> TracedCall:
        """A recorded call, with its axes and its rows."""
        facts = asdict(record)
        return TracedCall(**facts.pop("site"), **facts | {"queries": queries, "keys": keys}, rows=rows)


@record("the model")
class About:
    """The model that ran."""

    name: Annotated[str, Meaning("as it was named")]
    class_: Annotated[str, Meaning("its Python class", name="class")]
    revision: Annotated[str | None, Meaning("its commit on the hub")]
    parameters: Annotated[int, Meaning("its weights")]
    device: Annotated[str, Meaning("where it ran")]


@dataclass(frozen=True)
class Positions:
    """An axis of bare positions."""

    start: int
    stop: int


def traced_axis(axis: Axis) -> Positions | Tokens:
    """An axis as a description has it."""
    return Positions(axis.start, axis.stop) if isinstance(axis, range) else axis


@dataclass(frozen=True)
class Box:
    """The part of a token with that id: left, top, right and bottom in pixels of an image."""

    id: int
    edges: tuple[float, float, float, float]


@dataclass(frozen=True)
class Image:
    """An image as the model read it: uint8 [row, column, 3], its grid of patches, their tokens' axis."""

    name: str
    array: str
    grid: tuple[int, int] | None
    tokens: int
    boxes: tuple[Box, ...]


@dataclass(frozen=True)
class TracedSound:
    """A sound as the model read it: ``frames`` of ``seconds`` each, from the second ``begin`` on."""

    seconds: float
    frames: int
    begin: float
    array: str | None  # its loudness, float32 [band, frame]; null if the model reads the wave itself


DOCUMENT = "document"  # the role of a document that a chat template writes beside the messages


@dataclass(frozen=True)
class Message:
    """A message of a chat and its role."""

    role: str
    content: str


@dataclass(frozen=True)
class Labels:
    """The numbers of a kind's query axis and key axis."""

    kind: Kind
    queries: int
    keys: int


@dataclass(frozen=True, kw_only=True)
class TraceDescription:
    """Everything but the arrays."""

    trace: int = FORMAT
    attnscope: str = __version__
    kept: str = ""  # the time, in UTC; empty if no model ran here
    model: About
    model_notes: tuple[str, ...]
    weighed: str = ""  # the weighting in a title's words, empty for none
    text_notes: tuple[str, ...] = ()
    text: str | None = None  # the plain text, if it was one
    batch_texts: int = 1  # the texts of a batch; its other parts are channels, windows or rows
    beams: bool = False  # whether these are beams of one text
    messages: tuple[Message, ...] = ()  # of a chat
    tokens: int  # the number of the text's axis
    written: int | None = None  # the number of the first generated token, if any
    labels: tuple[Labels, ...]
    images: tuple[Image, ...] = ()
    heard: TracedSound | None = None
    axes: tuple[Positions | Tokens, ...]
    calls: tuple[TracedCall, ...]
    without_attention: tuple[LayerWithoutAttention, ...] = ()
    failures: tuple[Failure, ...] = ()
    changes: tuple[str, ...] = ()
    scores: tuple[HeadScores, ...] = ()  # of tokens; empty if not measured
    words: tuple[HeadScores, ...] = ()  # of the words of a short text; likewise


def pack_mask(open_keys: Array, hold: Callable[[str, Array], str]) -> Mask:
    """A mask in its smaller form; ``hold`` stores its array and returns its name.

    bool, [batch or 1, head or 1, query or 1, key]
    """
    keys = open_keys.shape[-1]
    count = open_keys.sum(-1, dtype=np.int32)
    low = np.where(count > 0, open_keys.argmax(-1), 0).astype(np.int32)
    high = np.where(count > 0, keys - open_keys[..., ::-1].argmax(-1), 0).astype(np.int32)
    if np.array_equal(high - low, count):
        return Mask("runs", hold("mask", np.stack([low, high], -1)), keys)
    return Mask("bits", hold("mask", np.packbits(open_keys, axis=-1)), keys)


def unpack_rows(mask: Mask, arrays: Mapping[str, Array], start: int, stop: int) -> Array:
    """Some rows of a mask, bool.  -> [batch or 1, head or 1, row or 1, key]"""
    packed = arrays[mask.array]
    packed = packed if packed.shape[2] == 1 else packed[:, :, start:stop]
    if mask.form == "bits":
        return np.unpackbits(packed, axis=-1, count=mask.keys).view(bool)
    key: Array = np.arange(mask.keys, dtype=np.int32)
    return (key >= packed[..., :1]) & (key < packed[..., 1:])


Arrays = Mapping[str, Array]

CLOSED_BELOW, CLASSIC_CLOSED = -3e4, -1e4
"""An additive mask closes a key by a number up to the first one, or by the second (BERT's code)."""


def traced_rows(
    rows: TracedRows, arrays: Arrays, start: int, stop: int, heads: Sequence[int] | None = None
) -> Array:
    """Weights of the queries ``start`` to ``stop``, of some heads or all.  -> [batch, head, row, key]"""
    if isinstance(rows, TracedWeights):
        held = to_float(arrays[rows.array])[:, :, start:stop]
        return held if heads is None else held[:, list(heads)]
    if isinstance(rows, TracedHeads):
        parts = zip(rows.parts, rows.counts, strict=True)
        owner = [(part, head) for part, count in parts for head in range(count)]
        chosen = owner if heads is None else [owner[head] for head in heads]
        return np.concatenate([traced_rows(part, arrays, start, stop, [head]) for part, head in chosen], 1)
    if isinstance(rows, TracedSteps):
        return _stack(rows, start, stop, lambda part, a, b: traced_rows(part, arrays, a, b, heads))
    return _softmax_rows(rows, arrays, start, stop, heads)


def allowed_of(rows: TracedRows, arrays: Arrays, start: int, stop: int) -> Array:
    """Keys that the masks leave open, bool.  -> [batch or 1, head or 1, row, key]"""
    if isinstance(rows, TracedWeights):
        values = arrays[rows.array][:, :, start:stop]
        if rows.open is None:
            return np.asarray((values != 0).any(1, keepdims=True))
        opened = unpack_rows(rows.open, arrays, start, stop)
        return np.broadcast_to(opened, (*opened.shape[:2], *values.shape[2:]))
    if isinstance(rows, TracedHeads):
        masks = [allowed_of(part, arrays, start, stop) for part in rows.parts]
        shapes = [(len(mask), count, *mask.shape[2:]) for mask, count in zip(masks, rows.counts, strict=True)]
        return np.concatenate([np.broadcast_to(*pair) for pair in zip(masks, shapes, strict=True)], 1)
    if isinstance(rows, TracedSteps):
        return _stack(rows, start, stop, lambda part, *some: allowed_of(part, arrays, *some))
    opened = np.ones((1, 1, stop - start, key_of(rows, arrays).shape[2]), bool)
    if rows.diagonal is not None:
        opened = opened & _causal(rows.diagonal, opened.shape[-1], start, stop)
    for mask in rows.masks:
        opened = opened & unpack_rows(mask, arrays, start, stop)
    for bias in rows.biases:
        added = bias_rows(bias, arrays, start, stop)
        opened = opened & (added > CLOSED_BELOW) & (added != CLASSIC_CLOSED)
    return opened


def key_of(rows: TracedScores, arrays: Arrays) -> Array:
    """The keys of a call.  -> [batch, key_head, key, size]"""
    return arrays[rows.key][:, :, : rows.stop]


def bias_rows(bias: Bias, arrays: Arrays, start: int, stop: int) -> Array:
    """Some rows of a term of the scores.  -> [batch or 1, head or 1, row or 1, key or 1]"""
    values = to_float(arrays[bias.array])
    if bias.open is not None:
        return np.where(unpack_rows(bias.open, arrays, start, stop), values.dtype.type(0), values)
    return values if values.shape[2] == 1 else values[:, :, start:stop]


def to_float(values: Array) -> Array:
    """Numbers in at least float32; bfloat16, which NumPy lacks, is stored as its bits in uint16."""
    if values.dtype == np.uint16:
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values if values.dtype == np.float64 else values.astype(np.float32, copy=False)


@np.errstate(all="ignore")  # a file may hold NaNs; they come out as NaN
def _softmax_rows(
    rows: TracedScores, arrays: Arrays, start: int, stop: int, heads: Sequence[int] | None
) -> Array:
    """Softmax of scaled products, with soft cap, biases and masks.  -> [batch, head, row, key]"""
    query, key = to_float(arrays[rows.query][:, :, start:stop]), to_float(key_of(rows, arrays))
    chosen = list(range(query.shape[1]) if heads is None else heads)
    groups = query.shape[1] // key.shape[1]
    scale = rows.scale if isinstance(rows.scale, float) else to_float(arrays[rows.scale])
    query, key = query[:, chosen] * scale, key[:, [head // groups for head in chosen]]
    scores = query @ key.swapaxes(-1, -2)
    if rows.softcap is not None:
        scores = rows.softcap * np.tanh(scores / rows.softcap)
    for bias in rows.biases:
        scores = scores + _of_heads(bias_rows(bias, arrays, start, stop), chosen).astype(scores.dtype)
    for mask in rows.masks:
        scores = np.where(_of_heads(unpack_rows(mask, arrays, start, stop), chosen), scores, -np.inf)
    if rows.diagonal is not None:
        scores = np.where(_causal(rows.diagonal, scores.shape[-1], start, stop), scores, -np.inf)
    highest = scores.max(-1, keepdims=True, initial=-np.inf)  # subtracted, so that exp stays finite
    sink = None
    if rows.sinks is not None:
        sink = to_float(arrays[rows.sinks]).astype(scores.dtype)
        sink = _of_heads(sink.reshape(1, -1, 1, 1) if sink.ndim == 1 else sink, chosen)
        highest = np.maximum(highest, sink)
    grown = np.exp(scores - np.where(np.isneginf(highest), 0, highest))
    total = grown.sum(-1, keepdims=True)
    total = total if sink is None else total + np.exp(sink - highest)
    return np.asarray(np.divide(grown, total, out=np.zeros_like(grown), where=total != 0))


def _of_heads(values: Array, heads: list[int]) -> Array:
    return values if values.shape[1] == 1 else values[:, heads]


def _causal(diagonal: int, keys: int, start: int, stop: int) -> Array:
    """-> [row, key]"""
    return np.arange(keys) <= np.arange(start, stop)[:, None] + diagonal


def _stack(rows: TracedSteps, start: int, stop: int, read: Callable[[TracedRows, int, int], Array]) -> Array:
    """Stack rows of several steps, each step's keys in their places.  -> [..., row, key]"""
    blocks: list[Array] = []
    for part, shift, begin, end in zip(rows.parts, rows.shifts, rows.starts, rows.starts[1:], strict=False):
        first, last = max(start, begin), min(stop, end)
        if first < last or not (blocks or end < rows.starts[-1]):  # no rows asked: the last step's, empty
            block = read(part, first - begin, max(first, last) - begin)
            low, high = max(0, shift), min(rows.keys, shift + block.shape[-1])
            placed = np.zeros((*block.shape[:-1], rows.keys), block.dtype)
            placed[..., low:high] = block[..., low - shift : high - shift]
            blocks.append(placed)
    shape = np.broadcast_shapes(*(block.shape[:2] for block in blocks))
    return np.concatenate([np.broadcast_to(block, (*shape, *block.shape[2:])) for block in blocks], 2)
