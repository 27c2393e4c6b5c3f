"""Contributions to a score: each head's, written out, and their sum."""

import pytest
import torch
from torch import nn

from attnscope.attention import Head
from attnscope.capture import recording
from attnscope.capture.effects import sum_parts
from attnscope.capture.stream import Lost, Stream, StreamRows
from tests.capture.modules import Fused

SIZE, HEADS, COUNT, VOCABULARY = 16, 4, 7, 9


class Writer(nn.Module):
    """Two layers of attention and feed-forward parts, a norm, and a head with some activations."""

    def __init__(self, activations=0):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, SIZE)
        self.layers = nn.ModuleList(
            nn.ModuleDict({"attention": Fused(SIZE), "mlp": nn.Sequential(nn.Linear(SIZE, SIZE), nn.GELU())})
            for _ in range(2)
        )
        self.norm, self.head = nn.LayerNorm(SIZE), nn.Linear(SIZE, VOCABULARY)
        self.before = nn.Sequential(*(part() for _ in range(activations) for part in (mixed, nn.Tanh)))
        nn.init.normal_(self.norm.weight)
        nn.init.normal_(self.norm.bias)

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = x + layer["attention"](x)[0]
            x = x + layer["mlp"](x)
        return self.head(self.before(self.norm(x)))


def mixed():
    return nn.Linear(SIZE, SIZE)


def effects_of(model, at):
    """The effects on the score of word 3 minus word 5 at a token, and the score."""
    rows, ids = StreamRows(length=COUNT, at=at), torch.arange(COUNT)[None]
    with torch.enable_grad(), rows.watching(model), recording(model, [rows], warn=False):
        logits = model(ids)[:, at]
    seed = torch.zeros_like(logits)
    seed[0, 3], seed[0, 5] = 1, -1
    stream = Stream((logits.grad_fn, logits.output_nr), rows)
    return sum_parts(stream, stream.walk(seed)), float((logits * seed).sum())


@pytest.mark.parametrize("at", [2, COUNT - 1])
@pytest.mark.parametrize("activations", [0, 1, 2])
def test_contributions_sum_to_score_for_any_output_head(activations, at):
    torch.manual_seed(0)
    effects, score = effects_of(Writer(activations).eval(), at)
    assert effects.total == pytest.approx(score, abs=1e-5 * max(1, effects.size))
    assert list(effects.heads) == [Head(layer, head, "decoder") for layer in (1, 0) for head in range(HEADS)]
    assert sorted(effects.feed_forward) == [0, 1]


def test_output_head_with_three_activations_is_refused():
    with pytest.raises(Lost, match="cannot be traced back to its embeddings"):
        effects_of(Writer(3).eval(), 2)


@pytest.mark.parametrize("at", [2, COUNT - 1])
def test_head_effect_is_product_with_gradient_at_fixed_norm(at):
    torch.manual_seed(0)
    model, states, written = Writer().eval(), {}, {}
    hooks = [model.norm.register_forward_hook(lambda module, given, made: states.update(norm=given[0]))]
    for number, layer in enumerate(model.layers):
        attention = layer["attention"]
        hooks.append(
            attention.out.register_forward_hook(
                lambda module, given, made, number=number: written.update({number: given[0]})
            )
        )
    effects, _ = effects_of(model, at)
    for hook in hooks:
        hook.remove()
    with torch.no_grad():
        row = states["norm"][0, at].double()
        slope = (model.head.weight[3] - model.head.weight[5]).double() * model.norm.weight
        slope = (slope - slope.mean()) / (row.var(unbiased=False) + model.norm.eps).sqrt()
        for number, layer in enumerate(model.layers):
            mixtures = written[number][0, at].double().view(HEADS, -1)
            projected = layer["attention"].out.weight.double().T.view(HEADS, -1, SIZE)
            expected = torch.einsum("hs,hsw,w->h", mixtures, projected, slope).tolist()
            found = [value for head, value in effects.heads.items() if head.layer == number]
            assert found == pytest.approx(expected, abs=1e-6)
