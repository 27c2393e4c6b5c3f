"""Whether a trace that was read is one: the arrays are there, and have the shapes that the calls say."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from attnscope.storage.arrays.layout import LONGEST
from attnscope.storage.arrays.read import MOST_HEADS, MOST_LAYERS
from attnscope.storage.trace.arrays import FileArrays
from attnscope.storage.trace.layout import (
    Bias,
    Call,
    Held,
    Joined,
    Mask,
    Positions,
    Rows,
    Scores,
    Sound,
    Stepped,
)
from attnscope.storage.trace.trace import Trace

Shape = tuple[int, int, int, int]

MOST_TRACED = 1 << 15
"""Heads of all layers together; the largest models have half as many. Layers may share their arrays, so that
the size of a file does not bound them."""


def check_trace(trace: Trace, arrays: FileArrays) -> None:
    """Raise ``ValueError`` that says what does not fit."""
    said = trace.description
    for axis in said.axes:
        size = axis.stop - axis.start if isinstance(axis, Positions) else len(axis)
        if not 0 <= size <= LONGEST or (isinstance(axis, Positions) and not 0 <= axis.start <= LONGEST):
            raise ValueError(f"an axis has {size:,} rows or columns, and at most {LONGEST:,} are read")
    axes = [said.tokens] + [number for each in said.labels for number in (each.queries, each.keys)]
    axes += [number for call in said.calls for number in (call.queries, call.keys)]
    axes += [image.tokens for image in said.images]
    if not all(0 <= number < len(said.axes) for number in axes):
        raise ValueError(f"it speaks of an axis that it has not; there are {len(said.axes)}")
    for image in said.images:
        arrays.shape(image.array, "u", 3)
        if not all(abs(edge) <= LONGEST for box in image.boxes for edge in box.edges):
            raise ValueError("a box lies outside of any picture")
    if said.heard is not None:
        _check_sound(said.heard, arrays)
    if not said.calls:
        raise ValueError("it holds no attention")
    heads = sum(call.heads for call in said.calls)
    if heads > MOST_TRACED:
        raise ValueError(f"its layers have {heads:,} heads together, and at most {MOST_TRACED:,} are read")
    (kind, layer), times = Counter((call.kind, call.layer) for call in said.calls).most_common(1)[0]
    if times > 1:
        raise ValueError(f"it holds the {kind} layer {layer} {times:,} times")
    for call in said.calls:
        _check_call(call, trace, arrays)


def _check_sound(sound: Sound, arrays: FileArrays) -> None:
    frames = LONGEST if sound.array is None else arrays.shape(sound.array, "f", 2)[1]
    if not 0 < sound.frames <= frames or not 0 < sound.seconds < LONGEST or not 0 <= sound.begin < LONGEST:
        raise ValueError(f"{sound.frames:,} moments of {sound.seconds:g} s each are no sound")


def _check_call(call: Call, trace: Trace, arrays: FileArrays) -> None:
    if not 0 <= call.layer < MOST_LAYERS or not 0 < call.heads <= MOST_HEADS or not 0 < call.batch <= LONGEST:
        raise ValueError(f"{call.kind} layer {call.layer}, {call.heads} heads: such a layer cannot be")
    if call.dtype not in DTYPES:
        raise ValueError(f"{call.dtype!r:.40} is no type of numbers: there are {', '.join(DTYPES)}")
    _check_rows(call.rows, arrays, (call.batch, call.heads, *trace.size(call)))


DTYPES = ("float32", "float16", "bfloat16", "float64")
"""The types that a model computes in."""


def _check_rows(rows: Rows, arrays: FileArrays, shape: Shape) -> None:
    batch, heads, queries, keys = shape
    if isinstance(rows, Held):
        if arrays.shape(rows.array, "f", 4) != shape:
            raise ValueError(f"{rows.array} is not weights of {queries} × {keys} in {heads} heads")
        _check_mask(rows.open, arrays, shape)
    elif isinstance(rows, Joined):
        if len(rows.parts) != len(rows.counts) or sum(rows.counts) != heads or min(rows.counts) < 1:
            raise ValueError(f"its parts do not make up {heads} heads")
        for part, count in zip(rows.parts, rows.counts, strict=True):
            _check_rows(part, arrays, (batch, count, queries, keys))
    elif isinstance(rows, Stepped):
        _check_steps(rows, arrays, shape)
    else:
        _check_scores(rows, arrays, shape)


def _check_steps(rows: Stepped, arrays: FileArrays, shape: Shape) -> None:
    batch, heads, queries, keys = shape
    starts = rows.starts
    fits = len(starts) - 1 == len(rows.parts) == len(rows.shifts) and starts[0] == 0 and starts[-1] == queries
    if not fits or any(one >= other for one, other in pairwise(starts)) or rows.keys != keys:
        raise ValueError(f"its steps do not make up {queries} × {keys}")
    for part, start, stop in zip(rows.parts, starts, starts[1:], strict=False):
        _check_rows(part, arrays, (batch, heads, stop - start, _keys_of(part, arrays, keys)))


def _keys_of(rows: Rows, arrays: FileArrays, keys: int) -> int:
    """How many keys a step has."""
    if isinstance(rows, Scores):
        return arrays.shape(rows.key, "f", 4)[2] if rows.stop is None else rows.stop
    return arrays.shape(rows.array, "f", 4)[3] if isinstance(rows, Held) else keys


def _check_scores(rows: Scores, arrays: FileArrays, shape: Shape) -> None:
    batch, heads, queries, keys = shape
    query, key = (arrays.shape(name, "f", 4) for name in (rows.query, rows.key))
    groups = heads // key[1] * key[1] if key[1] else 0
    whole = key[2] == keys if rows.stop is None else 0 < keys == rows.stop <= key[2]
    if query[1:3] != (heads, queries) or groups != heads or query[3] != key[3] or not whole:
        raise ValueError(f"{rows.query} and {rows.key} do not make up {queries} × {keys} in {heads} heads")
    if isinstance(rows.scale, str) and not _widens(arrays.shape(rows.scale, "f"), query):
        raise ValueError(f"{rows.scale} is no scale of {rows.query}")
    if rows.sinks is not None:
        sinks = arrays.shape(rows.sinks, "f")
        if sinks != (heads,) and not (len(sinks) == 4 and _widens(sinks, (batch, heads, 1, 1))):
            raise ValueError(f"{rows.sinks} is no sink of {heads} heads")
    batches = {query[0], key[0], *(_check_mask(mask, arrays, shape) for mask in rows.masks)}
    batches |= {_check_bias(bias, arrays, shape) for bias in rows.biases}
    if not {1, batch} >= batches or max(query[0], key[0]) != batch:
        raise ValueError(f"{rows.query} and {rows.key} are not of a batch of {batch}")


def _check_bias(bias: Bias, arrays: FileArrays, shape: Shape) -> int:
    """The texts that a bias is for."""
    values = arrays.shape(bias.array, "f", 4)
    if not _widens(values, shape if bias.open is None else (1, 1, 1, 1)):
        raise ValueError(f"{bias.array} is {list(values)}, and cannot be added to {list(shape)}")
    return max(values[0], _check_mask(bias.open, arrays, shape))


def _check_mask(mask: Mask | None, arrays: FileArrays, shape: Shape) -> int:
    """The texts that a mask is for; 1 for none."""
    if mask is None:
        return 1
    packed = arrays.shape(mask.array, "i" if mask.form == "runs" else "u", 4)
    width = 2 if mask.form == "runs" else -(-mask.keys // 8)
    if packed[3] != width or mask.keys < 1 or not _widens((*packed[:3], mask.keys), shape):
        raise ValueError(f"{mask.array} is {list(packed)}, and no mask of {list(shape)}")
    return packed[0]


def _widens(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    """Whether an array of a shape broadcasts to another without making that larger."""
    return len(shape) <= len(to) and all(
        one in (1, other) for one, other in zip(reversed(shape), reversed(to), strict=False)
    )
