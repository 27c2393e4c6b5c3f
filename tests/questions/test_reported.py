"""What models report wrongly of themselves."""

import torch
import transformers as hf

from attnscope.capture import recording
from attnscope.questions.info import fault
from tests.capture.tiny import FAMILIES, SIZES, inputs


def faults(model, **given):
    """The fault of each tensor that a model reports, in order."""
    said = []
    with torch.inference_mode():
        own = list(model(**given, output_attentions=True).attentions)

        class Compare:
            def observe(self, attention):
                alive = attention.allowed(0, len(attention.queries)).any(-1, keepdim=True)
                said.append(fault(own[attention.site.layer], attention.weights(), alive))

        with recording(model, [Compare()]):
            model(**given)
    return said


def test_a_model_that_reports_its_weights_has_no_fault():
    assert faults(FAMILIES["bert"].build("eager"), **inputs("text")) == [None] * 3


def test_squeezebert_reports_scores():
    config = hf.SqueezeBertConfig(**SIZES, embedding_size=32, num_hidden_layers=2)
    model = hf.SqueezeBertModel._from_config(config).eval()
    given = {"input_ids": torch.randint(4, 99, (2, 7)), "attention_mask": torch.ones(2, 7, dtype=torch.long)}
    assert faults(model, **given) == ["scores from before the softmax"] * 2


def test_every_other_fault_is_told():
    weights = torch.softmax(torch.randn(2, 4, 5, 5), -1)
    call = weights, torch.ones(1, 1, 5, 1, dtype=torch.bool)
    assert fault(weights, *call) is None
    assert fault(weights.mean(1), *call) == "the mean over the heads"
    assert fault(weights.mean(1, keepdim=True), *call) == "the mean over the heads"
    assert fault(weights.mean(1, keepdim=True).expand(2, 4, 5, 5), *call) == "the mean over the heads"
    assert fault(weights[:, 0], *call) == "one map for all heads"
    assert fault(torch.randn(2, 5, 16), *call).startswith("a tensor of the shape [2, 5, 16]")
    assert fault(weights.log(), *call) == "scores from before the softmax"
    assert fault(torch.randn(2, 4, 5, 5) * 9, *call) == "no weights: some are negative"
    assert fault(weights * 2, *call) == "no weights: rows sum to more than 1"
    assert fault(weights.mT / 3, *call) == "other weights than those that were used"
