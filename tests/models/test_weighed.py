"""Weights that are weighed by what they move, against NumPy, zeroed values, and on a trained model."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from attnscope.capture import recording
from attnscope.capture.projections import Projections, head_gradients
from attnscope.errors import ModelError, SelectionError
from attnscope.measures.weighing import STILL, Values
from attnscope.models import load
from attnscope.models.inputs import ModelInput
from attnscope.models.module import ModuleModel
from attnscope.models.weighed import weigh_model
from attnscope.questions.head import one_head
from attnscope.questions.selection import Selection
from attnscope.questions.stats import measure_heads
from tests.capture.test_projections import ALL
from tests.capture.tiny import inputs, own_attentions
from tests.models.folders import Calls, maps, minilm
from tests.models.test_norm_residual import random_model

TEXT = "The cat sat on the mat because it was tired."


def _maps(model, heads=8):
    """The whole maps of a model, layer by layer."""
    return [each.weights.numpy() for each in maps(model, model.prepare(TEXT), heads)]


def test_norm_is_the_length_of_each_vector_as_a_share_of_its_row():
    model, raw = load("own"), Calls()
    model.run(model.prepare(TEXT), [raw])
    modules = (m for m in model.module.modules() if hasattr(m, "out_proj"))
    projections = [m.out_proj.weight.detach().numpy().T.reshape(8, 24, 192) for m in modules]
    shown = _maps(weigh_model(model, "norm"))
    for (_, weights, values), projection, weighed in zip(raw.seen, projections, shown, strict=True):
        vectors = np.einsum("bhij,bhjs,hsw->bhijw", weights, values, projection)
        norms = np.linalg.norm(vectors, axis=-1)
        np.testing.assert_allclose(weighed, norms / norms.sum(-1, keepdims=True), atol=1e-6)


def _sum_of_states(output):
    """A score that hangs on every row of the last layer, each by another slope."""
    last = output.last_hidden_state
    return (last * torch.linspace(-1, 2, last.numel()).view_as(last)).sum()


@pytest.mark.parametrize("name", ALL)
def test_a_gradient_is_that_of_autograd_on_an_eager_copy(name):
    family = ALL[name]
    model, eager = family.build(), family.build("eager")
    eager.load_state_dict(model.state_dict())
    given = inputs(family.inputs)
    theirs = eager(**given, output_attentions=True)
    flat = [each for kind in own_attentions(theirs).values() for each in kind]
    slopes = dict(zip(map(id, flat), torch.autograd.grad(_sum_of_states(theirs), flat), strict=True))
    by_kind = {kind: [slopes[id(each)] for each in of] for kind, of in own_attentions(theirs).items()}

    projections, seen = Projections(), {}
    with projections.watching(model), recording(model, [projections]):
        score = _sum_of_states(model(**given))
    gradients = head_gradients(projections, score)

    class Hold:
        def observe(self, attention):
            values = Values.of(attention.values, attention.heads, None).values
            slope = gradients[attention.site] @ values.mT  # [batch, head, query, key]
            kind = "self" if "self" in by_kind else attention.site.kind
            seen.setdefault(kind, []).append((slope, attention.weights()))

    with torch.inference_mode(), recording(model, [Hold()]):
        model(**given)
    assert {kind: len(each) for kind, each in seen.items()} == {kind: len(of) for kind, of in by_kind.items()}
    for kind, calls in seen.items():
        for (slope, weights), other in zip(calls, by_kind[kind], strict=True):
            gap = ((slope - other) * (weights > 0)).abs().max() / other.abs().max()
            assert gap <= 1e-4, kind


@pytest.mark.parametrize(
    ("target", "said"),
    [(None, "after token 5, 'the'"), ("2", "after token 2, 'cat'"), ("mat", "the prediction: 'mat'")],
)
def test_a_note_names_the_prediction(target, said):
    model = load("own-causal")
    record = weigh_model(model, "gradient", target).run(model.prepare("The cat sat on the"), [])
    assert any(said in note for note in record.notes)


def test_a_masked_word_is_the_prediction_of_a_model_that_predicts_such():
    model = load("own")
    record = weigh_model(model, "gradient").run(model.prepare("The [MASK] sat on the mat."), [])
    assert any("in the place of token 2, '[MASK]'" in note for note in record.notes)


@pytest.mark.parametrize(("target", "said"), [("99", "has the tokens 0-6"), ("xyzzyx", "one token")])
def test_a_target_that_is_not_there_is_refused(target, said):
    model = load("own-causal")
    with pytest.raises(SelectionError, match=said):
        weigh_model(model, "gradient", target).run(model.prepare("The cat sat on the"), [])


def test_the_special_tokens_of_a_trained_model_take_far_less_by_norm_than_by_weight():
    model = load(minilm())
    prepared = model.prepare(TEXT)
    means = {}
    for one in (model, weigh_model(model, "norm")):
        heads = measure_heads(one, prepared, Selection()).heads
        means[one.weigh] = np.mean([head.figures["special"].value for head in heads])
    assert means["norm"] < means["raw"] / 3


def test_the_name_stands_in_the_title_and_a_note_says_what_a_cell_is():
    model = weigh_model(load("own"), "norm")
    seen = one_head(model, model.prepare(TEXT), "L0H1")
    assert "weighed by norm" in seen.heatmap.title
    assert any(note.startswith("weighed: a cell is the share") for note in seen.heatmap.notes)


class _Bare(nn.Module):
    """Attention that nothing projects."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20000, 8)

    def forward(self, ids):
        x = self.embedding(ids).unflatten(-1, (2, 4)).transpose(1, 2)
        return nn.functional.scaled_dot_product_attention(x, x, x)


def _bare(module):
    return ModuleModel("bare", module, load("own").reader, None)


def test_without_an_output_projection_the_value_alone_is_measured_and_the_title_says_so():
    torch.manual_seed(0)
    model, raw = _bare(_Bare()), Calls()
    model.run(model.prepare(TEXT), [raw])
    weighed = weigh_model(model, "norm")
    (ours,) = _maps(weighed, heads=2)
    assert weighed.title.endswith("weighed by norm, without output projection")
    weights, values = (each.numpy() for each in raw.seen[0][1:])
    norms = weights * np.linalg.norm(values, axis=-1)[:, :, None]
    np.testing.assert_allclose(ours, norms / norms.sum(-1, keepdims=True), atol=1e-6)


class _Mixed(nn.Module):
    def forward(self, x):
        return nn.functional.scaled_dot_product_attention(x, x, x)


class _Half(nn.Module):
    """Two layers of attention, of which one is projected."""

    def __init__(self):
        super().__init__()
        self.first, self.out, self.second = _Bare(), nn.Linear(8, 8), _Mixed()

    def forward(self, ids):
        x = self.out(self.first(ids).transpose(1, 2).flatten(2))
        return self.second(x.unflatten(-1, (2, 4)).transpose(1, 2))


def test_the_title_says_that_some_layers_have_no_output_projection_and_a_note_says_which():
    model = weigh_model(_bare(_Half()), "norm")
    record = model.run(model.prepare(TEXT), [])
    assert model.title.endswith("weighed by norm, without output projection in some layers")
    assert any("no output projection was found in layer 1" in note for note in record.notes)


def test_where_no_values_were_seen_a_sentence_says_so():
    model = load("own")
    weighed, run = weigh_model(model, "norm"), model.run

    def run_without_values(prepared, observers):
        class Hide:
            def observe(self, attention):
                for each in observers:
                    each.observe(replace(attention, values=None))

        return run(prepared, [Hide()])

    model.run = run_without_values
    with pytest.raises(ModelError, match="the values that they mix were not"):
        weighed.run(model.prepare(TEXT), [])


@pytest.mark.slow
@pytest.mark.sweep
@pytest.mark.parametrize("name", sorted(ALL.keys() - {"gpt-oss"}))  # whose experts have no product in float64
@torch.no_grad()
def test_a_cell_is_how_far_the_output_of_a_head_turns_when_the_value_is_really_zero(name):
    model, given = random_model(name), inputs(ALL[name].inputs)
    model.module.double()
    given = {key: each.double() if each.is_floating_point() else each for key, each in given.items()}
    text, raw, shown, projections = ModelInput(given, {}, ()), Calls(), Calls(), Projections()
    with projections.watching(model.module), recording(model.module, [projections, raw]):
        model.module(**given)
    weigh_model(model, "zeroing").run(text, [shown])
    eager = ALL[name].build("eager").double()
    eager.load_state_dict(model.module.state_dict())
    own = {kind: iter(each) for kind, each in own_attentions(eager(**given, output_attentions=True)).items()}
    assert len(shown.seen) == len(raw.seen)
    for (site, rows, _), (_, _, values) in zip(shown.seen, raw.seen, strict=True):
        weights = next(own["self" if "self" in own else site.kind])
        projection = projections.found[site].weight.double()  # [head, size, width]
        values = values.repeat_interleave(len(projection) // values.shape[1], 1)
        whole = weights @ values @ projection
        turned = torch.zeros_like(weights)
        for key in range(weights.shape[-1]):
            without = values.clone()
            without[:, :, key] = 0
            turned[..., key] = 1 - torch.cosine_similarity(whole, weights @ without @ projection, dim=-1)
        turned = turned.where((turned > STILL) & (weights > 0), 0)  # less is not more than rounding
        total = turned.sum(-1, keepdim=True)
        assert (total > 0).double().mean() > 0.8
        torch.testing.assert_close(rows.double(), turned / total.where(total > 0, 1), atol=1e-6, rtol=0)
