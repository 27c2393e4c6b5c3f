"""One pass over tiles against the full computation in float64, and random calls against brute force."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from attnscope.attention import AttentionCall
from attnscope.axes import edges
from attnscope.capture.rows.kernels import sdpa_call
from attnscope.fused import fused_pass, weigh
from attnscope.fused.fused_pass import FusedPass, Refusal, Worker, attend
from attnscope.fused.request import Pairs, Request
from attnscope.fused.runs import find_matches, open_runs
from tests.fused import combinations

BATCH, HEADS, SIZE = 2, 4, 16


def request_of(ids=None, cells=None):
    """Everything that can be asked for; ``ids`` are the labels of the pairs, [text, token]."""
    asked = Request(cells=cells)
    asked.at |= {"own": lambda row: row, "before": lambda row: row - 1, "after": lambda row: row + 1}
    asked.at |= {"start": torch.zeros_like, "none": lambda row: row.new_full(row.shape, -1)}
    asked.gaps |= {"far": torch.abs, "ahead": lambda gap: gap, "square": torch.square}
    if ids is not None:
        follows = torch.nn.functional.pad(ids[:, :-1], (1, 0), value=-1)
        asked.pairs |= {"same": Pairs(ids, ids, itself=False), "follows": Pairs(ids, follows, ahead=False)}
    return asked


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    """Tiles so small that short texts have many, and chunks that need merging."""
    for name, size in (("ROWS", 32), ("KEYS", 48)):
        monkeypatch.setattr(weigh, name, size)


def inputs(queries, keys, key_heads=HEADS, sharp=1.0):
    torch.manual_seed(queries * 1000 + keys)
    query = sharp * torch.randn(BATCH, HEADS, queries, SIZE)
    return query, torch.randn(BATCH, key_heads, keys, SIZE), torch.randn(BATCH, key_heads, keys, SIZE)


def mask_of(name, queries, keys):
    """The keys that are open, [text or 1, 1, query, key]; None: all."""
    row, key = torch.arange(queries)[:, None], torch.arange(keys)
    if name == "whole":
        return None
    if name == "padded":
        return torch.stack([key < keys - 7, key >= 5])[:, None, None].expand(-1, 1, queries, -1)
    open_ = {
        "causal": key <= row,
        "window": (key <= row) & (row - key < 21),
        "both ways": (row - key).abs() < 9,
    }
    return open_[name][None, None]


def call_of(query, key, value, mask=None, is_causal=False, **options):
    """What torch's kernel would receive."""
    return sdpa_call((query, key, value, mask), {"is_causal": is_causal, **options}, len(query))


def weights_of(query, key, open_, softcap=None, bias=None, sinks=None):
    """The full weights in float64.  -> [batch, head, query, key]"""
    key = key.double().repeat_interleave(query.shape[1] // key.shape[1], 1)
    scores = query.double() @ key.mT / math.sqrt(query.shape[-1])
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if bias is not None:
        scores = scores + bias.double()
    if open_ is not None:
        scores = scores.masked_fill(~open_, -torch.inf)
    if sinks is not None:
        sink = sinks.double().view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        return torch.cat([scores, sink], -1).softmax(-1)[..., :-1]
    return scores.softmax(-1)


def check(output, found, weights, value, ids=None):
    """Every number of the statistics against the weights."""
    value = value.double().repeat_interleave(weights.shape[1] // value.shape[1], 1)
    queries, keys = weights.shape[-2:]
    row, key = torch.arange(queries)[:, None], torch.arange(keys)
    assert torch.allclose(output.double(), weights @ value, atol=1e-5)
    entropy = torch.special.entr(weights).sum(-1)
    assert torch.allclose(found.entropy.double(), entropy, atol=1e-5 * math.log(keys))
    assert torch.allclose(found.largest.double(), weights.amax(-1), atol=1e-5)
    assert torch.allclose(found.total.double(), weights.sum(-1), atol=1e-5)
    for name, wanted in (("own", row), ("before", row - 1), ("after", row + 1), ("start", 0), ("none", -1)):
        at = (weights * (key == wanted)).sum(-1)
        assert torch.allclose(found.at[name].double(), at, atol=1e-5), name
    assert torch.allclose(found.column.double(), weights.sum(-2), atol=1e-5 * queries)
    for name, number in (("far", (key - row).abs()), ("ahead", key - row), ("square", (key - row) ** 2)):
        wanted = (weights * number).sum((-1, -2))
        atol = 1e-5 * queries * float(number.abs().max())
        assert torch.allclose(found.gaps[name], wanted, atol=atol, rtol=1e-5), name
    if found.map is not None:
        check_map(found, weights)
    if ids is not None:
        same = ids[:, None] == ids
        follows = torch.nn.functional.pad(same[:, :-1], (1, 0))
        opened = weights[:, 0] > 0
        for name, pairs in (("same", same & (row != key)), ("follows", follows & (key <= row))):
            mass = (weights * pairs).sum((-1, -2))
            assert torch.allclose(found.pairs[name].total, mass, atol=1e-5 * queries), name
            assert torch.equal(found.pairs[name].count, (pairs & opened).sum(-1)), name


def check_map(found, weights):
    rows, keys = found.map.row_edges, found.map.key_edges
    summed = np.add.reduceat(np.add.reduceat(weights.numpy(), rows[:-1], axis=-2), keys[:-1], axis=-1)
    assert np.allclose(found.map.total, summed, atol=1e-5 * max(np.diff(rows)))


def fused(query, key, value, open_=None, ids=None, cells=None, scale=SIZE**-0.5, bias=None, **extras):
    """Output and statistics of attention over the open keys; ``ids`` are the labels of the pairs."""
    runs = open_runs(open_, query.shape[2], key.shape[2], False)
    request = request_of(ids, cells)
    matches = find_matches(request.pairs, runs, BATCH)
    return attend(AttentionCall(query, key, value, scale, **extras), runs, bias, request, matches)


@pytest.mark.parametrize("cells", [None, 7, 40, 300])
@pytest.mark.parametrize("key_heads", [HEADS, 2, 1])
@pytest.mark.parametrize("name", ["whole", "causal", "window", "both ways", "padded"])
def test_output_and_statistics_equal_the_full_computation(name, key_heads, cells):
    query, key, value = inputs(131, 131, key_heads)
    open_, ids = mask_of(name, 131, 131), torch.randint(0, 9, (131,))
    output, found = fused(query, key, value, open_, ids[None], cells)
    assert output.dtype == torch.float32
    check(output, found, weights_of(query, key, open_), value, ids)


@pytest.mark.parametrize("size", [2, 31, 48, 49, 96, 97, 200])
def test_any_length_is_exact(size):
    query, key, value = inputs(size, size)
    open_ = mask_of("causal", size, size)
    check(*fused(query, key, value, open_, cells=16), weights_of(query, key, open_), value)


def test_more_keys_than_queries_are_exact():
    query, key, value = inputs(60, 150)
    open_ = (torch.arange(150) <= torch.arange(60)[:, None] + 90)[None, None]
    check(*fused(query, key, value, open_, cells=20), weights_of(query, key, open_), value)


@pytest.mark.parametrize(
    ("sharp", "dtype", "atol"),
    [*((sharp, torch.float32, 1e-4) for sharp in (3.0, 10.0, 30.0)), (1.0, torch.float64, 1e-12)],
)
def test_sharp_rows_stay_exact_and_float64_agrees_to_the_last_digits(sharp, dtype, atol):
    query, key, value = (tensor.to(dtype) for tensor in inputs(131, 131, sharp=sharp))
    output, found = fused(query, key, value, mask_of("causal", 131, 131))
    weights = weights_of(query, key, mask_of("causal", 131, 131))
    assert torch.allclose(output.double(), weights @ value.double(), atol=atol / 10 if atol < 1e-9 else atol)
    assert torch.allclose(found.entropy.double(), torch.special.entr(weights).sum(-1), atol=atol)


def assert_same_bits(one, other):
    """Two outputs with their statistics."""
    (left, found), (right, wanted) = one, other
    assert torch.equal(left, right)
    for name in ("entropy", "largest", "total", "column"):
        assert torch.equal(getattr(found, name), getattr(wanted, name))
    assert all(torch.equal(found.gaps[name], wanted.gaps[name]) for name in found.gaps)
    assert all(torch.equal(found.pairs[name].total, wanted.pairs[name].total) for name in found.pairs)
    assert torch.equal(found.map.total, wanted.map.total)


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_two_threads_give_the_same_bits_as_one_and_torch_keeps_its_threads(threads):
    results = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        results.append(fused(*inputs(131, 131), mask_of("causal", 131, 131), cells=10))
        assert torch.get_num_threads() == threads
    assert_same_bits(*results)


def test_when_one_thread_fails_the_others_end(monkeypatch, threads):
    begun = []

    def fail(worker, text, number):
        begun.append(number)
        raise RuntimeError("no memory")

    monkeypatch.setattr(Worker, "run", fail)
    torch.set_num_threads(2)
    with pytest.raises(RuntimeError, match="no memory"):
        fused(*(tensor.repeat(1, 8, 1, 1) for tensor in inputs(131, 131)))
    assert torch.get_num_threads() == 2
    assert len(begun) <= 2  # of 32 heads of two texts


@pytest.mark.parametrize("how", ["gone", "broken"])
def test_without_torchs_interpreter_the_bits_are_the_same(how, monkeypatch):
    ids, given = torch.randint(5, (1, 131)), inputs(131, 131, key_heads=2)
    extras = {"bias": torch.randn(1, HEADS, 131, 131), "softcap": 3.0, "sinks": torch.randn(HEADS)}

    def results():
        weigh.scripted.cache_clear()
        return fused(*given, mask_of("causal", 131, 131), ids, 10, 0.3, **extras)

    scripted = results()
    assert isinstance(weigh.scripted(), torch.jit.ScriptFunction)
    if how == "gone":
        monkeypatch.delattr(torch.jit, "script")
    else:
        monkeypatch.setattr(torch.jit, "script", lambda function: int("cannot be read"))
    plain = results()
    assert not isinstance(weigh.scripted(), torch.jit.ScriptFunction)
    weigh.scripted.cache_clear()
    assert_same_bits(scripted, plain)


@pytest.mark.parametrize("name", ["whole", "causal", "window"])
def test_open_pairs_of_a_map_are_counted(name):
    open_, cut = mask_of(name, 50, 50), edges(50, 8)[:-1]
    _, found = fused(*inputs(50, 50), open_, cells=8)
    full = np.ones((50, 50)) if open_ is None else open_[0, 0].numpy().astype(float)
    assert np.array_equal(found.map.pairs[0], np.add.reduceat(np.add.reduceat(full, cut, 0), cut, 1))


@pytest.mark.parametrize("count", [5, 48, 49])  # the last in tiles
@pytest.mark.parametrize("key_heads", [HEADS, 2, 1])
@pytest.mark.parametrize("name", ["whole", "causal", "window", "both ways", "padded", "bias"])
def test_a_map_alone_and_its_output_equal_the_full_computation(name, key_heads, count, monkeypatch):
    monkeypatch.setattr(fused_pass, "NUMBERS", 5000)  # so that heads come in steps
    query, key, value = inputs(100, 100, key_heads)
    open_ = None if name == "bias" else mask_of(name, 100, 100)
    bias = torch.randn(1, HEADS, 100, 100) if name == "bias" else None
    mask = bias if name == "bias" else None if name == "causal" else open_
    cells = (0, *range(7, 6 + count), 100)
    request = Request(cells=cells, map_alone=True)
    output, found = FusedPass(request, shortest=1).attend(call_of(query, key, value, mask, name == "causal"))
    weights = weights_of(query, key, open_, bias=bias)
    values = value.double().repeat_interleave(HEADS // key_heads, 1)
    assert torch.allclose(output.double(), weights @ values, atol=1e-5)
    check_map(found, weights)
    assert found.map.key_edges == cells
    assert torch.allclose(found.map.total.sum((-1, -2)), torch.tensor(100.0))
    assert torch.equal(found.only([1, 3]).map.total, found.map.total[:, [1, 3]])


@pytest.mark.parametrize("extras", [{"softcap": 2.0}, {"sinks": torch.arange(4.0)}])
def test_a_map_alone_of_scores_that_no_kernel_takes_is_exact(extras):
    query, key, value = inputs(60, 60)
    call = replace(call_of(query, key, value), **extras)
    _, found = FusedPass(Request(cells=(0, 11, 60), map_alone=True), shortest=1).attend(call)
    check_map(found, weights_of(query, key, None, **extras))


def test_the_fused_pass_finds_pairs_and_keeps_what_layers_share(monkeypatch):
    query, key, value = inputs(131, 131)
    ids = torch.randint(0, 9, (131,))
    asked = []
    plain = fused_pass.open_runs
    monkeypatch.setattr(fused_pass, "open_runs", lambda *args: asked.append(args) or plain(*args))
    engine = FusedPass(request_of(ids[None], cells=8), shortest=1)
    weights = weights_of(query, key, mask_of("causal", 131, 131))
    for _layer in range(3):
        done = engine.attend(call_of(query, key, value, is_causal=True))
        check(*done, weights, value, ids)
    assert len(asked) == 1


def test_what_it_cannot_do_is_left_to_the_kernel():
    query, key, value = inputs(131, 131)
    engine = FusedPass(shortest=100)
    holes = torch.rand(1, 1, 131, 131) < 0.5
    masked_row = torch.ones(1, 1, 131, 131, dtype=torch.bool)
    masked_row[..., 5, :] = False
    a_head = torch.ones(1, HEADS, 131, 131, dtype=torch.bool)
    a_head[:, 1, :, 7:] = False
    run = "its mask does not leave each row one run of neighbouring keys, the same for all heads"
    engine.attend(call_of(query, key, value))
    for call, reason in (
        (call_of(query, key, value, holes), run),
        (call_of(query, key, value, masked_row), run),
        (call_of(query, key, value, a_head), run),
        (call_of(query, key, value, dropout_p=0.1), "it drops weights at random"),
        (call_of(query[:, :, :1], key, value), "it has a single query"),
        (call_of(*(each.to(torch.complex64) for each in (query, key, value))), "it computes in complex64"),
        (call_of(query, key.double(), value), "its tensors are of several types"),
        (call_of(query, key[:, :, :50], value[:, :, :50]), "it has fewer than 100 keys"),
        (call_of(query.clone().requires_grad_(), key, value), "its gradient is asked for"),
    ):
        with pytest.raises(Refusal, match=f"^{reason}$"):
            engine.attend(call)


@pytest.mark.parametrize("part", range(4))
def test_the_fused_pass_and_the_rows_agree_with_brute_force(part, monkeypatch):
    for name, size in (("ROWS", 24), ("KEYS", 32)):
        monkeypatch.setattr(weigh, name, size)
    verdict = combinations.Verdict()
    for seed in range(8 * part, 8 * part + 8):
        combinations.check(seed, verdict)
    assert verdict.figures > 500
