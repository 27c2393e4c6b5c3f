"""Weights that are weighed by what they move, against NumPy, and on a trained model."""

import numpy as np
import pytest
import torch
from torch import nn

from attnscope.analysis.head import one_head
from attnscope.analysis.selection import Selection
from attnscope.analysis.stats import stats
from attnscope.capture import Keep
from attnscope.errors import ModelError
from attnscope.models import load
from attnscope.models.module import ModuleModel
from attnscope.models.weighed import WeighedModel
from tests.models.folders import minilm

TEXT = "The cat sat on the mat because it was tired."


class _Raw:
    """Keeps the weights and values of every call."""

    def __init__(self):
        self.seen = []

    def observe(self, attention):
        self.seen.append((attention.weights().numpy().copy(), attention.values.numpy().copy()))


def _maps(model, heads=8):
    """The whole maps of a model, layer by layer."""
    keep = Keep(lambda site: range(heads))
    model.run(model.prepare(TEXT), [keep])
    return [each.weights.numpy() for each in keep.maps]


def test_norm_is_the_length_of_each_vector_as_a_share_of_its_row():
    model, raw = load("own"), _Raw()
    model.run(model.prepare(TEXT), [raw])
    ours = _maps(WeighedModel(model, "norm"))
    modules = [m for m in model.module.modules() if hasattr(m, "out_proj")]
    for (weights, values), module, weighed in zip(raw.seen, modules, ours, strict=True):
        projection = module.out_proj.weight.detach().numpy().T.reshape(8, 24, 192)
        vectors = np.einsum("bhij,bhjs,hsw->bhijw", weights, values, projection)
        norms = np.linalg.norm(vectors, axis=-1)
        np.testing.assert_allclose(weighed, norms / norms.sum(-1, keepdims=True), atol=1e-6)


def test_the_special_tokens_of_a_trained_model_take_far_less_by_norm_than_by_weight():
    model = load(minilm())
    prepared = model.prepare(TEXT)
    means = {}
    for one in (model, WeighedModel(model, "norm")):
        heads = stats(one, prepared, Selection()).heads
        means[one.weigh] = np.mean([head.figures["special"].value for head in heads])
    assert means["norm"] < means["raw"] / 3


def test_the_name_stands_in_the_title_and_a_note_says_what_a_cell_is():
    model = WeighedModel(load("own"), "norm")
    seen = one_head(model, model.prepare(TEXT), "L0H1")
    assert "weighed by norm" in seen.heatmap.title
    assert any(note.startswith("weighed: a cell is the share") for note in seen.heatmap.notes)


class _Bare(nn.Module):
    """Attention that nothing projects."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20000, 8)

    def forward(self, ids):
        x = self.embedding(ids).unflatten(-1, (2, 4)).transpose(1, 2)
        return nn.functional.scaled_dot_product_attention(x, x, x)


def _bare(module):
    return ModuleModel("bare", module, load("own").reader, None)


def test_without_an_output_projection_the_value_alone_is_measured_and_the_title_says_so():
    torch.manual_seed(0)
    model, raw = _bare(_Bare()), _Raw()
    model.run(model.prepare(TEXT), [raw])
    weighed = WeighedModel(model, "norm")
    (ours,) = _maps(weighed, heads=2)
    assert "weighed by norm, without output projection" in weighed.title
    weights, values = raw.seen[0]
    norms = weights * np.linalg.norm(values, axis=-1)[:, :, None]
    np.testing.assert_allclose(ours, norms / norms.sum(-1, keepdims=True), atol=1e-6)


class _Attention(nn.Module):
    """Shows its weights, and nothing of what they mix."""

    def forward(self, x):
        weights = torch.ones(1, 2, x.shape[1], x.shape[1]).tril()
        return x, weights / weights.sum(-1, keepdim=True)


class _Shown(_Bare):
    def __init__(self):
        super().__init__()
        self.attention = _Attention()

    def forward(self, ids):
        return self.attention(self.embedding(ids))[0]


def test_where_no_values_were_seen_a_sentence_says_so():
    model = WeighedModel(_bare(_Shown()), "norm")
    with pytest.raises(ModelError, match="the values that they mix were not"):
        model.run(model.prepare(TEXT), [])
