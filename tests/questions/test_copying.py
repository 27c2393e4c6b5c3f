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


@pytest.mark.parametrize(("place", "known"), [((0, 1), 12), ((1, 2), 6)])
def test_a_planted_head_of_a_module_of_ones_own_copies_alone(place, known):
    module = Planted(seed=3, noise=0.001)
    module.plant_copy(place, at=1, copies=torch.diag((torch.arange(12) < known).float()))
    model = wrap_planted(module)
    first, *others = measure_copying(model, model.prepare("ash bay cod")).heads
    assert (first.head.layer, first.head.head) == place
    assert (first.copies, first.positive) == (known / 12, known / 12)
    assert first.eigenvalues == pytest.approx(1)
    assert len(others) == 5
    assert all(each.copies < 0.5 for each in others)
