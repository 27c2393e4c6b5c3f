"""Weights before functional dropout are shown, with a note."""

import pytest
import torch
import transformers as hf
from torch import nn
from torch.nn import functional as F

import attnscope
from attnscope.capture import recording
from tests.capture.observing import MapObserver

SIZES = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
    "vocab_size": 50,
}  # fmt: skip
IDS = torch.randint(50, (2, 7), generator=torch.Generator().manual_seed(0))


def llama(kind):
    return hf.LlamaModel(hf.LlamaConfig(**SIZES, attention_dropout=0.5, attn_implementation=kind))


def bert(kind):
    shares = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.5}
    return hf.BertModel(hf.BertConfig(**SIZES, **shares, attn_implementation=kind))


class ByHand(nn.Module):
    """A softmax, dropped, moved and cut in two, before it weighs values; ``attentions`` are its weights."""

    def __init__(self, way):
        super().__init__()
        self.way, self.embed, self.qkv = way, nn.Embedding(50, 32), nn.Linear(32, 96)

    def forward(self, input_ids, **_):
        q, k, v = self.qkv(self.embed(input_ids)).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4)
        self.attentions = [(q @ k.mT / 3).softmax(-1)]
        dropped = F.dropout(self.attentions[0], 0.5, self.training)
        if self.way == "moved":
            (dropped,) = dropped.transpose(1, 2).chunk(1)
            return torch.einsum("bqhk,bhkd->bhqd", dropped, v)
        return dropped @ v


MODELS = {
    **{f"{make.__name__} {kind}": (make, kind) for make in (llama, bert) for kind in ("eager", "sdpa")},
    **{f"by hand, {way}": (ByHand, way) for way in ("plain", "moved")},
}


@pytest.mark.parametrize("name", MODELS)
def test_weights_before_dropout_are_shown_with_a_note(name):
    torch.manual_seed(0)
    make, how = MODELS[name]
    model = make(how)
    written = model if make is ByHand else make("eager")
    written.load_state_dict(model.state_dict())
    with torch.no_grad():
        given = written.eval()(input_ids=IDS, output_attentions=True)
        weights = (written if make is ByHand else given).attentions[0]
        for trains in (True, False):
            keep = MapObserver()
            with recording(model.train(trains), [keep], warn=False) as record:
                model(input_ids=IDS)
            torch.testing.assert_close(keep.maps[0].weights, weights, atol=1e-6, rtol=0)
            assert record.dropout == trains
            assert record.without_attention == record.failures == []
            assert all(site.difference is None if trains else site.difference < 1e-5 for site in record.sites)
            with attnscope.record(model) as run:
                model(input_ids=IDS)
            assert any("dropout was on" in note for note in run.notes) == trains
    with attnscope.watch(model.train(), every=1) as log:
        model(input_ids=IDS)
    assert "dropout was on: the weights are those before dropout" in log.notes
