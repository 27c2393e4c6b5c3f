"""``--weigh norm-residual``: each vector that a block adds up, against what the modules around it give."""

import re

import numpy as np
import pytest

from attnscope.capture.projections import Residuals
from attnscope.errors import ModelError
from attnscope.models import load
from attnscope.models.inputs import ModelInput
from attnscope.models.module import ModuleModel
from attnscope.models.weighed import weigh_model
from attnscope.questions.selection import Selection
from attnscope.questions.stats import measure_heads
from tests.capture.test_projections import ALL, OTHERS, random_family
from tests.capture.tiny import inputs
from tests.models.folders import Calls, minilm

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
    return ModuleModel(name, random_family(name), load("own").reader)


def _states(module, pattern, run, given):
    """The modules of a pattern as they run, with what each is given, or gives."""
    seen = []

    def hook(one, args, kwargs, output):
        state = (args or tuple(kwargs.values()))[0] if given else output
        seen.append((one, state.detach().double().numpy()))

    hooks = [
        each.register_forward_hook(hook, with_kwargs=True)
        for path, each in module.named_modules()
        if re.fullmatch(pattern, path)
    ]
    run()
    for each in hooks:
        each.remove()
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
        projection, before = blocks.found[site], blocks.of(site).before.double().numpy()
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


@pytest.mark.parametrize("name", sorted(NORMED | SUMMED))
def test_the_vectors_sum_to_what_the_block_gives_and_a_cell_is_the_length_of_one(name):
    model, text, shown = random_model(name), ModelInput(inputs(ALL[name].inputs), {}, ()), Calls()
    weighed = weigh_model(model, "norm-residual")
    weighed.run(text, [shown])
    found = "a norm follows" if name in NORMED else "no norm follows"
    found = "a norm before the sum" if name in TAKEN else found
    assert weighed.title.endswith(f"weighed by norm-residual, {found}")
    for (_, rows, _), block in zip(shown.seen, block_vectors(model, text), strict=True):
        _, vectors, part, bias, state = block
        made = vectors.sum((1, 3)) + vectors.shape[1] * part[:, 0] + bias
        assert np.abs(made - state).max() <= 1e-5 * np.abs(state).max()
        lengths, beside = np.linalg.norm(vectors, axis=-1), np.linalg.norm(part, axis=-1)
        expected = lengths / (lengths.sum(-1) + beside)[..., None]
        np.testing.assert_allclose(rows, expected, atol=1e-5)


def test_the_rest_of_a_row_of_cross_attention_is_the_residual_and_all_others_sum_to_one():
    model, shown = random_model("bart"), Calls()
    weigh_model(model, "norm-residual").run(ModelInput(inputs("pair"), {}, ()), [shown])
    for site, rows, _ in shown.seen:
        total = rows.sum(-1)
        assert (total < 0.999).all() if site.kind == "cross" else np.allclose(total, 1, atol=1e-5)


def test_a_block_that_cannot_be_followed_is_named():
    module = OTHERS["granite"].build()
    model = weigh_model(ModuleModel("granite", module, load("own").reader), "norm-residual")
    with pytest.raises(ModelError, match=r"layer 0 of .* what its output is added to was not found"):
        model.run(ModelInput(inputs("text"), {}, ()), [Calls()])


def test_a_token_of_a_trained_model_stays_itself_most_of_all():
    """Kobayashi et al. 2021: the residual outweighs what attention mixes in."""
    model = load(minilm())
    prepared = model.prepare("The cat sat on the mat because it was tired.")
    shares = {}
    for weigh in ("norm", "norm-residual"):
        heads = measure_heads(weigh_model(model, weigh), prepared, Selection()).heads
        shares[weigh] = np.mean([head.figures["self"].value for head in heads])
    assert shares["norm-residual"] > 0.4 > 2 * shares["norm"]
