"""Every figure against plain loops in float64, in blocks of any size, and against closed forms."""

import math
from functools import cache, partial

import numpy as np
import pytest
import torch

from attnscope.attention import Token
from attnscope.measures import MEASURES, Block, Measurement

from .reference import CROSS, ROWS, WINDOWS, Case, attention, figure, random_rows, random_text

LENGTH, HEADS, BATCH = 23, 3, 2


def masks():
    query, key = np.indices((LENGTH, LENGTH))
    causal = key <= query
    padded = np.ones((BATCH, 1, LENGTH, LENGTH), bool)
    padded[1, :, :, -4:] = False
    a_mask_a_head = np.stack([causal, causal & (query - key < 4), causal | (key == 5)])[None]
    return {
        "bidirectional": np.ones((1, 1, LENGTH, LENGTH), bool),
        "causal": causal[None, None],
        "sliding window": (causal & (query - key < 5))[None, None],
        "padded": padded,
        "a mask a head": a_mask_a_head,
        "a closed row": (np.ones((LENGTH, LENGTH), bool) & (query != 7))[None, None],
    }


def cases():
    rng = np.random.default_rng(0)
    texts = [random_text(rng, LENGTH) for _ in range(BATCH)]
    pairs = [random_text(rng, LENGTH, pair=True) for _ in range(BATCH)]
    made = {}
    for name, mask in masks().items():
        mask = np.broadcast_to(mask, (BATCH, *mask.shape[1:]))
        made[name] = Case(random_rows(rng, mask, HEADS, sink=False), mask, texts)
    causal = made["causal"].allowed
    made["no_key"] = Case(random_rows(rng, causal, HEADS, sink=True), causal, texts)
    open_ = np.ones((BATCH, 1, LENGTH, LENGTH), bool)
    made["text pair"] = Case(random_rows(rng, open_, HEADS, sink=False), open_, pairs)
    grid = [Token(f"{n // 5},{n % 5}", (1 << 20) + n) for n in range(LENGTH - 1)]
    pictures = [(Token("[CLS]", 1, special=True), *grid)] * BATCH
    made["patches"] = Case(random_rows(rng, open_, HEADS, sink=False), open_, pictures)
    step = np.broadcast_to(masks()["causal"][:, :, 15:], (BATCH, 1, LENGTH - 15, LENGTH))
    made["cached step"] = Case(random_rows(rng, step, HEADS, sink=False), step, texts, offset=15)
    across = np.ones((BATCH, 1, 11, LENGTH), bool)
    queries = [random_text(rng, 11) for _ in range(BATCH)]
    made["cross"] = Case(random_rows(rng, across, HEADS, False), across, texts, None, queries)
    return made


CASES = cases()


def measure(case, rows, dtype=torch.float32):
    measured = Measurement((*MEASURES, *WINDOWS), block_elements=rows * case.weights[:, :, 0].size)
    kind = attention(case).site.kind
    measured.label({kind: (case.queries, case.keys)})
    measured.observe(attention(case, dtype))
    return measured


def bound(name):
    """The width of a measure's range on these texts."""
    wide = dict.fromkeys(("effective_keys", "distance", "coverage90", "distance2d"), LENGTH)
    return {"entropy": np.log(LENGTH), "offset": 2 * LENGTH, **wide}.get(name, 1.0)


def test_the_reference_knows_every_measure():
    assert list(ROWS) == list(MEASURES)


@pytest.mark.parametrize("name", CASES)
def test_every_figure_and_baseline_equals_the_reference(name):
    case = CASES[name]
    known, by_chance = (cache(partial(figure, each)) for each in (case, case.even()))
    for head in (head for rows in (1, 4, LENGTH, 1000) for head in measure(case, rows).figures()):
        for measure_name in (*MEASURES, *WINDOWS):
            if measure_name == "max_logit":
                assert "only weights are known" in head.absent[measure_name]
                continue
            if name == "cross" and measure_name not in CROSS:
                assert "two sequences" in head.absent[measure_name]
                continue
            value = known(measure_name, head.head)
            if value is None:
                assert measure_name not in head.figures
                assert "there are none" in head.absent[measure_name]
                continue
            baseline = by_chance(measure_name, head.head)
            found = head.figures[measure_name]
            assert found.rows == value[1]
            assert abs(found.value - value[0]) <= 1e-5 * bound(measure_name), measure_name
            assert abs(found.baseline - baseline[0]) <= 1e-5 * bound(measure_name), measure_name


def test_roles_leave_out_rows_with_one_open_key():
    query, key = np.indices((6, 6))
    causal = (key <= query)[None, None]
    weights = np.where(query == key, 0.4, 0.6 / np.maximum(query, 1)) * causal  # row 0 holds 0.4 on itself
    weights[..., 0, 0] = 1.0
    rng = np.random.default_rng(1)
    measured = Measurement()
    measured.observe(attention(Case(weights[0][None], causal, [random_text(rng, 6)])))
    (head,) = measured.figures()
    assert head.figures["self"].value == pytest.approx(0.5)
    assert head.role.name != "self"


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 4e-3), (torch.float16, 5e-4)])
def test_half_precision_rows_are_added_up_in_full_precision(dtype, tolerance):
    case = CASES["causal"]
    weights = torch.from_numpy(case.weights).to(dtype).double().numpy()
    rounded = Case(weights, case.allowed, case.keys, case.offset)
    for head in measure(case, 1000, dtype).figures():
        for name in ("entropy", "previous", "distance"):
            exact, true = figure(rounded, name, head.head), figure(case, name, head.head)
            assert head.figures[name].value == pytest.approx(exact[0], abs=1e-5 * bound(name))
            assert head.figures[name].value == pytest.approx(true[0], abs=tolerance * bound(name))


def test_nan_in_the_weights_is_never_hidden():
    case = CASES["bidirectional"]
    weights = case.weights.copy()
    weights[0, 1, 3, 4] = np.nan
    heads = measure(Case(weights, case.allowed, case.keys), 1000).figures()
    assert np.isnan(heads[1].figures["entropy"].value)
    assert np.isnan(heads[1].figures["no_key"].value)
    assert np.isfinite(heads[0].figures["entropy"].value)


def test_nothing_is_written_into_the_rows():
    noise = torch.Generator().manual_seed(0)
    allowed = (torch.rand(1, 1, 6, 9, generator=noise) < 0.7) | (torch.arange(9) == 0)
    scores = 10 * torch.randn(2, 3, 6, 9, generator=noise, dtype=torch.float64)
    block = Block(scores.masked_fill(~allowed, -torch.inf).softmax(-1), allowed, 2)
    before, mask = block.rows.clone(), block.allowed.clone()
    for measure_ in MEASURES.values():
        if measure_.missing(["positions"]) is None:
            measure_.form.of_block(block)
    assert torch.equal(block.rows, before)
    assert torch.equal(block.allowed, mask)


def test_weights_too_small_for_a_logarithm_add_no_entropy():
    rows = torch.tensor([[[[1.0, 0.0, 1e-45, 1e-40]]]])
    block = Block(rows, torch.ones(1, 1, 1, 4, dtype=torch.bool))
    assert block.entropy.item() == pytest.approx(0, abs=1e-37)


SIZE = 12


def head_of(weights, allowed=None, ids=None):
    """The figures of one head from its weights [query, key]."""
    size = weights.shape[-1]
    text = [Token(f"w{id_}", id_) for id_ in ids or range(100, 100 + size)]
    open_ = np.ones((1, 1, *weights.shape), bool) if allowed is None else allowed[None, None]
    measured = Measurement(tuple(MEASURES))
    measured.observe(attention(Case(weights[None, None], open_, [text])))
    return measured.figures()[0]


def test_even_rows_are_their_own_baseline():
    causal = np.tril(np.ones((SIZE, SIZE), bool))
    for allowed in (causal, np.ones_like(causal)):
        head = head_of(allowed / allowed.sum(-1, keepdims=True), allowed)
        for found in head.figures.values():
            assert found.value == pytest.approx(found.baseline, rel=1e-6, abs=1e-6)
        assert head.figures["normalized_entropy"].value == pytest.approx(1)
        assert head.role.name == "broad"


def test_an_even_row_over_n_keys_has_entropy_log_n_and_span_n():
    figures = head_of(np.full((SIZE, SIZE), 1 / SIZE)).figures
    assert figures["entropy"].value == pytest.approx(math.log(SIZE))
    assert figures["effective_keys"].value == pytest.approx(SIZE)
    assert figures["confidence"].value == pytest.approx(1 / SIZE)
    assert figures["distance"].value == pytest.approx((SIZE**2 - 1) / (3 * SIZE))
    assert figures["offset"].value == pytest.approx(0, abs=1e-6)
    assert head_of(np.full((10, 10), 0.1)).figures["coverage90"].value == 9


EYE = np.eye(SIZE)
FIRST = EYE[np.zeros(SIZE, int)]
ONE_HOT = {  # each row on one key; the role, its figure's rows, and other figures
    "self": (EYE, SIZE, {"entropy": 0, "effective_keys": 1, "coverage90": 1, "distance": 0}),
    "previous": (EYE[[0, *range(SIZE - 1)]], SIZE - 1, {"offset": (1 - SIZE) / SIZE}),
    "next": (EYE[[*range(1, SIZE), SIZE - 1]], SIZE - 1, {"offset": (SIZE - 1) / SIZE}),
    "first": (FIRST, SIZE - 1, {"entropy": 0}),
}


@pytest.mark.parametrize("name", ONE_HOT)
def test_rows_on_one_key_are_named_by_its_place(name):
    weights, rows, others = ONE_HOT[name]
    head = head_of(weights)
    assert (head.figures[name].value, head.figures[name].rows) == (1, rows)
    assert {other: head.figures[other].value for other in others} == pytest.approx(others)
    assert (head.role.name, head.role.score) == (name, 1)


def test_a_single_token_has_no_entropy_and_no_role():
    head = head_of(np.ones((1, 1)))
    assert "entropy" not in head.figures
    assert head.role is None
    assert head.figures["self"].value == 1
