"""Recomputed rows against torch's own kernel, whose output on unit values is its weights."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from attnscope.attention import AttentionCall
from attnscope.capture import FUSED, recording
from attnscope.capture.record import FunctionObserver
from attnscope.capture.rows.capture import CapturedCall
from attnscope.capture.rows.kernels import sdpa_call
from attnscope.capture.rows.scores import ScoredRows, join_differences
from attnscope.fused import fused_pass
from attnscope.fused.fused_pass import FusedPass
from attnscope.questions.sentences import provenance
from tests.capture import modules
from tests.capture.observing import check_parts, observe
from tests.fused.combinations import brute_force


def capture_sdpa(batch, *args, **options):
    return CapturedCall.from_call(sdpa_call(args, options, batch), "sdpa")


def kernel_weights(query, key, **options):
    """The weights with which torch's kernel mixes values.  -> [batch, head, query, key]"""
    keys = key.shape[-2]
    values = torch.eye(keys).expand(*key.shape[:2], keys, keys)
    return F.scaled_dot_product_attention(query, key, values, **options)


LOWEST = torch.finfo(torch.float32).min
ROW = torch.arange(7)[:, None] == 3
MASKINGS = {  # a mask from a source of random numbers and the number of keys
    "none": None,
    "causal": None,
    "bool": lambda rand, keys: rand(2, 1, 7, keys) > 0.4,
    "a head": lambda rand, keys: rand(1, 4, 7, keys) > 0.4,
    "padding": lambda rand, keys: rand(2, 1, 1, keys) > 0.4,
    "added": lambda rand, keys: torch.where(rand(2, 1, 7, keys) > 0.6, LOWEST, 4 * rand(1, 4, 7, keys) - 2),
    "no key of a row": lambda rand, keys: ~ROW.expand(-1, keys),
    "the lowest number in a row": lambda rand, keys: torch.where(ROW.expand(-1, keys), LOWEST, 0.0),
}


def random_call(seed, masking="none", key_heads=2, keys=7):
    """Queries, keys and options of one kernel call of two texts, four heads and seven queries."""
    noise = torch.Generator().manual_seed(seed)
    query = torch.randn(2, 4, 7, 8, generator=noise)
    key = torch.randn(2, key_heads, keys, 8, generator=noise)
    options, make = {"enable_gqa": True, "is_causal": masking == "causal"}, MASKINGS[masking]
    if make is not None:
        options["attn_mask"] = make(partial(torch.rand, generator=noise), keys)
    return query, key, options


@settings(max_examples=60, deadline=None)
@given(data=st.data(), seed=st.integers(0, 1000), masking=st.sampled_from(list(MASKINGS)))
def test_any_block_of_heads_and_rows_equals_kernel_weights(data, seed, masking):
    keys = data.draw(st.integers(1, 9))
    query, key, options = random_call(seed, masking, keys=keys)
    capture = capture_sdpa(2, query, key, key, **options)
    whole = kernel_weights(query, key, **options)
    start = data.draw(st.integers(0, 7))
    stop = data.draw(st.integers(start, 7))
    heads = data.draw(st.none() | st.lists(st.integers(0, 3), min_size=1, max_size=5))
    if data.draw(st.booleans()):  # all rows of a short call are computed with those of its proof
        capture.read.pick((0, 6))
    rows = capture.read.rows(start, stop, heads)
    expected = whole[:, :, start:stop] if heads is None else whole[:, heads, start:stop]
    torch.testing.assert_close(rows, expected, atol=1e-6, rtol=0)
    mask = options.get("attn_mask", torch.ones(7, keys).tril(0 if masking == "causal" else keys).bool())
    opened = (mask if mask.dtype == torch.bool else mask > LOWEST).expand(2, 4, 7, keys)
    assert torch.equal(capture.read.allowed(start, stop).expand(2, 4, -1, -1), opened[:, :, start:stop])


@pytest.mark.parametrize("short", [0, 1 << 21])
@pytest.mark.parametrize("masking", MASKINGS)
def test_picked_rows_equal_kernel_weights(masking, short, monkeypatch):
    monkeypatch.setattr("attnscope.capture.rows.scores.SHORT", short)
    query, key, options = random_call(5, masking)
    read = capture_sdpa(2, query, key, key, **options).read
    picked, whole = read.pick((0, 3, 6)), kernel_weights(query, key, **options)
    torch.testing.assert_close(picked, whole[:, :, [0, 3, 6]], atol=1e-6, rtol=0)
    read.free()
    torch.testing.assert_close(read.rows(0, 7, None), whole, atol=1e-6, rtol=0)


def test_nan_scores_stay_nan():
    query, key, _ = random_call(0)
    query[0, 0, 2, 0] = torch.nan
    rows = ScoredRows(AttentionCall(query, key, key, 1.0)).rows(0, 7, None)
    assert rows[0, 0, 2].isnan().all()
    assert not rows[1].isnan().any()


def test_batch_size_comes_from_a_per_text_mask():
    query, key, _ = random_call(0)
    mask = torch.rand(5, 1, 7, 7) > 0.5
    capture = capture_sdpa(1, query[:1], key[:1], key[:1], mask, enable_gqa=True)
    assert capture.batch == capture.read.rows(0, 7, None).shape[0] == 5


def test_softcap_and_sinks_follow_their_formulas():
    query, key, _ = random_call(5, key_heads=4)
    sinks = torch.tensor([-1.0, 0.0, 1.0, 3.0])
    call = AttentionCall(query, key, key, 0.3, softcap=2.0, sinks=sinks, diagonal=0)
    rows, expected = ScoredRows(call), brute_force(call).float()
    torch.testing.assert_close(rows.rows(0, 7, None), expected, atol=1e-6, rtol=0)
    torch.testing.assert_close(rows.rows(2, 4, [3, 1]), expected[:, [3, 1], 2:4], atol=1e-6, rtol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_inputs_use_float32_softmax(dtype):
    query, key, _ = random_call(2, key_heads=4)
    query, key = query.to(dtype), key.to(dtype)
    rows = capture_sdpa(2, query, key, key).read.rows(0, 7, None)
    assert rows.dtype == torch.float32
    torch.testing.assert_close(rows, kernel_weights(query.float(), key.float()), atol=1e-6, rtol=0)


def test_autocast_rounds_inputs_as_the_kernel_does():
    query, key, _ = random_call(2, key_heads=4)
    with torch.autocast("cpu", torch.bfloat16):
        capture = capture_sdpa(2, query, key, key)
        rows = capture.read.rows(0, 7, None)
        kernel = kernel_weights(query, key)
    assert capture.dtype == kernel.dtype == torch.bfloat16
    rounded = kernel_weights(query.bfloat16().float(), key.bfloat16().float())
    torch.testing.assert_close(rows, rounded, atol=1e-6, rtol=0)
    torch.testing.assert_close(rows, kernel.float(), atol=4e-3, rtol=0)


def test_grouped_heads_in_one_query_are_unfolded():
    noise = torch.Generator().manual_seed(0)
    query = torch.randn(2, 4, 1, 8, generator=noise)
    key = torch.randn(2, 2, 5, 8, generator=noise)
    mask = torch.rand(2, 4, 1, 5, generator=noise) > 0.3
    call = sdpa_call((query.reshape(2, 2, 2, 8), key, key, mask.reshape(2, 2, 2, 5)), {}, 2, heads=4)
    capture = CapturedCall.from_call(call, "sdpa")
    expected = kernel_weights(query, key.repeat_interleave(2, 1), attn_mask=mask)
    assert (capture.heads, capture.queries, capture.keys) == (4, range(1), range(5))
    torch.testing.assert_close(capture.read.rows(0, 1, None), expected, atol=1e-6, rtol=0)


SHAPES = [((6, 7, 8), 2, 3), ((6, 7, 8), 6, 1), ((7, 8), 1, 1), ((2, 3, 2, 7, 8), 2, 6)]


@pytest.mark.parametrize(("shape", "batch", "heads"), SHAPES)
def test_inputs_without_head_axis_are_split_by_batch(shape, batch, heads):
    noise = torch.Generator().manual_seed(0)
    query, key = torch.randn(shape, generator=noise), torch.randn(shape, generator=noise)
    for mask in (torch.ones(7, 7).tril().bool(), torch.rand(*shape[:-2], 7, 7) < 0.8):
        capture = capture_sdpa(batch, query, key, key, mask)
        assert (capture.batch, capture.heads) == (batch, heads)
        plain = (query @ key.mT / 8**0.5).masked_fill(~mask, -torch.inf).softmax(-1)
        torch.testing.assert_close(capture.read.rows(0, 7, None), plain.reshape(batch, heads, 7, 7))


class Off(torch.overrides.TorchFunctionMode):
    """Adds to what a function returns in some shape, at each call or at one."""

    def __init__(self, shape, *names, call=None, by=1.0):
        super().__init__()
        self.shape, self.names, self.call, self.by, self.calls = shape, names, call, by, -1

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func.__name__ not in self.names or result.shape[-2:] != self.shape:
            return result
        self.calls += 1
        return result + self.by if self.call in (None, self.calls) else result


STATES = torch.randn(1, 2, 40, 8, generator=torch.Generator().manual_seed(0))


OFF = [  # a module, what it is given, and which functions return something else, in which shape
    (modules.Kernel, [STATES[:, :, :9]] * 3, (9, 8), ["scaled_dot_product_attention"]),
    (modules.softmaxed, [torch.randn(2, 6, 16)], (6, 4), ["matmul", "__matmul__"]),
]


@pytest.mark.parametrize("by", [0.0, 0.5])
@pytest.mark.parametrize(("made", "given", "shape", "names"), OFF)
def test_output_mismatch_is_warned_below_the_picture(made, given, shape, names, by):
    with Off(shape, *names, by=by):
        record, *_ = observe(made(), *given)
    (site,) = record.sites
    assert site.differs == (by > 0)
    assert ("do not rely on layer 0" in provenance(record.sites)) == site.differs


@pytest.mark.parametrize("head", [0, -1])
@pytest.mark.parametrize("row", ["first", "middle", "last"])
@pytest.mark.parametrize(("made", "given", "shape", "names"), OFF)
def test_output_mismatch_in_one_row_is_detected(made, given, shape, names, row, head):
    rows = shape[0]
    error = torch.zeros(len(given[0]), 4 if made is modules.softmaxed else 2, *shape)
    error[-1, head, {"first": 0, "middle": rows // 2, "last": rows - 1}[row], -1] = 0.5
    with Off(shape, *names, by=error):
        record, *_ = observe(made(), *given)
    assert [site.differs for site in record.sites] == [True]


def test_fused_pass_with_mismatch_falls_back_to_kernel(monkeypatch):
    model, plain, given = modules.Kernel(), fused_pass.attend, [STATES] * 3
    with torch.inference_mode(), recording(model, fused=FusedPass(shortest=1)) as record:
        model(*given)
        monkeypatch.setattr(fused_pass, "attend", lambda *given: (plain(*given)[0] + 0.01, None))
        assert torch.equal(model(*given), F.scaled_dot_product_attention(*given))
    first, site = record.sites
    assert first.kernel == FUSED
    assert site.kernel == "sdpa"
    assert "rows of its output differ from the formula by 0.0" in site.refusal


def test_product_of_different_dtype_is_unproved():
    with torch.autocast("cpu", torch.bfloat16):
        record, *_ = observe(modules.softmaxed("F.softmax"), torch.randn(2, 6, 16))
    (site,) = record.sites
    assert site.difference is None or not site.differs
    assert (site.unproved is None) == (site.difference is not None)


@pytest.mark.parametrize("wrong", [-1, 0, 1, 3])
def test_listed_heads_report_their_largest_mismatch(wrong):
    torch.manual_seed(0)
    module, masks = nn.Sequential(modules.ListedHeads()), []
    observers = [
        FunctionObserver(check_parts),
        FunctionObserver(lambda seen: masks.append(seen.allowed(1, 5))),
    ]
    with torch.inference_mode(), Off((9, 4), "bmm", call=wrong), recording(module, observers) as record:
        module(torch.randn(2, 9, 16))
    assert [(site.heads, site.differs) for site in record.sites] == [(4, wrong >= 0)]
    assert [mask.shape[1:] for mask in masks] == [(4, 4, 9)]  # each head has its own
    assert record.failures == []


def test_joined_difference_is_unproved_unless_a_part_is_wrong():
    assert join_differences([1e-7, 3e-7], torch.float32) == 3e-7
    assert join_differences([1e-7, None], torch.float32) is None
    assert join_differences([0.5, None], torch.float32) == 0.5
    assert join_differences([None, None], torch.float32) is None
