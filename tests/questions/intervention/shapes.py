"""Tiny random models of five architectures, run with plain hooks and with written-out attention."""

import inspect
import math
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import transformers as hf
from torch.nn import functional as F

from attnscope.models import ModelInput, load
from attnscope.models.targets import score_prediction
from attnscope.questions.patching import TextPair
from tests.models.folders import gpt2, t5
from tests.models.images import VIT, WHOLE, save_images, save_noise

TEXT, OTHER = "The cat sat on the mat because it was tired.", "The mat sat on the mat because it was tired."
SIZES = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
    "max_position_embeddings": 64, "vocab_size": 8192,
}  # fmt: skip
GROUPED = SIZES | {"num_key_value_heads": 2}
OLDER = {"vocab_size": 8192, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
T5 = {
    "vocab_size": 8192, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_heads": 4, "num_layers": 3,
    "num_decoder_layers": 2, "decoder_start_token_id": 0,
}  # fmt: skip


def network(name, **fields):
    """What makes a model of a class, with these fields in its config."""
    model = getattr(hf, name)
    return lambda: model(model.config_class(**fields))


BART = {"d_model": 32, "decoder_layers": 2, "decoder_attention_heads": 4, "decoder_ffn_dim": 48}
FEW = {"num_kv_heads": 2, "alibi": False}
NETWORKS = {
    "gpt2": network("GPT2LMHeadModel", **OLDER),
    "llama": network("LlamaForCausalLM", **GROUPED),
    "bert": network("BertForMaskedLM", **SIZES),
    "t5": network("T5ForConditionalGeneration", **T5),
    "classifier": network("BertForSequenceClassification", **SIZES),
    "starcoder2": network("Starcoder2ForCausalLM", **GROUPED),
    "bart": network("BartForCausalLM", **BART, vocab_size=8192),  # the decoder of a pair, in a wrapper
    "falcon": network("FalconForCausalLM", **SIZES, **FEW, new_decoder_architecture=True),
}


def saved(folder, made):
    """A tiny random model, by its name or what makes it, beside the bundled encoder's tokenizer."""
    model = NETWORKS.get(made, made)()
    special = {"mask_token": "[MASK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    tokenizer = hf.PreTrainedTokenizerFast(tokenizer_object=load("own").reader.tokenizer, **special)
    torch.manual_seed(0)
    for weights in model.parameters():
        torch.nn.init.normal_(weights, std=0.15)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


class Shaped(NamedTuple):
    """``stacks`` are the lists of layers, ``projections`` what mixes the heads of each attention call."""

    model: Any
    clean: ModelInput
    corrupt: ModelInput
    edge: str
    stacks: list
    projections: list

    @property
    def pair(self):
        return TextPair(self.clean, self.corrupt)


LAYERS = {
    "gpt2": lambda net: (net.transformer.h, [layer.attn.c_proj for layer in net.transformer.h]),
    "bert": lambda net: (net.bert.encoder.layer, [e.attention.output.dense for e in net.bert.encoder.layer]),
    "llama": lambda net: (net.model.layers, [layer.self_attn.o_proj for layer in net.model.layers]),
    "bart": lambda net: (net.model.decoder.layers, [e.self_attn.out_proj for e in net.model.decoder.layers]),
    "falcon": lambda net: (net.transformer.h, [layer.self_attention.dense for layer in net.transformer.h]),
}


def make_text(folder, name):
    model = load(gpt2(folder) if name == "gpt2" else saved(folder, name), predicting=True)
    layers, projections = LAYERS[name](model.writer)
    return Shaped(model, model.prepare(TEXT), model.prepare(OTHER), "it -> cat", [layers], projections)


def make_t5(folder, _):
    place = t5(folder)
    hf.T5ForConditionalGeneration.from_pretrained(place).save_pretrained(place)
    model = load(place, predicting=True)
    clean, corrupt = (model.prepare(text, "the cat sat") for text in ("the cat sat", "the mat sat"))
    encoder, decoder = model.writer.encoder.block, model.writer.decoder.block
    projections = [each.layer[0].SelfAttention.o for each in encoder]
    for each in decoder:
        projections += [each.layer[0].SelfAttention.o, each.layer[1].EncDecAttention.o]
    return Shaped(model, clean, corrupt, "sat -> the", [encoder, decoder], projections)


def make_vit(folder, _):
    vit = network("ViTForImageClassification", **VIT)()
    model = load(save_images(folder, vit, "ViTImageProcessor", WHOLE), predicting=True)
    pictures = (save_noise(Path(folder) / f"{seed}.png", 48, 80, seed) for seed in range(2))
    clean, corrupt = map(model.prepare_image, pictures)
    seeing = model.writer.vit
    layers = seeing.layers if hasattr(seeing, "layers") else seeing.encoder.layer  # in older releases
    attend = [layer.attention for layer in layers]
    outputs = [each.o_proj if hasattr(each, "o_proj") else each.output.dense for each in attend]
    return Shaped(model, clean, corrupt, "0 -> 3", [layers], outputs)


SHAPES = {**dict.fromkeys(LAYERS, make_text), "t5": make_t5, "vit": make_vit}


class Hooked:
    """A model's passes with plain hooks on modules; the score is the log-probability of one prediction."""

    def __init__(self, shaped):
        self.shaped = shaped
        with torch.no_grad():
            self.prediction = score_prediction(shaped.model, shaped.clean, None)

    def sides(self, noise):
        """The text whose parts are put into a pass, and the text of that pass, each with its score."""
        texts = (self.shaped.clean, self.shaped.corrupt)[:: -1 if noise else 1]
        return *texts, *map(self.score, texts)

    def score(self, prepared, hooks=()):
        """The score of a pass, with ``hooks`` as in ``log_shares``."""
        return self.log_shares(prepared, hooks)[self.prediction.chosen].item()

    def log_shares(self, prepared, hooks=()):
        """The log-probability of every word or class.

        ``hooks``: pairs of a module and a function of its first input, or a function of its output.
        """
        with ExitStack() as hooked, torch.no_grad():
            for module, kind, change in hooks:
                if kind == "input":
                    handle = module.register_forward_pre_hook(
                        lambda _, given, c=change: (c(given[0]), *given[1:])
                    )
                else:
                    handle = module.register_forward_hook(lambda _, __, out, c=change: _first(out, c))
                hooked.callback(handle.remove)
            network, at = self.shaped.model.writer, self.prediction.at
            scores = network(**prepared.inputs, **getattr(prepared, "settings", {})).logits[0]
            return (scores if at is None else scores[at]).log_softmax(-1)

    def exchanged(self, prepared, others, heads, rows=None):
        """Scores with some heads, by call and number, of as many, from what the projections get elsewhere."""

        def by_hand(meant):
            hooks = []
            for call, head in meant:
                change = put(others[call], head, others[call].shape[-1] // heads, rows and rows[call])
                hooks.append((self.shaped.projections[call], "input", change))
            return self.score(prepared, hooks)

        return by_hand

    def seen(self, prepared, modules, kind, hooks=()):
        """What each module received, or gave."""
        kept = []

        def keep(given):
            kept.append(given.clone())
            return given

        self.score(prepared, [*hooks, *((each, kind, keep) for each in modules)])
        return kept


def _first(output, change):
    return (change(output[0]), *output[1:]) if isinstance(output, tuple) else change(output)


class Attends:
    """Torch's kernel written out; ``weigh(number, weights)`` and ``give(number, output)`` change a call.

    T5 of transformers 5.0 writes a softmax itself: its second product, of weights and values, is replaced.
    """

    def __init__(self, monkeypatch, mask=None, weigh=None, give=None, parts=None):
        self.number, self.mask, self.weigh, self.give, self.parts = -1, mask, weigh, give, parts
        monkeypatch.setattr(F, "scaled_dot_product_attention", self)
        if "torch.matmul(" in inspect.getsource(hf.models.t5.modeling_t5.T5Attention):
            self.product, self.softmax, self.made = torch.matmul, F.softmax, []
            monkeypatch.setattr(torch, "matmul", self.multiply)
            monkeypatch.setattr(F, "softmax", self.keep)

    def keep(self, scores, **how):
        self.made.append(scores.clone())
        return self.softmax(scores, **how)

    def multiply(self, left, right):
        if not self.made:
            self.factors = left, right.mT
            return self.product(left, right)
        (query, key), scores = self.factors, self.made.pop()
        return self(query, key, right, (scores - query @ key.mT).double(), scale=1.0)

    def __call__(self, q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, **more):
        self.number += 1
        k, v = (part.repeat_interleave(q.shape[1] // part.shape[1], 1) for part in (k, v))
        if self.parts is not None:
            q, k, v = self.parts(self.number, q, k, v)
        scores = q @ k.mT * (scale or 1 / math.sqrt(q.shape[-1]))
        if is_causal:
            closed = torch.ones(scores.shape[-2:], dtype=torch.bool).tril().logical_not()
            scores = scores.masked_fill(closed, -torch.inf)
        if attn_mask is not None:
            bool_ = attn_mask.dtype == torch.bool
            scores = scores.masked_fill(~attn_mask, -torch.inf) if bool_ else scores + attn_mask
        if self.mask is not None:
            scores = self.mask(self.number, scores)
        weights = scores.softmax(-1)
        output = (weights if self.weigh is None else self.weigh(self.number, weights)) @ v
        return output if self.give is None else self.give(self.number, output)


def put(other, head, size, rows=None):
    """Replace the columns of one head, at some rows or all, in what a projection receives."""
    columns, rows = slice(head * size, (head + 1) * size), slice(None) if rows is None else rows

    def change(given):
        given = given.clone()
        given[..., rows, columns] = other[..., rows, columns]
        return given

    return change


def close(found, expected):
    assert found == pytest.approx(expected, abs=1e-5)


def heads_are(shaped, result, by_hand, here, whole=1.0, reached=None):
    """Every head alone, and all at once, score as ``by_hand`` does, a function of calls and their heads."""
    heads = max(each.head.head for each in result.heads) + 1
    assert len(result.heads) == heads * (len(shaped.projections) if reached is None else reached)
    for each in result.heads:
        after = by_hand([sent(shaped, each.head)])
        close((each.score, each.effect), (after, (after - here) / whole))
    close(result.together.score, by_hand([sent(shaped, each.head) for each in result.heads]))


def sent(shaped, head):
    """Which projection gets what a head gives; decoders attend to themselves, then across."""
    if len(shaped.stacks) == 1 or head.kind == "encoder":
        return head.layer, head.head
    return len(shaped.stacks[0]) + 2 * head.layer + (head.kind == "cross"), head.head


def places_of(axis, side):
    """The tokens of every word, or the one of a number."""
    if side.isdecimal():
        return [int(side)]
    words = {}
    for place, token in enumerate(axis):
        words.setdefault(token.word, []).append(place)
    spelled = ("".join(axis[place].text for place in places).strip(" .") for places in words.values())
    named = [places for places, word in zip(words.values(), spelled, strict=True) if word == side]
    return [place for places in named for place in places]
