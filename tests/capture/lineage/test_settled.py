"""What runs in layers of a make that needs no lineage is not followed; what needs it is, beside them."""

import pytest
import torch
import transformers as hf
from torch import nn

from attnscope.capture import Keep, recording
from attnscope.capture.lineage.follow import Lineage
from tests.capture.lineage.test_pieces import COUNT, HEADS, SIZE, Attending, chunked_queries, plain_weights
from tests.capture.tiny import FAMILIES, inputs


def test_the_second_layer_of_a_model_of_transformers_is_not_followed(monkeypatch):
    seen = []
    see = Lineage.see

    def count(self, call):
        seen.extend([] if self.recorder.rests else [call.name])
        see(self, call)

    monkeypatch.setattr(Lineage, "see", count)

    def follow(layers):
        seen.clear()
        config = hf.GPT2Config(vocab_size=99, n_embd=32, n_layer=layers, n_head=4)
        model = hf.GPT2Model(config).eval()
        with torch.inference_mode(), recording(model) as record:
            model(**inputs("text"))
        assert len(record.sites) == layers
        return len(seen)

    assert follow(6) - follow(2) < follow(2) / 4  # what runs between the layers


class Mixed(nn.Module):
    """Layers of transformers, and layers whose queries come in chunks, which lineage puts together."""

    def __init__(self):
        super().__init__()
        self.known = FAMILIES["bert"].build()
        self.narrow = nn.Linear(32, SIZE)
        self.chunked = nn.ModuleList(Attending(chunked_queries, "softmax") for _ in range(2))

    def forward(self, ids):
        states = self.narrow(self.known(ids).last_hidden_state)
        for layer in self.chunked:
            self.given = states
            states = layer(states)
        return states


@pytest.mark.parametrize("passes", [1, 3])
def test_chunks_behind_layers_of_transformers_are_put_together(passes):
    torch.manual_seed(0)
    model, keep = Mixed().eval(), Keep(lambda site: range(HEADS))
    with torch.inference_mode(), recording(model, [keep]):
        for _ in range(passes):
            model(torch.randint(4, 99, (2, COUNT)))
    *_, kept = keep.maps
    assert len(keep.maps) == 5 * passes
    with torch.inference_mode():
        torch.testing.assert_close(kept.weights, plain_weights(model.chunked[1], model.given))
