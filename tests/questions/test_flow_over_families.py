"""``flow`` over the families: NumPy on the models' own eager weights and states, and linear programming."""

import numpy as np
import pytest
import torch
from scipy.optimize import linprog

from attnscope.models import weighed
from attnscope.models.inputs import ModelInput
from attnscope.models.targets import Prediction
from attnscope.questions.flow import follow_flow
from attnscope.questions.selection import Selection
from tests.capture.test_projections import ALL
from tests.capture.tiny import inputs, own_attentions
from tests.models.test_weighed import NORMED, SUMMED, block_vectors, random_model

pytestmark = pytest.mark.slow

DAILY = ("bert", "gpt2", "gemma2", "t5")
"""A norm behind the sum, none, one before it, and both sides of a pair; the others are swept."""


def over(names):
    """Every family, of which some are tested each time."""
    swept = [name if name in DAILY else pytest.param(name, marks=pytest.mark.sweep) for name in names]
    return pytest.mark.parametrize("name", swept)


def sum_of_states(given):
    """A score that hangs on every row of the last layer, each by another slope."""
    last = given.last_hidden_state
    return (last * torch.linspace(-1, 2, last.numel(), dtype=last.dtype).view_as(last)).sum()


def _asked(name):
    """A model in float64, and one short text, or picture or sound.

    ALTI takes lengths from each other that are nearly alike: in float32 it is off by up to 3e-6. GPT-OSS
    stays in it, whose experts have no product in float64.
    """
    given = inputs(ALL[name].inputs, 1, 6)
    given.pop("attention_mask", None)
    model = random_model(name)
    if name != "gpt-oss":
        model.module.double()
        given = {key: each.double() if each.is_floating_point() else each for key, each in given.items()}
    return model, ModelInput(given, {}, ())


def _eager(model, text):
    """A pass of the model's own eager attention, and the weights of its calls in their order, with kinds."""
    eager = ALL[model.name].build("eager")
    eager.to(next(model.module.parameters()).dtype).load_state_dict(model.module.state_dict())
    made = eager(**text.inputs, output_attentions=True)
    own = own_attentions(made)
    calls = [(kind, each) for kind in ("self", "encoder") for each in own.get(kind, ())]
    for both in zip(own.get("decoder", ()), own.get("cross", ()), strict=True):
        calls += zip(("decoder", "cross"), both, strict=True)
    return made, calls


def _means(model, text):
    """The mean over heads of the model's own eager attention."""
    with torch.no_grad():
        return [(kind, each[0].double().mean(0).numpy()) for kind, each in _eager(model, text)[1]]


def _followed(calls, step):
    """By kind, what the tokens of each layer are made of, by the kind and the matrix of each call.

    ``step`` maps what the encoder's tokens and then the decoder's are made of to the same after a call, by
    its kind, its rows, and its matrix among all tokens. Across, one more column is its own token's.
    """
    crossed, other = calls[-1][0] == "cross", len(calls[0][1])
    theirs, ours = slice(0, other), slice(other, other + crossed * len(calls[-1][1]))
    made, maps = np.eye(ours.stop), {}
    for kind, matrix in calls:
        rows, full = ours if kind in ("decoder", "cross") and crossed else theirs, np.zeros_like(made)
        full[rows, theirs if kind == "cross" else rows] = matrix[:, : other if kind == "cross" else None]
        if kind == "cross":
            full[ours, ours] = np.diag(matrix[:, other:].sum(1))
        made = step(made, kind, rows, full)
        shown = made / made.sum(-1, keepdims=True)
        if rows == theirs:
            maps.setdefault("encoder" if crossed else "self", []).append(shown[theirs, theirs])
        elif kind == "cross":
            maps.setdefault("decoder", []).append(shown[ours, ours])
            maps.setdefault("cross", []).append(shown[ours, theirs])
    return maps


def _share(rows, full, kept=0.0):
    """Some rows over their sums, a part ``kept`` from their own tokens; others stay."""
    shares = np.eye(len(full))
    shares[rows] = kept * shares[rows] + (1 - kept) * full[rows] / full[rows].sum(-1, keepdims=True)
    return shares


def _check(seen, expected):
    if "self" in expected:
        expected = {next(iter(seen.maps)): expected["self"]}
    assert set(seen.maps) == set(expected)
    for kind, maps in expected.items():
        for (_, ours), theirs in zip(seen.maps[kind], maps, strict=True):
            np.testing.assert_allclose(ours.values, theirs, atol=1e-6, rtol=0)


@over(ALL)
def test_rollout_is_the_product_of_eager_attention(name):
    model, text = _asked(name)
    expected = _followed(_means(model, text), lambda made, _, rows, full: _share(rows, full, 0.5) @ made)
    _check(follow_flow(model, text, "rollout", Selection()), expected)


@over(sorted(NORMED | SUMMED))
def test_alti_is_the_product_of_what_each_vector_brings_to_what_the_block_really_gives(name, monkeypatch):
    monkeypatch.setattr("attnscope.measures.weighing.ROWS", 3)  # several blocks of rows, the last one shorter
    model, text = _asked(name)
    calls = []
    for site, vectors, part, _, given in block_vectors(model, text):
        brought = vectors[0].sum(0)  # [query, key, width]
        if site.kind == "cross":
            brought = np.concatenate([brought, vectors.shape[1] * part[0, 0][:, None]], 1)
        length = np.abs(given[0]).sum(-1, keepdims=True)
        near = np.maximum(0, length - np.abs(given[0][:, None] - brought).sum(-1))
        near[~brought.any(-1)] = 0  # of sums in another order a rounding stays
        (empty,) = np.nonzero(near.sum(-1) == 0)  # where no vector brings the sum nearer
        near[empty, -1 if site.kind == "cross" else empty] = 1
        calls.append((site.kind, near))
    expected = _followed(calls, lambda made, _, rows, full: _share(rows, full) @ made)
    _check(follow_flow(model, text, "alti", Selection()), expected)


def _raising(model, text):
    """What in each call's eager weights raises a score, by autograd: the mean of all heads."""
    made, calls = _eager(model, text)
    slopes = torch.autograd.grad(sum_of_states(made), [weights for _, weights in calls])
    raising = (weights * slope for (_, weights), slope in zip(calls, slopes, strict=True))
    found = (each.detach().clamp(min=0)[0].double().mean(0).numpy() for each in raising)
    return list(zip((kind for kind, _ in calls), found, strict=True))


def _added(made, kind, rows, full):
    """``R + A R`` inside a side; across, ``R + S A E`` of what is more than itself in either side."""
    if kind != "cross":
        return made + full @ made
    more, theirs = np.zeros_like(made), slice(0, rows.start)
    more[rows, theirs] = _evened(made[rows, rows]) @ full[rows, theirs] @ _evened(made[theirs, theirs])
    return made + more


def _evened(made):
    """What is more than itself, over its sum, and itself."""
    more = made - np.eye(len(made))
    total = more.sum(-1, keepdims=True)
    return np.eye(len(made)) + more / np.where(total > 0, total, 1)


@over(ALL)
def test_relevance_adds_up_what_raises_a_score_by_autograd_on_eager_weights(name, monkeypatch):
    model, text = _asked(name)

    def score(model, prepared, target):
        found = sum_of_states(model.module(**prepared.inputs))
        return Prediction(found, 0, None, "all states", found)

    monkeypatch.setattr(weighed, "score_prediction", score)
    expected = _followed(_raising(model, text), _added)
    _check(follow_flow(model, text, "relevance", Selection()), expected)


def programmed(edges, source, sink):
    """The largest flow from a node above to one below, as a linear programme over the edges."""
    inner = sorted({node for edge in edges for node in edge[:2]} - {source, sink})
    kept = np.array([[(start == node) - (end == node) for start, end, _ in edges] for node in inner], float)
    gain = [(end == source) - (start == source) + 0.0 for start, end, _ in edges]
    bounds = [(0, capacity) for _, _, capacity in edges]
    return -linprog(gain, A_eq=kept, b_eq=np.zeros(len(kept)), bounds=bounds).fun


@over(ALL)
def test_the_largest_flow_of_a_token_is_that_of_linear_programming(name):
    model, text = _asked(name)
    layers, calls = [], _means(model, text)
    _followed(calls, lambda made, _, rows, full: layers.append(_share(rows, full, 0.5)) or made)
    edges = [
        ((after + 1, query), (after, key), capacity)
        for after, shares in enumerate(layers)
        for (query, key), capacity in np.ndenumerate(shares)
        if capacity
    ]
    row, size = len(calls[-1][1]) - 2, len(layers[0])
    source = len(layers), size - len(calls[-1][1]) + row
    flows = [programmed(edges, source, (0, key)) for key in range(size)]
    seen = follow_flow(model, text, "flow", Selection(), token=str(row))
    kinds = ("cross", "decoder") if "cross" in seen.maps else seen.maps
    ours = np.concatenate([seen.maps[kind][-1][1].values[0] for kind in kinds])
    np.testing.assert_allclose(ours, np.array(flows) / sum(flows), atol=1e-6, rtol=0)
