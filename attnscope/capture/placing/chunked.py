"""Attention that a module computes in chunks (windows, blocks), put at its true keys.

Such a module runs several softmaxes per call, over few keys each, in axes that shapes do not explain. So
its class is known by name, its computations are recorded, and when it ends its layout says which key every
weight belongs to. Rows are expanded when they are read; until then only the module's own results are held.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from attnscope.attention import HeldRows
from attnscope.capture.hooks.functions import quietly
from attnscope.capture.hooks.modules import Call
from attnscope.capture.lineage.functions import SOFTMAX, TorchCall
from attnscope.capture.rows.capture import CapturedCall, masked_keys
from attnscope.capture.rows.scores import Part, PlacedRows, compare_rows
from attnscope.capture.tracker import Tracker

IN_CHUNKS = "{} attends in chunks, and the keys of this call's chunks are unknown"


@dataclass(eq=False)
class Notes:
    """What a module computed in one call, in order."""

    softmaxes: list[tuple[Tensor, Tensor | None]] = field(default_factory=list)  # and the masked keys, if any
    linears: list[Tensor] = field(default_factory=list)


class ChunkedModules(Tracker):
    """Records what chunked modules compute, and takes it with every weight at its key."""

    notes: Notes | None = None  # of the module that runs

    def begin(self) -> None:
        """Nothing runs."""
        self.notes = None

    def enter(self, call: Call) -> None:
        """A module starts."""
        if is_chunked(call.module):
            self.notes = Notes()

    def on_torch_call(self, call: TorchCall) -> bool:
        """Record a torch function if it matters; no other tracker needs it."""
        if self.notes is None:
            return False
        if call.name in SOFTMAX:
            weights = call.result.detach()
            self.notes.softmaxes.append((weights, masked_keys(call.args[0], -1, weights)))
        elif call.name == "linear":
            self.notes.linears.append(call.result.detach())
        return True

    def leave(self, call: Call, output: Any) -> None:
        """Place what the module computed."""
        notes, kernel = self.notes, type(call.module).__name__
        if notes is None or not is_chunked(call.module):
            return
        self.notes = None
        with quietly():
            capture = place_windows(call, notes, output) if kernel in WINDOWED else None
            if capture is None:
                self.recorder.name(call.name, IN_CHUNKS.format(kernel))
            else:
                self.recorder.add(capture, call.name)


def place_part(
    weights: Tensor, keys: Tensor, masked: Tensor | None = None, rows: Tensor | None = None
) -> Part:
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


def split(states: Tensor, heads: int) -> Tensor:
    """[batch, position, head·size] -> [batch, head, position, size]"""
    return states.reshape(*states.shape[:2], heads, -1).transpose(1, 2)


def place_windows(call: Call, notes: Notes, output: Any) -> CapturedCall | None:
    """The attention of one call, given the states [batch, key, size] and the mask [batch, key].

    The mask is 0 for tokens with a window, positive for global ones and negative for masked ones.
    """
    masks = [tensor for tensor in call.tensors if tensor.ndim == 2 and tensor.is_floating_point()]
    if len(masks) != 1 or not notes.softmaxes:
        return None
    (mask,) = masks
    batch, count = mask.shape
    module: Any = call.module
    reach = module.one_sided_attn_window_size
    windows, masked = (None if each is None else each.transpose(1, 2) for each in notes.softmaxes[0])
    assert windows is not None  # [batch, head, query, slot]
    elsewhere = (mask != 0)[:, None, :, None]  # global queries have separate rows, padding has none
    masked = (elsewhere if masked is None else masked | elsewhere).expand_as(windows)
    windows = windows.masked_fill(elsewhere, 0.0)
    heads, most = windows.shape[1], windows.shape[-1] - (2 * reach + 1)
    query = torch.arange(count, device=mask.device)
    near = query[:, None] + torch.arange(-reach, reach + 1, device=mask.device)  # [query, slot]
    near = near.clamp(0, count - 1)[None, None]  # those beyond the ends are masked
    places = mask.new_full((batch, most), -1, dtype=torch.long)  # of the global tokens of each text
    for text, row in enumerate(mask > 0):
        at = row.nonzero()[:, 0]
        places[text, : len(at)] = at
    parts = [
        place_part(windows[..., most:], near, masked[..., most:]),
        place_part(windows[..., :most], places[:, None, None], masked[..., :most]),
    ]
    returned = next(iter(output.values() if isinstance(output, dict) else output))
    projected = [split(result.transpose(0, 1), heads) for result in notes.linears]  # the batch is second
    value, mixed = projected[2], split(returned, heads)
    real = (mask >= 0).any(0).nonzero()  # without the padding of the last window
    keys = int(real.max()) + 1 if len(real) else count
    proofs = []
    if most:
        global_weights, masked_global = notes.softmaxes[1]
        shape = batch, heads, most, count
        masked_global = None if masked_global is None else masked_global.view(shape)
        parts.append(
            place_part(global_weights.view(shape), query[None, None, None], masked_global, places[:, None])
        )
        alone = replace(parts[-1], row=query[:most].expand(shape[:3]))
        global_output = mixed.take_along_dim(places.clamp(min=0)[:, None, :, None], 2)
        nowhere = (places < 0)[:, None, :, None]
        global_output = global_output.masked_fill(nowhere, torch.nan)  # NaNs are not compared
        proofs.append((PlacedRows((alone,), batch, heads, count), projected[5], global_output))
    real_parts = tuple(replace(part, key=torch.where(part.key < keys, part.key, -1)) for part in parts)
    rows = PlacedRows(real_parts, batch, heads, keys)
    mixed = mixed.masked_fill((mask > 0)[:, None, :, None], torch.nan)[:, :, :keys]
    proofs.append((rows, value[:, :, :keys], mixed))
    capture = CapturedCall.from_rows(
        rows, "softmax", type(module).__name__, (batch, heads, keys, keys), windows.dtype
    )
    compared = value.dtype == windows.dtype
    worst = max(compare_rows(*each) for each in proofs) if compared else None
    return replace(capture, is_cross=False, difference=worst)


WINDOWED = {"LEDEncoderSelfAttention", "LongformerSelfAttention"}
CHUNKED = WINDOWED | {"LSHSelfAttention", "LocalSelfAttention", "PegasusXGlobalLocalAttention"}
"""Classes of transformers; which keys a chunk has is followed of windows alone."""


def is_chunked(module: object) -> bool:
    """Whether a module attends in chunks."""
    cls = type(module)
    return cls.__name__ in CHUNKED and cls.__module__.startswith("transformers.models.")
