"""The weights of a block of rows, computed and summed tile by tile inside the processor's cache.

``README.md`` says how tiles are merged, why scores are powers of 2, and what TorchScript saves. For it
there are no slices among the arguments, constants are arguments, and annotations are types, not strings
(no ``from __future__ import annotations`` here).
"""

import math
import warnings
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple, cast

import torch
from torch import Tensor

from attnscope.attention import AttentionCall
from attnscope.fused.request import Runs

BLOCK_ROWS = 256  # rows of a block; their tiles are merged
TILE_KEYS = 512  # keys of a tile: with 256 rows its scores are half a megabyte in float32


class Tile(NamedTuple):
    """The rows of a block times the keys ``start`` to ``stop``."""

    start: int
    stop: int
    mask: Tensor | None  # 1 where a pair is masked and 0 elsewhere, [row, key]; None: none are
    masked: int  # the first key that the mask covers


class TileBlock(NamedTuple):
    """The rows ``start`` to ``stop`` and the tiles that cover their unmasked keys."""

    start: int
    stop: int
    tiles: list[Tile]  # all but the last have one width
    row_cells: int  # the first cell that the rows touch
    row_begins: Tensor  # where in the block each cell begins
    key_cells: int  # likewise for the keys of all tiles
    key_begins: Tensor


@lru_cache(4)  # layers of a model share their runs, which are never written into
def plan(runs: Runs, text: int, row_edges: tuple[int, ...], key_edges: tuple[int, ...]) -> list[TileBlock]:
    """Cut one text's map into blocks of rows."""
    low, high = (ends[text % len(ends)] for ends in (runs.low, runs.high))
    masks: dict[bytes, Tensor] = {}
    blocks = []
    for start in range(0, len(low), BLOCK_ROWS):
        stop = min(start + BLOCK_ROWS, len(low))
        ends = low[start:stop], high[start:stop]
        first, last = int(ends[0].min()), int(ends[1].max())
        cuts = range(first, last, TILE_KEYS)
        tiles = [_tile(cut, min(cut + TILE_KEYS, last), *ends, masks) for cut in cuts]
        cells = *_cells(row_edges, start, stop), *_cells(key_edges, first, last)
        blocks.append(TileBlock(start, stop, tiles, *cells))
    return blocks


def _tile(start: int, stop: int, low: Tensor, high: Tensor, masks: dict[bytes, Tensor]) -> Tile:
    """Some keys of a block whose rows see ``low`` to ``high``; equal masks are stored once."""
    first = start if int(low.max()) > start else max(start, int(high.min()))
    last = stop if int(high.min()) < stop else min(stop, int(low.max()))
    if first >= last:
        return Tile(start, stop, None, start)
    low, high = ((each[:, None] - first).clamp(0, last - first) for each in (low, high))
    name = torch.cat([low, high]).numpy().tobytes() + bytes(last - first)
    if name not in masks:
        key = torch.arange(last - first)
        masks[name] = ((key < low) | (key >= high)).float()  # adding is five times faster than filling
    return Tile(start, stop, masks[name], first)


def _cells(edges: Sequence[int], start: int, stop: int) -> tuple[int, Tensor]:
    """The first cell that a span touches, and where its cells begin in the span."""
    first, last = bisect_right(edges, start) - 1, bisect_left(edges, stop)
    return first, torch.tensor([max(0, edge - start) for edge in edges[first:last]])


MASKED_SCORE = -1e30  # the score of a masked key: its weight is 0, and no sum of it overflows

LOWEST_EXPONENT = -125.0
"""Weights below 2 to this power count as 0: products with denormals take a hundred times as long."""

LOG2_E = math.log2(math.e)  # the factor from the softmax's scores to scores in powers of 2


class HeadInputs(NamedTuple):
    """One head of one text, in the type of the computation."""

    query: Tensor  # [query, size], times ``LOG2_E`` and the scale, or the scale over the soft cap
    key: Tensor  # [key, size]
    value: Tensor  # [key, value size]
    steep: bool  # whether some score may lie more than ``LOWEST_EXPONENT`` below another
    softcap: float | None
    bias: Tensor | None  # [query, key]
    sink: Tensor | None  # one number


def head_inputs(call: AttentionCall, bias: Tensor | None, text: int, number: int) -> HeadInputs:
    """One head of one text, in at least float32; ``bias`` is [batch or 1, head or 1, query or 1, key]."""
    dtype, softcap = torch.promote_types(call.query.dtype, torch.float32), call.softcap
    shared = number // (call.query.shape[1] // call.key.shape[1])
    query = call.query[text, number].to(dtype) * (
        call.scale * LOG2_E if softcap is None else call.scale / softcap
    )
    # heads are interleaved in memory; contiguous rows multiply faster
    key, value = (each[text, shared].to(dtype).contiguous() for each in (call.key, call.value))
    if bias is not None:
        bias = bias[text % len(bias), number % bias.shape[1]].expand(len(query), len(key))
    sink = None if call.sinks is None else call.sinks[number].to(dtype)
    farthest = 2 * float(query.norm(dim=-1).amax() * key.norm(dim=-1).amax())
    steep = bias is not None or softcap is not None or not farthest < -LOWEST_EXPONENT
    return HeadInputs(query, key, value, steep, softcap, bias, sink)


class HeadResults(NamedTuple):
    """What is computed of one head; blocks write their rows into it."""

    output: Tensor  # [query, value size]
    entropy: Tensor  # [query], as the next three
    largest: Tensor
    top: Tensor
    total: Tensor  # ones by default, right where there is no sink
    column: Tensor  # [key]
    at: Tensor  # [name, query], zeros by default, right for masked keys
    heavier: Tensor  # likewise: how many keys of the row have a greater weight than that one; empty: unasked
    gaps: Tensor  # [name] float64, as the next
    pairs: Tensor
    cells: Tensor | None  # [row cell, key cell]


class BlockRequest(NamedTuple):
    """The named requests, for one block."""

    at: Tensor  # where in [name, query] the weight on a row's key goes, [spot]
    spots: tuple[Tensor, Tensor]  # and where it lies, as the next
    gaps: list[Tensor]  # the factors of all gaps, from that of the last row and first key on
    pairs: list[tuple[Tensor, Tensor]]  # their places in [tile, row] and among the weights, tile by tile
    numbers: Tensor  # 0, 1, 2 and so on, at least as many as a block has rows or keys


ComputeBlock = Callable[[HeadInputs, TileBlock, BlockRequest, HeadResults, Tensor, Tensor], None]
"""The type of ``compute_block``, in Python or compiled."""


@lru_cache(1)
def compiled_block() -> ComputeBlock:
    """``compute_block`` in TorchScript; the Python function, with the same numbers, where torch cannot.

    TorchScript is deprecated and stays for one reason: nothing else in torch runs a block's many small
    operations without Python's global lock, for which two threads would wait a tenth to a third of the time
    (``README.md``). Where it is gone, results are the same, computed more slowly.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            return cast(ComputeBlock, torch.jit.script(compute_block))
        except (AttributeError, NotImplementedError, RuntimeError, TypeError, ValueError):
            return compute_block


def score_tile(
    query: Tensor, head: HeadInputs, block: TileBlock, tile: Tile, scratch: Tensor, bits: float, masked: float
) -> Tensor:
    """The scores of a tile, in scratch memory.  -> [row, key]"""
    rows, keys = query.size(0), tile.stop - tile.start
    scores = scratch[: rows * keys].view(rows, keys)
    torch.mm(query, head.key[tile.start : tile.stop].t(), out=scores)
    softcap, bias, mask = head.softcap, head.bias, tile.mask
    if softcap is not None:
        scores.tanh_().mul_(softcap * bits)
    if bias is not None:
        bias = bias[block.start : block.stop, tile.start : tile.stop]
        scores.add_(bias, alpha=bits).clamp_(min=masked)
    if mask is not None:
        first = tile.masked - tile.start
        scores[:, first : first + mask.size(1)].add_(mask, alpha=masked)
    return scores


def compute_block(
    head: HeadInputs,
    block: TileBlock,
    request: BlockRequest,
    results: HeadResults,
    scratch: Tensor,
    store: Tensor,
    bits: float = LOG2_E,
    masked: float = MASKED_SCORE,
    lowest: float = LOWEST_EXPONENT,
) -> None:
    """Compute the rows of a block and write their results.

    ``scratch`` holds the scores of a tile, ``store`` the weights of all tiles: sums over rows need the
    log-sum-exp first. A tile's weights are ``w = 2^(s - origin)``: the origin is its row's highest score if
    scores are steep, and 0 elsewhere, where no weight or sum leaves the range of float32.
    """
    start, stop, tiles = block.start, block.stop, len(block.tiles)
    rows, size = stop - start, head.value.size(1)
    query = head.query[start:stop]
    origin, largest = query.new_zeros([tiles, rows]), query.new_ones([tiles, rows])  # weight
    mass, moment = torch.empty_like(origin), torch.empty_like(origin)  # Σ w and Σ w (s - origin)
    outputs = query.new_zeros([tiles if head.steep else 1, rows, size])  # one for all tiles of one origin
    weights: list[Tensor] = []
    end = 0  # of the weights stored so far
    for place, tile in enumerate(block.tiles):
        scores = score_tile(query, head, block, tile, scratch, bits, masked)
        weight = store[end : end + scores.numel()].view(scores.size(0), scores.size(1))
        end += scores.numel()
        if head.steep:  # exponents count from the row's highest score; what lies far below it is 0
            torch.amax(scores, [1], out=origin[place])
            scores.sub_(origin[place].unsqueeze(1))
            torch.threshold_(scores, lowest, masked)
        torch.exp2(scores, out=weight)
        if not head.steep:  # the exponential is monotonic: the largest weight tells the highest score
            torch.amax(weight, [1], out=largest[place])
        torch.sum(weight, [1], out=mass[place])
        torch.sum(scores.mul_(weight), [1], out=moment[place])
        output = outputs[place if head.steep else 0]
        torch.addmm(output, weight, head.value[tile.start : tile.stop], out=output)
        weights.append(weight)
    # tiles have their own origins: bring their sums to one, the log-sum-exp of the row
    highest = origin.amax(0)
    lse = (origin - highest).exp2_().mul_(mass).sum(0).log2_().add_(highest)
    results.top[start:stop] = largest.amax(0).log2_().add_(highest) / bits
    sink = head.sink
    if sink is not None:  # takes part in the softmax without a key
        lse = torch.logaddexp2(lse, sink * bits)
    below = origin.sub_(lse)
    share = below.exp2()  # what a weight of a tile is multiplied by, [tile, row]
    results.output[start:stop] = outputs.mul_(share[: outputs.size(0)].unsqueeze(2)).sum(0)
    # -ln 2 · Σ A (s - lse), with s - lse = (s - origin) + (origin - lse)
    results.entropy[start:stop] = moment.addcmul_(below, mass).mul_(share).sum(0).mul_(-1 / bits)
    torch.amax(largest.mul_(share), [0], out=results.largest[start:stop])
    if sink is not None:
        results.total[start:stop] = mass.mul_(share).sum(0)
    sum_block(block, request, results, weights, share, store)
    if results.heavier.size(0) > 0:
        count_heavier(block, request, results.heavier, weights, share, store, scratch)


def sum_block(
    block: TileBlock,
    request: BlockRequest,
    results: HeadResults,
    weights: list[Tensor],
    share: Tensor,
    store: Tensor,
) -> None:
    """Sum the weights of a block over rows and over pairs."""
    first, last = block.tiles[0].start, block.tiles[-1].stop
    strips: list[Tensor] = []  # [row cell, key]
    for place, tile in enumerate(block.tiles):
        strips.append(sum_runs(weights[place], block.row_begins, share[place], request.numbers))
        for name, gaps in enumerate(request.gaps):
            windows = gaps[tile.start - first :].unfold(0, tile.stop - tile.start, 1)
            table = windows[: share.size(1)].flip([0])  # [row, key]
            results.gaps[name] += torch.dot((weights[place] * table).sum(1), share[place])
    for name, (rows, places) in enumerate(request.pairs):
        results.pairs[name] += torch.dot(store.index_select(0, places), share.view(-1).index_select(0, rows))
    rows, places = request.spots
    at = store.index_select(0, places).mul_(share.view(-1).index_select(0, rows))
    results.at.view(-1).index_copy_(0, request.at, at)
    by_key = torch.cat(strips, 1)
    results.column[first:last] += by_key.sum(0)
    cells = results.cells
    if cells is not None:
        sums = sum_runs(by_key.t().contiguous(), block.key_begins, None, request.numbers).t()
        row, key = block.row_cells, block.key_cells
        cells[row : row + sums.size(0), key : key + sums.size(1)] += sums


def count_heavier(
    block: TileBlock,
    request: BlockRequest,
    heavier: Tensor,
    weights: list[Tensor],
    share: Tensor,
    store: Tensor,
    scratch: Tensor,
) -> None:
    """Count the keys of each row whose weight is greater than that of the requested key."""
    rows, places = request.spots
    names, count = heavier.size(0), share.size(1)
    here = request.at // heavier.size(1) * count + rows % count  # in [name, row]
    weight, own = store.index_select(0, places), share.view(-1).index_select(0, rows)
    for place, others in enumerate(weights):
        least = share.new_full([names, count], float("inf"))
        ratio = own / share[place].index_select(0, rows % count)  # exactly 1 in the key's own tile
        least.view(-1).index_copy_(0, here, weight * ratio)
        more = scratch[: others.numel()].view(others.size(0), others.size(1))
        for name in range(names):
            torch.gt(others, least[name].unsqueeze(1), out=more)  # faster than bools
            heavier[name, block.start : block.stop] += more.sum(1)


def sum_runs(rows: Tensor, begins: Tensor, share: Tensor | None, numbers: Tensor) -> Tensor:
    """Sum runs of neighbouring rows, each row times its share.  [row, column] -> [run, column]

    Run ``r`` begins at row ``begins[r]``; ``numbers`` are 0, 1, 2 and so on. (An embedding bag is the
    fastest way for runs of any length.)
    """
    return torch.embedding_bag(rows, numbers[: rows.size(0)], begins, False, 0, False, share)[0]
