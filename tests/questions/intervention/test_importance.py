"""Importance is the slope that finite differences find; ablation is W_O without the head's columns."""

import copy
import math

import pytest
import torch
import transformers
from torch.nn import functional as F

from attnscope.attention import Head
from attnscope.capture import recording
from attnscope.capture.hooks.gate import edited
from attnscope.errors import InputError, ModelError, SelectionError
from attnscope.models import load
from attnscope.models.inputs import Limit
from attnscope.models.targets import TURNS, batch_predictions
from attnscope.questions.ablate import ablate
from attnscope.questions.corpus_stats import corpus_stats
from attnscope.questions.selection import Selection
from attnscope.questions.stats import measure_heads
from attnscope.storage.corpus import ListedTexts
from tests.models.folders import gpt2, mamba, minilm, t5

TEXT = "The cat sat on the mat because it was tired."
SIZES = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
    "max_position_embeddings": 64,
}  # fmt: skip


def saved(folder, model):
    """A tiny random model beside the bundled encoder's tokenizer."""
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=load("own").reader.tokenizer,
        mask_token="[MASK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
    )
    torch.manual_seed(0)
    for weights in model.parameters():
        torch.nn.init.normal_(weights, std=0.15)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def bert(folder):
    return saved(folder, transformers.BertForMaskedLM(transformers.BertConfig(vocab_size=8192, **SIZES)))


def grouped(folder):
    config = transformers.Starcoder2Config(vocab_size=8192, num_key_value_heads=2, **SIZES)
    return saved(folder, transformers.Starcoder2ForCausalLM(config))


FOLDERS = {"bert": bert, "gpt2": gpt2, "grouped": grouped}


@pytest.fixture(scope="module", params=["own", "own-causal", *FOLDERS])
def model(request, tmp_path_factory):
    """Models that predict hidden tokens and models that predict the next one, in float64."""
    made = request.param
    name = FOLDERS[made](tmp_path_factory.mktemp(made)) if made in FOLDERS else made
    model = load(name, predicting=True)
    (getattr(model, "writer", None) or model.module).double()
    return model


def scaled(output, factors):
    """[batch, query, head, size] and [batch, head], or nothing"""
    return None if factors is None else output * factors.to(output)[:, None, :, None]


def losses(model, gate):
    """The mean loss of every copy of the text under a gate, computed by itself.  -> [copy]"""
    prepared = model.prepare(TEXT)
    found = []
    with torch.no_grad():
        for predictions in batch_predictions(model, prepared, [prepared.tokens]):
            with edited(lambda number, output: scaled(output, gate(number, output.shape[2]))):
                logits = predictions.logits(model)
            each = F.cross_entropy(logits, predictions.target_ids, reduction="none")
            for number in range(len(predictions.texts)):
                mine = [i for i, target in enumerate(predictions.targets) if target.copy == number]
                found.append(each[mine].mean())
    return torch.stack(found)


def slopes(model, call, head, step=1e-4):
    """Central differences of every copy's loss at one gate.  -> [copy]"""

    def at(factor):
        def gate(number, heads):
            factors = torch.ones(1, heads, dtype=torch.float64)
            factors[0, head] = factor
            return factors if number == call else None

        return losses(model, gate)

    return (at(1 + step) - at(1 - step)) / (2 * step)


def test_importance_is_what_finite_differences_find(model):
    found = measure_heads(model, model.prepare(TEXT), Selection(), importance=True).importance
    layers = list(dict.fromkeys((head.layer, head.kind) for head in found))
    for call, head in ((0, 0), (0, 3), (1, 1), (len(layers) - 1, 2)):
        expected = slopes(model, call, head).abs().mean().item()
        assert found[Head(layers[call][0], head, layers[call][1])].value == pytest.approx(
            expected, rel=1e-5, abs=1e-9
        )
        assert expected > 1e-6


def without(model, layer, head):
    """A copy of the model whose output projection has no columns for the head."""
    other = copy.deepcopy(model)
    ends = (
        f"layers.{layer}.self_attn.out_proj",
        f"layers.{layer}.self_attn.o_proj",
        f"layer.{layer}.attention.output.dense",
        f"h.{layer}.attn.c_proj",
    )
    for name, module in other.module.named_modules():
        if not name.endswith(ends):
            continue
        columns = module.weight.T if name.endswith("c_proj") else module.weight  # a Conv1D is transposed
        size = columns.shape[1]
        heads = other.module.config.heads if hasattr(other.module.config, "heads") else 4
        with torch.no_grad():
            columns[:, head * size // heads : (head + 1) * size // heads] = 0
        return other
    raise AssertionError("no output projection")


def test_ablation_is_an_output_projection_without_the_heads_columns(model):
    prepared = model.prepare(TEXT)
    seen = ablate(model, prepared, "L1H2")
    other = without(model, 1, 2)
    divergence, before, after = {}, {}, {}
    with torch.no_grad():
        for predictions in batch_predictions(model, prepared, [prepared.tokens]):
            p = predictions.logits(model).softmax(-1)
            q = predictions.logits(other).softmax(-1)
            for number, target in enumerate(predictions.targets):
                divergence[target.position] = (p[number] * (p[number] / q[number]).log()).sum().item()
                before[target.position], after[target.position] = (
                    p[number, target.id].item(),
                    q[number, target.id].item(),
                )
    assert {one.position: one.divergence for one in seen.changed} == pytest.approx(divergence, abs=1e-9)
    assert seen.divergence == pytest.approx(sum(divergence.values()) / len(divergence))
    assert seen.losses[0] == pytest.approx(-sum(map(math.log, before.values())) / len(before))
    assert seen.losses[1] == pytest.approx(-sum(map(math.log, after.values())) / len(after))
    listed = [one.divergence for one in seen.changed]
    assert listed == sorted(listed, reverse=True)
    assert listed[0] > 1e-6
    for one in seen.changed:
        assert one.token == prepared.tokens[one.position].text
        assert one.right == pytest.approx((before[one.position], after[one.position]))


def test_a_gate_of_one_changes_no_bit(model):
    prepared = model.prepare(TEXT)
    for predictions in batch_predictions(model, prepared, [prepared.tokens]):
        with torch.no_grad():
            plain = predictions.logits(model)
            with edited(lambda number, output: output * torch.ones(1).to(output)) as gates:
                assert torch.equal(predictions.logits(model), plain)
            with recording(model.module) as record:
                predictions.logits(model)
    assert gates.heads == [site.heads for site in record.sites]


def test_every_plain_token_is_asked_for_once_and_hidden_where_it_is():
    model = load("own")
    prepared = model.prepare(TEXT)
    (predictions,) = batch_predictions(model, prepared, [prepared.tokens])
    ids = predictions.prepared.inputs["ids"]
    mask = model.reader.tokenizer.token_to_id("[MASK]")
    assert sorted(target.position for target in predictions.targets) == list(
        range(1, len(prepared.tokens) - 1)
    )
    assert len(ids) == TURNS
    for number, row in enumerate(ids.tolist()):
        hidden = {target.position for target in predictions.targets if target.copy == number}
        assert row == [mask if i in hidden else token.id for i, token in enumerate(prepared.tokens)]


def test_a_causal_model_is_asked_for_each_next_token():
    model = load("own-causal")
    prepared = model.prepare(TEXT)
    (predictions,) = batch_predictions(model, prepared, [prepared.tokens])
    for target in predictions.targets:
        assert (target.at, target.id) == (target.position - 1, prepared.tokens[target.position].id)
    assert predictions.prepared.inputs["ids"].tolist() == [[token.id for token in prepared.tokens]]


def test_importance_over_a_corpus_is_the_mean_over_its_texts(model):
    texts = [
        TEXT,
        "The dog slept on the mat.",
        "It was tired of the cat because it sat.",
        "a",
        "The dog sat on the rug.",
    ]
    seen = corpus_stats(model, ListedTexts(texts), importance=True).importance
    alone = [found for text in texts if (found := importance_of(model, text)) is not None]
    for key, figure in seen.items():
        values = [one[key].value for one in alone]
        mean = sum(values) / len(values)
        error = math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1) / len(values))
        assert figure.texts == len(values)
        assert figure.value == pytest.approx(mean, rel=1e-6)
        assert figure.error == pytest.approx(error, rel=1e-5)


def importance_of(model, text):
    """What one text says, or None where it has no token to predict."""
    try:
        return measure_heads(model, model.prepare(text), Selection(), importance=True).importance
    except InputError:
        return None


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda folder: minilm(), "predicts no tokens: it has no language-model head"),
        (mamba, "no attention"),
        (lambda folder: "torch.nn:Identity", "predicts no tokens: it returns .* not scores over the"),
    ],
)
def test_a_model_that_cannot_be_asked_says_so(tmp_path, make, sentence):
    def ask():
        model = load(make(tmp_path), predicting=True)
        ablate(model, model.prepare(TEXT), "L0H0")

    with pytest.raises(ModelError, match=sentence):
        ask()


def test_heads_that_cannot_be_gated_are_named_with_how_they_attend(tmp_path):
    model = load(gpt2(tmp_path), predicting=True)
    attend = model.module.h[0].attn.forward

    def by_hand(hidden, *args, **kwargs):
        weights = torch.softmax(hidden @ hidden.mT, -1)
        return weights @ hidden, weights

    model.module.h[0].attn.forward = by_hand
    with pytest.raises(ModelError, match="cannot be gated: it attends by"):
        ablate(model, model.prepare(TEXT), "L1H0")
    model.module.h[0].attn.forward = attend


def test_a_head_that_does_not_exist_and_a_text_without_a_guess_are_refused():
    model = load("own")
    with pytest.raises(SelectionError, match="no head L9H0: this model has layers 0-3"):
        ablate(model, model.prepare(TEXT), "L9H0")
    with pytest.raises(SelectionError, match="which head is removed"):
        ablate(model, model.prepare(TEXT), Selection(layers=(1,)))
    causal = load("own-causal")
    with pytest.raises(InputError, match="no token to predict"):
        ablate(causal, causal.prepare("cat", limit=Limit(2)), "L0H0")


def test_an_encoder_decoder_is_asked_for_its_targets_tokens(tmp_path):
    model = load(t5(tmp_path), predicting=True)
    prepared = model.prepare("The cat sat.", "It was tired.")
    found = measure_heads(model, prepared, Selection(), importance=True).importance
    assert {head.kind for head in found} == {"encoder", "decoder", "cross"}
    seen = ablate(model, prepared, "cross L0H1")
    assert seen.kind == "cross"
    tokens = prepared.axes["decoder"][0]
    assert all(tokens[one.position].text == one.token for one in seen.changed)
