"""Attention that a module computes in chunks (windows, blocks), put at its true keys.

Such a module runs several softmaxes per call, over few keys each, in axes that shapes do not explain. So
its class is known by name (``layouts``), its computations are recorded, and when it ends its layout says
which key every weight belongs to. Rows are expanded when they are read; until then only the module's own
results are held.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor

from attnscope.attention import HeldRows
from attnscope.capture.hooks.functions import quietly
from attnscope.capture.hooks.modules import Call
from attnscope.capture.lineage.functions import SOFTMAX, Seen
from attnscope.capture.rows.capture import Capture, masked_keys
from attnscope.capture.rows.scores import Part, PlacedRows, compare_rows
from attnscope.capture.tracker import Tracker

IN_CHUNKS = "{} attends in chunks, and those of this call cannot be put at their keys"


@dataclass(frozen=True, eq=False)
class Softmax:
    """One softmax of a module's call: its result, and its masked keys (None: all open)."""

    weights: Tensor
    masked: Tensor | None


@dataclass(eq=False)
class Notes:
    """What a module computed in one call, in order, and its first result."""

    softmaxes: list[Softmax] = field(default_factory=list)
    linears: list[tuple[Tensor, Tensor]] = field(default_factory=list)  # the input and output of each
    returned: Tensor | None = None


class ChunkedModules(Tracker):
    """Records what chunked modules compute, and takes it with every weight at its key."""

    notes: Notes | None = None  # of the module that runs

    def begin(self) -> None:
        """Nothing runs."""
        self.notes = None

    def enter(self, call: Call) -> None:
        """A module starts."""
        if layout_of(call.module) is not None:
            self.notes = Notes()

    def see(self, seen: Seen) -> bool:
        """Record a torch function if it matters; no other tracker needs it."""
        notes, args, result = self.notes, seen.args, seen.result
        if notes is None:
            return False
        if seen.name in SOFTMAX:
            notes.softmaxes.append(Softmax(result.detach(), masked_keys(args[0], -1)))
        elif seen.name == "linear":
            notes.linears.append((args[0], result.detach()))
        return True

    def leave(self, call: Call, output: Any) -> None:
        """Place what the module computed."""
        notes, layout = self.notes, layout_of(call.module)
        if notes is None or layout is None:
            return
        self.notes = None
        with quietly():
            parts = output.values() if isinstance(output, dict) else output
            parts = (parts,) if isinstance(parts, Tensor) else parts
            notes.returned = next((part for part in parts if isinstance(part, Tensor)), None)
            laid, kernel = layout(call.module, call.tensors, notes), type(call.module).__name__
            if laid is None:
                self.recorder.name(call.name, IN_CHUNKS.format(kernel))
            else:
                self.recorder.take(capture_chunks(laid, kernel), call.name)


Proof: TypeAlias = tuple[PlacedRows, Tensor, Tensor]
"""Rows, their values, and their product, the latter both [batch, head, position, size]."""


@dataclass(frozen=True, eq=False)
class Laid:
    """One call with every weight at its key."""

    rows: PlacedRows
    proofs: tuple[Proof, ...] = ()

    @staticmethod
    def of(parts: Sequence[Part], values: Tensor | None, output: Tensor | None, real: Tensor) -> Laid:
        """Parts of one call, without the padding of the last chunk.

        ``values`` and ``output`` are [batch, position, head·size], ``real`` is bool, [batch, key].
        """
        places, (batch, heads, _) = real.any(0).nonzero(), parts[0].row.shape
        count = int(places.max()) + 1 if len(places) else real.shape[1]
        kept = tuple(replace(part, key=torch.where(part.key < count, part.key, -1)) for part in parts)
        rows = PlacedRows(kept, batch, heads, count)
        if values is None or output is None or output.shape != values.shape:
            return Laid(rows)
        values, output = (split(states, heads)[:, :, :count] for states in (values, output))
        return Laid(rows, ((rows, values, output),))


def split(states: Tensor, heads: int) -> Tensor:
    """[batch, position, head·size] -> [batch, head, position, size]"""
    return states.reshape(*states.shape[:2], heads, -1).transpose(1, 2)


def put(weights: Tensor, keys: Tensor, masked: Tensor | None = None, rows: Tensor | None = None) -> Part:
    """Weights of every query on some keys, [batch, head, query, slot], each with its key's number.

    ``keys`` and ``masked`` broadcast to them, ``rows`` to [batch, head, query]: the queries' numbers.
    """
    shape, device = weights.shape[:3], weights.device
    opened = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=device)
    texts, heads, queries = (torch.arange(size, device=device) for size in shape)
    return Part(
        HeldRows(weights, opened if masked is None else ~masked.expand(weights.shape)),
        texts[:, None, None].expand(shape),
        heads[:, None].expand(shape),
        (queries if rows is None else rows).expand(shape),
        keys.expand(*shape[:2], *keys.shape[2:]),
    )


def capture_chunks(laid: Laid, kernel: str) -> Capture:
    """Self-attention that a module computed in chunks."""
    rows, dtype = laid.rows, laid.rows.parts[0].read.rows(0, 1, [0]).dtype
    proofs = [proof for proof in laid.proofs if proof[1].dtype == dtype]
    capture = Capture.of(rows, "softmax", kernel, (rows.texts, rows.heads, rows.keys, rows.keys), dtype)
    difference = max((compare_rows(*proof) for proof in proofs), default=None)
    return replace(capture, crossed=False, difference=difference)


def lay_out_longformer(module: Any, given: tuple[Tensor, ...], notes: Notes) -> Laid | None:
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
    elsewhere = (mask != 0)[:, None, :, None]  # global queries have separate rows, padding has none
    masked = notes.softmaxes[0].masked
    masked = (elsewhere if masked is None else masked.transpose(1, 2) | elsewhere).expand_as(windows)
    windows = windows.masked_fill(elsewhere, 0.0)
    most = windows.shape[-1] - (2 * reach + 1)
    query = torch.arange(count, device=mask.device)
    near = query[:, None] + torch.arange(-reach, reach + 1, device=mask.device)  # [query, slot]
    near = near.clamp(0, count - 1)[None, None]  # those beyond the ends are masked
    parts = [put(windows[..., most:], near, masked[..., most:])]
    places = mask.new_full((batch, most), -1, dtype=torch.long)  # of the global tokens of each text
    for text, row in enumerate(mask > 0):
        at = row.nonzero()[:, 0]
        places[text, : len(at)] = at
    parts.append(put(windows[..., :most], places[:, None, None], masked[..., :most]))
    projected = [result.transpose(0, 1) for _, result in notes.linears]  # the module has the batch second
    laid = Laid.of(parts, projected[2], notes.returned, mask >= 0)
    if most == 0:
        return laid
    second, shape = notes.softmaxes[1], (batch, -1, most, count)
    far = None if second.masked is None else second.masked.view(shape)
    whole = put(second.weights.view(shape), query[None, None, None], far, places[:, None])
    proofs = []
    for rows, values, output in laid.proofs:  # global tokens have separate values
        first = PlacedRows((replace(whole, row=query[:most].expand_as(whole.row)),), batch, rows.heads, count)
        made = output.take_along_dim(places.clamp(min=0)[:, None, :, None], 2)
        made = made.masked_fill((places < 0)[:, None, :, None], torch.nan)  # NaNs are not compared
        proofs.append((first, split(projected[5], rows.heads), made))
        proofs.append((rows, values, output.masked_fill((mask > 0)[:, None, : rows.keys, None], torch.nan)))
    return replace(Laid.of([*parts, whole], None, None, mask >= 0), proofs=tuple(proofs))


def lay_out_pegasus(module: Any, given: tuple[Tensor, ...], notes: Notes) -> Laid | None:
    """The rows of one call: queries and keys are the global tokens and then the tokens."""
    if len(notes.softmaxes) != 2:
        return None
    whole, local = notes.softmaxes  # [batch, head, global, key], [batch, head, block, query, global + query]
    batch, _, first, count = whole.weights.shape
    block, device = local.weights.shape[-2], whole.weights.device
    key, token = torch.arange(count, device=device), torch.arange(count - first, device=device)
    start = first + token // block * block  # of each token's block, among the keys
    near = start[:, None] + torch.arange(block, device=device)  # [token, slot]
    slots = torch.cat([key[:first].expand(len(token), -1), near], -1)[None, None]
    masked = None if local.masked is None else local.masked.expand(local.weights.shape).flatten(2, 3)
    parts = [
        put(whole.weights, key[None, None, None], whole.masked),
        put(local.weights.flatten(2, 3), slots, masked, first + token),
    ]
    values = output = None
    if len(notes.linears) == 8:  # the values of global tokens and tokens, and the input of their projection
        values = torch.cat([notes.linears[5][1], notes.linears[2][1]], 1)  # [batch, key, head·size]
        output = torch.cat([notes.linears[6][0], notes.linears[7][0]], 1)
    return Laid.of(parts, values, output, key.expand(batch, -1) >= 0)


def lay_out_nothing(module: Any, given: tuple[Tensor, ...], notes: Notes) -> None:
    """Reformer's modules: which keys a chunk has is not followed."""


Layout: TypeAlias = Callable[[Any, tuple[Tensor, ...], Notes], "Laid | None"]
"""Makes rows from a module, its inputs and what it computed; None if it cannot."""

LAYOUTS: dict[str, Layout] = {
    "LEDEncoderSelfAttention": lay_out_longformer,
    "LSHSelfAttention": lay_out_nothing,
    "LocalSelfAttention": lay_out_nothing,
    "LongformerSelfAttention": lay_out_longformer,
    "PegasusXGlobalLocalAttention": lay_out_pegasus,
}
"""By the class's name, for classes of transformers."""


def layout_of(module: object) -> Layout | None:
    """The layout function of a chunked module; None for all other modules."""
    cls = type(module)
    return LAYOUTS.get(cls.__name__) if cls.__module__.startswith("transformers.models.") else None
