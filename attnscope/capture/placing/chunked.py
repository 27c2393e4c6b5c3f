"""Attention that a module computes in chunks (windows, blocks, sorted chunks), put at its true keys.

A module of that sort takes several softmaxes a call, over few keys each, and lays them out in ways that no
reader of tensors can tell. So its class is known by name (``layouts``), what it computes is noted while it
runs, and when it ends its layout says which key every weight belongs to. Rows are spread out when they are
read; what is held meanwhile is what the module itself computed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from attnscope.capture.hooks.modules import Call
from attnscope.capture.hooks.outputs import tensors_of
from attnscope.capture.lineage.functions import SOFTMAX, Seen
from attnscope.capture.observer import quietly
from attnscope.capture.rows.capture import Capture, Unknown
from attnscope.capture.rows.proof import compare_rows
from attnscope.capture.rows.weighing import masked_keys
from attnscope.capture.tracker import Tracker


@dataclass(frozen=True, eq=False)
class Softmax:
    """One softmax of a module's call: its result, and the keys that a mask masked (None: all open)."""

    weights: Tensor
    masked: Tensor | None


@dataclass(eq=False)
class Notes:
    """What a module computed in one call, in order, and what it returned first."""

    softmaxes: list[Softmax] = field(default_factory=list)
    gathers: list[Tensor] = field(default_factory=list)  # the indices of every gather
    linears: list[tuple[Tensor, Tensor]] = field(default_factory=list)  # what each was given, and gave
    returned: Tensor | None = None


class ChunkedModules(Tracker):
    """Notes what modules that attend in chunks compute, and takes it with every weight at its key."""

    notes: Notes | None = None  # of the module that runs

    def begin(self) -> None:
        """Nothing runs."""
        self.notes = None

    def enter(self, call: Call) -> None:
        """A module starts."""
        if layout_of(call.module) is not None:
            self.notes = Notes()

    def see(self, seen: Seen) -> bool:
        """Take note of a torch function, if it is one that matters; nobody else needs to know."""
        notes, args, result = self.notes, seen.args, seen.result
        if notes is None:
            return False
        if seen.name in SOFTMAX or seen.name == "exp":  # of scores minus their log-sum-exp
            notes.softmaxes.append(Softmax(result.detach(), masked_keys(args[0], -1)))
        elif seen.name == "gather":
            notes.gathers.append(args[2])
        elif seen.name == "linear":
            notes.linears.append((args[0], result.detach()))
        return True

    def leave(self, call: Call, output: object) -> None:
        """Lay out what the module computed."""
        notes, layout = self.notes, layout_of(call.module)
        if notes is None or layout is None:
            return
        self.notes = None
        with quietly():
            notes.returned = next(tensors_of(output), None)
            rows = layout(call.module, call.tensors, notes)
            self.recorder.take(from_chunks(rows, type(call.module).__name__), call.name)


@dataclass(frozen=True, eq=False)
class Chunk:
    """Weights of every query on some keys, each with its key's number; a key may come several times."""

    weights: Tensor  # [batch, head, query, slot]
    keys: Tensor  # [batch or 1, head or 1, query, slot]
    masked: Tensor | None = None  # bool, broadcastable to the weights


@dataclass(frozen=True, eq=False)
class WholeRows:
    """Rows over all keys, in the place of whatever chunks say of those queries."""

    places: Tensor  # [batch, row]: which query each row is; -1 for none
    weights: Tensor  # [batch, head, row, key]
    masked: Tensor | None = None


Numbers: TypeAlias = Callable[["Chunk | WholeRows", slice], Tensor]
"""Some rows of what a part holds: its weights, or which of its keys are open."""


@dataclass(frozen=True, eq=False)
class Proof:
    """What weights were multiplied with, and what that gave; ``whole``: values that whole rows have alone."""

    values: Tensor  # [batch, head, key, size]
    output: Tensor  # [batch, head, query, size]
    whole: Tensor | None = None

    @staticmethod
    def of(values: Tensor, output: Tensor | None, heads: int, whole: Tensor | None = None) -> Proof | None:
        """Of tensors with all heads behind each other, [batch, position, head·size]."""
        if output is None or output.shape != values.shape:
            return None
        parts = (None if of is None else split(of, heads) for of in (values, output, whole))
        return Proof(*parts)  # type: ignore[arg-type]


@dataclass(frozen=True, eq=False)
class ChunkedRows:
    """Rows put together from chunks: the sum of all weights on a key."""

    chunks: tuple[Chunk, ...]
    key_count: int
    whole: WholeRows | None = None
    proof: Proof | None = None

    def rows(self, start: int, stop: int, heads: Sequence[int] | None) -> Tensor:
        """Weights of the queries ``start`` to ``stop``.  -> [batch, head, row, key]"""
        return self._spread(start, stop, slice(None) if heads is None else list(heads), _weights)

    def allowed(self, start: int, stop: int) -> Tensor:
        """Keys that some chunk left open, bool.  -> [batch, head, row, key]"""
        return self._spread(start, stop, slice(None), _open) > 0

    def _spread(self, start: int, stop: int, heads: slice | list[int], numbers: Numbers) -> Tensor:
        """Numbers of every chunk added up at their keys.  -> [batch, head, row, key]"""
        parts = [numbers(chunk, slice(start, stop))[:, heads] for chunk in self.chunks]
        spread = parts[0].new_zeros(*parts[0].shape[:3], self.key_count)
        for chunk, part in zip(self.chunks, parts, strict=True):
            keys = chunk.keys[:, :, start:stop]
            keys = keys if keys.shape[1] == 1 else keys[:, heads]
            spread.scatter_add_(-1, keys.expand(part.shape), part)
        if self.whole is not None:
            places = self.whole.places
            text, row = ((places >= start) & (places < stop)).nonzero(as_tuple=True)
            rows = numbers(self.whole, slice(None))[:, heads]
            spread[text, :, places[text, row] - start] = rows[text, :, row]  # [place, head, key]
        return spread


def split(states: Tensor, heads: int) -> Tensor:
    """[batch, position, head·size] -> [batch, head, position, size]"""
    batch, positions, _ = states.shape
    return states.reshape(batch, positions, heads, -1).transpose(1, 2)


def trim(rows: ChunkedRows, real: Tensor) -> ChunkedRows:
    """The rows without the padding behind the longest text, with which a model fills its last chunk up.

    ``real`` is bool, [batch, key].
    """
    places = real.any(0).nonzero()
    count = int(places.max()) + 1 if len(places) else rows.key_count
    if count == rows.key_count:
        return rows
    chunks = []
    for chunk in rows.chunks:
        keys = chunk.keys[:, :, :count]
        weights = chunk.weights[:, :, :count].masked_fill(keys >= count, 0.0)
        masked = None if chunk.masked is None else chunk.masked.expand_as(chunk.weights)[:, :, :count]
        masked = keys >= count if masked is None else masked | (keys >= count)
        chunks.append(Chunk(weights, keys.clamp(max=count - 1), masked))
    whole = rows.whole
    if whole is not None:
        far = None if whole.masked is None else whole.masked[..., :count]
        whole = WholeRows(whole.places, whole.weights[..., :count], far)
    return ChunkedRows(tuple(chunks), count, whole, rows.proof)


def from_chunks(rows: ChunkedRows | None, kernel: str) -> Capture | Unknown:
    """Self-attention that a module computed in chunks; ``None``: nothing tells at which keys they are."""
    if rows is None:
        return Unknown(f"{kernel} attends in chunks, and those of this call cannot be put at their keys")
    batch, heads, queries, _ = rows.chunks[0].weights.shape
    kind = rows.chunks[0].weights.dtype
    return Capture(
        source="softmax",
        kernel=kernel,
        batch=batch,
        heads=heads,
        key_heads=heads,
        queries=queries,
        keys=rows.key_count,
        dtype=kind,
        read=rows,
        crossed=False,
        difference=compare_chunks(rows),
    )


def compare_chunks(rows: ChunkedRows) -> float | None:
    """What ``compare_rows`` says of all rows; None without their values, or if they are of another type."""
    proof, whole, count = rows.proof, rows.whole, rows.key_count
    if proof is None or proof.values.dtype != rows.chunks[0].weights.dtype:
        return None
    output = proof.output[:, :, :count]
    if whole is None or proof.whole is None:
        return compare_rows(rows, proof.values[:, :, :count], output)
    near, far = output.clone(), output.new_full((*whole.weights.shape[:3], output.shape[3]), torch.nan)
    text, row = (whole.places >= 0).nonzero(as_tuple=True)
    far[text, :, row] = output[text, :, whole.places[text, row]]
    near[text, :, whole.places[text, row]] = torch.nan  # what is no number is not compared
    keys = torch.arange(count, device=far.device).expand(1, 1, far.shape[2], -1)
    alone = ChunkedRows((Chunk(whole.weights, keys),), count)
    return max(
        compare_rows(replace(rows, whole=None), proof.values[:, :, :count], near),
        compare_rows(alone, proof.whole[:, :, :count], far),
    )


def _weights(part: Chunk | WholeRows, rows: slice) -> Tensor:
    """-> [batch, head, row, slot]"""
    return part.weights[:, :, rows]


def _open(part: Chunk | WholeRows, rows: slice) -> Tensor:
    """1 where a key is open, else 0.  -> [batch, head, row, slot]"""
    weights = _weights(part, rows)
    if part.masked is None:
        return torch.ones_like(weights)
    return (~part.masked.expand_as(part.weights)[:, :, rows]).to(weights.dtype)


def lay_out_longformer(module: Any, given: tuple[Tensor, ...], notes: Notes) -> ChunkedRows | None:
    """The rows of one call; ``given`` holds the states [batch, key, size] and the mask [batch, key].

    The mask is 0 for tokens with a window, positive for global ones and negative for masked ones.
    """
    masks = [tensor for tensor in given if tensor.ndim == 2 and tensor.is_floating_point()]
    if len(masks) != 1 or not notes.softmaxes:
        return None
    (mask,) = masks
    batch, count = mask.shape
    reach = module.one_sided_attn_window_size
    windows = notes.softmaxes[0].weights.transpose(1, 2)  # [batch, head, query, slot]
    padding = (mask < 0)[:, None, :, None]  # queries that are padding weigh nothing
    masked = notes.softmaxes[0].masked
    masked = padding if masked is None else masked.transpose(1, 2) | padding
    most = windows.shape[-1] - (2 * reach + 1)
    windows = windows.masked_fill(padding, 0.0)
    near = torch.arange(count, device=mask.device)[:, None] + torch.arange(
        -reach, reach + 1, device=mask.device
    )  # [query, slot]; those beyond the ends are masked
    near = near.clamp(0, count - 1).expand(1, 1, -1, -1)
    every_mask = masked.expand_as(windows)
    chunks = [Chunk(windows[..., most:], near, every_mask[..., most:])]
    heads = windows.shape[1]
    projected = [result.transpose(0, 1) for _, result in notes.linears]  # the module has the batch second
    if most == 0:
        proof = Proof.of(projected[2], notes.returned, heads)
        return trim(ChunkedRows(tuple(chunks), count, proof=proof), mask >= 0)
    places = _global_places(mask > 0, most)  # [batch, row]
    keys = places.clamp(min=0)[:, None, None, :].expand(-1, 1, count, -1)
    chunks.append(Chunk(windows[..., :most], keys, every_mask[..., :most]))
    second = notes.softmaxes[1]
    shape = (batch, -1, most, count)
    far = None if second.masked is None else second.masked.view(shape)
    whole = WholeRows(places, second.weights.view(shape), far)
    proof = Proof.of(projected[2], notes.returned, heads, projected[5])
    return trim(ChunkedRows(tuple(chunks), count, whole, proof), mask >= 0)


def _global_places(chosen: Tensor, most: int) -> Tensor:
    """Where the global tokens of each text stand, in order, -1 behind the last.  -> [batch, most]"""
    places = chosen.new_full((len(chosen), most), -1, dtype=torch.long)
    for text, row in enumerate(chosen):
        at = row.nonzero()[:, 0]
        places[text, : len(at)] = at
    return places


def lay_out_pegasus(module: Any, given: tuple[Tensor, ...], notes: Notes) -> ChunkedRows | None:
    """The rows of one call: queries and keys are the global tokens and then the tokens."""
    if len(notes.softmaxes) != 2:
        return None
    whole, local = notes.softmaxes  # [batch, head, global, key], [batch, head, block, query, global + query]
    batch, _, first, count = whole.weights.shape
    block = local.weights.shape[-2]
    weights = F.pad(local.weights.flatten(2, 3), (0, 0, first, 0))  # [batch, head, query, slot]
    masked = local.masked
    if masked is not None:
        masked = F.pad(masked.expand(local.weights.shape).flatten(2, 3), (0, 0, first, 0), value=True)
    token = torch.arange(count - first, device=weights.device)
    start = first + token // block * block  # of each token's block, among the keys
    near = start[:, None] + torch.arange(block, device=weights.device)  # [token, slot]
    globally = torch.arange(first, device=weights.device).expand(len(token), -1)
    keys = F.pad(torch.cat([globally, near], -1), (0, 0, first, 0)).expand(1, 1, -1, -1)
    places = torch.arange(first, device=weights.device).expand(batch, -1)
    chunks = (Chunk(weights, keys, masked),)
    rows = WholeRows(places, whole.weights, whole.masked)
    return ChunkedRows(chunks, count, rows, _proof(notes, weights.shape[1]))


def _proof(notes: Notes, heads: int) -> Proof | None:
    """The values of global tokens and tokens, and what their output projection was given."""
    if len(notes.linears) != 8:
        return None
    values = torch.cat([notes.linears[5][1], notes.linears[2][1]], 1)  # [batch, key, head·size]
    return Proof.of(values, torch.cat([notes.linears[6][0], notes.linears[7][0]], 1), heads)


def lay_out_local(module: Any, given: tuple[Tensor, ...], notes: Notes) -> ChunkedRows | None:
    """The rows of one call of the attention in chunks of neighbours."""
    count = given[0].shape[1]
    if len(notes.softmaxes) != 1:
        return None
    (softmax,) = notes.softmaxes
    proof = _proof_reformer(notes, softmax.weights.shape[1])
    if softmax.weights.ndim == 4:
        return _plain(softmax, count, proof)
    order = torch.arange(count, device=softmax.weights.device).expand(1, 1, -1)
    return trim(ChunkedRows((_chunk(module, softmax, order),), count, proof=proof), _real(given))


def lay_out_hashed(module: Any, given: tuple[Tensor, ...], notes: Notes) -> ChunkedRows | None:
    """The rows of one call of the attention in chunks of like hashes."""
    count = given[0].shape[1]
    if not notes.softmaxes:
        return None
    softmax = notes.softmaxes[0]
    proof = _proof_reformer(notes, softmax.weights.shape[1])
    if softmax.weights.ndim == 4:
        return _plain(softmax, count, proof)
    if softmax.weights.shape[-2] != module.chunk_length or not notes.gathers:
        return None  # a step of a generation
    order = notes.gathers[0][..., 0]  # [batch, head, round · place]: which token is sorted there
    chunked = _chunk(module, softmax, order)
    rounds = order.shape[-1] // count
    chunks = []
    for number in range(rounds):
        span = slice(number * count, (number + 1) * count)
        back = order[..., span].argsort(-1)[..., None]  # [batch, head, query, 1]: where it was sorted to
        weights = chunked.weights[..., span, :].take_along_dim(back, 2)
        keys = chunked.keys[..., span, :].take_along_dim(back, 2)
        masked = chunked.masked
        if masked is not None:
            masked = masked[..., span, :].take_along_dim(back, 2)
        if rounds > 1:
            weights = weights * notes.softmaxes[1].weights[:, :, number]  # [batch, head, query, 1]
        chunks.append(Chunk(weights, keys, masked))
    return trim(ChunkedRows(tuple(chunks), count, proof=proof), _real(given))


def _proof_reformer(notes: Notes, heads: int) -> Proof | None:
    """The values, which are projected last, and what the module returns of them."""
    return Proof.of(notes.linears[-1][1], notes.returned, heads) if notes.linears else None


def _real(given: tuple[Tensor, ...]) -> Tensor:
    """Which tokens are no padding, from the states and the mask that a module was given.  -> [batch, key]"""
    masks = [tensor for tensor in given[1:] if tensor.shape == given[0].shape[:2]]
    return masks[0].bool() if masks else given[0].new_ones(given[0].shape[:2], dtype=torch.bool)


def _chunk(module: Any, softmax: Softmax, order: Tensor) -> Chunk:
    """The weights of chunks with the tokens that stand in them and beside them.

    ``order`` is [batch or 1, head or 1, place]; the weights [batch, head, chunk, place, slot].
    """
    size = module.chunk_length
    chunks = order.view(*order.shape[:-1], -1, size)  # [.., .., chunk, place]
    beside = range(-module.num_chunks_before, module.num_chunks_after + 1)
    keys = torch.cat([chunks.roll(-step, 2) for step in beside], -1)  # [.., .., chunk, slot], the ends joined
    keys = keys.repeat_interleave(size, 2)  # [.., .., place, slot]
    masked = None if softmax.masked is None else softmax.masked.expand(softmax.weights.shape).flatten(2, 3)
    return Chunk(softmax.weights.flatten(2, 3), keys, masked)


def _plain(softmax: Softmax, count: int, proof: Proof | None) -> ChunkedRows | None:
    """Rows over all keys at once, as in texts of up to one chunk; None for a step of a generation."""
    if softmax.weights.shape[-2:] != (count, count):
        return None
    keys = torch.arange(count, device=softmax.weights.device).expand(1, 1, count, -1)
    return ChunkedRows((Chunk(softmax.weights, keys, softmax.masked),), count, proof=proof)


Layout: TypeAlias = Callable[[Any, tuple[Tensor, ...], Notes], "ChunkedRows | None"]
"""Makes rows of a module, the tensors that it was given and what it computed; None where it cannot."""

LAYOUTS: dict[str, Layout] = {
    "LEDEncoderSelfAttention": lay_out_longformer,
    "LSHSelfAttention": lay_out_hashed,
    "LocalSelfAttention": lay_out_local,
    "LongformerSelfAttention": lay_out_longformer,
    "PegasusXGlobalLocalAttention": lay_out_pegasus,
}
"""By the class's name, for classes of transformers."""


def layout_of(module: object) -> Layout | None:
    """Who puts a module's attention together; None for all modules that attend in one chunk."""
    cls = type(module)
    return LAYOUTS.get(cls.__name__) if cls.__module__.startswith("transformers.models.") else None
