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


def _shares(model, text):
    """The steps of rollout by the model's own eager attention; across, the last column stays."""
    eager = ALL[model.name].build("eager")
    eager.to(next(model.module.parameters()).dtype).load_state_dict(model.module.state_dict())
    with torch.no_grad():
        own = own_attentions(eager(**text.inputs, output_attentions=True))
    halves = {
        kind: [
            weights / weights.sum(-1, keepdims=True) / 2
            for weights in (each[0].double().mean(0).numpy() for each in layers)
        ]
        for kind, layers in own.items()
    }
    if "self" in own:
        return [("self", half + np.eye(len(half)) / 2) for half in halves["self"]]
    steps = [("encoder", half + np.eye(len(half)) / 2) for half in halves["encoder"]]
    for half, across in zip(halves["decoder"], halves["cross"], strict=True):
        steps += [("decoder", half + np.eye(len(half)) / 2)]
        steps += [("cross", np.pad(across, ((0, 0), (0, 1)), constant_values=0.5))]
    return steps


def _multiplied(steps):
    """By kind, what the tokens of each layer are made of."""
    others = steps[0][1].shape[1]
    own = next((len(shares) for kind, shares in steps if kind == "decoder"), 0)
    first, side, across = np.eye(others), np.eye(own), np.zeros((own, others))
    maps = {}
    for kind, shares in steps:
        if kind in ("self", "encoder"):
            maps.setdefault(kind, []).append(first := shares @ first)
        elif kind == "decoder":
            side, across = shares @ side, shares @ across
        else:
            side, across = shares[:, -1:] * side, shares[:, -1:] * across + shares[:, :-1] @ first
            maps.setdefault("decoder", []).append(side)
            maps.setdefault("cross", []).append(across)
    return maps


def _check(seen, expected):
    """Each map, and that the rows of all that a token is made of sum to 1."""
    if "self" in expected:
        expected = {next(iter(seen.maps)): expected["self"]}
    assert set(seen.maps) == set(expected)
    for kind, maps in expected.items():
        for (_, ours), theirs in zip(seen.maps[kind], maps, strict=True):
            np.testing.assert_allclose(ours.values, theirs, atol=1e-6, rtol=0)
    for kind in {"encoder", "decoder"} & set(seen.maps):
        across = seen.maps.get("cross") if kind == "decoder" else None
        for number, (_, own) in enumerate(seen.maps[kind]):
            total = own.values.sum(-1) + (across[number][1].values.sum(-1) if across else 0)
            np.testing.assert_allclose(total, 1, atol=1e-6)


@over(ALL)
def test_rollout_is_the_product_of_eager_attention(name):
    model, text = _asked(name)
    _check(follow_flow(model, text, "rollout", Selection()), _multiplied(_shares(model, text)))


@over(sorted(NORMED | SUMMED))
def test_alti_is_the_product_of_what_each_vector_brings_to_what_the_block_really_gives(name, monkeypatch):
    monkeypatch.setattr("attnscope.measures.weighing.ROWS", 3)  # several blocks of rows, the last one shorter
    model, text = _asked(name)
    steps = []
    for site, vectors, part, _, given in block_vectors(model, text):
        brought = vectors[0].sum(0)  # [query, key, width]
        if site.kind == "cross":
            brought = np.concatenate([brought, vectors.shape[1] * part[0, 0][:, None]], 1)
        length = np.abs(given[0]).sum(-1, keepdims=True)
        near = np.maximum(0, length - np.abs(given[0][:, None] - brought).sum(-1))
        near[~brought.any(-1)] = 0  # of sums in another order a rounding stays
        (empty,) = np.nonzero(near.sum(-1) == 0)  # where no vector brings the sum nearer
        near[empty, -1 if site.kind == "cross" else empty] = 1
        steps.append((site.kind, near / near.sum(-1, keepdims=True)))
    if not any(kind == "cross" for kind, _ in steps):
        steps = [("self", shares) for _, shares in steps]
    _check(follow_flow(model, text, "alti", Selection()), _multiplied(steps))


def _raising(model, text):
    """By kind, what in each layer's eager weights raises a score, by autograd: the mean of all heads."""
    eager = ALL[model.name].build("eager")
    eager.to(next(model.module.parameters()).dtype).load_state_dict(model.module.state_dict())
    theirs = eager(**text.inputs, output_attentions=True)
    own = own_attentions(theirs)
    slopes = iter(
        torch.autograd.grad(sum_of_states(theirs), [each for kind in own.values() for each in kind])
    )
    return {
        kind: [
            (weights * next(slopes)).detach().clamp(min=0)[0].double().mean(0).numpy() for weights in layers
        ]
        for kind, layers in own.items()
    }


def _added(raising):
    """By kind, ``R + A R`` of all layers so far, over the sums of its rows."""
    first = raising["self" if "self" in raising else "encoder"]
    maps, made = [], np.eye(len(first[0]))
    for matrix in first:
        made = made + matrix @ made
        maps.append(made / made.sum(-1, keepdims=True))
    if "self" in raising:
        return {"self": maps}
    side, across = np.eye(len(raising["decoder"][0])), np.zeros((len(raising["decoder"][0]), len(made)))
    both = []
    for own, other in zip(raising["decoder"], raising["cross"], strict=True):
        side, across = side + own @ side, across + own @ across
        across = across + _evened(side) @ other @ _evened(made)
        total = side.sum(-1, keepdims=True) + across.sum(-1, keepdims=True)
        both.append((side / total, across / total))
    return {"encoder": maps, "decoder": [one for one, _ in both], "cross": [other for _, other in both]}


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
    _check(follow_flow(model, text, "relevance", Selection()), _added(_raising(model, text)))


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
    steps = _shares(model, text)
    edges, at = [], {"other": 0, "own": 0}
    for kind, shares in steps:
        side = "own" if kind in ("decoder", "cross") else "other"
        below, other = at[side], len(steps[0][1])
        at[side] += 1
        for query, key in np.argwhere(shares > 0):
            end = (side, below, key)
            if kind == "cross":
                end = ("own", below, query) if key == other else ("other", at["other"], key)
            edges.append(((side, at[side], query), end, shares[query, key]))
    row = len(steps[-1][1]) - 2
    sinks = [
        (name, 0, key)
        for name, kinds in (("own", ("decoder",)), ("other", ("self", "encoder")))
        for key in range(next((len(shares) for kind, shares in steps if kind in kinds), 0))
    ]
    reached = {edge[1] for edge in edges}
    flows = [programmed(edges, (side, at[side], row), sink) if sink in reached else 0.0 for sink in sinks]
    seen = follow_flow(model, text, "flow", Selection(), token=str(row))
    kinds = ("decoder", "cross") if "cross" in seen.maps else seen.maps
    ours = np.concatenate([seen.maps[kind][-1][1].values[0] for kind in kinds])
    np.testing.assert_allclose(ours, np.array(flows) / sum(flows), atol=1e-6, rtol=0)
