"""Predictions are scored alike at once and in parts, and spelled as the tokenizer spells them."""

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
import transformers as hf
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import nn
from torch.nn import functional as F

from attnscope.errors import SelectionError
from attnscope.models import load, targets
from attnscope.models.targets import score_prediction
from attnscope.models.text.reader import wrap_module
from attnscope.questions.cachecost import cachecost
from attnscope.questions.loss import token_losses
from attnscope.text import per_cent

WORDS = [f"word{number}" for number in range(60)]
LONG = 600
PLACES = {"max_position_embeddings": 640}
LAYERS = {"num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24, "pad_token_id": 0}
SIZES = PLACES | LAYERS | {"vocab_size": 64, "hidden_size": 16}
GROUPED = SIZES | {"num_key_value_heads": 1}
OLDER = {"vocab_size": 64, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 640}
SIDE = {"decoder_layers": 2, "decoder_attention_heads": 2, "decoder_ffn_dim": 24, "encoder_layers": 0}
DECODER = PLACES | SIDE | {"vocab_size": 64, "d_model": 16}
PARTED = {
    "tied": lambda: hf.GPT2LMHeadModel(hf.GPT2Config(**OLDER)),
    "untied": lambda: hf.GPT2LMHeadModel(hf.GPT2Config(**OLDER, tie_word_embeddings=False)),
    "llama": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**GROUPED)),
    "capped": lambda: hf.Gemma2ForCausalLM(
        hf.Gemma2Config(**GROUPED, head_dim=8, final_logit_softcapping=0.5)
    ),
    "scaled": lambda: hf.CohereForCausalLM(hf.CohereConfig(**GROUPED, logit_scale=0.2)),
    "divided": lambda: hf.GraniteForCausalLM(hf.GraniteConfig(**GROUPED, logits_scaling=4.0)),
    "bias": lambda: hf.PhiForCausalLM(hf.PhiConfig(**SIZES)),
    "transformed": lambda: hf.BertLMHeadModel(hf.BertConfig(**SIZES, is_decoder=True)),
    "projected": lambda: hf.OPTForCausalLM(hf.OPTConfig(**SIZES, ffn_dim=24, word_embed_proj_dim=8)),
    "decoder": lambda: hf.BartForCausalLM(hf.BartConfig(**DECODER)),
}


@pytest.mark.parametrize(
    ("name", "target", "at", "said"),
    [
        ("own", "red@4", 4, "'red' ({}) in the place of token 4, 'red' (not masked)"),
        ("own", "red", 5, "'red' ({}) in the place of token 5, '.' (not masked)"),
        ("own-causal", "red@3", 3, "'red' ({}) after token 3, 'was'"),
    ],
)
def test_target_word_is_scored_at_its_token(name, target, at, said):
    model = load(name, predicting=True)
    prepared = model.prepare("the ball was red.")
    (id_,) = {token.id for token in prepared.tokens if token.text == "red"}
    with torch.no_grad():
        logits = model.logits(prepared, torch.tensor([0]), torch.tensor([at]))[0]
        prediction = score_prediction(model, prepared, target)
    assert prediction[:2] == (pytest.approx(float(logits[id_])), id_)
    assert prediction.description.endswith(said.format(per_cent(float(logits.softmax(-1)[id_]))))


class Hostile(hf.GPT2LMHeadModel):
    """Does more than it says with parts of its scores, which ``scores`` makes of the states of its base."""

    def __init__(self, config, scores):
        super().__init__(config)
        self.scores = scores
        self.base_model_prefix = "elsewhere" if scores is part else self.base_model_prefix

    def forward(self, input_ids, logits_to_keep=0, **more):
        self.keep = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        states = self.transformer(input_ids, use_cache=False).last_hidden_state
        return hf.modeling_outputs.CausalLMOutputWithPast(logits=self.scores(self, states))


class Unasked(hf.GPT2LMHeadModel):
    def forward(self, input_ids):
        """Cannot be asked for parts."""
        return super().forward(input_ids, use_cache=False)


def part(model, states):
    return model.lm_head(states[:, model.keep])


def by_place(model, states):
    scores = part(model, states)
    return scores + torch.arange(scores.shape[1])[:, None] * torch.arange(64).flip(0) / 1000


def attends(model, states):
    split = states.unflatten(-1, (2, -1)).transpose(1, 2)
    more = F.scaled_dot_product_attention(split, split, split, is_causal=True).transpose(1, 2).flatten(2)
    return part(model, states + more)


def around(model, states):
    for block in model.transformer.h:
        states = block(states)
        states = states[0] if isinstance(states, tuple) else states  # in older releases
    return part(model, states)


HOSTILE = {
    "by place": by_place,  # scores depend on their place among those that are asked for
    "whole": lambda model, states: model.lm_head(states),  # whichever are asked for
    "last": lambda model, states: model.lm_head(states[:, model.keep.start :]),  # a tensor has no start
    "writes": lambda model, states: part(model, states.add_(0.1)),  # into what its base gave
    "attends": attends,  # once more, behind its base
    "around": around,  # runs the layers of its base by itself
    "elsewhere": part,  # has no base by the name that it says
    "unasked": None,
}


def wrapped(module):
    """A model of random weights that reads words."""
    vocabulary = {word: number for number, word in enumerate(["[PAD]", "[UNK]", "[MASK]", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    reads = hf.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]", mask_token="[MASK]")
    torch.manual_seed(0)
    for weights in module.parameters():
        nn.init.normal_(weights, std=0.3)
    return wrap_module(module.eval(), reads, None, None)


def words(count=LONG):
    return " ".join(WORDS[at * at * 7 % 59] for at in range(count))


def plain_losses(model, prepared):
    """What one pass says of each next token."""
    ids = prepared.inputs["input_ids"]
    with torch.no_grad():
        logits = model.writer(ids).logits[0]
    return F.cross_entropy(logits[:-1], ids[0, 1:], reduction="none")


def seen(module, run):
    """The rows of each call of a module while something runs."""
    rows = []
    with module.register_forward_hook(lambda module, args, output: rows.append(output.shape[-2])):
        run()
    return rows


@pytest.mark.parametrize("name", PARTED)
def test_long_text_scored_in_parts_equals_one_pass(name):
    model = wrapped(PARTED[name]())
    head, embedding = model.writer.get_output_embeddings(), model.writer.get_input_embeddings()
    prepared, losses, read = model.prepare(words()), [], []

    def score():
        losses.extend(token_losses(model, prepared)[1:])

    rows = seen(head, lambda: read.extend(seen(embedding, score)))
    assert read.count(LONG) == 1
    assert rows[-2:] == [targets.SCORED_ROWS, LONG - 1 - targets.SCORED_ROWS]
    assert [each.loss for each in losses] == pytest.approx(plain_losses(model, prepared).tolist(), abs=1e-5)


@pytest.mark.parametrize("kind", HOSTILE)
def test_unsuitable_model_scores_all_rows_at_once(kind):
    config, scores = hf.GPT2Config(**OLDER), HOSTILE[kind]
    model = wrapped(Hostile(config, scores) if scores else Unasked(config))
    prepared, losses = model.prepare(words()), []
    rows = seen(model.writer.lm_head, lambda: losses.extend(token_losses(model, prepared)[1:]))
    assert rows[-1] == LONG
    assert torch.equal(torch.tensor([each.loss for each in losses]), plain_losses(model, prepared))


def test_long_masked_text_is_scored_at_once(monkeypatch):
    monkeypatch.setattr(targets, "SCORED_ROWS", 100)
    long = targets.BATCH_TOKENS // 2 + 1
    model = wrapped(hf.BertForMaskedLM(hf.BertConfig(**{**SIZES, "max_position_embeddings": long})))
    model.writer = model.module
    prepared = model.prepare(words(long))
    losses = [each.loss for each in token_losses(model, prepared)]
    for turn in range(targets.TURNS):
        ids, at = prepared.inputs["input_ids"].clone(), torch.arange(turn, long, targets.TURNS)
        right = ids[0, at]
        ids[0, at] = model.reader.tokenizer.mask_token_id
        with torch.no_grad():
            plain = F.cross_entropy(model.writer(ids).logits[0, at], right, reduction="none")
        assert losses[turn :: targets.TURNS] == pytest.approx(plain.tolist(), abs=1e-5)


@pytest.mark.parametrize("name", ["tied", "projected"])
def test_cachecost_in_parts_equals_one_pass(name, monkeypatch):
    results = []
    for rows in (64, 100):
        monkeypatch.setattr(targets, "SCORED_ROWS", rows)
        model = wrapped(PARTED[name]())
        results.append(cachecost(model, [model.prepare(words(100))], 4, 32, (), depths=(0.5,)))
    parts, whole = results
    for one, other in zip(
        [parts, *parts.heads, *parts.kept], [whole, *whole.heads, *whole.kept], strict=True
    ):
        assert one.loss == pytest.approx(other.loss, abs=1e-6)
    for one, other in zip(parts.heads, whole.heads, strict=True):
        assert replace(one, loss=0.0) == replace(other, loss=0.0)
    for one, other in zip(parts.kept, whole.kept, strict=True):
        assert (one.even, one.recall) == (pytest.approx(other.even, abs=1e-6), other.recall)


@pytest.mark.parametrize("fails", [None, "head", "trunk"])
def test_model_is_restored_after_scoring_in_parts(fails):
    model = wrapped(PARTED["tied"]())
    prepared = model.prepare(words())
    modules = list(model.module.modules())
    before = [set(vars(module)) for module in modules]
    failing = model.writer.lm_head if fails == "head" else model.writer.transformer.ln_f
    size = LONG - 1 - targets.SCORED_ROWS if fails == "head" else LONG

    def fail(module, args):
        if fails and args[0].shape[1] == size:
            raise ValueError("broken")

    refused = pytest.raises(ValueError, match="broken") if fails else nullcontext()
    with failing.register_forward_pre_hook(fail), refused as caught:
        token_losses(model, prepared)
    assert [set(vars(module)) for module in modules] == before, caught  # while the frames that failed stand
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in modules)


@pytest.mark.parametrize("target", ["Mary", "MARY", " mary"])
def test_target_is_spelled_as_the_tokenizer_spells_it(target):
    model = load("own-causal")  # its tokenizer lower-cases
    prediction = score_prediction(model, model.prepare("When Mary and John met"), target)
    assert prediction.description.startswith("the prediction: 'mary'")


def test_unknown_target_is_no_token_of_the_vocabulary():
    model = load("own-causal")
    with pytest.raises(SelectionError, match=r"^no token '\U00013000' in the vocabulary: name one token"):
        score_prediction(model, model.prepare("When Mary and John met"), "\U00013000")
