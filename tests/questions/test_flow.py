"""Flow through the layers, against eager weights and states, and linear programming."""

import numpy as np
import pytest
import torch
from scipy.optimize import linprog

from attnscope.capture.record import FunctionObserver
from attnscope.errors import ModelError, SelectionError
from attnscope.models import load, weighting
from attnscope.models.inputs import ModelInput
from attnscope.models.targets import Prediction
from attnscope.questions.flow import as_shares, focus_token, follow_flow
from attnscope.questions.selection import Selection
from tests.capture.test_projections import ALL, OTHERS
from tests.capture.tiny import inputs, own_attentions
from tests.models.folders import t5
from tests.models.test_weighting import NORMED, SUMMED, block_vectors, random_model

DAILY = ("bert", "gpt2", "gemma2", "t5")
"""A norm behind the sum, none, one before it, and both sides of a pair; the others are swept."""


def over(names):
    """Every family, of which some are tested each time."""
    marks = {name: [pytest.mark.slow] + [pytest.mark.sweep] * (name not in DAILY) for name in names}
    return pytest.mark.parametrize("name", [pytest.param(name, marks=marks[name]) for name in names])


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


def _check(seen, expected, lost=1.0):
    """Maps are those expected, to a millionth, or so many of them where a difference lost digits."""
    if "self" in expected:
        expected = {next(iter(seen.maps)): expected["self"]}
    assert set(seen.maps) == set(expected)
    for kind, maps in expected.items():
        for (_, ours), theirs in zip(seen.maps[kind], maps, strict=True):
            np.testing.assert_allclose(ours.values, theirs, atol=1e-6 * lost, rtol=0)


@over(ALL)
def test_rollout_equals_product_of_eager_attention(name):
    model, text = _asked(name)
    expected = _followed(_means(model, text), lambda made, _, rows, full: _share(rows, full, 0.5) @ made)
    _check(follow_flow(model, text, "rollout", Selection()), expected)


@over(sorted(NORMED | SUMMED))
def test_alti_equals_product_of_vector_contributions_by_hand(name, monkeypatch):
    monkeypatch.setattr("attnscope.measures.weighting.BLOCK_ROWS", 3)  # several blocks, the last one shorter
    model, text = _asked(name)
    calls, lost = [], 1.0
    for site, vectors, part, _, given in block_vectors(model, text):
        brought = vectors[0].sum(0)  # [query, key, width]
        if site.kind == "cross":
            brought = np.concatenate([brought, vectors.shape[1] * part[0, 0][:, None]], 1)
        length = np.abs(given[0]).sum(-1, keepdims=True)
        near = np.maximum(0, length - np.abs(given[0][:, None] - brought).sum(-1))
        near[~brought.any(-1)] = 0  # of sums in another order a rounding stays
        total = near.sum(-1)
        lost = max(lost, *(length[:, 0] / np.where(total, total, np.inf)))
        (empty,) = np.nonzero(total == 0)  # where no vector brings the sum nearer
        near[empty, -1 if site.kind == "cross" else empty] = 1
        calls.append((site.kind, near))
    expected = _followed(calls, lambda made, _, rows, full: _share(rows, full) @ made)
    _check(follow_flow(model, text, "alti", Selection()), expected, lost)


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
def test_relevance_equals_autograd_on_eager_weights(name, monkeypatch):
    model, text = _asked(name)

    def score(model, prepared, target):
        found = sum_of_states(model.module(**prepared.inputs))
        return Prediction(found, 0, None, "all states", found)

    monkeypatch.setattr(weighting, "score_prediction", score)
    made, calls = _eager(model, text)
    slopes = torch.autograd.grad(sum_of_states(made), [weights for _, weights in calls])
    raising = [  # the mean of all heads
        (kind, (weights * slope).detach().clamp(min=0)[0].double().mean(0).numpy())
        for (kind, weights), slope in zip(calls, slopes, strict=True)
    ]
    expected = _followed(raising, _added)
    _check(follow_flow(model, text, "relevance", Selection()), expected)


def programmed(edges, source, sink):
    """The largest flow from a node above to one below, as a linear programme over the edges."""
    inner = sorted({node for edge in edges for node in edge[:2]} - {source, sink})
    kept = np.array([[(start == node) - (end == node) for start, end, _ in edges] for node in inner], float)
    gain = [(end == source) - (start == source) + 0.0 for start, end, _ in edges]
    bounds = [(0, capacity) for _, _, capacity in edges]
    return -linprog(gain, A_eq=kept, b_eq=np.zeros(len(kept)), bounds=bounds).fun


@over(ALL)
def test_max_flow_equals_linear_programming(name):
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


TEXT = "The cat sat on the mat because it was tired."


def _follow(model, method="rollout", selection=None, **how):
    return follow_flow(model, model.prepare(TEXT), method, selection or Selection(), **how)


def _random(name):
    """A random model of a family, and six tokens."""
    return random_model(name), ModelInput({"input_ids": inputs("text", 1, 6)["input_ids"]}, {}, ())


DENSE = {
    "gpt-neox": "layers.{}.attention.dense",
    "gptj": "h.{}.attn.out_proj",
    "falcon": "h.{}.self_attention.dense",
    "phi": "layers.{}.self_attn.dense",
}


@pytest.mark.parametrize("name", DENSE)
def test_alti_with_parallel_attention_and_feed_forward(name):
    """The sum that attention makes with the residual, which such a model never has by itself."""
    model, text = _random(name)
    eager = (ALL | OTHERS)[name].build("eager")
    eager.load_state_dict(model.module.state_dict())
    given, values = [], []  # the output projection of each layer with what it gives, and the value vectors
    for layer in range(2):
        eager.get_submodule(DENSE[name].format(layer)).register_forward_hook(
            lambda module, _, output: given.append((module.weight.T.unflatten(0, (4, 8)), output[0]))
        )
    model.run(
        text,
        [FunctionObserver(lambda attention: values.append(attention.values[0].expand(4, -1, -1).clone()))],
    )
    expected = np.eye(6)
    (maps,) = follow_flow(model, text, "alti", Selection()).maps.values()
    with torch.no_grad():
        own = eager(**text.inputs, output_attentions=True, output_hidden_states=True)
        parts = zip(maps, own.attentions, own.hidden_states, values, given, strict=False)
        for (_, ours), weights, (before,), value, (projection, attended) in parts:
            vectors = torch.einsum("hij,hjs,hsw->ijw", weights[0], value, projection)
            vectors += torch.eye(6)[:, :, None] * before[:, None]
            whole = before + attended
            moved = (whole[:, None] - vectors).abs().sum(-1)
            shares = (whole.abs().sum(-1, keepdim=True) - moved).clamp(min=0).double().numpy()
            expected = shares / shares.sum(-1, keepdims=True) @ expected
            np.testing.assert_allclose(ours.values, expected, atol=1e-5)


def test_alti_names_an_unfollowed_block():
    with pytest.raises(ModelError, match="what its output is added to was not found"):
        follow_flow(*_random("granite"), "alti", Selection())


def test_relevance_depends_on_the_target(causal):
    mat, floor = (_follow(causal, "relevance", target=word) for word in ("mat", "floor"))
    assert any("the prediction: 'mat'" in note for note in mat.notes)
    assert np.abs(mat.map(None, None)[2].values - floor.map(None, None)[2].values).max() > 1e-3


def test_max_flow_of_one_token_is_its_row_of_full_map(tmp_path):
    model = load(t5(tmp_path))
    text = model.prepare(TEXT, "The mat.")
    whole = follow_flow(model, text, "flow", Selection())
    first = next(place.start for place in whole.map("encoder", None)[2].queries if place.text == "ca")
    for token, row, kinds in (("ca", first, ["encoder"]), ("2", 2, ["encoder", "decoder", "cross"])):
        alone = follow_flow(model, text, "flow", Selection(), token=token)
        assert set(alone.maps) == set(kinds)
        for kind in kinds:
            for (_, ours), (_, theirs) in zip(alone.maps[kind], whole.maps[kind], strict=True):
                assert [place.start for place in ours.queries] == [row]  # no row that was not computed
                np.testing.assert_allclose(ours.values[0], theirs.values[row], atol=1e-6)
    with pytest.raises(SelectionError, match="no token 'dog'"):
        follow_flow(model, text, "flow", Selection(), token="dog")


def test_flow_words_average_rows_and_sum_columns(own):
    whole = _follow(own).map(None, None)[2]
    words = _follow(own, selection=Selection(words=True)).map(None, None)[2]
    assert len(words.queries) == len(TEXT.replace(".", " .").split()) + 2
    np.testing.assert_allclose(words.values.sum(-1), 1, atol=1e-6)
    assert whole.values.shape == (13, 13)


def test_flow_of_one_token_is_a_row_and_a_column(own):
    seen = _follow(own)
    values = seen.map(None, None)[2].values
    focus = focus_token(seen, None, None, "it")
    assert focus.verbs == ("draws on", "contributes to")
    assert focus.looks_at.bars[0].weight == pytest.approx(values[8].max())
    assert focus.looked_at_by.bars[0].weight == pytest.approx(values[:, 8].max())


def test_flow_refuses_missing_selections_and_long_texts(own):
    long = own.prepare("cat " * 100)
    with pytest.raises(SelectionError, match="name one with --token"):
        follow_flow(own, long, "flow", Selection())
    alone = follow_flow(own, long, "flow", Selection(), token="5")
    assert focus_token(alone, None, None, "5").looked_at_by is None
    seen = _follow(own)
    for kind, layer, sentence in ((None, 9, "has layers 0-3"), ("decoder", None, "no decoder")):
        with pytest.raises(SelectionError, match=sentence):
            seen.map(kind, layer)
    with pytest.raises(SelectionError, match="no token 'dog'"):
        focus_token(seen, None, None, "dog")


def test_row_without_attention_keeps_its_own_token():
    np.testing.assert_allclose(as_shares([[0.2, 0.2], [0, 0]]), [[0.5, 0.5], [0, 1]])
    across = np.pad([[0.2, 0.2], [0.0, 0.0]], ((0, 0), (0, 2)))  # the last columns are its own tokens
    np.testing.assert_allclose(as_shares(across), [[0.5, 0.5, 0, 0], [0, 0, 0, 1]])
