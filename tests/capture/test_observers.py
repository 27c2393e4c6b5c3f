"""Observers: coarse maps against loops over whole weights, kept heads and rows, shared reading of rows."""

from contextlib import ExitStack
from itertools import pairwise, product
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from attnscope.attention import Attention, HeldRows, Site, Token
from attnscope.axes import Coarsening, edges, group_places, places
from attnscope.capture import Coarsen, observers, recording
from attnscope.capture.observers import Rows, Sample, SharedRows, rows_at_a_time
from attnscope.capture.record import FunctionObserver
from attnscope.capture.recorder import AttentionMode
from attnscope.fused.fused_pass import FusedPass
from attnscope.fused.request import Request
from attnscope.models import load
from attnscope.questions.head import one_head
from attnscope.questions.layers import all_heads
from attnscope.questions.selection import Selection
from attnscope.questions.stats import overview
from attnscope.questions.token import one_token
from tests.capture.modules import Kernel

WHOLE = Selection()


class Counting(HeldRows):
    """Rows that note which of them were read."""

    def __init__(self, weights, allowed=None):
        super().__init__(weights, allowed)
        object.__setattr__(self, "read", [])

    def rows(self, start, stop, heads):
        self.read.append((start, stop))
        return super().rows(start, stop, heads)


def attention(queries=11, keys=13):
    """A call whose mask is causal and leaves nothing open to one query; closed keys have weights as well."""
    weights = torch.randn(2, 3, queries, keys, generator=torch.Generator().manual_seed(0)).softmax(-1)
    mask = torch.ones(1, 1, queries, keys, dtype=torch.bool).tril()
    mask[..., 8, :] = False
    shape = 2, 3, 3, range(queries), range(keys), 0, weights.dtype
    return Attention(Site("layers.0", 0, "encoder", 0), "kernel", "eager", *shape, Counting(weights, mask))


def seen_by(observer, attention):
    """What an observer makes of one call, the weights of its open keys, and which are open."""
    observer.observe(attention)
    (made,) = observer.maps
    mask = attention.read.open_keys.expand_as(attention.read.weights)
    return made, attention.read.weights * mask, mask


def as_it_is(size: int) -> Coarsening:
    return group_places(places(range(size)))


ROWS = group_places(places(range(11)), most=4)
PIECES = tuple(Token("a", 0, special=at in (3, 12), word=at // 2) for at in range(13))
KEYS = group_places(places(PIECES), words=True, hide_special=True)


@pytest.mark.parametrize("block", [1, 200, 1 << 23])
@pytest.mark.parametrize("queries", [as_it_is(11), ROWS, ROWS.only(2), as_it_is(11).only(6)])
@pytest.mark.parametrize("keys", [as_it_is(13), KEYS, KEYS.only(1)], ids=["as they are", "words", "one"])
def test_coarse_map_equals_two_sided_matrix_product(monkeypatch, block, queries, keys):
    monkeypatch.setattr(observers, "BLOCK", block)
    seen = attention()
    made, weights, opened = seen_by(Coarsen(lambda _: (queries, keys)), seen)
    down, across = queries.averaging(), keys.summing()
    left = torch.eye(11) if down is None else torch.from_numpy(down)
    seeing = left * (torch.arange(11) != 8)  # what has no key is in no mean
    mean = seeing / seeing.sum(1, keepdim=True).clamp(min=1e-9)
    right = torch.eye(13) if across is None else torch.from_numpy(across)
    assert torch.allclose(made.values, mean @ weights @ right.T, atol=1e-6)
    assert (made.open == (left @ opened.float() @ right.T > 0)).all()
    read = [row for start, stop in seen.read.read for row in range(start, stop)]
    assert read == left.any(0).nonzero()[:, 0].tolist()  # and no row that is in none of its blocks


def cells_of(weights, mask, count, how):
    """Every cell of equal cuts, and whether any of its pairs is open.  -> [text, head, row, column] twice"""
    cuts = [[slice(*pair) for pair in pairwise(edges(size, count))] for size in weights.shape[-2:]]
    pairs = weights.masked_fill(~mask, torch.nan)
    shape = *weights.shape[:2], count, count
    values, opened = torch.zeros(shape), torch.zeros(shape, dtype=torch.bool)
    for (r, rows), (c, keys) in product(*map(enumerate, cuts)):
        cell = pairs[:, :, rows, keys]  # [text, head, row, key]
        largest = cell.nan_to_num(0.0).amax((-2, -1))
        able = mask[:, :, rows].any(-1)
        share = cell.nansum(-1).sum(-1) / able.sum(-1)
        by = {"share": share, "mean": cell.nanmean((-2, -1)), "max": largest}
        values[..., r, c], opened[..., r, c] = by[how].nan_to_num(), cell.isfinite().any(-1).any(-1)
    return values, opened


@pytest.mark.parametrize("how", ["share", "mean", "max"])
@pytest.mark.parametrize("count", [1, 4, 7])
@pytest.mark.parametrize("block", [1, 1 << 24])
def test_cell_is_share_mean_or_maximum_of_unmasked_pairs(how, count, block, monkeypatch):
    monkeypatch.setattr(observers, "BLOCK", block)
    made, weights, mask = seen_by(WHOLE.coarsen(count, even=True, how=how), attention())
    values, opened = cells_of(weights, mask, count, how)
    torch.testing.assert_close(made.values, values)
    assert torch.equal(made.open.expand(2, 3, -1, -1), opened)


@pytest.mark.parametrize("how", ["share", "mean", "max"])
@pytest.mark.parametrize("alone", [False, True])
def test_cell_is_equal_beside_a_fused_map(how, alone):
    states = torch.randn(2, 3, 11, 8, generator=torch.Generator().manual_seed(0))
    coarsen, made = WHOLE.coarsen(4, even=True, how=how), []
    observed = [coarsen, FunctionObserver(lambda attention: made.append(attention.statistics.map))]
    fused = FusedPass(Request(cells=4, map_alone=alone), shortest=1)
    model = Kernel()
    with torch.inference_mode(), recording(model, observed, fused=fused):
        model(states, states, states, is_causal=True)
    assert made[0].total.shape == (2, 3, 4, 4)
    mask = torch.ones(11, 11).tril() > 0
    weights = (states @ states.mT / 8**0.5).masked_fill(~mask, -torch.inf).softmax(-1)
    values, opened = cells_of(weights, mask.expand_as(weights), 4, how)
    torch.testing.assert_close(coarsen.maps[0].values, values)
    assert torch.equal(coarsen.maps[0].open.expand(2, 3, -1, -1), opened)


def test_non_finite_weights_count_as_zero_and_are_counted():
    seen = attention()
    seen.read.weights[0, 1, 4, 2] = torch.nan
    seen.read.weights[1, 2, 5, 0] = torch.inf
    made, *_ = seen_by(Coarsen(lambda _: (as_it_is(11), as_it_is(13))), seen)
    sampled, *_ = seen_by(Sample(lambda _: Rows([[4], [5]])), seen)
    assert made.broken == sampled.broken == 2
    assert sampled.values.isfinite().all()
    assert made.values[0, 1, 4, 2] == 0
    assert made.open[0, :2, 4, 2].tolist() == [True, False]


NOTHING = {
    "coarse": lambda: Coarsen(lambda _: None),
    "sampled": lambda: Sample(lambda _: None),
    "shared": lambda: SharedRows([Sample(lambda _: None), Coarsen(lambda _: None)]),
    "shared of no head": lambda: SharedRows([WHOLE.coarsen(11, even=True)], lambda site, count: None),
}


@pytest.mark.parametrize("made", NOTHING.values(), ids=NOTHING)
def test_unselected_call_is_not_read(made):
    seen, observer = attention(), made()
    observer.observe(seen)
    assert seen.read.read == []
    assert not any(each.maps for each in getattr(observer, "observers", [observer]))


ACROSS = np.zeros((2, 24), np.float32)
ACROSS[0, :5] = ACROSS[1, 7:9] = 1
SAMPLES = [  # rows that are averaged, keys that are added up, and the rows that are read
    ([[1], [2], [7], [23]], None, [(1, 8), (23, 24)]),
    ([[0, 3], [5]], ACROSS, [(0, 6)]),
]


@pytest.mark.parametrize(("rows", "across", "read"), SAMPLES)
def test_sample_reads_only_blocks_of_its_rows(rows, across, read):
    seen = attention(24, 24)
    kept, weights, _ = seen_by(Sample(lambda _: Rows(rows, across)), seen)
    expected = torch.stack([weights[:, :, some].mean(2) for some in rows], 2)
    expected = expected if across is None else expected @ torch.from_numpy(across).T
    assert torch.allclose(kept.values, expected, atol=1e-6)
    assert seen.read.read == read


def test_shared_rows_are_read_once_for_all_observers(monkeypatch):
    monkeypatch.setattr(observers, "BLOCK", 6 * 24 * 5)
    seen = attention(24, 24)
    coarsen, sample = WHOLE.coarsen(7, even=True), Sample(lambda _: Rows([[1], [22]]))
    SharedRows([coarsen, sample]).observe(seen)
    assert seen.read.read == [(0, 5), (5, 10), (10, 15), (15, 20), (20, 24)]
    for shared, alone in ((coarsen, WHOLE.coarsen(7, even=True)), (sample, Sample(sample.choose))):
        assert torch.allclose(shared.maps[0].values, seen_by(alone, seen)[0].values, atol=1e-7)


@pytest.mark.parametrize(("kind", "rows"), [("cpu", 10), ("cuda", 1 << 13), ("mps", 10)])
def test_rows_at_a_time_scale_with_gpu_memory(monkeypatch, kind, rows):
    device, memory = torch.device(kind), SimpleNamespace(total_memory=64 << 30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", {torch.device("cuda"): memory}.get)
    asked = SimpleNamespace(batch=1, heads=8, keys=range(1024), values=SimpleNamespace(device=device))
    assert rows_at_a_time(asked, weights=10 * 8 * 1024) == rows


def test_unselected_heads_are_not_computed():
    seen, coarsen = attention(), Coarsen(lambda _: (as_it_is(11), as_it_is(13)))
    SharedRows([coarsen], lambda site, count: [2, 0]).observe(seen)
    mask = seen.read.open_keys
    assert torch.equal(coarsen.maps[0].values, seen.read.weights[:, [2, 0]] * mask)


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
def test_analysis_computes_each_shown_row_once(monkeypatch, look, heads):
    model = load("own")
    prepared = model.prepare("The cat sat on the mat because it was tired.")
    computed, rows = [], Attention.rows

    def counted(attention, start, stop, chosen=None):
        result = rows(attention, start, stop, chosen)
        computed.append(result.shape[0] * result.shape[1] * result.shape[2])
        return result

    monkeypatch.setattr(Attention, "rows", counted)
    look(model, prepared)
    assert sum(computed) == heads * len(prepared.tokens)


@pytest.mark.parametrize("recordings", [1, 2])
def test_observer_work_is_visible_to_user_modes_only(recordings, monkeypatch):
    told, run = {"ours": 0, "theirs": 0}, AttentionMode._run

    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            told["theirs"] += func is torch.erfinv
            return func(*args, **(kwargs or {}))

    def count(mode, name, func, args, kwargs):
        told["ours"] += func is torch.erfinv
        return run(mode, name, func, args, kwargs)

    monkeypatch.setattr(AttentionMode, "_run", count)
    model = torch.nn.MultiheadAttention(8, 2).eval()
    states = torch.randn(3, 1, 8)
    with Mode(), ExitStack() as stack:
        for _ in range(recordings):
            stack.enter_context(
                recording(model, [FunctionObserver(lambda attention: torch.erfinv(attention.rows(0, 1)))])
            )
        model(states, states, states)
    assert told == {"ours": 0, "theirs": recordings}
