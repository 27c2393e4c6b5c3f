"""What each head writes to a score, against the models' own modules, and over the decoder families."""

import pytest
import torch
import transformers as hf

from attnscope.analysis.writes import direct_effects
from attnscope.attention import Head
from attnscope.errors import ModelError, SelectionError
from attnscope.models import load
from tests.analysis.intervention.test_importance import saved
from tests.models.folders import minilm

TEXT = "The cat sat on the"
SIZES = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
    "max_position_embeddings": 64, "vocab_size": 8192,
}  # fmt: skip
GROUPED = SIZES | {"num_key_value_heads": 2}
OLDER = {"vocab_size": 8192, "hidden_size": 32, "n_layer": 2, "n_head": 4}
FOLLOWED = {
    "gpt2": lambda: hf.GPT2LMHeadModel(
        hf.GPT2Config(vocab_size=8192, n_embd=32, n_layer=2, n_head=4, n_positions=64)
    ),
    "llama": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**GROUPED)),
    "mistral": lambda: hf.MistralForCausalLM(hf.MistralConfig(**GROUPED)),
    "mixtral": lambda: hf.MixtralForCausalLM(hf.MixtralConfig(**GROUPED, num_local_experts=4)),
    "qwen2": lambda: hf.Qwen2ForCausalLM(hf.Qwen2Config(**GROUPED)),
    "qwen3": lambda: hf.Qwen3ForCausalLM(hf.Qwen3Config(**GROUPED, head_dim=8)),
    "gemma": lambda: hf.GemmaForCausalLM(hf.GemmaConfig(**GROUPED, head_dim=8)),
    "starcoder2": lambda: hf.Starcoder2ForCausalLM(hf.Starcoder2Config(**GROUPED)),
    "phi3": lambda: hf.Phi3ForCausalLM(hf.Phi3Config(**GROUPED, pad_token_id=0)),
    "granite": lambda: hf.GraniteForCausalLM(hf.GraniteConfig(**GROUPED)),
    "stablelm": lambda: hf.StableLmForCausalLM(hf.StableLmConfig(**SIZES, num_key_value_heads=4)),
    "bloom": lambda: hf.BloomForCausalLM(hf.BloomConfig(**OLDER)),
    "opt": lambda: hf.OPTForCausalLM(
        hf.OPTConfig(
            vocab_size=8192, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, ffn_dim=48,
            word_embed_proj_dim=32, max_position_embeddings=64,
        )
    ),
}  # fmt: skip
NAMED = {
    "gpt-neox": lambda: hf.GPTNeoXForCausalLM(hf.GPTNeoXConfig(**SIZES)),
    "gemma2": lambda: hf.Gemma2ForCausalLM(hf.Gemma2Config(**GROUPED, head_dim=8)),
}


@pytest.mark.parametrize("name", FOLLOWED)
def test_heads_feed_forward_parts_embeddings_and_biases_sum_to_the_score(name, tmp_path):
    model = load(saved(tmp_path, FOLLOWED[name]()), predicting=True)
    prepared = model.prepare(TEXT)
    seen = direct_effects(model, prepared, "mat", "cat")
    with torch.no_grad():
        logits = model.writer(**prepared.inputs).logits[0]
    at = max(number for number, token in enumerate(prepared.tokens) if not token.special)
    words = [model.reader.tokenizer.convert_tokens_to_ids(word) for word in ("mat", "cat")]
    score = float(logits[at, words[0]] - logits[at, words[1]])
    parts = [*seen.heads.values(), *seen.feed_forward.values(), seen.embeddings, seen.biases]
    assert len(seen.heads) == 8
    assert len(seen.feed_forward) == 2
    assert sum(parts) == pytest.approx(score, abs=1e-4)
    assert abs(seen.rest) <= 1e-4


def test_a_head_writes_what_its_slice_of_the_projection_makes_of_what_it_mixed(tmp_path):
    model = load(saved(tmp_path, FOLLOWED["gpt2"]()), predicting=True)
    prepared = model.prepare(TEXT)
    seen = direct_effects(model, prepared, "3", None)
    given = {}
    body = model.writer.transformer
    hooks = [
        module.register_forward_pre_hook(lambda _, args, name=name: given.update({name: args[0][0, 3]}))
        for name, module in {"last": body.h[1].attn.c_proj, "mlp": body.h[0].mlp, "norm": body.ln_f}.items()
    ]
    outputs = []
    hooks.append(body.h[0].mlp.register_forward_hook(lambda _, args, out: outputs.append(out[0, 3])))
    with torch.no_grad():
        logits = model.writer(**prepared.inputs).logits[0, 3]
    for hook in hooks:
        hook.remove()
    unembedding = model.writer.lm_head.weight[logits.argmax()].detach()
    spread = torch.sqrt(given["norm"].var(unbiased=False) + body.ln_f.eps)

    def effect(part):
        part = part.detach()
        return float((((part - part.mean()) / spread) * body.ln_f.weight.detach()) @ unembedding)

    for head in range(4):
        part = given["last"][8 * head : 8 * head + 8] @ body.h[1].attn.c_proj.weight[8 * head : 8 * head + 8]
        assert seen.heads[Head(1, head, "decoder")] == pytest.approx(effect(part), abs=1e-5)
    assert seen.feed_forward[0] == pytest.approx(effect(outputs[0]), abs=1e-5)


@pytest.mark.parametrize("name", NAMED)
def test_a_family_whose_states_are_no_plain_sum_is_named(name, tmp_path):
    model = load(saved(tmp_path, NAMED[name]()), predicting=True)
    with pytest.raises(ModelError, match="does not just add its attention"):
        direct_effects(model, model.prepare(TEXT), "mat", None)


def test_other_models_and_words_are_refused_in_a_sentence(tmp_path):
    model = load("own-causal")
    with pytest.raises(ModelError, match="its output head is more than a matrix"):
        direct_effects(model, model.prepare(TEXT), "mat", None)
    model = load(minilm())
    with pytest.raises(ModelError, match="load it with predicting"):
        direct_effects(model, model.prepare(TEXT), "mat", None)
    model = load(saved(tmp_path, FOLLOWED["gpt2"]()), predicting=True)
    with pytest.raises(SelectionError, match="no token 'xyzzyx'"):
        direct_effects(model, model.prepare(TEXT), "mat", "xyzzyx")
