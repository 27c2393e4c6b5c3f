"""What the tokens of each layer are made of, against the models' own eager attention."""

import numpy as np
import pytest
import torch
import transformers

from attnscope.errors import ModelError, SelectionError
from attnscope.models import load
from attnscope.questions.flow import focus_token, follow_flow
from attnscope.questions.selection import Selection
from tests.models.folders import gpt2, minilm, save, t5

TEXT = "The cat sat on the mat because it was tired."


def _follow(model, method="rollout", selection=None, **how):
    return follow_flow(model, model.prepare(TEXT), method, selection or Selection(), **how)


def test_rollout_of_a_trained_model_is_that_of_its_own_eager_attention():
    model = load(minilm())
    eager = transformers.AutoModel.from_pretrained(minilm(), attn_implementation="eager")
    with torch.no_grad():
        own = eager(**model.prepare(TEXT).inputs, output_attentions=True).attentions
    expected = np.eye(13)
    maps = _follow(model).maps["encoder"]
    for (_, ours), weights in zip(maps, own, strict=True):
        expected = (0.5 * weights[0].mean(0).double().numpy() + 0.5 * np.eye(13)) @ expected
        np.testing.assert_allclose(ours.values, expected, atol=1e-6)


def test_alti_of_a_trained_model_is_ferrandos_formula_on_its_own_states_and_weights():
    """Of a model that normalises the sum of residual and attention."""
    model = load(minilm())
    eager = transformers.AutoModel.from_pretrained(minilm(), attn_implementation="eager")
    with torch.no_grad():
        own = eager(**model.prepare(TEXT).inputs, output_attentions=True, output_hidden_states=True)
    expected = np.eye(13)
    maps = _follow(model, "alti").maps["encoder"]
    for number, ((_, ours), weights) in enumerate(zip(maps, own.attentions, strict=True)):
        block, states = eager.encoder.layer[number].attention, own.hidden_states[number][0]
        with torch.no_grad():
            values = block.self.value(states).unflatten(-1, (12, 32)).transpose(0, 1)  # [head, key, size]
            dense, norm = block.output.dense, block.output.LayerNorm
            parts = dense.weight.T.unflatten(0, (12, 32))  # [head, size, width]
            vectors = torch.einsum("hij,hjs,hsw->ijw", weights[0], values, parts)
            vectors += torch.eye(13)[:, :, None] * states[:, None]
            total = vectors.sum(1) + dense.bias
            spread = torch.sqrt(total.var(-1, unbiased=False) + norm.eps)[:, None, None]
            vectors = (vectors - vectors.mean(-1, keepdim=True)) / spread * norm.weight
            given = norm(total)
            moved = (given[:, None] - vectors).abs().sum(-1)
            shares = (given.abs().sum(-1, keepdim=True) - moved).clamp(min=0).double().numpy()
        expected = shares / shares.sum(-1, keepdims=True) @ expected
        np.testing.assert_allclose(ours.values, expected, atol=1e-5)


def test_alti_leaves_the_sum_as_it_is_where_the_model_does(tmp_path):
    model = load(gpt2(tmp_path))
    text = model.prepare(TEXT)
    eager = transformers.AutoModel.from_pretrained(tmp_path, attn_implementation="eager")
    with torch.no_grad():
        own = eager(**text.inputs, output_attentions=True, output_hidden_states=True)
    expected = np.eye(len(text.tokens))
    maps = follow_flow(model, text, "alti", Selection()).maps["decoder"]
    for number, ((_, ours), weights) in enumerate(zip(maps, own.attentions, strict=True)):
        block, states = eager.h[number], own.hidden_states[number][0]
        with torch.no_grad():
            packed = block.attn.c_attn(block.ln_1(states))
            values = packed.chunk(3, -1)[2].unflatten(-1, (4, 8)).transpose(0, 1)
            parts = block.attn.c_proj.weight.unflatten(0, (4, 8))
            vectors = torch.einsum("hij,hjs,hsw->ijw", weights[0], values, parts)
            vectors += torch.eye(len(states))[:, :, None] * states[:, None]
            given = vectors.sum(1) + block.attn.c_proj.bias
            moved = (given[:, None] - vectors).abs().sum(-1)
            shares = (given.abs().sum(-1, keepdim=True) - moved).clamp(min=0).double().numpy()
        expected = shares / shares.sum(-1, keepdims=True) @ expected
        np.testing.assert_allclose(ours.values, expected, atol=1e-5)


SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 400}
ROTATED = {"n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 4, "vocab_size": 400}
PARALLEL = {
    "gpt-neox": (
        transformers.GPTNeoXConfig(**SIZES, intermediate_size=48),
        transformers.GPTNeoXModel,
        "layers.{}.attention.dense",
    ),
    "gptj": (transformers.GPTJConfig(**ROTATED), transformers.GPTJModel, "h.{}.attn.out_proj"),
    "falcon": (
        transformers.FalconConfig(**SIZES, multi_query=True),
        transformers.FalconModel,
        "h.{}.self_attention.dense",
    ),
}


@pytest.mark.parametrize("name", PARALLEL)
def test_alti_where_attention_and_feed_forward_read_the_same_states(tmp_path, name):
    """The sum that attention makes with the residual, which such a model never has by itself."""
    config, make, path = PARALLEL[name]
    gpt2(tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    model = load(save(tmp_path, make(config), tokenizer))
    text = model.prepare(TEXT)
    eager = make.from_pretrained(tmp_path, attn_implementation="eager")
    heads = []  # what goes into the output projection of each layer
    for layer in range(2):
        eager.get_submodule(path.format(layer)).register_forward_hook(
            lambda module, given, output: heads.append((module, given[0][0], output[0]))
        )
    with torch.no_grad():
        own = eager(**text.inputs, output_attentions=True, output_hidden_states=True)
    values = _Values()
    model.run(text, [values])
    expected = np.eye(len(text.tokens))
    maps = follow_flow(model, text, "alti", Selection()).maps["decoder"]
    for (_, ours), weights, states, value, (dense, mixed, output) in zip(
        maps, own.attentions, own.hidden_states, values.seen, heads, strict=False
    ):
        with torch.no_grad():
            value = value.expand(4, -1, -1)  # [head, key, size]
            ours_mixed = (weights[0] @ value).transpose(0, 1).flatten(1)
            torch.testing.assert_close(ours_mixed, mixed, atol=1e-5, rtol=1e-4)
            parts = dense.weight.T.unflatten(0, (4, 8))
            vectors = torch.einsum("hij,hjs,hsw->ijw", weights[0], value, parts)
            vectors += torch.eye(len(states[0]))[:, :, None] * states[0][:, None]
            given = states[0] + output
            moved = (given[:, None] - vectors).abs().sum(-1)
            shares = (given.abs().sum(-1, keepdim=True) - moved).clamp(min=0).double().numpy()
        expected = shares / shares.sum(-1, keepdims=True) @ expected
        np.testing.assert_allclose(ours.values, expected, atol=1e-5)


TAKEN = {
    "gemma2": (transformers.Gemma2Config, transformers.Gemma2Model, {"head_dim": 8, "pad_token_id": 0}),
    "olmo2": (transformers.Olmo2Config, transformers.Olmo2Model, {"pad_token_id": 0}),
}


@pytest.mark.parametrize("name", TAKEN)
@torch.no_grad()
def test_alti_where_a_norm_takes_what_attention_gives_before_it_is_added(tmp_path, name):
    config, make, more = TAKEN[name]
    gpt2(tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    made = make(config(**SIZES, num_key_value_heads=2, intermediate_size=48, **more))
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    model = load(save(tmp_path, made, tokenizer))
    text = model.prepare(TEXT)
    eager = make.from_pretrained(tmp_path, attn_implementation="eager")
    given = []  # what each norm behind an attention is given, and gives
    for layer in eager.layers:
        layer.post_attention_layernorm.register_forward_hook(
            lambda _, inputs, output: given.append((inputs[0][0], output[0]))
        )
    own = eager(**text.inputs, output_attentions=True, output_hidden_states=True)
    values = _Values()
    model.run(text, [values])
    expected = np.eye(len(text.tokens))
    maps = follow_flow(model, text, "alti", Selection()).maps["decoder"]
    layers = zip(maps, own.attentions, own.hidden_states, values.seen, given, eager.layers, strict=False)
    for (_, ours), weights, states, value, (mixed, taken), layer in layers:
        value = value.repeat_interleave(4 // len(value), 0)
        parts = layer.self_attn.o_proj.weight.T.unflatten(0, (4, 8))
        vectors = torch.einsum("hij,hjs,hsw->ijw", weights[0], value, parts)
        torch.testing.assert_close(vectors.sum(1), mixed, atol=1e-5, rtol=1e-4)
        factor = layer.post_attention_layernorm.weight + (name == "gemma2")
        spread = (mixed.square().mean(-1) + made.config.rms_norm_eps).sqrt()
        vectors = vectors / spread[:, None, None] * factor
        torch.testing.assert_close(vectors.sum(1), taken, atol=1e-5, rtol=1e-4)
        vectors += torch.eye(len(mixed))[:, :, None] * states[0][:, None]
        whole = states[0] + taken
        moved = (whole[:, None] - vectors).abs().sum(-1)
        shares = (whole.abs().sum(-1, keepdim=True) - moved).clamp(min=0).double().numpy()
        expected = shares / shares.sum(-1, keepdims=True) @ expected
        np.testing.assert_allclose(ours.values, expected, atol=1e-5)


class _Values:
    def __init__(self):
        self.seen = []

    def observe(self, attention):
        self.seen.append(attention.values[0].clone())


def test_a_block_that_alti_cannot_follow_is_named(tmp_path):
    config = transformers.GraniteConfig(**SIZES, intermediate_size=48, residual_multiplier=0.5)
    gpt2(tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    model = load(save(tmp_path, transformers.GraniteModel(config), tokenizer))
    with pytest.raises(ModelError, match="what its output is added to was not found"):
        _follow(model, "alti")


@pytest.mark.parametrize("method", ["rollout", "flow", "relevance", "alti"])
@pytest.mark.parametrize("name", ["own", "own-causal"])
def test_rows_sum_to_one(method, name):
    (maps,) = _follow(load(name, predicting=True), method).maps.values()
    for _, weights in maps:
        np.testing.assert_allclose(weights.values.sum(-1), 1, atol=1e-6)


def test_relevance_is_chefers_rule_with_gradients_of_autograd():
    model = load("own-causal")
    prepared = model.prepare("The cat sat on the")
    attention = [each for each in model.module.modules() if hasattr(each, "use_kernel")]
    weights = []

    def soft(*args, before=torch.softmax, **kwargs):
        weights.append(before(*args, **kwargs))
        return weights[-1]

    with pytest.MonkeyPatch.context() as patch:
        for each in attention:
            patch.setattr(each, "use_kernel", False)
        patch.setattr(torch, "softmax", soft)
        logits = model.encoder.logits(model.encoder(**prepared.inputs))[0, 5]
    slopes = torch.autograd.grad(logits[model.reader.tokenizer.token_to_id("mat")], weights)
    relevance = np.eye(7)
    seen = follow_flow(model, prepared, "relevance", Selection(), target="mat")
    for (_, ours), one, slope in zip(seen.maps["decoder"], weights, slopes, strict=True):
        raised = (one * slope).clamp(min=0)[0].mean(0).detach().double().numpy()
        relevance = relevance + raised @ relevance
        np.testing.assert_allclose(ours.values, relevance / relevance.sum(-1, keepdims=True), atol=1e-5)
    assert any("the prediction: 'mat'" in note for note in seen.notes)


@pytest.mark.parametrize("method", ["rollout", "flow", "relevance", "alti"])
def test_both_sides_of_an_encoder_decoder_together_make_a_token(tmp_path, method):
    model = load(t5(tmp_path), predicting=True)
    seen = follow_flow(model, model.prepare(TEXT, "The mat."), method, Selection())
    assert set(seen.maps) == {"encoder", "decoder", "cross"}
    for (_, own), (_, other) in zip(seen.maps["decoder"], seen.maps["cross"], strict=True):
        np.testing.assert_allclose(own.values.sum(-1) + other.values.sum(-1), 1, atol=1e-6)


def test_the_largest_flow_of_one_token_is_its_row_of_all_on_the_side_that_has_it(tmp_path):
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


def _t5_pass(folder, text):
    """An eager copy, what it returns, and what goes into and out of each of its attention layers."""
    eager = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder, attn_implementation="eager")
    states, values = {}, {}
    for path, module in eager.named_modules():
        if path.endswith((".SelfAttention.v", ".EncDecAttention.v")):
            module.register_forward_hook(lambda _, given, output, path=path: values.update({path: output[0]}))
        elif hasattr(module, "SelfAttention") or hasattr(module, "EncDecAttention"):
            module.register_forward_hook(
                lambda _, given, output, path=path: states.update({path: (given[0][0], output[0][0])})
            )
    return eager, eager(**text.inputs, output_attentions=True), states, values


def _t5_layers(own):
    """The attention layers in the order in which they run, by path and kind, with their weights."""
    for layer, weights in enumerate(own.encoder_attentions):
        yield f"encoder.block.{layer}.layer.0", "encoder", weights
    for layer, (side, across) in enumerate(zip(own.decoder_attentions, own.cross_attentions, strict=True)):
        yield f"decoder.block.{layer}.layer.0", "decoder", side
        yield f"decoder.block.{layer}.layer.1", "cross", across


def test_relevance_through_cross_attention_is_chefers_rule_with_gradients_of_autograd(tmp_path):
    model = load(t5(tmp_path), predicting=True)
    text = model.prepare(TEXT, "The mat.")
    _, own, *_ = _t5_pass(tmp_path, text)
    last = own.logits[0, -1]
    layers = list(_t5_layers(own))
    slopes = torch.autograd.grad(last.max(), [weights for *_, weights in layers], allow_unused=True)
    others, sides = len(text.tokens), len(text.inputs["decoder_input_ids"][0])
    encoded, side, across = np.eye(others), np.eye(sides), np.zeros((sides, others))
    expected = {"encoder": [], "decoder": [], "cross": []}

    def even(relevance):
        left = relevance - np.eye(len(relevance))
        total = left.sum(-1, keepdims=True)
        return np.divide(left, total, out=np.zeros_like(left), where=total > 0) + np.eye(len(relevance))

    seen = follow_flow(model, text, "relevance", Selection(), target=str(sides - 1))
    for (_, kind, weights), slope in zip(layers, slopes, strict=True):
        raised = (weights * slope).clamp(min=0)[0].mean(0).detach().double().numpy()
        if kind == "encoder":
            encoded = encoded + raised @ encoded
            expected[kind].append(encoded / encoded.sum(-1, keepdims=True))
        elif kind == "decoder":
            side, across = side + raised @ side, across + raised @ across
        else:
            across = across + even(side) @ raised @ even(encoded)
            total = side.sum(-1, keepdims=True) + across.sum(-1, keepdims=True)
            expected["cross"].append(across / total)
            expected["decoder"].append(side / total)
    for kind, maps in expected.items():
        for (_, ours), theirs in zip(seen.maps[kind], maps, strict=True):
            np.testing.assert_allclose(ours.values, theirs, atol=1e-5)


@torch.no_grad()
def test_alti_through_cross_attention_is_ferrandos_formula_with_the_residual_as_one_more_token(tmp_path):
    model = load(t5(tmp_path))
    text = model.prepare(TEXT, "The mat.")
    eager, own, states, values = _t5_pass(tmp_path, text)
    others, sides = len(text.tokens), len(text.inputs["decoder_input_ids"][0])
    encoded, side, across = np.eye(others), np.eye(sides), np.zeros((sides, others))
    seen = follow_flow(model, text, "alti", Selection())
    expected = {"encoder": [], "decoder": [], "cross": []}
    for path, kind, weights in _t5_layers(own):
        name = "EncDecAttention" if kind == "cross" else "SelfAttention"
        attention, (before, given) = eager.get_submodule(f"{path}.{name}"), states[path]
        value = values[f"{path}.{name}.v"].unflatten(-1, (4, 8)).transpose(0, 1)  # [head, key, size]
        parts = attention.o.weight.T.unflatten(0, (4, 8))
        vectors = torch.einsum("hij,hjs,hsw->ijw", weights[0], value, parts)
        if kind == "cross":
            vectors = torch.cat([vectors, before[:, None]], 1)
        else:
            vectors += torch.eye(len(before))[:, :, None] * before[:, None]
        torch.testing.assert_close(vectors.sum(1), given, atol=1e-4, rtol=1e-4)
        moved = (given[:, None] - vectors).abs().sum(-1)
        shares = (given.abs().sum(-1, keepdim=True) - moved).clamp(min=0).double().numpy()
        shares /= shares.sum(-1, keepdims=True)
        if kind == "encoder":
            encoded = shares @ encoded
            expected[kind].append(encoded)
        elif kind == "decoder":
            side, across = shares @ side, shares @ across
        else:
            side, across = shares[:, -1:] * side, shares[:, -1:] * across + shares[:, :-1] @ encoded
            expected["cross"].append(across)
            expected["decoder"].append(side)
    for kind, maps in expected.items():
        for (_, ours), theirs in zip(seen.maps[kind], maps, strict=True):
            np.testing.assert_allclose(ours.values, theirs, atol=1e-5)


def test_words_are_averaged_down_and_summed_across():
    whole = _follow(load("own")).map(None, None)[2]
    words = _follow(load("own"), selection=Selection(words=True)).map(None, None)[2]
    assert len(words.queries) == len(TEXT.replace(".", " .").split()) + 2
    np.testing.assert_allclose(words.values.sum(-1), 1, atol=1e-6)
    assert whole.values.shape == (13, 13)


def test_one_token_is_a_row_and_a_column():
    seen = _follow(load("own"))
    _, _, weights = seen.map(None, None)
    focus = focus_token(seen, None, None, "it")
    assert focus.verbs == ("is made of", "goes into")
    assert focus.looks_at.bars[0].weight == pytest.approx(weights.values[8].max())
    assert focus.looked_at_by.bars[0].weight == pytest.approx(weights.values[:, 8].max())


def test_what_cannot_be_followed_or_is_not_there_is_refused():
    model = load("own")
    long = follow_flow, model, model.prepare("cat " * 100), "flow", Selection()
    with pytest.raises(SelectionError, match="name one with --token"):
        long[0](*long[1:])
    assert focus_token(long[0](*long[1:], token="5"), None, None, "5").looked_at_by is None
    seen = _follow(model)
    with pytest.raises(SelectionError, match="has layers 0-3"):
        seen.map(None, 9)
    with pytest.raises(SelectionError, match="no decoder"):
        seen.map("decoder", None)
    with pytest.raises(SelectionError, match="no token 'dog'"):
        focus_token(seen, None, None, "dog")
