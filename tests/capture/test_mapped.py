"""Attention inside of ``torch.vmap`` runs as it did, and its weights stand at their own heads and texts."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attnscope.capture import Keep, recording
from tests.capture.tiny import FAMILIES, inputs

BATCH, HEADS, LENGTH, SIZE = 3, 4, 5, 16


def softmaxed(q, k, v, mask=None):
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    return torch.softmax(scores, -1) @ v


def kernel(q, k, v, mask=None):
    return F.scaled_dot_product_attention(q, k, v, mask)


class Attending(nn.Module):
    """Attention whose heads are mapped over, or nothing; ``attend`` gets what is left of the axes."""

    def __init__(self, attend, over="", causal=False, heads=HEADS):
        super().__init__()
        self.qkv = nn.Linear(SIZE, 3 * SIZE)
        self.attend, self.over, self.heads = attend, over, heads
        self.mask = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril() if causal else None

    def split(self, x):
        return [part.unflatten(-1, (self.heads, -1)).transpose(-3, -2) for part in self.qkv(x).chunk(3, -1)]

    def forward(self, x):
        q, k, v = self.split(x)  # [..., head, position, size]
        attend = lambda q, k, v: self.attend(q, k, v, self.mask)  # noqa: E731
        if self.over == "heads":
            mixed = torch.vmap(attend, in_dims=-3, out_dims=-3)(q, k, v)
        elif self.over == "texts":
            mixed = torch.vmap(attend)(q, k, v)
        elif self.over == "texts and heads":
            mixed = torch.vmap(torch.vmap(attend))(q, k, v)
        else:
            mixed = attend(q, k, v)
        return mixed.transpose(-3, -2).flatten(-2)

    def weights(self, x):
        """The same weights by hand.  -> [text, head, query, key]"""
        q, k, _ = self.split(x)
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        return torch.softmax(scores if self.mask is None else scores.masked_fill(~self.mask, -torch.inf), -1)


def watched(model, call, *given):
    keep = Keep(lambda site: range(model.heads))
    with torch.inference_mode():
        expected = call(*given)
        with recording(model, [keep]) as record:
            output = call(*given)
    assert torch.equal(output, expected)
    assert record.failures == []
    return keep.maps, record


@pytest.mark.parametrize("attend", [softmaxed, kernel])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("over", ["", "heads", "texts", "texts and heads"])
def test_a_module_that_maps_over_its_heads_or_its_texts(over, causal, attend):
    torch.manual_seed(0)
    model, x = Attending(attend, over, causal).eval(), torch.randn(BATCH, LENGTH, SIZE)
    (kept,), record = watched(model, model, x)
    torch.testing.assert_close(kept.weights, model.weights(x), atol=1e-6, rtol=0)
    assert record.sites[0].site.kind == ("decoder" if causal else "encoder")
    if causal:
        assert torch.equal(kept.allowed.expand_as(kept.weights), model.mask.expand_as(kept.weights))


@pytest.mark.parametrize("attend", [softmaxed, kernel])
@pytest.mark.parametrize("over", ["", "heads"])
@pytest.mark.parametrize("texts", [1, BATCH, HEADS])
def test_a_module_that_is_itself_mapped_over_texts(texts, over, attend):
    torch.manual_seed(0)
    model, x = Attending(attend, over).eval(), torch.randn(texts, LENGTH, SIZE)
    (kept,), _ = watched(model, torch.vmap(model), x)
    torch.testing.assert_close(kept.weights, model.weights(x), atol=1e-6, rtol=0)


@pytest.mark.parametrize("attend", [softmaxed, kernel])
def test_one_text_of_mapped_heads(attend):
    torch.manual_seed(0)
    model, x = Attending(attend, "heads").eval(), torch.randn(1, LENGTH, SIZE)
    (kept,), _ = watched(model, model, x)
    torch.testing.assert_close(kept.weights, model.weights(x), atol=1e-6, rtol=0)


def test_an_axis_of_the_texts_that_is_mapped_from_another_place():
    torch.manual_seed(0)
    model, x = Attending(softmaxed).eval(), torch.randn(LENGTH, BATCH, SIZE)
    (kept,), _ = watched(model, torch.vmap(model, in_dims=1, out_dims=1), x)
    torch.testing.assert_close(kept.weights, model.weights(x.transpose(0, 1)), atol=1e-6, rtol=0)


@pytest.mark.parametrize("attend", [softmaxed, kernel])
def test_as_many_texts_as_heads_are_not_guessed_at(attend):
    torch.manual_seed(0)
    model, x = Attending(attend, "heads").eval(), torch.randn(HEADS, LENGTH, SIZE)
    maps, record = watched(model, model, x)
    assert maps == []
    assert "torch.vmap hides its heads or its texts" in record.without_attention[0].reason


def test_gradients_of_single_texts_are_taken_as_without_a_recording():
    torch.manual_seed(0)
    model, x = Attending(softmaxed).eval(), torch.randn(BATCH, LENGTH, SIZE)
    weights = dict(model.named_parameters())

    def loss(weights, x):
        return torch.func.functional_call(model, weights, (x,)).square().sum()

    slopes = torch.vmap(torch.func.grad(loss), in_dims=(None, 0))
    expected = slopes(weights, x)
    with recording(model) as record:
        again = slopes(weights, x)
    assert all(torch.equal(again[name], expected[name]) for name in expected)
    assert len(record.sites) == 1


@pytest.mark.parametrize("kind", ["sdpa", "eager"])
def test_a_mapped_model_of_transformers(kind):
    model, given = FAMILIES["llama"].build(kind), inputs("text", batch=BATCH)
    keep, expected = Keep(lambda site: range(4)), Keep(lambda site: range(4))
    call = torch.vmap(lambda ids: model(input_ids=ids[None], use_cache=False).last_hidden_state[0])
    with torch.inference_mode():
        with recording(model, [expected]):
            model(input_ids=given["input_ids"])
        alone = call(given["input_ids"])
        with recording(model, [keep]) as record:
            assert torch.equal(call(given["input_ids"]), alone)
    assert record.failures == []
    assert [kept.site for kept in keep.maps] == [kept.site for kept in expected.maps]
    for kept, own in zip(keep.maps, expected.maps, strict=True):
        torch.testing.assert_close(kept.weights, own.weights, atol=1e-6, rtol=0)
