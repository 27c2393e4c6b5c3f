"""The fused pass's statistics are used if they suffice for every measure; otherwise rows are read.

Statistics are compared with brute force in ``tests/fused/test_fused_pass.py``.
"""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from attnscope.attention import AttentionCall, HeldRows
from attnscope.capture.rows.scores import ScoredRows
from attnscope.fused.fused_pass import FusedPass
from attnscope.measures import DEFAULT, MEASURES, Measurement, fused_request
from tests.measures.reference import random_text, shown

LENGTH, SIZE, HEADS, BATCH = 37, 8, 4, 2


def statistics_of(call, request):
    with torch.inference_mode():
        return FusedPass(request, shortest=1).attend(call)[1]


class Unreadable(HeldRows):
    """Rows that must not be read."""

    def rows(self, start, stop, heads):
        raise AssertionError("the statistics were not used")


def measure(text, names, asked=None, offset=0):
    """Measure a causal call from its statistics alone, those that ``asked``, another text, has."""
    query, key, value = torch.randn(3, 1, HEADS, len(text), SIZE)
    request = fused_request([name for name in names if MEASURES[name].form.fused], [asked or text])
    statistics = statistics_of(AttentionCall(query, key, value, SIZE**-0.5, diagonal=0), request)
    measured = Measurement(names)
    measured.label({"encoder": ([text], [text])})
    read = Unreadable(query @ key.mT)
    measured.observe(shown(read, (1, HEADS), (text, text), offset, statistics=statistics))


TEXT, PAIR = (random_text(np.random.default_rng(3), 97, pair) for pair in (False, True))


def test_measures_unsupported_by_fused_pass_are_rejected_first():
    """Such as those of segments, where a text has two."""
    assert None not in (fused_request(DEFAULT, [TEXT]), fused_request(("entropy", "special"), [PAIR]))
    assert fused_request((*DEFAULT, "coverage90"), [TEXT]) is fused_request(("segment",), [PAIR]) is None
    measure(PAIR, ("entropy", "special"))
    with pytest.raises(AssertionError, match="statistics were not used"):
        measure(TEXT, ("coverage90",))


def test_entropy_rounded_below_zero_is_zero():
    query = key = torch.randn(1, HEADS, 97, SIZE)
    statistics = statistics_of(
        AttentionCall(query, key, key, 0.1, diagonal=0), fused_request(DEFAULT, [TEXT])
    )
    statistics = replace(statistics, entropy=torch.full_like(statistics.entropy, -1e-6))
    measured = Measurement(("entropy", "normalized_entropy", "effective_keys"))
    measured.label({"encoder": ([TEXT], [TEXT])})
    measured.observe(shown(Unreadable(query @ key.mT), (1, HEADS), (TEXT, TEXT), 0, statistics=statistics))
    for head in measured.scores():
        assert [score.value for score in head.scores.values()] == [0, 0, 1]


def test_statistics_of_other_text_or_positions_are_not_used():
    measure(TEXT, ("duplicate",))
    for given in ({"asked": random_text(np.random.default_rng(4), 97)}, {"offset": 4}):
        with pytest.raises(AssertionError, match="statistics were not used"):
            measure(TEXT, ("duplicate",), **given)


SCALE, AXES = 0.7, (range(LENGTH), range(LENGTH))
CAUSAL = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()[None, None]
BIAS = torch.randn(1, HEADS, LENGTH, LENGTH, generator=torch.Generator().manual_seed(1)) * 5
MEASURED = "max_logit", "sink_rate"


def call_of(**given):
    generator = torch.Generator().manual_seed(3)
    query = torch.randn(BATCH, HEADS, LENGTH, SIZE, generator=generator) * 3
    key, value = torch.randn(2, BATCH, given.pop("key_heads", HEADS), LENGTH, SIZE, generator=generator)
    return AttentionCall(query, key, value, SCALE, **given)


CALLS = {
    "causal": call_of(masks=(CAUSAL,)),
    "bidirectional": call_of(),
    "a causal diagonal": call_of(diagonal=0),
    "a window": call_of(masks=(CAUSAL & ~CAUSAL.tril(-5),)),
    "grouped heads": call_of(masks=(CAUSAL,), key_heads=2),
    "a soft cap": call_of(masks=(CAUSAL,), softcap=2.0),
    "a position bias": call_of(biases=(BIAS.masked_fill(~CAUSAL, -torch.inf),)),
    "a sink logit": call_of(masks=(CAUSAL,), sinks=torch.tensor([90.0, 1.0, 2.0, 3.0])),
}


def by_hand(call):
    """The largest score of each head, in plain NumPy."""
    query, key = call.query.double().numpy(), call.key.double().numpy()
    scores = np.einsum("bhqd,bhkd->bhqk", query, key.repeat(HEADS // key.shape[1], 1)) * SCALE
    if call.softcap:
        scores = call.softcap * np.tanh(scores / call.softcap)
    for bias in call.biases:
        scores = scores + bias.numpy()
    for mask in (*call.masks, *[CAUSAL] * (call.diagonal == 0)):
        scores = np.where(mask.numpy(), scores, -np.inf)
    return scores.max((0, 2, 3)).tolist()


def measured(read, statistics=None):
    """All heads of a call, in blocks of a fifth of it."""
    one = Measurement(MEASURED, block_elements=LENGTH * LENGTH * HEADS * BATCH // 5)
    one.observe(shown(read, (BATCH, HEADS), AXES, statistics=statistics))
    return one


def held(call):
    scored = ScoredRows(call)
    return HeldRows(scored.rows(0, LENGTH, None), scored.allowed(0, LENGTH), call)


def fused(call):
    return measured(ScoredRows(call), statistics_of(call, fused_request(MEASURED, [])))


@pytest.mark.parametrize("name", CALLS)
def test_max_logit_is_the_largest_score_from_every_row_source(name):
    call = CALLS[name]
    for one in (fused(call), measured(ScoredRows(call)), measured(held(call))):
        found = [head.scores["max_logit"] for head in one.scores()]
        assert [score.value for score in found] == pytest.approx(by_hand(call), rel=1e-5)
        assert (found[0].baseline, found[0].rows, found[0].texts) == (0.0, LENGTH * BATCH, BATCH)


def test_max_logit_merges_by_maximum_and_survives_json():
    one, other = CALLS["causal"], CALLS["bidirectional"]
    both = measured(ScoredRows(one))
    both.merge(Measurement.from_state(json.loads(json.dumps(fused(other).state()))))
    wanted = np.maximum(by_hand(one), by_hand(other))
    tops = [head.scores["max_logit"].value for head in both.scores()]
    assert tops == pytest.approx(wanted.tolist(), rel=1e-5)


def test_max_logit_is_absent_if_scores_do_not_match_weights():
    other = replace(held(CALLS["causal"]), weights=held(CALLS["causal"]).weights.sqrt())
    assert "only weights are known" in measured(other).scores()[0].absent["max_logit"]
