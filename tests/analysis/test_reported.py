"""What models report wrongly of themselves."""

import torch
import transformers as hf

from attnscope.analysis.reported import fault
from attnscope.attention import Attention, HeldRows, Site
from attnscope.capture import recording
from tests.capture.tiny import FAMILIES, SIZES, inputs


def attention(weights):
    """Weights [batch, head, query, key] as a call that was seen."""
    batch, heads, queries, keys = weights.shape
    read = HeldRows(weights, torch.ones(1, 1, 1, 1, dtype=torch.bool).expand(1, 1, queries, keys))
    site = Site("layers.0", 0, "encoder", 0)
    sizes = (batch, heads, heads, range(queries), range(keys), 0)
    return Attention(site, "kernel", "eager", *sizes, weights.dtype, read)


def faults(model, **given):
    """The fault of each tensor that a model reports, in order."""
    said = []
    with torch.inference_mode():
        own = list(model(**given, output_attentions=True).attentions)

        class Compare:
            def observe(self, attention):
                said.append(fault(own[attention.site.layer], attention))

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
    seen = attention(weights)
    assert fault(weights, seen) is None
    assert fault(weights.mean(1), seen) == "the mean over the heads"
    assert fault(weights.mean(1, keepdim=True), seen) == "the mean over the heads"
    assert fault(weights.mean(1, keepdim=True).expand(2, 4, 5, 5), seen) == "the mean over the heads"
    assert fault(weights[:, 0], seen) == "one map for all heads"
    assert fault(torch.randn(2, 5, 16), seen).startswith("a tensor of the shape [2, 5, 16]")
    assert fault(weights.log(), seen) == "scores from before the softmax"
    assert fault(torch.randn(2, 4, 5, 5) * 9, seen) == "no weights: some are negative"
    assert fault(weights * 2, seen) == "no weights: rows sum to more than 1"
    assert fault(weights.mT / 3, seen) == "other weights than those that were used"
