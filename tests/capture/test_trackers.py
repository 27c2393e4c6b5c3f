"""A recording without one of its trackers: it shows the same, or names what it misses, and nothing fails."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attnscope.capture import Keep, recorder, recording
from attnscope.capture.hooks.softmax import Trails

SIZE, HEADS, COUNT = 16, 4, 6


class Attention(nn.Module):
    """Causal attention as GPT-2's, by torch's kernel or by a softmax."""

    def __init__(self, kernel):
        super().__init__()
        self.kernel, self.qkv, self.out = kernel, nn.Linear(SIZE, 3 * SIZE), nn.Linear(SIZE, SIZE)

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        if self.kernel == "sdpa":
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            future = torch.ones(COUNT, COUNT).triu(1).bool()
            mixed = (q @ k.mT / 2).masked_fill(future, -torch.inf).softmax(-1) @ v
        return self.out(mixed.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """A layer of GPT-2."""

    def __init__(self, kernel):
        super().__init__()
        self.attend, self.norms = Attention(kernel), nn.ModuleList(nn.LayerNorm(SIZE) for _ in range(2))
        self.feed = nn.Sequential(nn.Linear(SIZE, 32), nn.GELU(), nn.Linear(32, SIZE))

    def forward(self, x):
        x = x + self.attend(self.norms[0](x))
        return x + self.feed(self.norms[1](x))


class Tiny(nn.Module):
    """Two of them behind embeddings."""

    def __init__(self, kernel):
        super().__init__()
        self.embed, self.layers = nn.Embedding(9, SIZE), nn.ModuleList(Block(kernel) for _ in range(2))

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return x


def observe(kernel):
    torch.manual_seed(0)
    model, keep = Tiny(kernel).eval(), Keep(lambda site: range(HEADS))
    with torch.inference_mode(), recording(model, [keep], warn=False) as record:
        model(torch.randint(9, (2, COUNT)))
    assert not record.failures
    return record, keep.maps


@pytest.mark.parametrize("kernel", ["sdpa", "softmax"])
@pytest.mark.parametrize("without", recorder.TRACKERS, ids=lambda tracker: tracker.__name__)
def test_a_recording_without_one_of_its_trackers(monkeypatch, kernel, without):
    expected, maps = observe(kernel)
    assert len(maps) == 2
    monkeypatch.setattr(recorder, "TRACKERS", [each for each in recorder.TRACKERS if each is not without])
    record, others = observe(kernel)
    if (without, kernel) == (Trails, "softmax"):
        assert not others
        assert [layer.layer for layer in record.without_attention] == [0, 1]
        return
    assert record == expected
    for one, other in zip(maps, others, strict=True):
        assert torch.equal(one.weights, other.weights)
