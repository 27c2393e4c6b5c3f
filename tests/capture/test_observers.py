"""Observers: coarse maps against loops over whole weights, kept heads and rows, rows read once for all."""

from contextlib import ExitStack
from itertools import pairwise, starmap
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from attnscope.attention import Attention, HeldRows, Site, Token
from attnscope.axes import Coarsening, edges, group_places, places
from attnscope.capture import Coarsen, observers, recording
from attnscope.capture.observers import Rows, Sample, SharedRows, rows_at_a_time
from attnscope.capture.recorder import AttentionMode
from attnscope.models import load
from attnscope.questions.head import one_head
from attnscope.questions.layers import all_heads
from attnscope.questions.selection import Selection
from attnscope.questions.stats import overview
from attnscope.questions.token import one_token

WHOLE = Selection()


class Counting(HeldRows):
    """Rows that note which of them were read."""

    def __init__(self, weights, allowed=None):
        super().__init__(weights, allowed)
        object.__setattr__(self, "read", [])

    def rows(self, start, stop, heads):
        self.read.append((start, stop))
        return super().rows(start, stop, heads)


def held(weights, mask=None):
    """An attention of weights that exist."""
    batch, heads, queries, keys = weights.shape
    shape = batch, heads, heads, range(queries), range(keys), 0, weights.dtype
    return Attention(Site("layers.0", 0, "encoder", 0), "kernel", "eager", *shape, Counting(weights, mask))


def random_attention(queries=11, keys=13):
    """A random causal attention, its weights and its mask."""
    scores = torch.randn(2, 3, queries, keys, generator=torch.Generator().manual_seed(0))
    mask = torch.ones(1, 1, queries, keys, dtype=torch.bool).tril()
    weights = torch.softmax(scores.masked_fill(~mask, -torch.inf), -1)
    return held(weights, mask), weights, mask.expand(2, 3, -1, -1)


def attention(size=24, heads=3):
    noise = torch.Generator().manual_seed(0)
    return held(torch.randn(1, heads, size, size, generator=noise).softmax(-1))


def seen_by(observer, attention):
    """What an observer makes of one call."""
    observer.observe(attention)
    return observer.maps


def as_it_is(size: int) -> Coarsening:
    return group_places(places(range(size)))


ROWS = group_places(places(range(11)), most=4)
PIECES = tuple(Token("a", 0, special=at in (3, 12), word=at // 2) for at in range(13))
KEYS = group_places(places(PIECES), words=True, hide_special=True)


@pytest.mark.parametrize("block", [1, 200, 1 << 23])
@pytest.mark.parametrize("queries", [as_it_is(11), ROWS, ROWS.only(2)], ids=["as they are", "blocks", "one"])
@pytest.mark.parametrize("keys", [as_it_is(13), KEYS, KEYS.only(1)], ids=["as they are", "words", "one"])
def test_a_coarse_map_is_the_whole_one_between_two_matrices(monkeypatch, block, queries, keys):
    monkeypatch.setattr(observers, "BLOCK", block)
    attention, weights, allowed = random_attention()
    (made,) = seen_by(Coarsen(lambda _: (queries, keys)), attention)
    down, across = queries.averaging(), keys.summing()
    left = torch.eye(11) if down is None else torch.from_numpy(down)
    right = torch.eye(13) if across is None else torch.from_numpy(across)
    assert torch.allclose(made.values, left @ weights @ right.T, atol=1e-6)
    assert (made.open == (left @ allowed.float() @ right.T > 0)).all()


@pytest.mark.parametrize("how", ["mean", "max"])
@pytest.mark.parametrize("count", [1, 4, 7])
@pytest.mark.parametrize("block", [1, 1 << 24])
def test_a_cell_is_the_mean_or_maximum_of_its_open_pairs(how, count, block, monkeypatch):
    monkeypatch.setattr(observers, "BLOCK", block)
    attention, weights, mask = random_attention()
    (made,) = seen_by(WHOLE.coarsen(count, even=True, how=how), attention)
    assert made.values.shape == (2, 3, count, count)
    weights = weights.masked_fill(~mask, torch.nan)
    for r, rows in enumerate(starmap(slice, pairwise(edges(11, count)))):
        for c, keys in enumerate(starmap(slice, pairwise(edges(13, count)))):
            cell = weights[:, :, rows, keys].flatten(2)  # [text, head, pair]
            assert torch.equal(made.open[..., r, c].expand(2, 3), cell.isfinite().any(-1))
            expected = cell.nanmean(-1) if how == "mean" else cell.nan_to_num(-1.0).amax(-1).clamp(min=0)
            torch.testing.assert_close(made.values[..., r, c], expected.nan_to_num())


def test_the_rows_of_one_place_alone_are_read():
    attention, weights, _ = random_attention()
    (made,) = seen_by(Coarsen(lambda _: (as_it_is(11).only(6), as_it_is(13))), attention)
    assert attention.read.read == [(6, 7)]
    assert torch.equal(made.values, weights[:, :, 6:7])


def test_weights_that_are_no_numbers_count_as_nothing_and_are_counted():
    attention, weights, _ = random_attention()
    weights[0, 1, 4, 2] = torch.nan
    weights[1, 2, 5, 0] = torch.inf
    (made,) = seen_by(Coarsen(lambda _: (as_it_is(11), as_it_is(13))), attention)
    (sampled,) = seen_by(Sample(lambda _: Rows([[4], [5]])), attention)
    assert made.broken == sampled.broken == 2
    assert sampled.values.isfinite().all()
    assert made.values[0, 1, 4, 2] == 0
    assert not made.open[0, 1, 4, 2]
    assert made.open[0, 0, 4, 2]


def test_an_even_row_that_sees_nothing_is_masked_and_zero():
    mask = torch.ones(1, 1, 4, 4, dtype=torch.bool)
    mask[..., 2:, :] = False
    (made,) = seen_by(WHOLE.coarsen(2, even=True), held(torch.full((1, 1, 4, 4), 0.25), mask))
    assert made.open.tolist() == [[[[True, True], [False, False]]]]
    assert made.values[0, 0, 1].tolist() == [0.0, 0.0]


NOTHING = {
    "coarse": lambda: Coarsen(lambda _: None),
    "sampled": lambda: Sample(lambda _: None),
    "shared": lambda: SharedRows([Sample(lambda _: None), Coarsen(lambda _: None)]),
    "shared of no head": lambda: SharedRows([WHOLE.coarsen(24, even=True)], lambda site, count: None),
}


@pytest.mark.parametrize("made", NOTHING.values(), ids=NOTHING)
def test_nothing_is_read_or_kept_of_a_call_that_nobody_asked_for(made):
    seen, observer = attention(), made()
    observer.observe(seen)
    assert seen.read.read == []
    assert not any(each.maps for each in getattr(observer, "observers", [observer]))


def test_the_rows_that_are_named_are_kept_and_none_far_from_them_is_read():
    seen = attention()
    (kept,) = seen_by(Sample(lambda _: Rows([[1], [2], [7], [23]])), seen)
    assert torch.equal(kept.values, seen.read.weights[:, :, [1, 2, 7, 23]])
    assert seen.read.read == [(1, 8), (23, 24)]


def test_rows_are_averaged_and_keys_added_up():
    seen = attention()
    across = np.zeros((2, 24), np.float32)
    across[0, :5] = across[1, 7:9] = 1
    (kept,) = seen_by(Sample(lambda _: Rows([[0, 3], [5]], across)), seen)
    weights = seen.read.weights[0, 2]
    expected = torch.stack([(weights[0] + weights[3]) / 2, weights[5]])
    expected = torch.stack([expected[:, :5].sum(-1), expected[:, 7:9].sum(-1)], -1)
    assert torch.allclose(kept.values[0, 2], expected, atol=1e-6)


def test_observers_of_blocks_of_other_sizes_read_each_row_once(monkeypatch):
    monkeypatch.setattr(observers, "BLOCK", 3 * 24 * 5)
    seen = attention()
    coarsen, sample = WHOLE.coarsen(7, even=True), Sample(lambda _: Rows([[1], [22]]))
    SharedRows([coarsen, sample]).observe(seen)
    assert seen.read.read == [(0, 5), (5, 10), (10, 15), (15, 20), (20, 24)]
    (alone,) = seen_by(WHOLE.coarsen(7, even=True), attention())
    assert torch.allclose(coarsen.maps[0].values, alone.values, atol=1e-7)
    assert torch.equal(sample.maps[0].values, seen.read.weights[:, :, [1, 22]])


@pytest.mark.parametrize(("kind", "rows"), [("cpu", 10), ("cuda", 1 << 13), ("mps", 10)])
def test_a_gpu_reads_as_many_rows_at_a_time_as_a_thousandth_of_its_bytes_has_weights(monkeypatch, kind, rows):
    device, memory = torch.device(kind), SimpleNamespace(total_memory=64 << 30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", {torch.device("cuda"): memory}.get)
    asked = SimpleNamespace(batch=1, heads=8, keys=range(1024), values=SimpleNamespace(device=device))
    assert rows_at_a_time(asked, weights=10 * 8 * 1024) == rows


def test_heads_that_are_not_meant_are_not_computed():
    seen = attention()
    coarsen = WHOLE.coarsen(24, even=True)
    SharedRows([coarsen], lambda site, count: [2, 0]).observe(seen)
    assert torch.equal(coarsen.maps[0].values, seen.read.weights[:, [2, 0]])


TEXT = "The cat sat on the mat because it was tired."


@pytest.mark.parametrize(
    ("look", "heads"),
    [
        (lambda *given: overview(*given, Selection()), 32),
        (lambda *given: all_heads(*given, Selection()), 32),
        (lambda *given: one_head(*given, "L1H3"), 1),
        (lambda *given: one_token(*given, Selection(token="cat")), 32),
    ],
    ids=["overview", "all heads", "one head", "one token"],
)
def test_an_analysis_computes_each_row_of_the_heads_that_it_shows_once(monkeypatch, look, heads):
    model = load("own")
    prepared = model.prepare(TEXT)
    computed, rows = [], Attention.rows

    def counted(attention, start, stop, chosen=None):
        result = rows(attention, start, stop, chosen)
        computed.append(result.shape[0] * result.shape[1] * result.shape[2])
        return result

    monkeypatch.setattr(Attention, "rows", counted)
    look(model, prepared)
    assert sum(computed) == heads * len(prepared.tokens)


@pytest.mark.parametrize("recordings", [1, 2])
def test_what_an_observer_computes_is_told_to_modes_of_the_user_alone(recordings, monkeypatch):
    told, run = {"ours": 0, "theirs": 0}, AttentionMode._run

    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            told["theirs"] += func is torch.erfinv
            return func(*args, **(kwargs or {}))

    def count(mode, name, func, args, kwargs):
        told["ours"] += func is torch.erfinv
        return run(mode, name, func, args, kwargs)

    class Computes:
        def observe(self, attention):
            torch.erfinv(attention.rows(0, 1))

    monkeypatch.setattr(AttentionMode, "_run", count)
    model = torch.nn.MultiheadAttention(8, 2).eval()
    states = torch.randn(3, 1, 8)
    with Mode(), ExitStack() as stack:
        for _ in range(recordings):
            stack.enter_context(recording(model, [Computes()]))
        model(states, states, states)
    assert told == {"ours": 0, "theirs": recordings}
