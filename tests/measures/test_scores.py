"""The largest score before the softmax, by hand from queries and keys, however it is read."""

import json

import numpy as np
import pytest
import torch

from attnscope.attention import Attention, AttentionCall, HeldRows, Site
from attnscope.capture.rows.scores import ScoredRows
from attnscope.fused.fused_pass import FusedPass
from attnscope.measures import Measurement

LENGTH, SIZE, HEADS, BATCH = 37, 8, 4, 2
SCALE = 0.7
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
    for mask in call.masks:
        scores = np.where(mask.numpy(), scores, -np.inf)
    if call.diagonal == 0:
        scores = np.where(CAUSAL.numpy(), scores, -np.inf)
    return scores.max((0, 2, 3)).tolist()


def measured(call, how, parts=1):
    """All heads of a call, read from the fused pass, from scores or from held weights."""
    scored, statistics = ScoredRows(call), None
    if how == "fused":
        with torch.inference_mode():
            from attnscope.measures import fused_request

            _, statistics = FusedPass(fused_request(MEASURED, []), shortest=1).attend(call)
    read = (
        HeldRows(scored.rows(0, LENGTH, None), scored.allowed(0, LENGTH), call) if how == "held" else scored
    )
    axis = range(LENGTH)
    made = Attention(
        Site("layer.0", 0, "decoder", 0), "kernel", "sdpa", BATCH, HEADS, HEADS, axis, axis, 0,
        torch.float32, read, statistics,
    )  # fmt: skip
    one = Measurement(MEASURED, block_elements=LENGTH * LENGTH * HEADS * BATCH // parts)
    one.observe(made)
    return one


def tops(one):
    return [head.figures["max_logit"].value for head in one.figures()]


@pytest.mark.parametrize("how", ["fused", "rows", "held"])
@pytest.mark.parametrize("name", CALLS)
def test_it_is_the_largest_score_of_any_row(name, how):
    one = measured(CALLS[name], how, parts=5)
    assert tops(one) == pytest.approx(by_hand(CALLS[name]), rel=1e-5)
    figure = one.figures()[0].figures["max_logit"]
    assert (figure.baseline, figure.rows, figure.texts) == (0.0, LENGTH * BATCH, BATCH)


def test_parts_of_a_corpus_keep_the_largest_and_survive_being_written_down():
    one, other = CALLS["causal"], CALLS["bidirectional"]
    both = measured(one, "rows")
    both.merge(Measurement.from_state(json.loads(json.dumps(measured(other, "fused").state()))))
    wanted = np.maximum(by_hand(one), by_hand(other))
    assert tops(both) == pytest.approx(wanted.tolist(), rel=1e-5)


def test_scores_that_do_not_make_the_weights_are_not_believed():
    call = CALLS["causal"]
    weights = ScoredRows(call).rows(0, LENGTH, None).sqrt()
    axis = range(LENGTH)
    one = Measurement(MEASURED)
    held = HeldRows(weights, CAUSAL, call)
    site = Site("layer.0", 0, "decoder", 0)
    one.observe(Attention(site, "kernel", "eager", BATCH, HEADS, HEADS, axis, axis, 0, torch.float32, held))
    assert "only weights are known" in one.figures()[0].absent["max_logit"]
