"""Weighted attention, against NumPy, against zeroed values, and on a trained model."""

import re
from contextlib import ExitStack
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from attnscope.capture import recording
from attnscope.capture.projections import Projections, Residuals, head_gradients
from attnscope.errors import ModelError, SelectionError
from attnscope.measures.weighting import LEAST_TURN, Values
from attnscope.models import load
from attnscope.models.inputs import ModelInput
from attnscope.models.text.reader import ModuleModel
from attnscope.models.weighting import with_weighting
from attnscope.questions.selection import Selection
from attnscope.questions.stats import measure_heads
from tests.capture.test_projections import ALL, OTHERS, random_family
from tests.capture.tiny import inputs, own_attentions
from tests.models.folders import Calls, minilm

TEXT = "The cat sat on the mat because it was tired."


class _Attend(nn.Module):
    """Attention that nothing projects."""

    def forward(self, x):
        split = x.unflatten(-1, (2, 4)).transpose(1, 2)
        return nn.functional.scaled_dot_product_attention(split, split, split).transpose(1, 2).flatten(2)


def _bare(*more):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Embedding(20000, 8), _Attend(), *more)
    return ModuleModel("bare", module, load("own").reader, None)


@pytest.mark.parametrize("name", ["own", "bare"])
def test_norm_weighting_is_vector_length_as_share_of_row(name):
    model, raw, shown = load("own") if name == "own" else _bare(), Calls(), Calls()
    prepared, weighted = model.prepare(TEXT), with_weighting(model, "norm")
    assert any(note.startswith("weighted: a cell is the share") for note in weighted.notes)
    model.run(prepared, [raw])
    weighted.run(prepared, [shown])
    title = "weighted by norm" + (", without output projection" if name == "bare" else "")
    assert weighted.title.endswith(title)
    modules = (m for m in model.module.modules() if hasattr(m, "out_proj"))
    projections = [m.out_proj.weight.detach().numpy().T.reshape(8, 24, 192) for m in modules]
    projections = projections or [np.stack([np.eye(4)] * 2)]
    for (_, weights, values), projection, (_, rows, _) in zip(raw.seen, projections, shown.seen, strict=True):
        vectors = np.einsum("bhij,bhjs,hsw->bhijw", weights, values, projection)
        norms = np.linalg.norm(vectors, axis=-1)
        np.testing.assert_allclose(rows, norms / norms.sum(-1, keepdims=True), atol=1e-6)


def test_layers_without_output_projection_are_in_title_and_note():
    model = with_weighting(_bare(nn.Linear(8, 8), _Attend()), "norm")
    record = model.run(model.prepare(TEXT), [])
    assert model.title.endswith("weighted by norm, without output projection in some layers")
    assert any("no output projection was found in layer 3" in note for note in record.notes)


def _sum_of_states(output):
    """A score that hangs on every row of the last layer, each by another slope."""
    last = output.last_hidden_state
    return (last * torch.linspace(-1, 2, last.numel()).view_as(last)).sum()


@pytest.mark.sweep
@pytest.mark.parametrize("name", ALL)
def test_gradient_weighting_equals_autograd_on_eager_copy(name):
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
            values = Values.from_projection(attention.values, attention.heads, None).values
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
    ("name", "text", "target", "said"),
    [
        ("own-causal", "The cat sat on the", None, "after token 5, 'the'"),
        ("own-causal", "The cat sat on the", "2", "after token 2, 'cat'"),
        ("own-causal", "The cat sat on the", "mat", "the prediction: 'mat'"),
        ("own", "The [MASK] sat on the mat.", None, "in the place of token 2, '[MASK]'"),
    ],
)
def test_gradient_note_names_prediction_and_refuses_missing_token(name, text, target, said):
    model = load(name)
    with pytest.raises(SelectionError, match="has the tokens 0-"):
        with_weighting(model, "gradient", "99").run(model.prepare(text), [])
    record = with_weighting(model, "gradient", target).run(model.prepare(text), [])
    assert any(said in note for note in record.notes)


def test_norm_weighting_of_minilm_lowers_special_tokens():
    """Kobayashi et al. 2020 and 2021: the residual outweighs what attention mixes in."""
    model = load(minilm())
    prepared, means = model.prepare(TEXT), {}
    for one in (model, with_weighting(model, "norm"), with_weighting(model, "norm-residual")):
        heads = measure_heads(one, prepared, Selection()).heads
        for name in ("special", "self"):
            means[one.weighting, name] = np.mean([head.scores[name].value for head in heads])
    assert means["norm", "special"] < means["raw", "special"] / 3
    assert means["norm-residual", "self"] > 0.4 > 2 * means["norm", "self"]


def test_weighting_without_values_is_refused():
    model = load("own")
    weighted, run = with_weighting(model, "norm"), model.run

    def run_without_values(prepared, observers):
        class Hide:
            def observe(self, attention):
                for each in observers:
                    each.observe(replace(attention, values=None))

        return run(prepared, [Hide()])

    model.run = run_without_values
    with pytest.raises(ModelError, match="the values that they mix were not"):
        weighted.run(model.prepare(TEXT), [])


@pytest.mark.slow
@pytest.mark.sweep
@pytest.mark.parametrize("name", sorted(ALL.keys() - {"gpt-oss"}))  # whose experts have no product in float64
@torch.no_grad()
def test_zeroing_weighting_equals_change_of_direction_by_hand(name):
    model, given = random_model(name), inputs(ALL[name].inputs)
    model.module.double()
    given = {key: each.double() if each.is_floating_point() else each for key, each in given.items()}
    text, raw, shown, projections = ModelInput(given, {}, ()), Calls(), Calls(), Projections()
    with projections.watching(model.module), recording(model.module, [projections, raw]):
        model.module(**given)
    with_weighting(model, "zeroing").run(text, [shown])
    eager = ALL[name].build("eager").double()
    eager.load_state_dict(model.module.state_dict())
    own = {kind: iter(each) for kind, each in own_attentions(eager(**given, output_attentions=True)).items()}
    assert len(shown.seen) == len(raw.seen)
    for (site, rows, _), (_, _, values) in zip(shown.seen, raw.seen, strict=True):
        weights = next(own["self" if "self" in own else site.kind])
        projection = projections.by_site[site].weight.double()  # [head, size, width]
        values = values.repeat_interleave(len(projection) // values.shape[1], 1)
        whole = weights @ values @ projection
        turned = torch.zeros_like(weights)
        for key in range(weights.shape[-1]):
            without = values.clone()
            without[:, :, key] = 0
            turned[..., key] = 1 - torch.cosine_similarity(whole, weights @ without @ projection, dim=-1)
        turned = turned.where((turned > LEAST_TURN) & (weights > 0), 0)  # less is not more than rounding
        total = turned.sum(-1, keepdim=True)
        assert (total > 0).double().mean() > 0.8
        torch.testing.assert_close(rows.double(), turned / total.where(total > 0, 1), atol=1e-6, rtol=0)


BEHIND = r"(attention\.output|attention|sa)[._]LayerNorm|sa_layer_norm|(self|encoder)_attn_layer_norm"
LLAMA = r"layers\.\d+\.post_attention_layernorm"
NORMED = dict.fromkeys(
    ["bert", "roberta", "albert", "deberta-v2", "distilbert", "bart", "marian"], rf".*({BEHIND})"
)
"""The norm whose output the block gives."""

SUMMED = {
    "gpt2": r"h\.\d+\.ln_2",
    **dict.fromkeys(["llama", "mistral", "qwen2", "gpt-oss"], LLAMA),
    "bloom": r"h\.\d+\.post_attention_layernorm",
    "gemma2": r"layers\.\d+\.pre_feedforward_layernorm",
    "glm4": LLAMA,
    "olmo2": r"layers\.\d+\.mlp",
    "modernbert": r"layers\.\d+\.mlp_norm",
    "opt": r"decoder\.layers\.\d+\.final_layer_norm",
    "vit": r".*layernorm_after",
    "t5": r"(encoder|decoder)\.block\.\d+\.layer\.[12]\.layer_norm",
    "whisper": r"(encoder|decoder)\.layers\.\d+\.final_layer_norm|decoder\..*encoder_attn_layer_norm",
}
"""The module that is given what the block gives."""

TAKEN = {
    "gemma2": ("post_attention_layernorm", 1),
    "glm4": ("post_self_attn_layernorm", 0),
    "olmo2": ("post_attention_layernorm", 0),
}
"""The norm that takes what attention gives before it is added, and what is added to its weight."""


def random_model(name):
    """A family with random numbers everywhere, in biases and norms too."""
    return ModuleModel(name, random_family(name)[0], load("own").reader)


def _states(module, pattern, run, given):
    """The modules of a pattern as they run, with what each is given, or gives."""
    seen = []

    def hook(one, args, kwargs, output):
        state = (args or tuple(kwargs.values()))[0] if given else output
        seen.append((one, state.detach().double().numpy()))

    with ExitStack() as hooks:
        for path, each in module.named_modules():
            if re.fullmatch(pattern, path):
                hooks.enter_context(each.register_forward_hook(hook, with_kwargs=True))
        run()
    return seen


def _behind(norm, vectors, spread):
    """Vectors behind a layer norm, the spread of the whole being given."""
    return (vectors - vectors.mean(-1, keepdims=True)) / spread * norm.weight.detach().double().numpy()


def _taken(layer, name, more, vectors, bias):
    """Vectors and bias behind a norm by the root of the mean square of their own sum."""
    norm = getattr(layer, name)
    eps = getattr(norm, "variance_epsilon", None) or norm.eps
    spread = np.sqrt(((vectors.sum((1, 3)) + bias) ** 2).mean(-1, keepdims=True) + eps)  # [batch, query, 1]
    factor = norm.weight.detach().double().numpy() + more
    return vectors / spread[:, None, :, None] * factor, bias / spread * factor


def block_vectors(model, text):
    """Of each call: its site, the vectors of its cells, the residual's part that is no key's, the bias, and
    what the block really gives."""
    name, raw, blocks = model.name, Calls(), Residuals()
    with blocks.watching(model.module):
        model.run(text, [blocks, raw])
    pattern = (NORMED | SUMMED)[name]
    states = _states(model.module, pattern, lambda: model.run(text, []), name in SUMMED)
    assert len(states) == len(raw.seen)
    for (site, *seen), (norm, state) in zip(raw.seen, states, strict=True):
        weights, values = (each.double().numpy() for each in seen)
        projection, before = blocks.by_site[site], blocks.residual_at(site).before.double().numpy()
        heads, queries = weights.shape[1:3]
        values = values.repeat(heads // values.shape[1], 1)
        weight = projection.weight.double().numpy()
        vectors = np.einsum("bhij,bhjs,hsw->bhijw", weights, values, weight, optimize=True)
        bias = np.zeros(before.shape[-1]) if projection.bias is None else projection.bias.double().numpy()
        if name in TAKEN:
            vectors, bias = _taken(model.module.layers[site.layer], *TAKEN[name], vectors, bias)
        total, part = vectors.sum((1, 3)) + before + bias, before[:, None] / heads
        if site.kind != "cross":
            vectors[:, :, range(queries), range(queries)] += part
            part = np.zeros_like(part)
        if name in NORMED:
            spread = np.sqrt(total.var(-1, keepdims=True) + norm.eps)  # [batch, query, 1]
            vectors = _behind(norm, vectors, spread[:, None, :, None])
            part = _behind(norm, part, spread[:, None])
            bias = _behind(norm, bias, spread) + norm.bias.detach().double().numpy()
        yield site, vectors, part, bias, state.reshape(total.shape)


@pytest.mark.sweep
@pytest.mark.parametrize("name", sorted(NORMED | SUMMED))
def test_residual_vectors_sum_to_block_output(name):
    model, text, shown = random_model(name), ModelInput(inputs(ALL[name].inputs), {}, ()), Calls()
    weighted = with_weighting(model, "norm-residual")
    weighted.run(text, [shown])
    found = "a norm follows" if name in NORMED else "no norm follows"
    found = "a norm before the sum" if name in TAKEN else found
    assert weighted.title.endswith(f"weighted by norm-residual, {found}")
    for (_, rows, _), block in zip(shown.seen, block_vectors(model, text), strict=True):
        _, vectors, part, bias, state = block
        made = vectors.sum((1, 3)) + vectors.shape[1] * part[:, 0] + bias
        assert np.abs(made - state).max() <= 1e-5 * np.abs(state).max()
        lengths, beside = np.linalg.norm(vectors, axis=-1), np.linalg.norm(part, axis=-1)
        expected = lengths / (lengths.sum(-1) + beside)[..., None]
        np.testing.assert_allclose(rows, expected, atol=1e-5)


def test_norm_residual_names_an_unfollowed_block():
    module = OTHERS["granite"].build()
    model = with_weighting(ModuleModel("granite", module, load("own").reader), "norm-residual")
    with pytest.raises(ModelError, match=r"layer 0 of .* what its output is added to was not found"):
        model.run(ModelInput(inputs("text"), {}, ()), [Calls()])
