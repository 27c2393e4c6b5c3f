"""Contributions to a score; the logit lens; a score by dimension; the loss of each token."""

import math
from functools import cache, partial
from itertools import product

import numpy as np
import pytest
import torch

from attnscope.attention import Head
from attnscope.capture.effects import Effects
from attnscope.errors import ModelError, SelectionError
from attnscope.models import load
from attnscope.models.targets import TURNS, place_prediction
from attnscope.questions.head import one_head
from attnscope.questions.logits import Favours, Word, Writes, direct_effects, logit_lens, logits_answer
from attnscope.questions.loss import token_losses
from attnscope.questions.neurons import neurons_answer, split_score
from attnscope.questions.selection import Selection
from attnscope.render.image import drawing
from tests.models.images import save_noise
from tests.models.vision_language import vision_language
from tests.questions.intervention.shapes import BART, GROUPED, NETWORKS, OLDER, SIZES, Attends, network, saved
from tests.tools.writes import try_type

TEXT = "The cat sat on the"
SCALED = {"residual_multiplier": 0.3, "logits_scaling": 4.0, "embedding_multiplier": 5.0}
CAUSAL = {
    **{name: NETWORKS[name] for name in ("gpt2", "llama", "starcoder2")},
    "mixtral": network("MixtralForCausalLM", **GROUPED, num_local_experts=4),
    "qwen3": network("Qwen3ForCausalLM", **GROUPED, head_dim=8),
    "granite": network("GraniteForCausalLM", **GROUPED, **SCALED),
    "bloom": network("BloomForCausalLM", vocab_size=8192, hidden_size=32, n_layer=2, n_head=4),
    "opt": network("OPTForCausalLM", **SIZES, ffn_dim=48, word_embed_proj_dim=16),
    "gpt-neox": network("GPTNeoXForCausalLM", **SIZES),
    "gptj": network("GPTJForCausalLM", **OLDER, rotary_dim=8),
    "phi": network("PhiForCausalLM", **SIZES),
    "falcon": network("FalconForCausalLM", **SIZES),
    "cohere": network("CohereForCausalLM", **GROUPED),
    "gemma2": network("Gemma2ForCausalLM", **GROUPED, head_dim=8),
    "olmo2": network("Olmo2ForCausalLM", **GROUPED),
}
"""Plain, parallel and scaled blocks, norms before and behind, soft caps, experts, a narrower embedding."""
BOTH = {"encoder_layers": 2, "encoder_attention_heads": 4, "encoder_ffn_dim": 48}
PAIR = {"decoder", "cross"}
OTHERS = {
    "albert": (network("AlbertForMaskedLM", **SIZES, embedding_size=16), {"encoder"}),
    "bert": (NETWORKS["bert"], {"encoder"}),
    # the encoder's heads are read by those of the decoder
    "t5": (NETWORKS["t5"], PAIR),
    "bart": (network("BartForConditionalGeneration", **BART, **BOTH, vocab_size=8192), PAIR),
}
"""Models of masked words and of two texts, and the kinds of heads that write to their scores."""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A model of a family by its name, made once and never changed."""
    every = CAUSAL | {name: network for name, (network, _) in OTHERS.items()}
    return cache(lambda name: load(saved(tmp_path_factory.mktemp(name), every[name]), predicting=True))


def heldout(model, inputs, projection, columns=None):
    """Logits without some columns of what a part is given, or without what it gives, all else as it was.

    An independent answer: the model's own modules with what they gave held by hooks, norms as wide as before.
    """
    clean, named = {}, dict(model.named_modules())
    norms = [
        name for name, module in named.items() if type(module).__name__.endswith(("RMSNorm", "LayerNorm"))
    ]
    parts = [name for name in named if name.endswith((".o_proj", ".attn.c_proj", ".mlp"))]

    def keep(name, module, args, output):
        clean[name] = args[0].detach(), output.detach()

    def scale(name, module, args, output):
        given, made = clean[name]
        if not isinstance(module, torch.nn.LayerNorm):
            return args[0] * (made / given)
        spread = (given.var(-1, unbiased=False, keepdim=True) + module.eps).sqrt()
        return (args[0] - args[0].mean(-1, keepdim=True)) / spread * module.weight + module.bias

    def hold(name, module, args, output):
        given, made = clean[name]
        if name != projection:
            return made
        if columns is None:
            return torch.zeros_like(made)
        lost = torch.zeros_like(given)
        lost[..., columns] = given[..., columns]
        return made - lost @ (module.weight.T if isinstance(module, torch.nn.Linear) else module.weight)

    for hooked in ({keep: norms + parts}, {scale: norms, hold: parts}):
        hooks = [
            named[name].register_forward_hook(partial(hook, name)) for hook in hooked for name in hooked[hook]
        ]
        logits = model(**inputs).logits
        for hook in hooks:
            hook.remove()
    return logits


SCALING = ("llama", "qwen3", "granite", "gemma2", "olmo2")
"""Families whose norms only scale."""

QUICK = {"gpt2", "llama", "gptj", "gemma2"}
EVERY = [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in (*CAUSAL, *OTHERS)]


@pytest.mark.sweep
@pytest.mark.parametrize("name", EVERY)
def test_logit_contributions_sum_to_model_score(name, made):
    model = made(name)
    prepared = model.prepare(TEXT)
    with torch.no_grad():
        logits = model.writer(**prepared.inputs).logits[0, place_prediction(model, prepared, "mat")].double()
    mat, cat = (model.reader.tokenizer.convert_tokens_to_ids(word) for word in ("mat", "cat"))
    score = float(logits[mat] - logits[cat])
    seen = direct_effects(model, prepared, "mat", "cat")
    effects, kinds = seen.effects, OTHERS[name][1] if name in OTHERS else {"decoder"}
    parts = [*effects.heads.values(), *effects.feed_forward.values(), effects.embeddings, effects.biases]
    heads = product((0, 1), range(4), kinds)
    assert set(effects.heads) == {Head(*head) for head in heads}
    assert all(effects.heads.values())
    assert set(effects.feed_forward) == ({0} if name == "albert" else {0, 1})  # one for both layers
    assert not effects.mixers
    assert sum(parts) == pytest.approx(score, abs=1e-4 * max(1, sum(map(abs, parts))))
    assert ("the output head's gelu" in seen.notes[0]) == (name == "bert")
    _, last = logit_lens(model, prepared, "mat", "cat").layers
    assert last.log_probability == pytest.approx(float(logits.log_softmax(-1)[mat]), abs=1e-5)
    assert last.difference == pytest.approx(score, abs=1e-4)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_words_of_a_head_move_by_its_effects_on_them(name, made):
    model, head = made(name), Head(1, 2, "decoder")
    prepared = model.prepare(TEXT)
    (words,) = direct_effects(model, prepared, "mat", "cat", Head(1, 2)).words
    assert (len(words.raised), len(words.lowered)) == (8, 8)
    whole = model.reader.tokenizer.get_vocab()  # without the pieces of words, which have no name
    named = [word for word in (*words.raised, *words.lowered) if word.text in whole]
    for word in (named[0], named[-1]):
        effect = direct_effects(model, prepared, word.text, None).effects.heads[head]
        assert word.moved == pytest.approx(effect, abs=1e-5)


SEEING = ("llava", "llava_next")
"""What becomes of the picture is put among the embeddings, and is held like them."""
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in SCALING if name != "gemma2"]


@pytest.mark.sweep(3)
@pytest.mark.parametrize("name", ["gpt2", "gemma2", *SEEING, *SLOW])
def test_direct_effect_equals_score_change_without_the_part(name, tmp_path):
    if name in SEEING:
        model = load(vision_language(tmp_path / "model", name), predicting=True)
        prepared = model.prepare_image(save_noise(tmp_path / "a.png", 56, 56), "the cat sat")
        config, layers = model.writer.config.text_config, "model.language_model.layers"
    else:
        model = load(saved(tmp_path, CAUSAL[name]), predicting=True)
        model.writer.config.final_logit_softcapping = None
        prepared, config, layers = model.prepare(TEXT), model.writer.config, "model.layers"
    layers, projection = ("transformer.h", "attn.c_proj") if name == "gpt2" else (layers, "self_attn.o_proj")
    seen = direct_effects(model, prepared, "cat", None)
    at = max(number for number, token in enumerate(prepared.tokens) if not token.special)
    assert f"token {at}, {prepared.tokens[at].text!r}" in seen.prediction
    cat = model.reader.tokenizer.convert_tokens_to_ids("cat")
    size = config.hidden_size // config.num_attention_heads
    with torch.no_grad():
        whole = model.writer(**prepared.inputs).logits[0, at, cat]
        assert seen.score == pytest.approx(float(whole), abs=1e-5)
        near = 1e-4 if name in SCALING else 1e-5
        for layer, head in ((0, 1), (1, 0)):
            columns = slice(size * head, size * head + size)
            rest = heldout(model.writer, prepared.inputs, f"{layers}.{layer}.{projection}", columns)
            missing = pytest.approx(float(whole - rest[0, at, cat]), abs=near)
            assert seen.effects.heads[Head(layer, head, "decoder")] == missing
            rest = heldout(model.writer, prepared.inputs, f"{layers}.{layer}.mlp")
            missing = pytest.approx(float(whole - rest[0, at, cat]), abs=near)
            assert seen.effects.feed_forward[layer] == missing


def test_word_effect_is_the_projection_of_the_head_output(made):
    model = made("gemma2")
    prepared = model.prepare(TEXT)
    head = Head(1, 2, "decoder")
    (words,) = direct_effects(model, prepared, "mat", None, Head("L1H2")).words
    assert words.head == head
    raised, lowered = ([word.moved for word in each] for each in (words.raised, words.lowered))
    assert raised == sorted(raised, reverse=True)
    assert lowered == sorted(lowered)
    known = model.reader.tokenizer.get_vocab()
    whole = [word for word in (*words.raised, *words.lowered) if word.text in known]
    assert whole
    for word in whole[:3]:
        effect = direct_effects(model, prepared, word.text, None).effects.heads[head]
        assert effect == pytest.approx(word.moved, abs=1e-5)


def test_space_tokens_are_visible():
    word = Word(" ", 0.5), Word("the", 0.4), Word("  ", 0.3)
    effects = Effects(heads={Head(0, 0): 1.0}, embeddings=0.0)
    result = Writes(effects, (Favours(Head(0, 0), word, ()),), 1.0, 0.0, "", "", ())
    (moved,) = logits_answer(result).pictures["writes"].moved
    assert [term.label for term in moved.raised] == ["␣", "the", "␣␣"]


def test_words_are_of_the_largest_heads_by_default(tmp_path, causal):
    seen = direct_effects(causal, causal.prepare(TEXT), None, None)
    assert [each.head for each in seen.words] == seen.effects.largest_heads(5)
    with pytest.raises(SelectionError, match="layers 0-2 have heads 0-3"):
        direct_effects(causal, causal.prepare(TEXT), None, None, Head("L1H7"))


def test_other_mixers_are_separate_contributions(tmp_path):
    mamba = {"mamba_d_state": 4, "mamba_dt_rank": 4, "use_mamba_kernels": False, "num_experts": 2}
    jamba = network("JambaForCausalLM", **GROUPED, attn_layer_period=2, attn_layer_offset=1, **mamba)
    model = load(saved(tmp_path, jamba), predicting=True)
    effects = direct_effects(model, model.prepare(TEXT), "mat", None).effects
    assert {head.layer for head in effects.heads} == {1}
    assert set(effects.mixers) == {(0, "mamba")}
    assert set(effects.feed_forward) == {0, 1}


@pytest.mark.sweep
@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["cohere2_moe", "gemma3n_text", "jetmoe", "ctrl", "zamba2", "xlstm", "biogpt"]
)
def test_surveyed_causal_families_are_followed(name):
    assert try_type(name)[0] in ("followed", "no heads")


def test_logits_refuses_unknown_words_and_models_without_gradients(tmp_path):
    model = load(saved(tmp_path, "gpt2"), predicting=True)
    with pytest.raises(SelectionError, match="no token 'xyzzyx'"):
        direct_effects(model, model.prepare(TEXT), "mat", "xyzzyx")
    model.writer.requires_grad_(False)
    with pytest.raises(ModelError, match="it keeps no gradients"):
        direct_effects(model, model.prepare(TEXT), "mat", None)


LAYERS = {"gpt2": "transformer.h", "llama": "model.layers"}


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("text", [TEXT, "cat"])
def test_logit_lens_equals_the_truncated_model(name, text, tmp_path):
    model = load(saved(tmp_path, CAUSAL[name]), predicting=True)
    prepared = model.prepare(text)
    at = 1 if text == "cat" else 2
    seen, layers = logit_lens(model, prepared, str(at), None), model.writer.get_submodule(LAYERS[name])
    expected = []
    for count in (1, 2):
        model.writer.set_submodule(LAYERS[name], layers[:count])
        with torch.no_grad():
            expected.append(model.writer(**prepared.inputs).logits[0, at])
    target = int(expected[-1].argmax())
    assert [each.layer for each in seen.layers] == [0, 1]
    for each, logits in zip(seen.layers, expected, strict=True):
        assert each.log_probability == pytest.approx(float(logits.log_softmax(-1)[target]), abs=1e-5)
        assert each.rank == 1 + int((logits > logits[target]).sum())
        shares, ids = logits.softmax(-1).topk(5)
        assert [share for _, share in each.likeliest] == pytest.approx(shares.tolist(), abs=1e-5)
        spelled = [model.reader.tokenizer.decode([id_]).strip() for id_ in ids.tolist()]
        assert [token for token, _ in each.likeliest] == spelled


LAYER, HEAD = 1, 2


CHOSEN = Selection(head=Head(LAYER, HEAD))


@pytest.mark.parametrize("pair", [(3, 1), (4, 4), (4, 2)])
@pytest.mark.parametrize("name", ["gpt2", "llama", "own", "own-causal"])
def test_query_key_products_sum_to_score_and_softmax_to_weight(name, pair, made, monkeypatch):
    model = load(name) if name.startswith("own") else made(name)
    prepared, given, causal, (at, to) = model.prepare(TEXT), [], name != "own", pair
    with monkeypatch.context() as patched, torch.no_grad():  # what the kernel gets
        Attends(patched, parts=lambda number, *parts: given.append(parts) or parts)
        model.module(**prepared.inputs)
    query, key = (part[0, HEAD].double() for part in given[LAYER][:2])
    seen = split_score(model, prepared, CHOSEN, f"{at} -> {to}")
    products = query[at] * key[to] / math.sqrt(query.shape[-1])
    assert [each.product for each in seen.dimensions] == pytest.approx(products.tolist(), abs=1e-5)
    assert [each.query for each in seen.dimensions] == pytest.approx(query[at].tolist(), abs=1e-5)
    assert seen.score == pytest.approx(sum(each.product for each in seen.dimensions), abs=1e-12)
    assert seen.score == pytest.approx(float(products.sum()), abs=1e-5)
    row = key @ query[at] / math.sqrt(query.shape[-1])
    known = row[: at + 1] if causal else row
    assert [score for score in seen.scores if score is not None] == pytest.approx(known.tolist(), abs=1e-5)
    assert [score is None for score in seen.scores] == [causal and place > at for place in range(len(row))]
    shown = one_head(model, prepared, CHOSEN).weights[at][to]
    assert seen.weight == pytest.approx(shown, abs=1e-6)
    assert float(known.softmax(-1)[to]) == pytest.approx(shown, abs=1e-6)


CAPPED = {"head_dim": 8, "attn_logit_softcapping": 0.05, "query_pre_attn_scalar": 2}
EXTRAS = {
    "gemma2": network("Gemma2ForCausalLM", **GROUPED, **CAPPED),
    "gpt-oss": network(
        "GptOssForCausalLM", **GROUPED, head_dim=8, num_local_experts=4, num_experts_per_tok=2
    ),
    "t5": NETWORKS["t5"],
}


@pytest.mark.parametrize("name", EXTRAS)
def test_neurons_account_for_softcap_bias_and_sink(name, tmp_path) -> None:
    torch.manual_seed(1)
    model = load(saved(tmp_path, EXTRAS[name]))
    prepared = model.prepare(TEXT)
    seen = split_score(model, prepared, CHOSEN, "sat -> cat")
    total = sum(each.product for each in seen.dimensions)
    assert {"gemma2": seen.softcap, "gpt-oss": seen.sink, "t5": seen.bias}[name]
    assert seen.score == pytest.approx(total + seen.softcap + seen.bias, abs=1e-9)
    if name == "gemma2":
        assert seen.score == pytest.approx(0.05 * math.tanh(total / 0.05), abs=1e-9)
    assert seen.scores[seen.key_number] == pytest.approx(seen.score, abs=1e-5)
    terms = [score for score in seen.scores if score is not None] + ([] if seen.sink is None else [seen.sink])
    weight = math.exp(seen.score) / sum(map(math.exp, terms))
    row = int(seen.query.split()[-1])
    shown = one_head(model, prepared, CHOSEN).weights[row][seen.key_number]
    assert (seen.weight, weight) == (pytest.approx(shown, abs=1e-6), pytest.approx(shown, abs=1e-6))


def test_neurons_picture_lists_largest_and_maps_all_products(causal) -> None:
    result = split_score(causal, causal.prepare(TEXT), Selection(head=Head(2, 1)), "sat -> cat")
    terms, map_ = neurons_answer(result).views
    products = [each.product for each in result.dimensions]
    assert sum(term.value for term in terms.groups) == pytest.approx(result.score, abs=1e-3)
    for block in terms.blocks[1:]:
        assert sum(term.value for term in block) == pytest.approx(sum(products), abs=1e-9)
    assert map_.values.ravel().tolist() == products
    assert [*map_.rows, *map_.columns] == ["0", "8", "16", "24", *(f"+{at}" for at in range(8))]


def test_neurons_refuse_heads_without_captured_queries(made) -> None:
    model = made("bloom")
    with pytest.raises(ModelError, match=r"the queries and keys of L1H2 \(softmax\) are unknown"):
        split_score(model, model.prepare(TEXT), CHOSEN, "sat -> cat")


def test_repeated_token_in_neurons_is_noted(causal) -> None:
    seen = split_score(causal, causal.prepare("The cat saw the cat."), CHOSEN, "saw -> cat")
    assert any(note.startswith("token 2 is shown; cat is also at 5") for note in seen.notes)


LONGER = "The unhappiest cat sat on the mat."


def next_tokens(model, inputs, ids):
    """What a pass says of each next token, for itself."""
    given = model.writer(**inputs).logits[0].log_softmax(-1)
    return [None, *(-float(given[at - 1, ids[at]]) for at in range(1, len(ids)))]


def masked_tokens(model, inputs, ids):
    """What a pass says of each token while it and every seventh other one are masked."""
    special = model.reader.tokenizer.all_special_ids
    plain = [at for at, id_ in enumerate(ids) if id_ not in special]
    found = dict.fromkeys(range(len(ids)))
    for turn in range(TURNS):
        hidden = inputs["input_ids"].clone()
        hidden[0, plain[turn::TURNS]] = model.reader.tokenizer.mask_token_id
        given = model.writer(**{**inputs, "input_ids": hidden}).logits[0].log_softmax(-1)
        found |= {at: -float(given[at, ids[at]]) for at in plain[turn::TURNS]}
    return list(found.values())


LOSSES = {"gpt2": next_tokens, "bert": masked_tokens, "t5": next_tokens}


@pytest.mark.parametrize("name", LOSSES)
def test_token_losses_equal_a_plain_pass(name, made):
    model = made(name)
    prepared = model.prepare(LONGER, LONGER if name == "t5" else None)
    tokens = prepared.axes["decoder"][0]
    with torch.no_grad():
        plain = LOSSES[name](model, prepared.inputs, [token.id for token in tokens])
    losses = token_losses(model, prepared)
    assert [each.token for each in losses] == [token.text for token in tokens]
    for token, each, wanted in zip(tokens, losses, plain, strict=True):
        assert each.loss == (None if token.special else pytest.approx(wanted, abs=1e-5))
    assert sum(each.loss is not None for each in losses) > 6


def test_loss_strip_averages_tokens_of_a_word(causal):
    prepared = causal.prepare(LONGER)
    losses = token_losses(causal, prepared)
    view = one_head(causal, prepared, Selection(words=True).of("L1H0"), losses).heatmap
    places = [place for place in view.weights.keys if place.stop - place.start > 1]
    assert places
    for place, shown in zip(view.weights.keys, view.column_losses, strict=True):
        mine = [each.loss for each in losses[place.start : place.stop] if each.loss is not None]
        assert shown == (pytest.approx(np.mean(mine)) if mine else None)
    with drawing(view) as (score, _):
        heights = [bar.get_height() for axes in score.axes for bar in axes.patches]
        assert heights == pytest.approx([each or 0 for each in view.column_losses])


def test_loss_strip_needs_the_predicted_axis(made):
    model = made("t5")
    prepared = model.prepare(LONGER, "A dog")
    losses = token_losses(model, prepared)
    for kind in ("encoder", "cross"):
        with pytest.raises(SelectionError, match="add --kind decoder"):
            one_head(model, prepared, Selection(kind=kind).of("L0H0"), losses)
