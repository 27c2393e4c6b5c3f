"""Random attention calls of every kind: the fused pass and rows beside the kernel, against float64.

``python -m tests.fused.combinations 230`` prints how many scores of 230 calls were compared, and the largest
difference from float64.
"""

from __future__ import annotations

import math
import random
import sys
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

from attnscope.attention import Attention, AttentionCall, HeldRows, Site, Token
from attnscope.capture.rows.scores import ScoredRows
from attnscope.fused import tiles
from attnscope.fused.fused_pass import FusedPass
from attnscope.measures import DEFAULT, Measurement, fused_request
from tests.measures.reference import WINDOWS, Case, random_text, score

EXACT = 1e-4
MEASURED = (*DEFAULT, "sink_rate", *WINDOWS)
ROUNDING = {torch.bfloat16: 2**-8, torch.float16: 2**-11}  # of an output that is rounded to so few bits


@dataclass(frozen=True)
class Combination:
    """One call, what it leaves open, [batch or 1, 1, query, key], and what it is in words."""

    call: AttentionCall
    open_keys: Tensor
    texts: list[tuple[Token, ...]]
    words: str


@dataclass
class Verdict:
    """How many scores were compared, and the farthest of them from brute force."""

    scores: int = 0
    farthest: float = 0.0

    def compare(self, value, wanted, allowed, words):
        """Count a score; it may lie ``allowed`` off."""
        off = abs(value - wanted) / max(1.0, abs(wanted))
        assert off <= allowed, f"{words}: {value} for {wanted}"
        self.scores, self.farthest = self.scores + 1, max(self.farthest, off)


def open_keys_of(kind, batch, size, pick):
    """[batch or 1, 1, query, key]"""
    row, key = torch.arange(size)[:, None], torch.arange(size)
    if kind == "padded":
        ends = torch.tensor([pick.randint(size // 2, size) for _ in range(batch)])
        return (key < ends[:, None, None, None]).expand(batch, 1, size, size)
    width = pick.randint(1, size)
    patterns = {
        "whole": torch.ones(size, size, dtype=torch.bool),
        "causal": key <= row,
        "window": (key <= row) & (row - key < width),
        "both ways": (row - key).abs() < width,
        "one key": key == row,
        "ahead": (key > row) & (key < row + 5) | (key == size - 1) & (row == size - 1),
        "documents": (row // width == key // width) & (key <= row),
    }
    return patterns[kind][None, None]


def combination(seed):
    """The combination of that number."""
    pick, noise = random.Random(seed), torch.Generator().manual_seed(seed)
    batch, key_heads, group = pick.randint(1, 2), pick.choice([1, 1, 2]), pick.choice([1, 1, 2, 3])
    size, width = pick.randint(2, 60), pick.choice([4, 8, 16, 31])
    dtype = pick.choice([torch.float32, torch.float32, torch.float64, torch.bfloat16, torch.float16])
    kind = pick.choice(["whole", "causal", "window", "both ways", "documents", "padded", "one key", "ahead"])
    sharp = pick.choice([0.1, 1.0, 1.0, 6.0])
    softcap, sink, bias = pick.choice([None, None, 5.0]), pick.random() < 0.3, pick.choice([0, 0, 1, 2])
    heads = key_heads * group

    def normal(*shape: int):
        return torch.randn(shape, generator=noise).to(dtype)

    open_keys = open_keys_of(kind, batch, size, pick)
    biases, masks = (), (open_keys,)
    if bias:
        shape = (batch if bias == 1 else 1, heads if bias == 2 else 1, size, size)
        biases, masks = (normal(*shape).masked_fill(~open_keys, torch.finfo(dtype).min),), ()
    call = AttentionCall(
        sharp * normal(batch, heads, size, width),
        normal(batch, key_heads, size, width),
        normal(batch, key_heads, size, pick.choice([width, 5])),
        pick.choice([width**-0.5, 0.3]),
        biases=biases,
        masks=masks,
        softcap=softcap,
        sinks=normal(heads) if sink else None,
    )
    texts = [random_text(np.random.default_rng(seed + text), size) for text in range(batch)]
    words = f"{seed}: {kind} {dtype} {tuple(call.query.shape)} softcap {softcap} sink {sink} bias {bias}"
    return Combination(call, open_keys, texts, words)


def spread(tensor, call):
    """The keys or values of a call in float64, one for each query head."""
    return tensor.double().repeat_interleave(call.query.shape[1] // tensor.shape[1], 1)


def brute_force(call):
    """The weights in float64.  -> [batch, head, query, key]"""
    scores = call.query.double() @ spread(call.key, call).mT * call.scale
    if call.softcap is not None:
        scores = call.softcap * torch.tanh(scores / call.softcap)
    for bias in call.biases:
        scores = (scores + bias.double()).masked_fill(bias <= torch.finfo(bias.dtype).min, -math.inf)
    for mask in call.masks:
        scores = scores.masked_fill(~mask, -math.inf)
    if call.diagonal is not None:
        past = torch.ones(scores.shape[-2:], dtype=torch.bool).tril(call.diagonal)
        scores = scores.masked_fill(~past, -math.inf)
    if call.sinks is None:
        return scores.softmax(-1)
    sink = call.sinks.double().view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
    return torch.cat([scores, sink], -1).softmax(-1)[..., :-1]


def check(seed, verdict):
    """Hold output and every score of one combination against brute force, by the pass and by rows."""
    made = combination(seed)
    call, weights = made.call, brute_force(made.call)
    request = fused_request(MEASURED, made.texts)
    with torch.inference_mode():
        output, statistics = FusedPass(request, shortest=1).attend(call)
    assert output.dtype == call.query.dtype
    wanted = weights @ spread(call.value, call)
    allowed = EXACT + ROUNDING.get(call.query.dtype, 0.0) * wanted.abs()
    assert bool(((output.double() - wanted).abs() <= allowed).all()), made.words
    case = Case(weights.numpy(), made.open_keys.numpy(), made.texts)
    even, heads = case.even(), range(call.query.shape[1])
    exact = {(name, head): score(case, name, head) for name in MEASURED for head in heads}
    baselines = {name: score(even, name, 0) for name in MEASURED}  # heads share their masks
    unread = HeldRows(torch.full_like(weights, math.nan), made.open_keys)
    ways = [_scores(made, unread, statistics), _scores(made, ScoredRows(call), None)]
    for one, other in zip(*ways, strict=True):
        assert (one.absent, one.role and one.role.name) == (other.absent, other.role and other.role.name)
        for name, expected in one.scores.items():
            assert expected.texts == other.scores[name].texts
            error = other.scores[name].error
            assert expected.error == pytest.approx(error, abs=EXACT * max(1.0, error or 0.0)), name
    for heads_ in ways:
        for head in heads_:
            for name in MEASURED:
                one, baseline = exact[name, head.head], baselines[name]
                words = f"{made.words}, {name} of {head.name}"
                assert (name in head.scores) == (one is not None), words
                if one is not None and baseline is not None:
                    assert head.scores[name].rows == one[1], words
                    verdict.compare(head.scores[name].value, one[0], EXACT, words)
                    verdict.compare(head.scores[name].baseline, baseline[0], EXACT, words)


def _scores(made, read, statistics):
    """The scores of every head, from rows or from statistics."""
    call, axis = made.call, made.texts[0]
    measurement = Measurement(MEASURED)
    measurement.label({"encoder": (made.texts, made.texts)})
    origin, heads = (Site("layer.0", 0, "encoder", 0), "recomputed", "sdpa"), call.query.shape[:2]
    shape = *heads, call.key.shape[1], axis, axis, 0, call.query.dtype
    measurement.observe(Attention(*origin, *shape, read, statistics))
    return measurement.scores()


def main() -> None:
    """Run the combinations, in small tiles and in those of every day."""
    count = int(sys.argv[1]) if sys.argv[1:] else 230
    verdict, failed, usual = Verdict(), [], (tiles.BLOCK_ROWS, tiles.TILE_KEYS)
    for seed in range(1000, 1000 + count):
        tiles.BLOCK_ROWS, tiles.TILE_KEYS = (24, 32) if seed % 4 else usual
        try:
            check(seed, verdict)
        except AssertionError as error:
            failed.append(str(error))
    print(f"{count} combinations, {verdict.scores:,} scores, farthest off by {verdict.farthest:.1e}")
    print(f"{len(failed)} failed", *failed, sep="\n")


if __name__ == "__main__":
    main()
