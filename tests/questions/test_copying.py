"""OV copying: heads planted in closed form, and random models against their matrices written out."""

import pytest
import torch
import transformers as hf

from attnscope.errors import ModelError
from attnscope.models import load
from attnscope.questions.copying import measure_copying
from tests.models.folders import t5
from tests.models.test_generation import DECODERS, SIZES, writer_folder
from tests.questions.planted import Planted, wrap_planted

TEXT = "The cat sat"


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """A GPT-2 of one token a number: its embeddings are orthonormal, and norms change nothing of them."""
    config = hf.GPT2Config(n_embd=800, n_layer=2, n_head=2, n_inner=8, n_positions=64)
    model = load(writer_folder(tmp_path_factory.mktemp("planted"), config), predicting=True)
    for name, weights in model.writer.named_parameters():
        if "ln_" not in name:
            weights.data.zero_()
        elif name.endswith("weight"):
            weights.data.fill_(1)
    return model


def plant(model, heads):
    """Heads that move the logits of a token as a matrix says: layer, head, [token, token]."""
    body, size = model.writer.transformer, 400
    words = model.writer.config.vocab_size
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(2 * size, words, generator=generator, dtype=torch.float64)
    embed = torch.linalg.qr(noise - noise.mean(0)).Q.mT.float()  # [token, width], each with the mean 0
    body.wte.weight.data[:] = embed
    for (layer, head), moves in heads.items():
        attention, rows = body.h[layer].attn, slice(size * head, size * head + words)
        start = 2 * 2 * size + size * head
        attention.c_attn.weight.data[:, start : start + words] = embed.mT
        attention.c_proj.weight.data[rows] = moves @ embed


@pytest.mark.parametrize("seed", range(3))
def test_planted_heads_are_told_by_the_share_of_tokens_that_they_copy(planted, seed):
    words = planted.writer.config.vocab_size
    assert words <= 400
    same, order = torch.eye(words), torch.randperm(words, generator=torch.Generator().manual_seed(seed))
    half = torch.zeros(words).index_fill_(0, order[: words // 2], 1)
    places = [(0, 0), (0, 1), (1, 0), (1, 1)][seed:] + [(0, 0), (0, 1), (1, 0), (1, 1)][:seed]
    moves = (same, -2 * same, torch.diag(half), same.roll(1, 0))
    plant(planted, dict(zip(places, moves, strict=True)))
    seen = {
        (each.head.layer, each.head.head): each
        for each in measure_copying(planted, planted.prepare(TEXT)).heads
    }
    copies, against, partly, cycle = (seen[place] for place in places)
    assert (copies.copies, against.copies, cycle.copies) == (1, 0, 0)
    assert partly.copies == (words // 2) / words
    assert (copies.eigenvalues, against.eigenvalues) == pytest.approx((1, -1), abs=1e-6)
    assert cycle.eigenvalues == pytest.approx(0, abs=1e-4)  # the roots of unity sum to nothing


def gpt2_matrices(writer, layer, head):
    attention, norm = writer.transformer.h[layer].attn, writer.transformer.h[layer].ln_1
    rows = slice(8 * head, 8 * head + 8)
    value = attention.c_attn.weight[:, 64:][:, rows]
    return norm, value, attention.c_proj.weight[rows], None, writer.transformer.ln_f


def llama_matrices(writer, layer, head):
    block = writer.model.layers[layer]
    rows, shared = slice(8 * head, 8 * head + 8), slice(8 * (head // 2), 8 * (head // 2) + 8)
    value, output = block.self_attn.v_proj.weight[shared].T, block.self_attn.o_proj.weight[:, rows].T
    behind = getattr(block, "pre_feedforward_layernorm", None) and block.post_attention_layernorm
    return block.input_layernorm, value, output, behind, writer.model.norm


def bloom_matrices(writer, layer, head):
    block, rows = writer.transformer.h[layer], slice(8 * head, 8 * head + 8)
    value = block.self_attention.query_key_value.weight.unflatten(0, (4, 3, 8))[head, 2].T
    return (
        block.input_layernorm,
        value,
        block.self_attention.dense.weight[:, rows].T,
        None,
        writer.transformer.ln_f,
    )


MATRICES = {
    "gpt2": gpt2_matrices,
    "bloom": bloom_matrices,
    "llama": llama_matrices,
    "gemma2": llama_matrices,
    "mistral": llama_matrices,
}


@pytest.mark.parametrize("name", MATRICES)
def test_figures_are_those_of_the_whole_matrix(name, tmp_path):
    model = load(writer_folder(tmp_path, DECODERS[name]()), predicting=True)
    for weights in model.writer.parameters():
        weights.data = weights.data.double().float()
    between = getattr(model.writer.base_model, "word_embeddings_layernorm", None)
    if between is not None:
        between.weight.data.copy_(torch.linspace(-1, 2, len(between.weight)))
    found = measure_copying(model, model.prepare(TEXT))
    embed = model.writer.get_input_embeddings().weight.double()
    unembed = model.writer.get_output_embeddings().weight.double()

    def fold(norm, states):  # its spread is a positive factor
        if norm is None:
            return states
        centred = name in ("gpt2", "bloom")
        weight = norm.weight.double() + (name == "gemma2")
        return (states - states.mean(-1, keepdim=True) if centred else states) * weight

    assert found.tokens == len(embed)
    with torch.no_grad():
        for each in found.heads:
            before, value, output, behind, final = MATRICES[name](
                model.writer, each.head.layer, each.head.head
            )
            moved = fold(before, fold(between, embed)) @ value.double() @ output.double()
            matrix = fold(final, fold(behind, moved)) @ unembed.mT  # [token, token]
            right = (matrix.argmax(1) == torch.arange(len(matrix))) & (matrix.diagonal() > 0)
            assert each.copies == pytest.approx(float(right.double().mean()), abs=1e-9)
            values = torch.linalg.eigvals(matrix)
            values = values[values.abs().argsort(descending=True)[:8]]
            assert each.positive == pytest.approx(float((values.real > 0).double().mean()))
            assert each.eigenvalues == pytest.approx(float(values.real.sum() / values.abs().sum()), abs=1e-4)


def bert(folder):
    return writer_folder(folder, hf.BertConfig(**{**SIZES, "is_decoder": True}))


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (lambda at: "own-causal", "behind its last layer"),
        (bert, "behind its last layer"),
        (t5, "load it with"),
    ],
    ids=["own", "bert", "no head"],
)
def test_an_output_head_that_is_more_than_a_matrix_is_refused(name, sentence, tmp_path):
    model = load(name(tmp_path), predicting=name is not t5)
    with pytest.raises(ModelError, match=sentence):
        measure_copying(model, model.prepare(TEXT))


@pytest.mark.parametrize("place", [(0, 1), (1, 2)])
def test_a_planted_head_of_a_module_of_ones_own_copies_alone(place):
    module = Planted(seed=3, noise=0.001)
    module.plant_copy(place, at=1)
    model = wrap_planted(module)
    first, *others = measure_copying(model, model.prepare("ash bay cod")).heads
    assert (first.head.layer, first.head.head) == place
    assert (first.copies, first.positive) == (1, 1)
    assert first.eigenvalues == pytest.approx(1)
    assert len(others) == 5
    assert all(each.copies < 0.5 for each in others)
