"""Rows that several observers read are computed once."""

from contextlib import ExitStack

import pytest
import torch

from attnscope.attention import Attention
from attnscope.capture import Coarsen, RowSums, recording
from attnscope.capture.observers import Rows, Sample, SharedRows, cells
from attnscope.capture.recorder import AttentionMode
from attnscope.models import load
from attnscope.questions.head import one_head
from attnscope.questions.layers import all_heads
from attnscope.questions.overview import overview
from attnscope.questions.selection import Selection
from attnscope.questions.token import one_token
from tests.capture.observers.test_sample import attention


def test_observers_of_blocks_of_other_sizes_read_each_row_once(monkeypatch):
    monkeypatch.setattr("attnscope.capture.observers.BLOCK", 3 * 24 * 5)
    seen = attention()
    sums, coarsen, sample = RowSums(), Coarsen(cells(7)), Sample(lambda _: Rows([[1], [22]]))
    SharedRows([sums, coarsen, sample]).observe(seen)
    assert seen.read.read == [(0, 5), (5, 10), (10, 15), (15, 20), (20, 24)]
    alone = Coarsen(cells(7))
    alone.observe(attention())
    assert torch.allclose(coarsen.maps[0].values, alone.maps[0].values, atol=1e-7)
    assert torch.equal(sample.maps[0].values, seen.read.weights[:, :, [1, 22]])
    assert (sums.sums[0].low, sums.sums[0].high) == pytest.approx((1, 1), abs=1e-5)


def test_heads_that_are_not_meant_are_not_computed():
    seen = attention()
    coarsen = Coarsen(cells(24))
    SharedRows([coarsen], lambda site, count: [2, 0]).observe(seen)
    assert torch.equal(coarsen.maps[0].values, seen.read.weights[:, [2, 0]])
    nothing = Coarsen(cells(24))
    SharedRows([nothing], lambda site, count: None).observe(seen)
    assert nothing.maps == []


def test_nothing_is_computed_for_an_observer_that_wants_no_rows():
    seen = attention()
    SharedRows([Sample(lambda _: None), Coarsen(lambda _: None)]).observe(seen)
    assert seen.read.read == []


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
