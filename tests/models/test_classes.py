"""Predictions of classes: which class is the target, and its gradient."""

import numpy as np
import pytest
import torch
import transformers

from attnscope.errors import ModelError, SelectionError
from attnscope.models import load
from attnscope.models.targets import score_prediction
from attnscope.models.weighting import with_weighting
from tests.models.folders import Calls, gpt2, minilm, save

TEXT = "Anna sat on the mat."
LABELS = {0: "O", 1: "B-PER", 2: "sad"}


def _bert(folder, head):
    tokenizer = transformers.AutoTokenizer.from_pretrained(minilm())
    sizes = {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 32, "num_hidden_layers": 2}
    config = transformers.BertConfig(vocab_size=len(tokenizer), id2label=LABELS, **sizes)
    return save(folder, getattr(transformers, f"BertFor{head}Classification")(config), tokenizer)


def _logits(folder, what, prepared):
    automatic = getattr(transformers, f"AutoModelFor{what}Classification")
    model = automatic.from_pretrained(folder, attn_implementation="eager")
    return model(**prepared.inputs, output_attentions=True)


@pytest.mark.parametrize(
    ("head", "target", "at", "chosen"),
    [
        ("Sequence", None, None, None),
        ("Sequence", "B-PER", None, 1),
        ("Sequence", "2", None, 2),
        ("Token", None, 6, None),
        ("Token", "2", 2, None),
        ("Token", "B-PER@1", 1, 1),
        ("Token", "B-PER", None, 1),
        ("Token", "2@3", 3, 2),
    ],
)
def test_target_class_is_named_numbered_or_the_largest(tmp_path, head, target, at, chosen):
    model = load(_bert(tmp_path, head), predicting=True)
    prepared = model.prepare(TEXT)
    own = _logits(tmp_path, head, prepared).logits[0].detach()
    prediction, where = score_prediction(model, prepared, target), ""
    if head == "Token":
        at = 1 + int(own[1:-1].softmax(-1)[:, chosen].argmax()) if at is None else at
        own, where = own[at], f" of token {at}, {prepared.tokens[at].text!r}"
    chosen = int(own.argmax()) if chosen is None else chosen
    assert prediction.score.item() == pytest.approx(float(own[chosen]), rel=1e-5)
    share = float(own.softmax(-1)[chosen])
    assert prediction.description == f"the prediction: class {LABELS[chosen]!r} ({share:.0%}){where}"


def test_class_gradient_equals_autograd_on_eager_copy(tmp_path):
    model = load(_bert(tmp_path, "Sequence"), predicting=True)
    prepared = model.prepare(TEXT)
    own = _logits(tmp_path, "Sequence", prepared)
    slopes = torch.autograd.grad(own.logits[0, 2], own.attentions)
    shown = Calls()
    record = with_weighting(model, "gradient", "sad").run(prepared, [shown])
    assert any("class 'sad'" in note for note in record.notes)
    for (_, ours, _), weights, slope in zip(shown.seen, own.attentions, slopes, strict=True):
        raised = (weights * slope).clamp(min=0).detach().numpy()
        total = raised.sum(-1, keepdims=True)
        np.testing.assert_allclose(ours, raised / np.where(total > 0, total, 1), atol=1e-4)


def test_causal_classifier_predicts_its_classes(tmp_path):
    tokenizer = transformers.AutoTokenizer.from_pretrained(gpt2(tmp_path))
    config = transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=400, id2label=LABELS)
    folder = save(tmp_path, transformers.GPT2ForSequenceClassification(config), tokenizer)
    model = load(folder, predicting=True)
    record = with_weighting(model, "gradient").run(model.prepare(TEXT), [])
    assert any("the prediction: class" in note for note in record.notes)


def test_missing_class_or_classifier_is_refused(tmp_path):
    model = load(_bert(tmp_path, "Sequence"), predicting=True)
    with pytest.raises(SelectionError, match=r"no class 'happy': .*3 classes: O, B-PER, sad"):
        score_prediction(model, model.prepare(TEXT), "happy")
    with pytest.raises(ModelError, match="predicts no tokens: it has a head for 3 classes"):
        _ = model.objective
    with pytest.raises(ModelError, match=r"attention alone needs no head, as --weighting norm"):
        load(minilm(), predicting=True)
