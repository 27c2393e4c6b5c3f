"""A trace in its file: reading with every claim checked, and writing."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from attnscope.attention import Axis, Head
from attnscope.axes import Array
from attnscope.records import read
from attnscope.storage.arrays import MOST_HEADS, MOST_LAYERS
from attnscope.storage.files import clean_texts, reading, write_whole
from attnscope.storage.tensors import TensorFile
from attnscope.storage.trace import layout

MOST_PLACES = 1 << 20  # most rows, columns, texts, pixels or frames of a trace

KINDS = {"F64": "f", "F32": "f", "F16": "f", "U16": "f", "I32": "i", "U8": "u"}
"""The type of each kind of array: numbers, runs of keys, bits or pixels. bfloat16 is stored as U16."""


class TraceFile(TensorFile):
    """The arrays of a trace's file by name; those of a layer or two stay in memory."""

    def __init__(self, path: Path, content: bytes | None = None) -> None:
        super().__init__(path, content)
        self._read = lru_cache(maxsize=8)(super().__getitem__)

    def __getitem__(self, name: str) -> Any:
        return self._read(name)

    def shape(self, name: str, kind: str, axes: int | None = None) -> tuple[int, ...]:
        """The shape of a required array, without reading it. Raises ``ValueError`` for another kind."""
        if name not in self.entries:
            raise ValueError(f"it has no array {name!r:.40}")
        dtype, shape, _ = self.entries[name]
        if KINDS.get(dtype) != kind or 0 in shape or axes not in (None, len(shape)):
            raise ValueError(f"its array {name!r:.40} is {dtype} {list(shape)}, which it must not be")
        return shape


@dataclass(frozen=True, eq=False)
class Trace:
    """A description and the arrays that it names, in memory or read from a file on demand."""

    description: layout.TraceDescription
    arrays: Mapping[str, Array]

    @property
    def metadata(self) -> Any:
        """The file's other metadata by name; empty in memory."""
        return getattr(self.arrays, "metadata", {})

    def axis(self, number: int) -> Axis:
        """The tokens of an axis, or bare positions."""
        axis = self.description.axes[number]
        return range(axis.start, axis.stop) if isinstance(axis, layout.Positions) else axis

    def weights(self, head: Head) -> Array:
        """All rows of one head that is there, averaged over the texts that have them.  -> [query, key]"""
        layers = (call for call in self.description.calls if call.layer == head.layer)
        call = next(call for call in layers if head.kind in (None, call.kind))
        rows = layout.traced_rows(call.rows, self.arrays, 0, self.size(call)[0], [head.head])
        if len(rows) == 1:
            return np.asarray(rows[0, 0])
        allowed: Array = layout.allowed_of(call.rows, self.arrays, 0, self.size(call)[0])
        allowed = allowed[:, head.head if allowed.shape[1] > 1 else 0]  # [batch or 1, query, key]
        there = allowed.any(-1, keepdims=True)
        count = np.broadcast_to(there, (len(rows), *there.shape[1:])).sum(0)
        return np.asarray((rows[:, 0] * there).sum(0) / np.maximum(count, 1))

    def size(self, call: layout.TracedCall) -> tuple[int, int]:
        """How many queries and keys a call has."""
        return len(self.axis(call.queries)), len(self.axis(call.keys))


Shape = tuple[int, int, int, int]


def _check_trace(trace: Trace, arrays: TraceFile) -> None:
    """Raise ``ValueError`` that names what does not fit."""
    _check_axes(trace.description)
    _check_media(trace.description, arrays)
    _check_layers(trace.description.calls)
    for call in trace.description.calls:
        _check_rows(call.rows, arrays, (call.batch, call.heads, *trace.size(call)))


def _check_axes(description: layout.TraceDescription) -> None:
    """Whether axes are of a possible length, and every axis that is named is there."""
    for axis in description.axes:
        start, stop = (axis.start, axis.stop) if isinstance(axis, layout.Positions) else (0, len(axis))
        if not (0 <= start <= MOST_PLACES and 0 <= stop - start <= MOST_PLACES):
            size = f"{stop - start:,} rows or columns"
            raise ValueError(f"an axis has {size}, and at most {MOST_PLACES:,} are read")
    axes = [description.tokens, *(image.tokens for image in description.images)]
    axes += [axis for each in description.labels for axis in (each.queries, each.keys)]
    axes += [axis for call in description.calls for axis in (call.queries, call.keys)]
    if not all(0 <= number < len(description.axes) for number in axes):
        raise ValueError(f"it names an axis that it does not have; there are {len(description.axes)}")


def _check_media(description: layout.TraceDescription, arrays: TraceFile) -> None:
    """Whether images and sounds are of a possible size."""
    for image in description.images:
        arrays.shape(image.array, "u", 3)
        if not all(abs(edge) <= MOST_PLACES for box in image.boxes for edge in box.edges):
            raise ValueError("a box lies outside of any picture")
    sound = description.heard
    if sound is not None:
        most = MOST_PLACES if sound.array is None else arrays.shape(sound.array, "f", 2)[1]
        timely = sound.seconds > 0, sound.begin >= 0, max(sound.seconds, sound.begin) < MOST_PLACES
        if not (0 < sound.frames <= most and all(timely)):
            raise ValueError(f"{sound.frames:,} moments of {sound.seconds:g} s each are no sound")


def _check_layers(calls: Sequence[layout.TracedCall]) -> None:
    """Whether there are layers, each once, with as many heads as a model can have."""
    if not calls:
        raise ValueError("it holds no attention")
    heads = sum(call.heads for call in calls)
    if heads > MOST_HEADS:
        raise ValueError(f"its layers have {heads:,} heads together, and at most {MOST_HEADS:,} are read")
    (kind, layer), times = Counter((call.kind, call.layer) for call in calls).most_common(1)[0]
    if times > 1:
        raise ValueError(f"it holds the {kind} layer {layer} {times:,} times")
    for call in calls:
        sizes = ((call.heads, MOST_HEADS), (call.batch, MOST_PLACES), (call.layer + 1, MOST_LAYERS))
        if not all(0 < size <= most for size, most in sizes):
            raise ValueError(f"{call.kind} layer {call.layer}, {call.heads} heads: such a layer cannot exist")
        if call.dtype not in DTYPES:
            raise ValueError(f"{call.dtype!r:.40} is not a type of numbers: there are {', '.join(DTYPES)}")


DTYPES = ("float32", "float16", "bfloat16", "float64")  # the types of a model's computation


def _check_rows(rows: layout.TracedRows, arrays: TraceFile, shape: Shape) -> None:
    batch, heads, queries, keys = shape
    if isinstance(rows, layout.TracedWeights):
        if arrays.shape(rows.array, "f", 4) != shape:
            raise ValueError(f"{rows.array} is not weights of {queries} × {keys} in {heads} heads")
        _check_mask(rows.open, arrays, shape)
    elif isinstance(rows, layout.TracedHeads):
        if len(rows.parts) != len(rows.counts) or sum(rows.counts) != heads or min(rows.counts) < 1:
            raise ValueError(f"its parts do not make up {heads} heads")
        for part, count in zip(rows.parts, rows.counts, strict=True):
            _check_rows(part, arrays, (batch, count, queries, keys))
    elif isinstance(rows, layout.TracedSteps):
        _check_steps(rows, arrays, shape)
    else:
        _check_scores(rows, arrays, shape)


def _check_steps(rows: layout.TracedSteps, arrays: TraceFile, shape: Shape) -> None:
    batch, heads, queries, keys = shape
    starts = rows.starts
    fits = len(starts) - 1 == len(rows.parts) == len(rows.shifts) and starts[0] == 0 and starts[-1] == queries
    if not fits or any(one >= other for one, other in pairwise(starts)) or rows.keys != keys:
        raise ValueError(f"its steps do not make up {queries} × {keys}")
    for part, (start, stop) in zip(rows.parts, pairwise(starts), strict=True):
        own = keys  # of this step
        if isinstance(part, layout.TracedScores):
            own = arrays.shape(part.key, "f", 4)[2] if part.stop is None else part.stop
        elif isinstance(part, layout.TracedWeights):
            own = arrays.shape(part.array, "f", 4)[3]
        _check_rows(part, arrays, (batch, heads, stop - start, own))


def _check_scores(rows: layout.TracedScores, arrays: TraceFile, shape: Shape) -> None:
    batch, heads, queries, keys = shape
    query, key = (arrays.shape(name, "f", 4) for name in (rows.query, rows.key))
    groups = heads // key[1] * key[1] if key[1] else 0  # is ``heads`` if key heads divide them
    whole = key[2] == keys if rows.stop is None else 0 < keys == rows.stop <= key[2]
    if query[1:3] != (heads, queries) or groups != heads or query[3] != key[3] or not whole:
        raise ValueError(f"{rows.query} and {rows.key} do not make up {queries} × {keys} in {heads} heads")
    if isinstance(rows.scale, str) and not _widens(arrays.shape(rows.scale, "f"), query):
        raise ValueError(f"{rows.scale} is not a scale of {rows.query}")
    if rows.sinks is not None:
        sinks = arrays.shape(rows.sinks, "f")
        if sinks != (heads,) and not (len(sinks) == 4 and _widens(sinks, (batch, heads, 1, 1))):
            raise ValueError(f"{rows.sinks} is not a sink of {heads} heads")
    batches = {query[0], key[0], *(_check_mask(mask, arrays, shape) for mask in rows.masks)}
    for bias in rows.biases:
        values = arrays.shape(bias.array, "f", 4)
        if not _widens(values, shape if bias.open is None else (1, 1, 1, 1)):
            raise ValueError(f"{bias.array} is {list(values)}, and cannot be added to {list(shape)}")
        batches.add(max(values[0], _check_mask(bias.open, arrays, shape)))
    if not {1, batch} >= batches or max(query[0], key[0]) != batch:
        raise ValueError(f"{rows.query} and {rows.key} are not of a batch of {batch}")


def _check_mask(mask: layout.Mask | None, arrays: TraceFile, shape: Shape) -> int:
    """The number of texts of a mask; 1 for none."""
    if mask is None:
        return 1
    packed = arrays.shape(mask.array, "i" if mask.form == "runs" else "u", 4)
    width = 2 if mask.form == "runs" else -(-mask.keys // 8)
    if packed[3] != width or mask.keys < 1 or not _widens((*packed[:3], mask.keys), shape):
        raise ValueError(f"{mask.array} is {list(packed)}, and no mask of {list(shape)}")
    return packed[0]


def _widens(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    """Whether an array of one shape broadcasts to another without enlarging it."""
    pairs = zip(reversed(shape), reversed(to), strict=False)
    return len(shape) <= len(to) and all(one in (1, other) for one, other in pairs)


SUFFIX = ".trace"
KEY_FIELD = "attnscope trace"  # the name of the description in a file's metadata

RAW_FIELDS = ("axes", "text", "messages")
"""What a model read, kept to the letter; every other text of a description is cleaned as it is read."""


def write_trace(trace: Trace, path: str | Path) -> None:
    """Write a trace, whole or not at all. Raises ``OutputError``."""
    write_whole(path, trace_bytes(trace))


def trace_bytes(trace: Trace, more: Mapping[str, str] | None = None) -> bytes:
    """A trace as its file holds it, with ``more`` metadata."""
    from safetensors.numpy import save

    described = json.dumps(trace.description, default=_values)
    return bytes(save(dict(trace.arrays), {KEY_FIELD: described, **(more or {})}))


def _values(part: Any) -> dict[str, Any]:
    """A dataclass's values by name. ``asdict`` copies each number, and takes longer than the pass."""
    return {field.name: getattr(part, field.name) for field in fields(part)}


def read_trace(path: str | Path, content: bytes | None = None) -> Trace:
    """Open a trace, whose arrays are read on demand; ``content`` is the file's if known. ``InputError``."""
    path = Path(path)
    with reading(path, "the trace"):
        arrays = TraceFile(path, content)
        if KEY_FIELD not in arrays.metadata:
            raise ValueError("it is not a trace: attnscope makes one with --save-trace")
        stored: Any = json.loads(arrays.metadata[KEY_FIELD])
        version = stored.get("trace") if isinstance(stored, dict) else None
        if version != layout.FORMAT:
            reads = f"this version of attnscope reads {layout.FORMAT}"
            raise ValueError(f"its layout is number {version!s:.40}; {reads}")
        cleaned = {
            name: value if name in RAW_FIELDS else clean_texts(value) for name, value in stored.items()
        }
        trace = Trace(read(layout.TraceDescription, cleaned), arrays)
        _check_trace(trace, arrays)
    return trace
