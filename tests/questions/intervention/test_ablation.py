"""Ablation equals W_O without a head's columns, also over texts; importance equals finite differences."""

import copy
import math
from contextlib import suppress

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from attnscope.attention import Head
from attnscope.capture import recording
from attnscope.capture.hooks.torch_functions import head_edits
from attnscope.errors import InputError, ModelError, SelectionError
from attnscope.models import load
from attnscope.models.inputs import Limit
from attnscope.models.targets import batch_predictions
from attnscope.models.text.reader import wrap_module
from attnscope.questions.cachecost import cachecost
from attnscope.questions.cause import cut
from attnscope.questions.corpus_stats import corpus_stats
from attnscope.questions.find import parse_questions
from attnscope.questions.loss import HeadSums, ablate, token_losses
from attnscope.questions.selection import Selection
from attnscope.questions.stats import measure_heads
from attnscope.storage.corpus import ListedTexts
from tests.models.folders import gpt2, minilm, t5
from tests.questions.intervention.shapes import TEXT, Hooked, heads_are, places_of

TEXTS = [
    TEXT,
    "The dog slept on the mat.",
    "It was tired of the cat because it sat.",
    "a",
    "The dog sat on it.",
]


OVER_TEXTS = pytest.mark.parametrize("model", ["own-causal", "bert", "gpt2"], indirect=True)
"""Small models of both kinds of prediction, and of both kinds of projection."""


def by_head(stats, name):
    """The importance of each head, or the loss without it."""
    return {head.address: head.score(name) for head in stats.heads}


def asked(model, name, text=TEXT, **more):
    """The importance of each head for one text, or its loss without each."""
    seen = measure_heads(model, model.prepare(text), Selection(**more), **{name: True})
    return by_head(seen, name)


def predicted(model, text):
    """The loss of every prediction in a text."""
    prepared, found = model.prepare(text), []
    with torch.no_grad(), suppress(InputError):
        for predictions in batch_predictions(model, prepared, [prepared.tokens]):
            logits = predictions.logits(model)
            found += F.cross_entropy(logits, predictions.target_ids, reduction="none").tolist()
    return found


def without(model, layer, head):
    """A copy of the model whose output projection has no columns for the head."""
    other = copy.deepcopy(model)
    ends = (
        f"layers.{layer}.self_attn.out_proj",
        f"layers.{layer}.self_attn.o_proj",
        f"layer.{layer}.attention.output.dense",
        f"h.{layer}.attn.c_proj",
    )
    (module,) = (module for name, module in other.module.named_modules() if name.endswith(ends))
    columns = module.weight if isinstance(module, torch.nn.Linear) else module.weight.T  # of a Conv1D
    size = columns.shape[1]
    heads = getattr(other.module.config, "heads", 4)
    with torch.no_grad():
        columns[:, head * size // heads : (head + 1) * size // heads] = 0
    return other


def losses(model, gate):
    """The mean loss of every copy of the text under a gate, computed by itself.  -> [copy]"""
    prepared = model.prepare(TEXT)
    found = []
    with torch.no_grad():
        for predictions in batch_predictions(model, prepared, [prepared.tokens]):
            with head_edits(gate):
                logits = predictions.logits(model)
            each = F.cross_entropy(logits, predictions.target_ids, reduction="none")
            for number in range(len(predictions.texts)):
                mine = [i for i, target in enumerate(predictions.targets) if target.copy == number]
                found.append(each[mine].mean())
    return torch.stack(found)


@pytest.mark.sweep(3)
def test_importance_equals_finite_differences(model):
    found = asked(model, "importance")
    layers = list(dict.fromkeys((head.layer, head.kind) for head in found))

    def at(call, head, factor):
        def gate(number, output):
            factors = torch.ones(output.shape[2], 1).to(output)  # [head, 1]
            factors[head] = factor
            return output * factors if number == call else None

        return losses(model, gate)

    for call, head in ((0, 0), (0, 3), (1, 1), (len(layers) - 1, 2)):
        slopes = (at(call, head, 1 + 1e-4) - at(call, head, 1 - 1e-4)) / 2e-4  # [copy]
        expected = slopes.abs().mean().item()
        address = Head(layers[call][0], head, layers[call][1])
        assert found[address].value == pytest.approx(expected, rel=1e-5, abs=1e-9)
        assert expected > 1e-6


@pytest.mark.sweep(3)
@pytest.mark.parametrize("heads", ["L1H2", "L0H1, L1H2"])
def test_ablation_equals_zeroed_output_projection_columns(model, heads):
    prepared, addresses = model.prepare(TEXT), [Head(each) for each in heads.split(", ")]
    seen, other = ablate(model, prepared, Selection(), addresses), model
    for head in addresses:
        other = without(other, head.layer, head.head)
    assert seen.head == heads
    divergence, right = {}, {}
    with torch.no_grad():
        for predictions in batch_predictions(model, prepared, [prepared.tokens]):
            p, q = (predictions.logits(each).softmax(-1) for each in (model, other))
            for number, target in enumerate(predictions.targets):
                divergence[target.position] = (p[number] * (p[number] / q[number]).log()).sum().item()
                right[target.position] = p[number, target.id].item(), q[number, target.id].item()
    assert {one.position: one.divergence for one in seen.changed} == pytest.approx(divergence, abs=1e-9)
    assert seen.divergence == pytest.approx(sum(divergence.values()) / len(divergence))
    for found, shares in zip(seen.losses, zip(*right.values(), strict=True), strict=True):
        assert found == pytest.approx(-sum(map(math.log, shares)) / len(shares))
    listed = [one.divergence for one in seen.changed]
    assert listed == sorted(listed, reverse=True)
    assert listed[0] > 1e-6
    for one in seen.changed:
        assert one.token == prepared.tokens[one.position].text
        assert one.right == pytest.approx(right[one.position])


def test_gate_of_one_is_bit_identical(model):
    prepared = model.prepare(TEXT)
    for predictions in batch_predictions(model, prepared, [prepared.tokens]):
        with torch.no_grad():
            plain = predictions.logits(model)
            with head_edits(lambda number, output: output * torch.ones(1).to(output)) as gates:
                assert torch.equal(predictions.logits(model), plain)
            with recording(model.module) as record:
                predictions.logits(model)
    assert gates.heads == [site.heads for site in record.sites]


@pytest.mark.sweep(2)
@OVER_TEXTS
def test_corpus_importance_is_the_mean_over_texts(model):
    seen = by_head(corpus_stats(model, ListedTexts(TEXTS), importance=True), "importance")
    alone = [asked(model, "importance", text) for text in TEXTS if predicted(model, text)]
    for key, score in seen.items():
        values = np.array([one[key].value for one in alone])
        assert score.texts == len(values)
        assert score.value == pytest.approx(values.mean(), rel=1e-6)
        assert score.error == pytest.approx(values.std(ddof=1) / len(values) ** 0.5, rel=1e-5)


@pytest.mark.sweep(2)
@pytest.mark.slow
@OVER_TEXTS
def test_corpus_ablation_equals_removal_by_hand(model):
    seen = by_head(corpus_stats(model, ListedTexts(TEXTS), ablation="zero"), "ablation")
    before, heads = [losses for text in TEXTS if (losses := predicted(model, text))], sorted(seen)
    sizes, count = np.array([len(losses) for losses in before]), len(before)
    assert len(heads) == len({head.layer for head in heads}) * len({head.head for head in heads})
    for head in (heads[0], heads[len(heads) // 2], heads[-1]):
        other, found = without(model, head.layer, head.head), seen[head]
        after = [losses for text in TEXTS if (losses := predicted(other, text))]
        rises = np.array([sum(a) - sum(b) for a, b in zip(after, before, strict=True)])
        mean = rises.sum() / sizes.sum()
        error = math.sqrt(count / (count - 1) * ((rises - mean * sizes) ** 2).sum()) / sizes.sum()
        rounding = float(np.finfo(np.float32).eps) * found.loss  # half of it for each of two losses
        assert found.value == pytest.approx(mean, abs=rounding)
        assert found.error == pytest.approx(error, abs=rounding)
        assert found.loss == pytest.approx(sum(map(sum, after)) / sizes.sum(), rel=1e-5)
        assert found.texts == count
    assert max(abs(found.value) for found in seen.values()) > 1e-4


def test_mean_ablation_uses_the_mean_output(tmp_path):
    causal = load(gpt2(tmp_path), predicting=True)
    seen = by_head(corpus_stats(causal, ListedTexts(TEXTS), ablation="mean"), "ablation")
    projection, outputs = causal.module.h[1].attn.c_proj, []
    watching = projection.register_forward_pre_hook(lambda module, given: outputs.append(given[0][0]))
    plain = [loss for text in TEXTS for loss in predicted(causal, text)]
    watching.remove()
    mean = torch.cat(outputs).mean(0)[8:16]

    def replace(module, given):
        hidden = given[0].clone()
        hidden[..., 8:16] = mean
        return (hidden,)

    projection.register_forward_pre_hook(replace)
    other = [loss for text in TEXTS for loss in predicted(causal, text)]
    rise = np.mean(other) - np.mean(plain)
    assert seen[Head(1, 1, "decoder")].value == pytest.approx(rise, rel=1e-3, abs=1e-6)


@pytest.mark.sweep(2)
@pytest.mark.parametrize("model", ["own-causal", "gpt2"], indirect=True)
def test_loss_of_repeated_tokens_counts_the_second_half(model):
    text = " the cat sat on the mat because it slept" * 2
    prepared = model.prepare(text)
    places = torch.tensor([at for at, token in enumerate(prepared.tokens) if not token.special])
    ids, half = torch.tensor([token.id for token in prepared.tokens]), len(places) // 2

    def losses(of):  # of every token behind the first
        with torch.no_grad():
            logits = of.logits(prepared, 0 * places[1:], places[1:] - 1)
        return F.cross_entropy(logits, ids[places[1:]], reduction="none")

    before, after = (losses(each)[-half:].mean().item() for each in (model, without(model, 1, 0)))
    assert before != pytest.approx(losses(model).mean().item())
    found = ablate(model, prepared, "L1H0")
    assert found.losses == pytest.approx((before, after))
    ablation = measure_heads(model, prepared, Selection(), ablation=True)
    corpus = corpus_stats(model, ListedTexts([text]), ablation="zero")
    for each in (ablation, corpus):
        one = by_head(each, "ablation")[Head(1, 0, "decoder")]
        rounding = float(np.finfo(np.float32).eps) * after  # half of it for each of two losses
        assert (one.loss, one.value) == pytest.approx((after, after - before), abs=rounding, rel=0)
    cost = cachecost(model, [prepared], sink=1, recent=4)
    assert (cost.loss, cost.tokens) == (pytest.approx(before), half)
    for notes in (found.notes, ablation.notes, corpus.notes, cost.notes):
        assert sum("only the second half counts in the loss" in note for note in notes) == 1
    each = token_losses(model, prepared)
    assert [one.counts for one in each] == [at in places[half:] for at in range(len(ids))]
    known = [one.loss for one in each if one.loss is not None]
    assert known[1 - 2 * half :] == pytest.approx(losses(model).tolist())


def same(found, expected):
    values, wanted = ({head: each.value for head, each in side.items()} for side in (found, expected))
    assert values == pytest.approx(wanted, abs=1e-6)


def test_stateful_model_reruns_fully_for_each_head(tmp_path):
    causal = load(gpt2(tmp_path), predicting=True)
    exact, kept = asked(causal, "ablation"), []
    first, last = causal.module.h
    start, end = first.forward, last.forward

    def leave(*args, **kwargs):
        found = start(*args, **kwargs)
        kept.append(found[0] if isinstance(found, tuple) else found)  # in older releases
        return found

    def take(hidden, *args, **kwargs):
        return end(kept.pop() if kept else hidden * 2, *args, **kwargs)

    first.forward, last.forward = leave, take
    same(asked(causal, "ablation"), exact)


@pytest.mark.sweep(3)
@pytest.mark.parametrize("everywhere", [True, False])
def test_zeroed_heads_at_tokens_equal_zeroed_columns(shaped, everywhere):
    side = shaped.edge.split(" -> ")[0]
    asked = parse_questions("* -> *" if everywhere else f"{side} -> *")
    found = cut(shaped.model, shaped.clean, asked, how="zero")
    hooked, axes = Hooked(shaped), shaped.clean.axes
    kinds = ["encoder", "encoder", *["decoder", "cross"] * 2] if len(shaped.stacks) > 1 else [*axes][:1] * 2
    rows = None if everywhere else [places_of(axes[kind][0], side) for kind in kinds]
    given = hooked.seen(shaped.clean, shaped.projections, "input")
    zeros, count = [0 * each for each in given], 1 + max(each.head.head for each in found.heads)
    zeroed = hooked.exchanged(shaped.clean, zeros, count, rows)
    heads_are(shaped, found, zeroed, hooked.score(shaped.clean))


def test_ablation_of_selected_layers_equals_all(causal):
    every, some = asked(causal, "ablation"), asked(causal, "ablation", layers=(1,))
    same(some, {head: found for head, found in every.items() if head.layer == 1})


def test_encoder_decoder_ablation_covers_all_kinds(tmp_path):
    pair = load(t5(tmp_path), predicting=True)
    prepared = pair.prepare("The cat sat.", "It was tired.")
    found = measure_heads(pair, prepared, Selection(), importance=True, ablation=True)
    for heads in (by_head(found, name) for name in ("importance", "ablation")):
        assert {head.kind for head in heads} == {"encoder", "decoder", "cross"}
        assert len(heads) == 6 * 4
    seen = ablate(pair, prepared, "cross L0H1")
    assert seen.kind == "cross"
    tokens = prepared.axes["decoder"][0]
    assert all(tokens[one.position].text == one.token for one in seen.changed)


def test_ablation_sums_merge_and_survive_a_file(causal):
    whole = by_head(corpus_stats(causal, ListedTexts(TEXTS), ablation="zero"), "ablation")
    assert whole[Head(0, 0, "decoder")].texts == len(TEXTS)
    halves = []
    for text in (TEXTS[0], TEXTS[1]):
        made = HeadSums()
        prepared = causal.prepare(text)
        made.add(causal, prepared, {"decoder": ([prepared.tokens], [prepared.tokens])}, Selection())
        halves.append(made)
    halves[0].merge(halves[1])
    again = HeadSums.from_state(halves[0].state())
    assert again.scores() == halves[0].scores()
    both = by_head(corpus_stats(causal, ListedTexts(TEXTS[:2]), ablation="zero"), "ablation")
    same(again.scores(), both)


class Packed(nn.Linear):
    """A layer with one projection for queries, keys and values, and none behind the heads."""

    def __init__(self, causal):
        super().__init__(16, 48)
        self.causal = causal

    def forward(self, hidden, **mask):
        parts = super().forward(hidden).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*parts, is_causal=self.causal)
        return hidden + mixed.transpose(1, 2).flatten(-2)


class Torchs(nn.MultiheadAttention):
    """A layer of torch's own attention, by its kernel, or with weights and texts second."""

    def forward(self, hidden, src_mask, is_causal):
        states = hidden if self.batch_first else hidden.transpose(0, 1)
        given = {"attn_mask": src_mask, "need_weights": not self.batch_first}
        mixed, _ = super().forward(states, states, states, **given)
        return hidden + (mixed if self.batch_first else mixed.transpose(0, 1))


class Small(nn.Module):
    """A language model of two layers, which returns its scores, alone or first of several."""

    def __init__(self, layer, several):
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.output = nn.Embedding(8192, 16), nn.Linear(16, 8192)
        self.layers, self.several = nn.ModuleList([layer(), layer()]), several

    def forward(self, ids):
        hidden, mask = self.embedding(ids), nn.Transformer.generate_square_subsequent_mask(ids.shape[-1])
        for layer in self.layers:
            hidden = layer(hidden, src_mask=mask, is_causal=True)
        return (self.output(hidden), hidden) if self.several else self.output(hidden)


@pytest.mark.parametrize(
    ("layer", "several"),
    [
        (lambda: Packed(causal=True), False),
        (lambda: Packed(causal=False), True),
        (lambda: Torchs(16, 2, batch_first=True), True),
        (lambda: Torchs(16, 2), False),
        (lambda: nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), False),
    ],
    ids=["packed", "packed, not causal", "batch first", "batch second", "encoder layer"],
)
def test_module_heads_are_removed_before_the_output_projection(layer, several, own):
    module = Small(layer, several).eval()
    made, last = wrap_module(module, own.reader.tokenizer, None, "small"), module.layers[1]
    assert (made.objective.mask is None) == getattr(last, "causal", True)
    prepared = made.prepare(TEXT)
    seen = measure_heads(made, prepared, Selection(), importance=True, ablation=True)
    importance, ablation = (by_head(seen, name) for name in ("importance", "ablation"))
    assert len(ablation) == len(importance) == 4
    assert None not in (*ablation.values(), *importance.values())
    alone, plain = ablate(made, prepared, "L1H1"), predicted(made, TEXT)
    with torch.no_grad():
        if isinstance(last, Packed):  # the values of the head
            last.weight[2 * 16 + 8 :] = last.bias[2 * 16 + 8 :] = 0
        else:  # what the last projection reads of the head
            getattr(last, "self_attn", last).out_proj.weight[:, 8:] = 0
    rise = np.mean(predicted(made, TEXT)) - np.mean(plain)
    assert abs(rise) > 1e-4
    (found,) = (each for head, each in ablation.items() if (head.layer, head.head) == (1, 1))
    assert found.value == pytest.approx(rise, abs=1e-5)
    assert alone.losses[1] - alone.losses[0] == pytest.approx(rise, abs=1e-5)


def test_unsuitable_model_for_ablation_is_explained(tmp_path, causal):
    with pytest.raises(ModelError, match="predicts no tokens: it has no language-model head"):
        load(minilm(), predicting=True)
    model = load(gpt2(tmp_path), predicting=True)

    def by_hand(hidden, *args, **kwargs):
        weights = torch.softmax(hidden @ hidden.mT, -1)
        return torch.baddbmm(hidden, weights, hidden), weights  # something is added in the same product

    model.module.h[0].attn.forward = by_hand
    with pytest.raises(ModelError, match="cannot be gated: it attends by"):
        ablate(model, model.prepare(TEXT), "L1H0")
    with pytest.raises(SelectionError, match="no head L9H0: this model has layers 0-2"):
        ablate(causal, causal.prepare(TEXT), "L9H0")
    with pytest.raises(SelectionError, match="which head is removed"):
        ablate(causal, causal.prepare(TEXT), Selection(layers=(1,)))
    with pytest.raises(InputError, match="no token to predict"):
        ablate(causal, causal.prepare("cat", limit=Limit(2)), "L0H0")
