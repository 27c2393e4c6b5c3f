"""Labels apply to each axis that they fit; keys that are the same for every input have their own names."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import attnscope
from attnscope.capture import KnownPasses, recording
from attnscope.capture.record import FunctionObserver

LABELS = ["a", "b", "c", "d", "ef", "g"]


class Remembers(nn.Module):
    """Attention over what it is given and two learned keys, in front or behind, by a kernel or by hand."""

    def __init__(self, front=True, by_hand=False):
        super().__init__()
        torch.manual_seed(0)
        self.into, self.query, self.key, self.value = (nn.Linear(16, 16) for _ in range(4))
        self.memory = nn.ParameterList(torch.randn(1, 4, 2, 4) for _ in range(2))
        self.front, self.by_hand = front, by_hand

    def forward(self, x):
        x = self.into(x)
        query, *states = (
            each(x).unflatten(-1, (4, 4)).transpose(1, 2) for each in (self.query, self.key, self.value)
        )
        learned = [each.expand(len(x), -1, -1, -1) for each in self.memory]
        sides = zip(learned, states, strict=True)
        key, value = self.keys = [torch.cat(pair if self.front else pair[::-1], 2) for pair in sides]
        if self.by_hand:
            return (query @ key.mT / 2).softmax(-1) @ value
        return F.scaled_dot_product_attention(query, key, value)


@pytest.mark.parametrize("labels", [LABELS, None], ids=["labels", "numbers"])
@pytest.mark.parametrize("by_hand", [False, True])
@pytest.mark.parametrize("front", [True, False])
def test_learned_keys_are_named_and_token_keys_stay_labelled(front, by_hand, labels):
    model = Remembers(front, by_hand).eval()
    held = []
    for seed in range(2):  # the oracle: which keys another input changes
        with torch.inference_mode(), attnscope.record(model, labels) as run:
            model(torch.randn(1, 6, 16, generator=torch.manual_seed(seed)))
        held.append(model.keys[0][0, 0])
    fixed = (held[0] == held[1]).all(-1).tolist()
    head, own = run.head("L0H1"), labels or [str(number) for number in range(6)]
    assert [name.startswith("[memory") for name in head.keys] == fixed
    assert [name for name in head.keys if not name.startswith("[")] == own
    assert list(head.queries) == own
    start = 2 if front else 0
    assert head.scores["self"].value == pytest.approx(head.weights.diagonal(start)[:6].mean(), abs=1e-6)


@pytest.mark.parametrize(("bias", "zero"), [(True, True), (True, False), (False, True)])
def test_keys_added_by_torch_are_named_after_the_text(bias, zero):
    attend = nn.MultiheadAttention(16, 4, add_bias_kv=bias, add_zero_attn=zero, batch_first=True).eval()
    x = torch.randn(1, 6, 16, generator=torch.manual_seed(0))
    with torch.inference_mode(), attnscope.record(attend, LABELS) as run:
        _, expected = attend(x, x, x, average_attn_weights=False)
    head = run.head("L0H2")
    assert list(head.keys) == [*LABELS, *["[bias]"] * bias, *["[zero]"] * zero]
    assert list(head.queries) == LABELS
    np.testing.assert_allclose(head.weights, expected[0, 2], atol=1e-6)


class Latents(nn.Module):
    """Learned queries look at the input, then at each other, as in a Perceiver."""

    def __init__(self, count):
        super().__init__()
        self.latents = nn.Parameter(torch.randn(1, count, 16))
        self.across, self.among = (nn.MultiheadAttention(16, 4, batch_first=True) for _ in range(2))

    def forward(self, x):
        read = self.across(self.latents, x, x)[0]
        return self.among(read, read, read)[0]


def test_labels_apply_only_to_axes_of_their_length():
    model = Latents(3).eval()
    with torch.inference_mode(), attnscope.record(model, LABELS) as run:
        model(torch.randn(1, 6, 16))
    across, among = (run.head(each) for each in (run.heads[0], run.heads[-1]))
    assert (across.queries, across.keys) == (("0", "1", "2"), tuple(LABELS))
    assert (among.queries, among.keys) == (("0", "1", "2"), ("0", "1", "2"))
    assert run.notes == ()
    with torch.inference_mode(), attnscope.record(model, LABELS[:4]) as run:
        model(torch.randn(1, 6, 16))
    assert run.head(run.heads[0]).keys == tuple(map(str, range(6)))
    assert "the 4 labels fit no axis: there are 3 or 6 positions" in run.notes


class Prefixed(nn.Module):
    """A decoder whose cache begins with three learned keys and values in each layer, as in prefix tuning."""

    def __init__(self, model, heads):
        super().__init__()
        config, torch_seed = model.config, torch.manual_seed(0)
        self.model = model
        size = config.hidden_size // config.num_attention_heads
        shape = (config.num_hidden_layers, 2, heads, 3, size)
        self.prefix = nn.Parameter(torch.randn(shape, generator=torch_seed))

    def forward(self, ids):
        from transformers import DynamicCache

        pairs = self.prefix[:, :, None].expand(-1, -1, len(ids), -1, -1, -1)
        self.cache = DynamicCache([tuple(pair) for pair in pairs])
        return self.model(input_ids=ids, past_key_values=self.cache)


class Prompted(nn.Module):
    """A model that reads three learned states before those of the text, as in prompt tuning."""

    def __init__(self, model):
        super().__init__()
        self.model, self.prompt = model, nn.Embedding(3, model.config.hidden_size)

    def forward(self, ids):
        prompt = self.prompt(torch.arange(3)[None].expand(len(ids), -1))
        states = torch.cat([prompt, self.model.get_input_embeddings()(ids)], 1)
        return self.model(inputs_embeds=states)


GPT2 = {"n_layer": 3, "n_head": 2, "n_embd": 16, "vocab_size": 50, "n_positions": 32, "eos_token_id": 0}


def small_gpt2():
    from transformers import GPT2Config, GPT2Model

    return GPT2Model(GPT2Config(**GPT2)).eval()


def small_llama():
    from transformers import LlamaConfig, LlamaModel

    sizes = {"num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2}
    return LlamaModel(LlamaConfig(hidden_size=16, intermediate_size=32, vocab_size=50, **sizes)).eval()


IDS = torch.tensor([[3, 4, 5, 6, 7, 8]])
MEMORY = tuple(f"[memory {number}]" for number in range(3))


def axes_of_layers(model, labels, **given):
    with torch.inference_mode(), attnscope.record(model, labels) as run:
        model(**given)
    heads = [run.head(each) for each in run.heads if str(each).endswith("H1")]
    return [(head.queries, head.keys) for head in heads], run


@pytest.mark.parametrize(("make", "heads"), [(small_gpt2, 2), (small_llama, 2)])
def test_learned_keys_of_a_cache_are_named_in_each_layer(make, heads):
    model = Prefixed(make(), heads).eval()
    axes, run = axes_of_layers(model, LABELS, ids=IDS)
    held = [layer.keys for layer in model.cache.layers]
    model(IDS.flip(1) + 9)  # the oracle: keys that are the same for another text
    layers = zip(held, model.cache.layers, strict=True)
    fixed = [(keys == layer.keys).all(-1)[0, 0].tolist() for keys, layer in layers]
    assert fixed == [[True] * 3 + [False] * 6] * 3
    assert axes == [(tuple(LABELS), (*MEMORY, *LABELS))] * 3
    assert not [note for note in run.notes if "cache" in note or "fit no axis" in note]


def test_learned_keys_keep_their_names_over_a_corpus():
    model, known, seen = Prefixed(small_gpt2(), 2).eval(), KnownPasses(), list[tuple[str, ...]]()

    def run(ids):
        observer = FunctionObserver(lambda each: seen.append(tuple(str(key) for key in each.keys)))
        with torch.inference_mode(), recording(model, [observer]):
            model(ids)

    for number in range(4):
        known.run(partial(run, IDS + number))
    assert len(seen) == 4 * 3
    assert len(set(seen)) == 1


@pytest.mark.parametrize("make", [small_gpt2, small_llama])
def test_learned_prompt_has_names_of_its_own_in_each_layer(make):
    model = Prompted(make()).eval()
    axes, run = axes_of_layers(model, LABELS, ids=IDS)
    assert axes == [((*MEMORY, *LABELS),) * 2] * 3
    assert not [note for note in run.notes if "fit no axis" in note]
    whole = [*"xyz", *LABELS]  # labels of all positions are those of the prompt, too
    assert axes_of_layers(model, whole, ids=IDS)[0] == [(tuple(whole),) * 2] * 3
    numbers = tuple(map(str, range(9)))  # and without labels all are positions
    assert axes_of_layers(model, None, ids=IDS)[0] == [(numbers,) * 2] * 3


class Writes(nn.Module):
    """Makes its learned states outside of any module's call, as peft does, then writes step by step."""

    def __init__(self, way, model, heads=2):
        super().__init__()
        config, torch_seed = model.config, torch.manual_seed(0)
        self.way, self.model, size = way, model, config.hidden_size // config.num_attention_heads
        shape = {"prefix": (config.num_hidden_layers, 2, heads, 3, size), "prompt": (3, config.hidden_size)}
        self.learned = nn.Parameter(torch.randn(shape[way], generator=torch_seed))

    def write(self, ids, count):
        from transformers import DynamicCache

        cache, states = DynamicCache(), self.model.get_input_embeddings()(ids)
        if self.way == "prefix":
            cache = DynamicCache([tuple(pair) for pair in self.learned[:, :, None]])
        else:
            states = torch.cat([self.learned[None], states], 1)
        for _ in range(count):
            output = self.model(inputs_embeds=states, past_key_values=cache, output_attentions=True)
            states = output.last_hidden_state[:, -1:]
        return output.attentions


@pytest.mark.parametrize("make", [small_gpt2, small_llama])
@pytest.mark.parametrize("way", ["prefix", "prompt"])
def test_learned_keys_made_before_the_call_are_named_in_every_step(make, way):
    model = Writes(way, make()).eval()
    model.model.set_attn_implementation("eager")
    written = [*LABELS, "u", "v"]
    with torch.inference_mode(), attnscope.record(model, written) as run:
        last = model.write(IDS, 3)
    heads = [run.head(each) for each in run.heads]
    assert len(run.passes) == 1
    assert {head.keys for head in heads} == {(*MEMORY, *written)}
    assert {head.queries for head in heads} == {(*MEMORY, *written) if way == "prompt" else tuple(written)}
    expected = torch.cat([layer[0, :, -1] for layer in last])  # [head of all layers, key]
    np.testing.assert_allclose([head.weights[-1] for head in heads], expected, atol=1e-6)
    assert not [note for note in run.notes if "cache" in note or "fit no axis" in note]


def peft_model(family, way):
    """A small model with three virtual tokens."""
    peft = pytest.importorskip("peft")
    from transformers import (
        GPT2Config,
        GPT2LMHeadModel,
        LlamaConfig,
        LlamaForCausalLM,
        T5Config,
        T5ForConditionalGeneration,
    )

    if family == "gpt2":
        base = GPT2LMHeadModel(GPT2Config(**GPT2))
    elif family == "llama":
        config = small_llama().config.to_dict() | {"eos_token_id": None}
        base = LlamaForCausalLM(LlamaConfig(**config))
    else:
        sizes = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 3, "num_heads": 2, "eos_token_id": None}
        base = T5ForConditionalGeneration(T5Config(vocab_size=50, decoder_start_token_id=0, **sizes))
    given = {"task_type": "SEQ_2_SEQ_LM" if family == "t5" else "CAUSAL_LM", "num_virtual_tokens": 3}
    if way == "prompt":
        return peft.get_peft_model(base, peft.PromptTuningConfig(**given)).eval()
    config = peft.PrefixTuningConfig(**given, prefix_projection=way != "prefix", encoder_hidden_size=8)
    return peft.get_peft_model(base, config).eval()


def expected_axes(family, way, text, target):
    """Queries and keys of each layer: of the decoder, or of encoder, decoder and cross-attention."""
    both = (*MEMORY, *text)
    if family != "t5":
        return [(both if way == "prompt" else text, both)] * 3
    if way == "prompt":
        return [(both, both)] * 3 + [(target, target)] * 3 + [(target, both)] * 3
    return [(text, text)] * 3 + [(target, (*MEMORY, *target))] * 3 + [(target, text)] * 3


@pytest.mark.parametrize("way", ["prefix", "prompt"])
@pytest.mark.parametrize("family", ["gpt2", "llama", "t5"])
def test_prefix_of_peft_is_named_in_every_step_of_a_generation(family, way):
    model = peft_model(family, way)
    text, target = (tuple("abcdef"), tuple("uvwx")) if family == "t5" else (tuple("abcdefghi"), ())
    labels = {"encoder": text, "decoder": target} if family == "t5" else text
    mask = {"attention_mask": torch.ones_like(IDS)}
    with torch.inference_mode(), attnscope.record(model, labels) as run:
        output = model.generate(
            input_ids=IDS, **mask, max_new_tokens=4, do_sample=False, return_dict_in_generate=True
        )
    cached = output.past_key_values.get_seq_length()  # what peft made of the cache itself
    if cached != (len(target) or len(text)) + 3 * ((family, way) != ("t5", "prompt")):
        pytest.skip("this release of peft does not give its prefix to this release of transformers")
    heads = [run.head(each) for each in run.heads if str(each).endswith("H1")]
    assert sorted((head.queries, head.keys) for head in heads) == sorted(
        expected_axes(family, way, text, target)
    )


@pytest.mark.parametrize("way", ["prefix", "projected prefix", "prompt"])
@pytest.mark.parametrize("family", ["gpt2", "t5"])
def test_keys_of_peft_prefix_and_prompt_are_named(family, way):
    model = peft_model(family, way)
    labels = LABELS if family == "gpt2" else {"encoder": LABELS, "decoder": list("uvwx")}
    inputs = {"input_ids": IDS} | ({} if family == "gpt2" else {"decoder_input_ids": IDS[:, :4]})
    axes, _ = axes_of_layers(model, labels, **inputs)
    expected = expected_axes(family, way, tuple(LABELS), tuple("uvwx"))
    assert sorted(axes) == sorted(expected)


class Patches(nn.Module):
    """Attention over a learned state and the patches of a picture, as in a ViT."""

    def __init__(self):
        super().__init__()
        self.cut, self.first = nn.Conv2d(3, 16, 4, 4), nn.Parameter(torch.randn(1, 1, 16))
        self.layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)

    def forward(self, picture):
        return self.layer(torch.cat([self.first, self.cut(picture).flatten(2).mT], 1))


def test_patches_beside_a_learned_state_lie_on_the_picture():
    picture, model = torch.rand(1, 3, 8, 12), Patches().eval()
    with torch.inference_mode(), attnscope.record(model, ["p"] * 6, images={"p": picture[0]}) as run:
        model(picture)
    head = run.head("L0H0")
    places = [f"p · {row},{column}" for row in range(2) for column in range(3)]
    assert head.keys == head.queries == ("[special]", *places)
