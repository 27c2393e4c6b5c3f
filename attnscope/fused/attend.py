"""Attention and its statistics in one pass: the layer's output and exact figures of every head together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from attnscope.axes import edges
from attnscope.fused.gaps import Gaps
from attnscope.fused.pairs import Matches
from attnscope.fused.plan import KEYS, ROWS, plan
from attnscope.fused.request import Request
from attnscope.fused.runs import Runs
from attnscope.fused.statistics import Map, PairSums, Statistics
from attnscope.fused.tiles import Scores, Sheets, Worker

TILE = 1 << 19
"""Weights that are computed at a time; short texts take several heads together to fill them."""


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
    key_heads, keys = key.shape[1:3]
    group = heads // key_heads
    scaled = (query * scale).view(batch, key_heads, group, queries, -1)
    scores = Scores(scaled, key, value, runs, offset, extras.bias, extras.softcap, extras.sinks)
    request, matches = request or Request(), matches or {}
    row_edges, key_edges = edges(queries, request.cells or 1), edges(keys, request.cells or 1)
    rows = max(8, ROWS // group)
    plans = [plan(runs, text, row_edges, key_edges, rows, query.dtype) for text in range(len(runs.low))]
    gaps = {name: Gaps.of(function, runs, offset) for name, function in request.gaps.items()}
    uneven = {name: each for name, each in gaps.items() if each.slope is None}
    figures = batch, key_heads, group
    output = query.new_empty(batch, queries, heads, value.shape[-1])
    entropy, largest, lse = query.new_empty(3, *figures, queries)
    sheets = Sheets(
        output=output.view(batch, queries, key_heads, group, -1).permute(0, 2, 3, 1, 4),
        lse=lse,
        entropy=entropy,
        largest=largest,
        total=query.new_ones(*figures, queries),
        column=query.new_zeros(*figures, keys),
        gaps={name: query.new_zeros(figures, dtype=torch.float64) for name in uneven},
        matched={name: query.new_zeros(figures, dtype=torch.float64) for name in matches},
        cells=query.new_zeros(*figures, len(row_edges) - 1, len(key_edges) - 1) if request.cells else None,
    )
    together = max(1, TILE // (ROWS * min(keys, KEYS)))
    jobs = [
        (text, slice(head, min(key_heads, head + together)))
        for text in range(batch)
        for head in range(0, key_heads, together)
    ]
    _run(lambda: Worker(scores, sheets, plans, matches, uneven).run, jobs)
    return output.transpose(1, 2), _statistics(scores, sheets, request, gaps, row_edges, key_edges, matches)


def _run(worker: Callable[[], Callable[[int, slice], None]], jobs: Sequence[tuple[int, slice]]) -> None:
    """Run the jobs on torch's number of threads, each with one thread inside.

    Threads inside of tile operations are two to three times slower than one: the tiles are too small.
    """
    threads = min(torch.get_num_threads(), len(jobs))
    inference = torch.is_inference_mode_enabled()

    def work(part: Sequence[tuple[int, slice]]) -> None:
        torch.set_num_threads(1)
        with torch.inference_mode(inference), torch.no_grad():
            run = worker()
            for job in part:
                run(*job)

    with _one_inner_thread():
        if threads == 1:
            work(jobs)
            return
        with ThreadPoolExecutor(threads, "attnscope") as pool:
            for done in [pool.submit(work, jobs[thread::threads]) for thread in range(threads)]:
                done.result()


@contextmanager
def _one_inner_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _statistics(
    scores: Scores,
    sheets: Sheets,
    request: Request,
    gaps: Mapping[str, Gaps],
    row_edges: tuple[int, ...],
    key_edges: tuple[int, ...],
    matches: Mapping[str, Sequence[Matches]],
) -> Statistics:
    """Gather the sheets, and add what has a closed form."""
    position = torch.arange(scores.query.shape[3]) + scores.offset
    column, total = sheets.column.flatten(1, 2), sheets.total.flatten(1, 2)
    keys = torch.arange(column.shape[-1], dtype=torch.float64)
    ahead = (column.double() * keys).sum(-1) - (total.double() * position).sum(-1)  # [batch, head]
    pooled = None
    if sheets.cells is not None:
        pairs = _open_pairs(scores.runs, row_edges, key_edges)
        pooled = Map(sheets.cells.flatten(1, 2), pairs, request.cells or 1, row_edges, key_edges)
    return Statistics(
        runs=scores.runs,
        offset=scores.offset,
        entropy=sheets.entropy.flatten(1, 2),
        largest=sheets.largest.flatten(1, 2),
        total=total,
        column=column,
        at={name: _weights_at(scores, sheets.lse, key_of(position)) for name, key_of in request.at.items()},
        gaps={
            name: ahead * each.slope if each.slope is not None else sheets.gaps[name].flatten(1, 2)
            for name, each in gaps.items()
        },
        pairs={
            name: PairSums(
                request.pairs[name],
                torch.stack([each.count for each in matches[name]]),
                total.flatten(1, 2),
            )
            for name, total in sheets.matched.items()
        },
        map=pooled,
    )


def _weights_at(scores: Scores, lse: Tensor, key: Tensor) -> Tensor:
    """The weight of each row on one key [row], ``exp(s - lse)``; 0 if masked.  -> [batch, head, row]"""
    open_ = (scores.runs.low <= key) & (key < scores.runs.high)  # [batch or 1, row]
    key = key.clamp(0, scores.key.shape[2] - 1)
    score = torch.linalg.vecdot(scores.query, scores.key[:, :, None, key])  # [batch, key_head, group, row]
    if scores.softcap is not None:
        score = scores.softcap * torch.tanh(score / scores.softcap)
    if scores.bias is not None:
        bias = scores.bias[:, :, torch.arange(len(key)), key]  # [batch or 1, head or 1, row]
        score = score + (bias.view(-1, *score.shape[1:]) if bias.shape[1] > 1 else bias[:, :, None])
    weight: Tensor = (score - lse).exp_().masked_fill_(~open_[:, None, None], 0)
    return weight.flatten(1, 2)


@lru_cache(4)  # the layers of a model share their runs
def _open_pairs(runs: Runs, row_edges: tuple[int, ...], key_edges: tuple[int, ...]) -> Tensor:
    """How many open pairs lie in each cell.  -> [batch or 1, row cell, key cell]"""
    edge = torch.tensor(key_edges)
    cell = torch.repeat_interleave(torch.tensor(row_edges).diff())  # [row]
    pairs = torch.zeros(len(runs.low), len(row_edges) - 1, len(key_edges) - 1, dtype=torch.int64)
    for rows in torch.split(torch.arange(len(cell)), 1024):
        low, high = runs.low[:, rows, None], runs.high[:, rows, None]
        before = torch.minimum(high, edge) - torch.minimum(low, edge)  # open keys before each edge
        pairs.index_add_(1, cell[rows], before.diff(dim=-1))
    return pairs
