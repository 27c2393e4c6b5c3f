"""The fused pass against the full computation in float64, and random calls against brute force."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from attnscope.attention import AttentionCall
from attnscope.fused import fused_pass, tiles
from attnscope.fused.fused_pass import FusedPass, Refusal, Worker
from attnscope.fused.request import Pairs, Request
from tests.fused import combinations
from tests.fused.combinations import brute_force, spread

BATCH, HEADS, SIZE = 2, 4, 16


def request_of(ids=None, cells=None):
    """Everything that can be asked for; ``ids`` are the labels of the pairs, [token]."""
    asked = Request(cells=cells)
    asked.at |= {"own": lambda row: row, "before": lambda row: row - 1, "after": lambda row: row + 1}
    asked.at |= {"start": torch.zeros_like, "none": lambda row: row.new_full(row.shape, -1)}
    asked.gaps |= {"far": torch.abs, "ahead": lambda gap: gap, "square": torch.square}
    if ids is not None:
        follows = torch.nn.functional.pad(ids[None, :-1], (1, 0), value=-1)
        asked.pairs["same"] = Pairs(ids[None], ids[None], itself=False)
        asked.pairs["follows"] = Pairs(ids[None], follows, ahead=False)
    return asked


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    """Tiles so small that short texts have many, and chunks that need merging."""
    for name, size in (("BLOCK_ROWS", 32), ("TILE_KEYS", 48)):
        monkeypatch.setattr(tiles, name, size)


def call_of(name="causal", queries=131, keys=None, key_heads=HEADS, dtype=torch.float32, **extras):
    """A random call that leaves those keys open which ``name`` says."""
    keys = keys or queries
    torch.manual_seed(queries * 1000 + keys)
    query = torch.randn(BATCH, HEADS, queries, SIZE, dtype=dtype)
    key, value = torch.randn(2, BATCH, key_heads, keys, SIZE, dtype=dtype)
    row, place = torch.arange(queries)[:, None] + keys - queries, torch.arange(keys)
    opened = {
        "causal": place <= row,
        "window": (place <= row) & (row - place < 21),
        "both ways": (row - place).abs() < 9,
        "padded": torch.stack([place < keys - 7, place >= 5])[:, None].expand(-1, queries, -1),
    }
    masks = (opened[name].view(-1, 1, queries, keys),) if name in opened else ()
    return AttentionCall(query, key, value, **{"scale": SIZE**-0.5, "masks": masks, **extras})


def check(done, call, ids=None):
    """Every number of the output and the statistics against the weights."""
    (output, found), weights = done, brute_force(call)
    queries, keys = weights.shape[-2:]
    row, key = torch.arange(queries)[:, None], torch.arange(keys)
    assert torch.allclose(output.double(), weights @ spread(call.value, call), atol=1e-5)
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
        check_map(found.map, weights)
    if ids is not None:
        same = ids[:, None] == ids
        follows = torch.nn.functional.pad(same[:, :-1], (1, 0))
        opened = weights[:, 0] > 0
        for name, pairs in (("same", same & (row != key)), ("follows", follows & (key <= row))):
            mass = (weights * pairs).sum((-1, -2))
            assert torch.allclose(found.pairs[name].total, mass, atol=1e-5 * queries), name
            assert torch.equal(found.pairs[name].count, (pairs & opened).sum(-1)), name


def check_map(found, weights):
    """The weights and the open pairs of every cell."""
    rows, keys = found.row_edges, found.key_edges
    total, pairs = (
        np.add.reduceat(np.add.reduceat(each.numpy(), rows[:-1], axis=-2), keys[:-1], axis=-1)
        for each in (weights, (weights[:, 0] > 0).long())
    )
    assert np.allclose(found.total, total, atol=1e-5 * max(np.diff(rows)))
    assert np.array_equal(np.broadcast_to(found.pairs, pairs.shape), pairs)


def fused(call, ids=None, cells=None):
    """Output and statistics of a call; ``ids`` are the labels of the pairs."""
    return FusedPass(request_of(ids, cells), shortest=1).attend(call)


MASKS = ["whole", "causal", "window", "both ways", "padded"]
SHAPES = [  # a mask, queries and keys, heads of keys, and cells of a map
    *(
        (name, 131, 131, heads, cells)
        for name in MASKS
        for heads in (4, 2, 1)
        for cells in (None, 7, 40, 300)
    ),
    *(("causal", size, size, HEADS, 16) for size in (2, 31, 48, 49, 96, 97, 200)),
    ("causal", 60, 150, HEADS, 20),
]


@pytest.mark.parametrize(("name", "queries", "keys", "key_heads", "cells"), SHAPES)
def test_fused_output_and_statistics_equal_full_computation(name, queries, keys, key_heads, cells):
    call = call_of(name, queries, keys, key_heads)
    ids = torch.randint(0, 9, (keys,)) if queries == keys else None
    done = fused(call, ids, cells)
    assert done[0].dtype == torch.float32
    check(done, call, ids)


@pytest.mark.parametrize("length", [60, 150])
def test_token_pairs_are_skipped_with_fewer_queries_than_keys(length):
    call = call_of("causal", 60, 150)
    done = fused(call, torch.randint(0, 9, (length,)))
    check(done, call)
    assert done[1].pairs == {}


@pytest.mark.parametrize(
    ("sharp", "dtype", "atol"),
    [*((sharp, torch.float32, 1e-4) for sharp in (3.0, 10.0, 30.0)), (1.0, torch.float64, 1e-12)],
)
def test_fused_pass_is_exact_for_sharp_rows_and_float64(sharp, dtype, atol):
    call = call_of(dtype=dtype, scale=sharp * SIZE**-0.5)
    (output, found), weights = fused(call), brute_force(call)
    expected = weights @ spread(call.value, call)
    assert torch.allclose(output.double(), expected, atol=atol / 10 if atol < 1e-9 else atol)
    assert torch.allclose(found.entropy.double(), torch.special.entr(weights).sum(-1), atol=atol)


@pytest.mark.parametrize("far", [60, 200])  # powers of 2: within the range of float32, and beyond it
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_fused_pass_is_exact_for_scores_far_from_zero(far, dtype):
    call = call_of("both ways", dtype=dtype, scale=math.log(2))
    call.key.mul_(0.1)[..., 0] = 7
    call.query.mul_(0.1)[..., 0] = (
        far / 7 * torch.ones(call.query.shape[2]).index_fill_(0, torch.arange(0, 131, 2), -1)
    )
    (output, found), weights = fused(call), brute_force(call)
    bound = 4 * far * torch.finfo(dtype).eps * math.log(2)  # a few roundings of a score
    top = (call.query.double() @ call.key.double().mT * call.scale).masked_fill(weights == 0, -torch.inf)
    for mine, exact in (
        (output, weights @ call.value.double()),
        (found.entropy, torch.special.entr(weights).sum(-1)),
        (found.largest, weights.amax(-1)),
        (found.column, weights.sum(-2)),
        (found.top, top.amax(-1)),
    ):
        torch.testing.assert_close(mine.double(), exact, rtol=bound, atol=bound)


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


def test_fused_bits_do_not_depend_on_threads(threads):
    results = []
    for count in (1, 2):
        torch.set_num_threads(count)
        results.append(fused(call_of(), cells=10))
        assert torch.get_num_threads() == count
    assert_same_bits(*results)


def test_failure_of_one_thread_ends_the_others(monkeypatch, threads):
    begun = []

    def fail(worker, text, number):
        begun.append(number)
        raise RuntimeError("no memory")

    monkeypatch.setattr(Worker, "run", fail)
    torch.set_num_threads(2)
    with pytest.raises(RuntimeError, match="no memory"):
        fused(call_of())
    assert torch.get_num_threads() == 2
    assert len(begun) <= 2  # of 4 heads of two texts


@pytest.mark.parametrize("how", ["gone", "broken"])
def test_fused_bits_do_not_depend_on_torchscript(how, monkeypatch):
    bias, sinks = torch.randn(1, HEADS, 131, 131), torch.randn(HEADS)
    ids, extras = torch.randint(5, (131,)), {"biases": (bias,), "softcap": 3.0, "sinks": sinks}

    def results():
        tiles.compiled_block.cache_clear()
        return fused(call_of("whole", key_heads=2, diagonal=0, scale=0.3, **extras), ids, 10)

    scripted = results()
    assert isinstance(tiles.compiled_block(), torch.jit.ScriptFunction)
    if how == "gone":
        monkeypatch.delattr(torch.jit, "script")
    else:
        monkeypatch.setattr(torch.jit, "script", lambda function: int("cannot be read"))
    plain = results()
    assert not isinstance(tiles.compiled_block(), torch.jit.ScriptFunction)
    tiles.compiled_block.cache_clear()
    assert_same_bits(scripted, plain)


ALONE = {  # a mask and what else is given; the last two no kernel takes
    **{name: (name, {}) for name in MASKS},
    "causal by hint": ("whole", {"diagonal": 0}),
    "bias": ("whole", {"biases": (torch.randn(1, HEADS, 100, 100),)}),
    "softcap": ("whole", {"softcap": 2.0}),
    "sinks": ("whole", {"sinks": torch.arange(4.0)}),
}


@pytest.mark.parametrize("count", [5, 48, 49])  # the last in tiles
@pytest.mark.parametrize("key_heads", [HEADS, 2, 1])
@pytest.mark.parametrize("name", ALONE)
def test_map_only_pass_equals_full_computation(name, key_heads, count, monkeypatch):
    monkeypatch.setattr(fused_pass, "NUMBERS_PER_TENSOR", 5000)  # so that heads come in steps
    mask, extras = ALONE[name]
    call, cells = call_of(mask, 100, key_heads=key_heads, **extras), (0, *range(7, 6 + count), 100)
    output, found = FusedPass(Request(cells=cells, map_alone=True), shortest=1).attend(call)
    weights = brute_force(call)
    assert torch.allclose(output.double(), weights @ spread(call.value, call), atol=1e-5)
    check_map(found.map, weights)
    assert found.map.key_edges == cells
    assert torch.equal(found.only([1, 3]).map.total, found.map.total[:, [1, 3]])


def test_mask_shared_by_layers_is_read_once(monkeypatch):
    asked, plain = [], fused_pass.open_runs
    monkeypatch.setattr(fused_pass, "open_runs", lambda *args: asked.append(args) or plain(*args))
    call, ids = call_of("whole", diagonal=0), torch.randint(0, 9, (131,))
    engine = FusedPass(request_of(ids, cells=8), shortest=1)
    for _layer in range(3):
        check(engine.attend(call), call, ids)
    assert len(asked) == 1


def test_unsupported_calls_are_left_to_the_kernel():
    engine, call = FusedPass(shortest=100), call_of("whole")
    holes = torch.rand(1, 1, 131, 131) < 0.5
    masked_row = torch.ones(1, 1, 131, 131, dtype=torch.bool)
    masked_row[..., 5, :] = False
    a_head = torch.ones(1, HEADS, 131, 131, dtype=torch.bool)
    a_head[:, 1, :, 7:] = False
    run = "its mask does not leave each row one contiguous run of keys, the same for all heads"
    engine.attend(call)
    for change, reason in (
        *(({"masks": (mask,)}, run) for mask in (holes, masked_row, a_head)),
        ({"dropout": 0.1}, "it applies dropout"),
        ({"query": call.query[:, :, :1]}, "it has a single query"),
        ({"query": call.query.to(torch.complex64)}, "it computes in complex64"),
        ({"key": call.key.double()}, "its tensors are of several types"),
        ({"key": call.key[:, :, :50], "value": call.value[:, :, :50]}, "it has fewer than 100 keys"),
        ({"query": call.query.clone().requires_grad_()}, "it needs gradients"),
    ):
        with pytest.raises(Refusal, match=f"^{reason}$"):
            engine.attend(replace(call, **change))


@pytest.mark.sweep(3)
@pytest.mark.parametrize("part", range(4))
def test_fused_pass_and_rows_agree_with_brute_force(part, monkeypatch):
    for name, size in (("BLOCK_ROWS", 24), ("TILE_KEYS", 32)):
        monkeypatch.setattr(tiles, name, size)
    verdict = combinations.Verdict()
    for seed in range(8 * part, 8 * part + 8):
        combinations.check(seed, verdict)
    assert verdict.scores > 500
