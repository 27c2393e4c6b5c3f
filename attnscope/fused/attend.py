"""Attention and its statistics in one pass: the layer's output and exact figures of every head together."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from attnscope.fused.asked.gaps import Gaps
from attnscope.fused.asked.pairs import Matches
from attnscope.fused.asked.spots import Spots
from attnscope.fused.plan import plan
from attnscope.fused.request import Request
from attnscope.fused.runs import Runs
from attnscope.fused.statistics import Map, PairSums, Statistics
from attnscope.fused.tiles import Scores, Sheets, Worker
from attnscope.fused.weigh import scripted


@dataclass(frozen=True)
class Extras:
    """What kernels may put between the product and the softmax; see ``ScoredRows`` for each of them."""

    bias: Tensor | None = None  # [batch or 1, head or 1, query, key]
    softcap: float | None = None
    sinks: Tensor | None = None  # [head]


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    runs: Runs,
    scale: float,
    *,
    extras: Extras = Extras(),
    request: Request | None = None,
    matches: Mapping[str, Sequence[Matches]] | None = None,
    offset: int = 0,
) -> tuple[Tensor, Statistics]:
    """Compute ``softmax(scale·QKᵀ) V`` over the open keys, and the statistics of its weights.

    ``query`` is ``[batch, head, query, size]``, ``key`` and ``value`` are ``[batch, key_head, key, size]``,
    float32 or float64; query head ``h`` reads key head ``h // (heads / key_heads)``. Every row has an open
    key. ``matches`` are those of the pairs in the request, found already for each text; ``offset`` is the
    position of row 0 on the key axis. Returns the output, ``[batch, head, query, value size]``, and the
    statistics. Memory grows with queries + keys. Works on as many threads as torch does, one for each group
    of heads.
    """
    batch, heads, queries, _ = query.shape
    keys = key.shape[2]
    bias = None if extras.bias is None else extras.bias.expand(*extras.bias.shape[:2], queries, keys)
    scores = Scores(query, key, value, runs, scale, offset, bias, extras.softcap, extras.sinks)
    request, matches = request or Request(), matches or {}
    row_edges, key_edges = request.edges(queries), request.edges(keys)
    plans = [plan(runs, text, row_edges, key_edges) for text in range(len(runs.low))]
    position = torch.arange(queries) + offset
    gaps = {name: Gaps.of(function, runs, offset, keys) for name, function in request.gaps.items()}
    uneven = {name: each for name, each in gaps.items() if each.slope is None}
    output = query.new_empty(batch, queries, heads, value.shape[-1]).transpose(1, 2)
    whole = query.new_empty(0, dtype=scores.dtype)
    figures = batch, heads
    sheets = Sheets(
        output=output,
        entropy=whole.new_empty(*figures, queries),
        largest=whole.new_empty(*figures, queries),
        total=whole.new_ones(*figures, queries),
        column=whole.new_zeros(*figures, keys),
        at=whole.new_zeros(*figures, len(request.at), queries),
        gaps=torch.zeros(*figures, len(uneven), dtype=torch.float64),
        pairs=torch.zeros(*figures, len(matches), dtype=torch.float64),
        cells=whole.new_zeros(*figures, len(row_edges) - 1, len(key_edges) - 1) if request.cells else None,
    )
    at = [key_of(position) for key_of in request.at.values()]
    spots = [Spots.of(at, runs, text) for text in range(len(runs.low))]
    jobs = [(text, head) for text in range(batch) for head in range(heads)]
    weigh, tables = scripted(), list(uneven.values())
    _run(lambda: Worker(scores, sheets, plans, spots, matches, tables, weigh), jobs)
    sums = dict(zip(uneven, sheets.gaps.unbind(-1), strict=True))
    ahead = (sheets.column.double() * torch.arange(keys)).sum(-1)
    ahead -= (sheets.total.double() * position).sum(-1)  # Σ A (j - i), [batch, head]
    cells = sheets.cells
    return output, Statistics(
        runs=runs,
        offset=offset,
        entropy=sheets.entropy,
        largest=sheets.largest,
        total=sheets.total,
        column=sheets.column,
        at=dict(zip(request.at, sheets.at.unbind(2), strict=True)),
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
    """Run the jobs on torch's number of threads, each with one thread inside.

    Threads inside of tile operations are two to three times slower than one: the tiles are too small.
    """
    threads = min(torch.get_num_threads(), len(jobs))
    inference = torch.is_inference_mode_enabled()

    waiting = deque(jobs)

    def take() -> tuple[int, int] | None:
        try:
            return waiting.popleft()
        except IndexError:
            return None

    def work() -> None:
        torch.set_num_threads(1)
        with torch.inference_mode(inference), torch.no_grad():
            mine = worker()
            try:
                for text, head in iter(take, None):
                    mine.run(text, head)
            finally:
                waiting.clear()  # where one thread fails, the others end, too

    with _one_inner_thread(), ThreadPoolExecutor(max(1, threads - 1), "attnscope") as pool:
        others = [pool.submit(work) for _ in range(threads - 1)]
        work()
        for done in others:
            done.result()


@contextmanager
def _one_inner_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@lru_cache(4)  # the layers of a model share their runs
def open_pairs(runs: Runs, row_edges: tuple[int, ...], key_edges: tuple[int, ...]) -> Tensor:
    """How many open pairs lie in each cell.  -> [batch or 1, row cell, key cell]"""
    edge = torch.tensor(key_edges)
    cell = torch.repeat_interleave(torch.tensor(row_edges).diff())  # [row]
    pairs = torch.zeros(len(runs.low), len(row_edges) - 1, len(key_edges) - 1, dtype=torch.int64)
    for rows in torch.split(torch.arange(len(cell)), 1024):
        low, high = runs.low[:, rows, None], runs.high[:, rows, None]
        before = torch.minimum(high, edge) - torch.minimum(low, edge)  # open keys before each edge
        pairs.index_add_(1, cell[rows], before.diff(dim=-1))
    return pairs
