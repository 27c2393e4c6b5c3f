"""The fused pass: computes a layer's output and its heads' statistics together, in place of the kernel.

Tiles do not pay for short texts. There torch's own kernel computes a map of every head: a kernel sums
whatever it is given as values, so each value vector is extended by a one-hot vector of its key's cell, and a
row's output ends in its attention to each cell. Queries and keys are padded with zeros, which change no
score. At 512 tokens and ten cells this adds three tenths of the kernel's time; tiles would double it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn.functional import one_hot, scaled_dot_product_attention

from attnscope.attention import AttentionCall
from attnscope.fused.request import SHORTEST, Map, MapAlone, PairSums, Request, Runs, Statistics
from attnscope.fused.runs import Gaps, NamedMatches, Spots, digest, find_matches, is_plain, open_runs
from attnscope.fused.tiles import (
    BlockRequest,
    ComputeBlock,
    HeadResults,
    TileBlock,
    compiled_block,
    head_inputs,
    plan,
)


@dataclass
class Worker:
    """Computes head after head, with scratch memory of its own."""

    call: AttentionCall
    bias: Tensor | None
    sheets: HeadResults  # of all heads; each tensor's axes begin with [batch, head]
    plans: Sequence[Sequence[TileBlock]]  # one per text, or one for all
    spots: Sequence[Spots]  # like the plans
    matches: NamedMatches
    gaps: Sequence[Gaps]
    compute: ComputeBlock
    dtype: torch.dtype = field(init=False)
    scratch: Tensor = field(init=False)  # scratch for the scores of any tile
    store: Tensor = field(init=False)  # scratch for the weights of any block
    numbers: Tensor = field(init=False)  # 0, 1, 2 and so on, as many as any block needs

    def __post_init__(self) -> None:
        """Allocate scratch once: growing it from block to block would request memory each time."""
        blocks = [block for plan in self.plans for block in plan]
        rows = max(block.stop - block.start for block in blocks)
        width = max(block.tiles[0].stop - block.tiles[0].start for block in blocks)
        keys = max(block.tiles[-1].stop - block.tiles[0].start for block in blocks)
        self.dtype = self.sheets.entropy.dtype
        self.scratch, self.store = (torch.empty(rows * wide, dtype=self.dtype) for wide in (width, keys))
        self.numbers = torch.arange(max(rows, keys))

    def run(self, text: int, number: int) -> None:
        """Compute all rows of one head of one text; no two heads write to the same memory."""
        head = head_inputs(self.call, self.bias, text, number)
        results = HeadResults._make(None if sheet is None else sheet[text, number] for sheet in self.sheets)
        for block in self.plans[text % len(self.plans)]:
            rows, tiles = slice(block.start, block.stop), block.tiles
            keys, width = slice(tiles[0].start, tiles[-1].stop), tiles[0].stop - tiles[0].start
            request = BlockRequest(
                *self.spots[text % len(self.spots)].places(rows, keys, width),
                [gaps.ahead_of(rows, keys, self.dtype) for gaps in self.gaps],
                [matches[text].places(rows, keys, width) for matches in self.matches.values()],
                self.numbers,
            )
            self.compute(head, block, request, results, self.scratch, self.store)


def attend(
    call: AttentionCall,
    runs: Runs,
    bias: Tensor | None,
    request: Request,
    matches: NamedMatches,
) -> tuple[Tensor, Statistics]:
    """Compute ``softmax(scores) @ value`` over the unmasked keys, and the statistics of its weights.

    Scores are ``softcap(scale·q·k) + bias`` within ``runs``; every row needs an unmasked key. ``matches``
    are the matching pairs of the request, one per text. Memory grows with queries + keys.
    -> [batch, head, query, value size], statistics
    """
    query = call.query
    (batch, heads, queries, _), keys = query.shape, call.key.shape[2]
    row_edges, key_edges = request.edges(queries), request.edges(keys)
    plans = [plan(runs, text, row_edges, key_edges) for text in range(len(runs.low))]
    gaps = {name: Gaps.from_function(function, runs, keys) for name, function in request.gaps.items()}
    uneven = {name: each for name, each in gaps.items() if each.slope is None}
    output = query.new_empty(batch, queries, heads, call.value.shape[-1]).transpose(1, 2)
    empty = query.new_empty(0, dtype=torch.promote_types(query.dtype, torch.float32))
    lead = batch, heads
    sheets = HeadResults(
        output=output,
        entropy=empty.new_empty(*lead, queries),
        largest=empty.new_empty(*lead, queries),
        top=empty.new_empty(*lead, queries),
        total=empty.new_ones(*lead, queries),
        column=empty.new_zeros(*lead, keys),
        at=empty.new_zeros(*lead, len(request.at), queries),
        heavier=empty.new_zeros(*lead, len(request.at) if request.heavier else 0, queries),
        gaps=torch.zeros(*lead, len(uneven), dtype=torch.float64),
        pairs=torch.zeros(*lead, len(matches), dtype=torch.float64),
        cells=empty.new_zeros(*lead, len(row_edges) - 1, len(key_edges) - 1) if request.cells else None,
    )
    position = torch.arange(queries)
    at = [key_of(position) for key_of in request.at.values()]
    spots = [Spots.from_keys(at, runs, text) for text in range(len(runs.low))]
    jobs = [(text, head) for text in range(batch) for head in range(heads)]
    tables, compute = list(uneven.values()), compiled_block()
    _run(lambda: Worker(call, bias, sheets, plans, spots, matches, tables, compute), jobs)
    sums = dict(zip(uneven, sheets.gaps.unbind(-1), strict=True))
    ahead = (sheets.column.double() * torch.arange(keys)).sum(-1)
    ahead -= (sheets.total.double() * position).sum(-1)  # Σ A (j - i), [batch, head]
    cells = sheets.cells
    return output, Statistics(
        runs=runs,
        **{name: getattr(sheets, name) for name in ("entropy", "largest", "top", "total", "column")},
        at=dict(zip(request.at, sheets.at.unbind(2), strict=True)),
        heavier=dict(zip(request.at, sheets.heavier.unbind(2), strict=False)),
        gaps={name: sums[name] if each.slope is None else ahead * each.slope for name, each in gaps.items()},
        pairs={
            name: PairSums(request.pairs[name], torch.stack([each.count for each in matches[name]]), total)
            for name, total in zip(matches, sheets.pairs.unbind(-1), strict=True)
        },
        map=None
        if cells is None
        else Map(cells, open_pairs(runs, row_edges, key_edges), row_edges, key_edges),
    )


def _run(worker: Callable[[], Worker], jobs: Sequence[tuple[int, int]]) -> None:
    """Run the jobs on torch's number of threads, one inner thread each.

    Tile operations are too small for inner threads: they run two to three times slower with several.
    """
    before, inference = torch.get_num_threads(), torch.is_inference_mode_enabled()
    threads, waiting = min(before, len(jobs)), iter(jobs)

    def work() -> None:
        torch.set_num_threads(1)
        with torch.inference_mode(inference), torch.no_grad():
            own = worker()
            try:
                for text, head in waiting:
                    own.run(text, head)
            finally:
                deque(waiting, maxlen=0)  # if one thread fails, stop the others

    try:
        with ThreadPoolExecutor(max(1, threads - 1), "attnscope") as pool:
            others = [pool.submit(work) for _ in range(threads - 1)]
            work()
            for done in others:
                done.result()
    finally:
        torch.set_num_threads(before)


@lru_cache(4)  # layers of a model share their runs
def open_pairs(runs: Runs, row_edges: tuple[int, ...], key_edges: tuple[int, ...]) -> Tensor:
    """The number of unmasked pairs in each cell.  -> [batch or 1, row cell, key cell]"""
    edge = torch.tensor(key_edges)
    cell = torch.repeat_interleave(torch.tensor(row_edges).diff())  # [row]
    pairs = torch.zeros(len(runs.low), len(row_edges) - 1, len(key_edges) - 1, dtype=torch.int64)
    for rows in torch.split(torch.arange(len(cell)), 1024):
        low, high = runs.low[:, rows, None], runs.high[:, rows, None]
        before = torch.minimum(high, edge) - torch.minimum(low, edge)  # unmasked keys before each edge
        pairs.index_add_(1, cell[rows], before.diff(dim=-1))
    return pairs


MOST_CELLS = 48  # above this many key cells, tiles cost less
WIDTH_MULTIPLE = 16  # rows are faster if their width is a multiple of this
NUMBERS_PER_TENSOR = 1 << 17  # of a widened tensor, at least one head's: half a megabyte stays in the cache


def is_widened(call: AttentionCall, cells: int) -> bool:
    """Whether the kernel can do so many cells exactly: full precision, and nothing but a mask."""
    masks = len(call.biases) + len(call.masks)
    exact = call.query.dtype in (torch.float32, torch.float64)
    plain = call.softcap is None and call.sinks is None and (call.diagonal is None or not masks)
    return exact and plain and cells <= MOST_CELLS


def attend_widened(
    call: AttentionCall, row_edges: tuple[int, ...], key_edges: tuple[int, ...]
) -> tuple[Tensor, Tensor]:
    """The output of a call, and the sums of its weights in each cell.

    -> [batch, head, query, value size] and [batch, head, row cell, key cell]
    """
    assert isinstance(call.scale, float)
    batch, heads, queries, size = call.query.shape
    key_heads, keys, own = call.value.shape[1:]
    cells, shared = len(key_edges) - 1, heads // key_heads
    width = -(-max(size, own + cells) // WIDTH_MULTIPLE) * WIDTH_MULTIPLE
    down = _members(row_edges).to(call.query.dtype).T  # [row cell, row]
    across = _members(key_edges)  # [key, key cell]
    mask = next((mask for mask in (*call.biases, *call.masks) if isinstance(mask, Tensor)), None)
    output = call.query.new_empty(batch, queries, heads, own).transpose(1, 2)
    total = call.query.new_empty(batch, heads, len(down), cells)
    step = max(1, NUMBERS_PER_TENSOR // (batch * shared * max(queries, keys) * width))
    for first in range(0, key_heads, step):
        some = slice(first, first + step)
        span = slice(first * shared, (first + step) * shared)
        query = _widen(call.query[:, span], width)
        key, value = (_widen(each[:, some], width, shared) for each in (call.key, call.value))
        value[..., own : own + cells] = across
        wide = scaled_dot_product_attention(
            query,
            key,
            value,
            mask if mask is None or mask.shape[1] == 1 else mask[:, span],
            is_causal=call.diagonal is not None,
            scale=call.scale,
        )
        output[:, span] = wide[..., :own]
        total[:, span] = down @ wide[..., own : own + cells]
    return output, total


@lru_cache(4)  # layers of a model share their edges
def _members(edges: tuple[int, ...]) -> Tensor:
    """Which cell each position belongs to.  -> [position, cell], 0 or 1"""
    sizes = torch.tensor(edges).diff()
    return one_hot(torch.repeat_interleave(sizes), len(sizes))


def _widen(part: Tensor, width: int, times: int = 1) -> Tensor:
    """Pad with zeros and repeat each head.  [batch, head, position, size] -> [..., width]"""
    batch, heads, positions, size = part.shape
    wide = part.new_empty(batch, heads, times, positions, width)
    wide[..., :size] = part[:, :, None]
    wide[..., size:] = 0
    return wide.flatten(1, 2)


DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


class Refusal(Exception):
    """A call that only the kernel can compute; the message says why."""


@dataclass(eq=False)
class FusedPass:
    """Computes attention calls in place of the kernel while a recording measures every head.

    Scores are computed once for both output and statistics; computing them a second time beside the kernel
    costs several times as much on long texts. The output agrees with the kernel's within 1e-4. ``rows`` asks
    that calls of fewer than ``shortest`` keys are computed by their rows, which observers read next.
    """

    request: Request = field(default_factory=Request)
    shortest: int = SHORTEST
    rows: bool = False
    _masks: dict[tuple[object, ...], tuple[Runs | None, bool, NamedMatches]] = field(default_factory=dict)

    def attend(self, call: AttentionCall) -> tuple[Tensor, MapAlone]:
        """The call's output, [batch, head, query, value size], and the statistics of its weights.

        Raises ``Refusal`` where only the kernel will do. 16-bit outputs are rounded from float32.
        """
        if call.key.shape[2] < self.shortest:
            raise Refusal(f"it has fewer than {self.shortest} keys")
        reason = self._reason_for_kernel(call)
        if reason is not None:
            raise Refusal(reason)
        runs, plain, matches = self._runs(call)
        if runs is None:
            raise Refusal(
                "its mask does not leave each row one contiguous run of keys, the same for all heads"
            )
        edges = self.request.edges(call.query.shape[2]), self.request.edges(call.key.shape[2])
        if self.request.map_alone and is_widened(call, len(edges[1]) - 1):
            output, total = attend_widened(call, *edges)
            return output, MapAlone(runs=runs, map=Map(total, open_pairs(runs, *edges), *edges))
        bias = None if plain or not call.biases else call.biases[0]
        return attend(call, runs, bias, self.request, matches)

    def takes_rows(self, call: AttentionCall) -> bool:
        """Whether a call is computed by its rows: the sum of weights × values takes the kernel's place."""
        return self.rows and call.key.shape[2] < self.shortest and self._reason_for_kernel(call) is None

    @staticmethod
    def _reason_for_kernel(call: AttentionCall) -> str | None:
        """Why no call of this form is computed, apart from its length and the contents of its masks."""
        query, key, value, masks = call.query, call.key, call.value, (*call.biases, *call.masks)
        tensors = [query, key, value, *(mask for mask in masks if isinstance(mask, Tensor))]
        devices = {tensor.device.type for tensor in tensors} - {"cpu"}
        types = {tensor.dtype for tensor in tensors} - {torch.bool}
        shaped = key.shape[:3] == value.shape[:3] and query.shape[0] == key.shape[0]
        odd = (
            len(masks) > 1
            or len(tensors) < 3 + len(masks)
            or any(t.ndim != 4 or t.shape[-1] != key.shape[2] for t in tensors[3:])
        )
        reasons = {
            "it has a single query": query.shape[2] < 2,
            f"it runs on {' and '.join(sorted(devices))}": bool(devices),
            f"it computes in {query.dtype}".replace("torch.", ""): query.dtype not in DTYPES,
            "its tensors are of several types": len(types) > 1,
            "it applies dropout": bool(call.dropout),
            "it needs gradients": torch.is_grad_enabled() and any(t.requires_grad for t in tensors),
            "it runs under autocast": torch.is_autocast_enabled("cpu"),
            "its heads or its batch differ between queries, keys and values": not shaped
            or bool(query.shape[1] % key.shape[1]),
            "its mask is not a single tensor over its keys": odd,
            "its scale or its causal mask has an unknown form": not isinstance(call.scale, float)
            or call.diagonal not in (None, 0),
        }
        return next((reason for reason, holds in reasons.items() if holds), None)

    def _runs(self, call: AttentionCall) -> tuple[Runs | None, bool, NamedMatches]:
        """The unmasked runs of a call, whether it only masks, and the matching pairs in them.

        Kept for the next layers, by contents: a model may write the next layer's mask into the same tensor.
        """
        mask = next((mask for mask in (*call.biases, *call.masks) if isinstance(mask, Tensor)), None)
        batch, lengths = len(call.query), (call.query.shape[2], call.key.shape[2])
        key = batch, *lengths, call.diagonal, None if mask is None else digest(mask)
        if key not in self._masks:
            while len(self._masks) > 3:
                del self._masks[next(iter(self._masks))]
            runs = open_runs(mask, *lengths, call.diagonal is not None)
            pairs = self.request.pairs if runs is not None and lengths[0] == lengths[1] else {}
            matches = {} if runs is None else find_matches(pairs, runs, batch)
            self._masks[key] = runs, mask is None or is_plain(mask), matches
        return self._masks[key]
