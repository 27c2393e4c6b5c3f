"""The overview of a long text is computed in the fused pass, and is what its rows give."""

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2Model

import attnscope
from attnscope.axes import coarsen_axis
from attnscope.models.module import wrap_module
from attnscope.questions.overview import overview
from attnscope.questions.selection import Selection
from attnscope.views.grid import CELLS

TOKENS = 600


@pytest.fixture(scope="module")
def read():
    torch.manual_seed(0)
    config = GPT2Config(n_layer=2, n_head=3, n_embd=24, n_positions=TOKENS, vocab_size=50, use_cache=False)
    module = GPT2Model(config).eval()
    ids = torch.randint(50, (1, TOKENS))
    model = wrap_module(module, None, None, "gpt2")
    return module, model, model.prepare_tensors({"input_ids": ids})


def test_its_maps_and_figures_are_those_of_the_models_own_eager_weights(read):
    module, model, prepared = read
    result = overview(model, prepared, Selection())
    assert {site.kernel for site in result.record.sites} == {"fused pass"}
    module.set_attn_implementation("eager")
    with torch.no_grad():
        eager = module(**prepared.inputs, output_attentions=True).attentions
    module.set_attn_implementation("sdpa")
    coarse = coarsen_axis(prepared.tokens, most=CELLS, even=True)
    (grid,) = result.grids.values()
    for layer, weights in enumerate(eager):
        expected = coarse.averaging() @ weights[0].numpy() @ coarse.summing().T
        shown = grid.layers[layer].values
        np.testing.assert_allclose(np.where(shown > 0, shown, 0), expected, atol=1e-5)
    figures = [head.figures["entropy"].value for head in result.heads]
    rows = torch.cat(eager)[:, :, 1:].double()  # the first row has one key, and is not counted
    entropies = torch.special.entr(rows).sum(-1).mean(-1).flatten()
    np.testing.assert_allclose(figures, entropies, atol=1e-4)


def test_the_models_own_kernel_runs_where_that_is_asked_for(read):
    _, model, prepared = read
    result, fused = (
        overview(model, prepared, Selection(), exact_kernel=True),
        overview(model, prepared, Selection()),
    )
    assert {site.kernel for site in result.record.sites} == {"sdpa"}
    for one, other in zip(result.grids["decoder"].layers, fused.grids["decoder"].layers, strict=True):
        np.testing.assert_allclose(one.values, other.values, atol=1e-4)


def test_words_and_special_tokens_are_read_beside_the_kernel():
    text = "the cat sat on the mat because it was tired " * 60
    run = attnscope.load("own-causal").read(text, truncate=True)
    assert "fused" not in repr(run.overview(words=True))
