"""Every score against plain loops in float64, in blocks of any size, and against closed forms."""

import math
from functools import cache, partial

import numpy as np
import pytest
import torch

from attnscope.attention import Token
from attnscope.measures import MEASURES, Block, Measurement

from .reference import CROSS, ROWS, WINDOWS, Case, attention, random_rows, random_text, score
from .rounding import near

LENGTH, HEADS, BATCH = 23, 3, 2


def cases():
    rng = np.random.default_rng(0)
    texts, pairs = ([random_text(rng, LENGTH, pair) for _ in range(BATCH)] for pair in (False, True))
    grid = [Token(f"{n // 5},{n % 5}", (1 << 20) + n) for n in range(LENGTH - 1)]
    query, key = np.indices((LENGTH, LENGTH))
    causal, open_ = key <= query, np.ones((LENGTH, LENGTH), bool)
    padded = np.stack([open_, open_ & (key < LENGTH - 4)])[:, None]
    a_mask_a_head = np.stack([causal, causal & (query - key < 4), causal | (key == 5)])

    def case(mask, texts=texts, *others, sink=False):
        mask = np.broadcast_to(mask, (BATCH, *mask.shape[-3:]) if mask.ndim > 2 else (BATCH, 1, *mask.shape))
        return Case(random_rows(rng, mask, HEADS, sink), mask, texts, *others)

    return {
        "bidirectional": case(open_),
        "causal": case(causal),
        "sliding window": case(causal & (query - key < 5)),
        "padded": case(padded),
        "a mask a head": case(a_mask_a_head),
        "a closed row": case(open_ & (query != 7)),
        "no_key": case(causal, sink=True),
        "text pair": case(open_, pairs),
        "patches": case(open_, [(Token("[CLS]", 1, special=True), *grid)] * BATCH),
        "cached step": case(causal[15:], texts, 15),
        "cross": case(open_[:11], texts, None, [random_text(rng, 11) for _ in range(BATCH)]),
    }


CASES = cases()


def measure(case, rows, dtype=torch.float32):
    given = attention(case, dtype)
    measured = Measurement((*MEASURES, *WINDOWS), block_elements=rows * case.weights[:, :, 0].size)
    measured.label({given.site.kind: (case.queries, case.keys)})
    measured.observe(given)
    return measured.scores()


def test_reference_covers_every_measure():
    assert list(ROWS) == list(MEASURES)


@pytest.mark.parametrize("name", CASES)
def test_every_score_and_baseline_equals_the_reference(name):
    case = CASES[name]
    known, by_chance = (cache(partial(score, each)) for each in (case, case.even()))
    for head in (head for rows in (1, 4, LENGTH, 1000) for head in measure(case, rows)):
        for measure_name in (*MEASURES, *WINDOWS):
            across = name == "cross" and measure_name not in (*CROSS, "max_logit")
            value = None if across else known(measure_name, head.head)
            if value is None:
                reason = "here there are two" if across else "there are none"
                reason = "only weights are known" if measure_name == "max_logit" else reason
                assert reason in head.absent[measure_name]
                assert measure_name not in head.scores
                continue
            found = head.scores[measure_name]
            assert found.rows == value[1]
            for mean, wanted in ((found.value, value), (found.baseline, by_chance(measure_name, head.head))):
                assert mean == near(wanted[0], measure_name, LENGTH), measure_name


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 4e-3), (torch.float16, 5e-4)])
def test_half_precision_rows_are_summed_in_full_precision(dtype, tolerance):
    case = CASES["causal"]
    weights = torch.from_numpy(case.weights).to(dtype).double().numpy()
    rounded = Case(weights, case.allowed, case.keys, case.offset)
    for head in measure(case, 1000, dtype):
        for name in ("entropy", "previous", "distance"):
            exact, true = score(rounded, name, head.head), score(case, name, head.head)
            assert head.scores[name].value == near(exact[0], name, LENGTH)
            assert head.scores[name].value == near(true[0], name, LENGTH, tolerance)


def test_nan_weights_give_nan_scores():
    case = CASES["bidirectional"]
    weights = case.weights.copy()
    weights[0, 1, 3, 4] = np.nan
    whole, spoilt, _ = measure(Case(weights, case.allowed, case.keys), 1000)
    assert all(np.isnan(spoilt.scores[name].value) for name in ("entropy", "no_key"))
    assert np.isfinite(whole.scores["entropy"].value)


def test_measures_do_not_write_into_rows():
    case = CASES["padded"]
    block = Block(torch.from_numpy(case.weights), torch.from_numpy(case.allowed.copy()), 2)
    before, mask = block.rows.clone(), block.allowed.clone()
    for measure_ in MEASURES.values():
        if measure_.missing(["positions"]) is None:
            measure_.form.measure_block(block)
    assert torch.equal(block.rows, before)
    assert torch.equal(block.allowed, mask)


def test_subnormal_weights_add_no_entropy():
    rows = torch.tensor([[[[1.0, 0.0, 1e-45, 1e-40]]]])
    block = Block(rows, torch.ones(1, 1, 1, 4, dtype=torch.bool))
    assert block.entropy.item() == pytest.approx(0, abs=1e-37)


SIZE = 12


def head_of(weights, allowed=None, ids=None):
    """The scores of one head from its weights [query, key]."""
    size = weights.shape[-1]
    text = [Token(f"w{id_}", id_) for id_ in ids or range(100, 100 + size)]
    open_ = np.ones((1, 1, *weights.shape), bool) if allowed is None else allowed[None, None]
    measured = Measurement(tuple(MEASURES))
    measured.observe(attention(Case(weights[None, None], open_, [text])))
    return measured.scores()[0]


CAUSAL = np.tril(np.ones((SIZE, SIZE), bool))


def test_uniform_rows_equal_their_baseline_and_closed_forms():
    for allowed in (CAUSAL, np.ones_like(CAUSAL)):
        head = head_of(allowed / allowed.sum(-1, keepdims=True), allowed)
        for found in head.scores.values():
            assert found.value == pytest.approx(found.baseline, rel=1e-6, abs=1e-6)
        assert head.scores["normalized_entropy"].value == pytest.approx(1)
        assert head.role.name == "broad"
    wanted = {"entropy": math.log(SIZE), "effective_keys": SIZE, "confidence": 1 / SIZE}
    wanted["distance"] = (SIZE**2 - 1) / (3 * SIZE)
    assert {name: head.scores[name].value for name in wanted} == pytest.approx(wanted)
    assert head.scores["offset"].value == pytest.approx(0, abs=1e-6)
    assert head_of(np.full((10, 10), 0.1)).scores["coverage90"].value == 9


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_coverage90_tolerates_a_millionth_of_the_row(dtype):
    part = [[0.9 - short, 0.1 + short] for short in (-1e-5, 0, 5e-7, 2e-6, 1e-5)]
    rows = torch.tensor([[[*part, [each / 3 for each in part[2]]]]], dtype=dtype)  # one with a sink
    found = MEASURES["coverage90"].form.measure_block(Block(rows, rows > 0)).value
    assert found.flatten().tolist() == [1, 1, 1, 2, 2, 1]


def test_roles_exclude_rows_with_one_unmasked_key():
    causal = np.tril(np.ones((100, 100), bool))
    weights = causal * 0.504 / np.maximum(np.arange(100), 1)[:, None]
    np.fill_diagonal(weights, [1.0, *[0.496] * 99])
    head = head_of(weights, causal)
    assert head.scores["self"].value == pytest.approx(0.50104)
    assert head.role.name == "none"


EYE = np.eye(SIZE)
FIRST = EYE[np.zeros(SIZE, int)]
ONE_HOT = {  # each row on one key; the role, its score's rows, and other scores
    "self": (EYE, SIZE, {"entropy": 0, "effective_keys": 1, "coverage90": 1, "distance": 0}),
    "previous": (EYE[[0, *range(SIZE - 1)]], SIZE - 1, {"offset": (1 - SIZE) / SIZE}),
    "next": (EYE[[*range(1, SIZE), SIZE - 1]], SIZE - 1, {"offset": (SIZE - 1) / SIZE}),
    "first": (FIRST, SIZE - 1, {"entropy": 0}),
}


@pytest.mark.parametrize("name", ONE_HOT)
def test_one_hot_rows_get_the_role_of_their_key(name):
    weights, rows, others = ONE_HOT[name]
    head = head_of(weights)
    assert (head.scores[name].value, head.scores[name].rows) == (1, rows)
    assert {other: head.scores[other].value for other in others} == pytest.approx(others)
    assert (head.role.name, head.role.score) == (name, 1)


def test_single_token_has_no_entropy_and_no_role():
    head = head_of(np.ones((1, 1)))
    assert "entropy" not in head.scores
    assert head.role is None
    assert head.scores["self"].value == 1
