"""Q-, K- and V-composition and OV copying, with planted heads and against full matrices."""

from itertools import product
from pathlib import Path

import pytest
import torch
import transformers

from attnscope.attention import Head
from attnscope.errors import ModelError, SelectionError
from attnscope.models import load
from attnscope.models.inputs import Limit
from attnscope.models.trace_model import TracedModel
from attnscope.models.trace_recording import record_trace
from attnscope.questions.composition import (
    LayerWeights,
    compose,
    compose_random,
    measure_composition,
    measure_copying,
)
from attnscope.questions.selection import Selection
from attnscope.questions.stats import measure_heads
from tests.models.folders import t5
from tests.models.test_generation import DECODERS, SIZES, writer_folder
from tests.questions.intervention.shapes import saved
from tests.questions.planted import Attends, Planted, wrap_planted

SAMPLES = Path(__file__).parents[2] / "sample_inputs"


def test_induction_head_gets_keys_from_previous_token_head(causal):
    """Olsson et al. 2022: an induction head finds its key by what a previous-token head wrote there."""
    seen = {}
    for name, text in {"induction": "repeated.txt", "previous": "article.txt"}.items():
        prepared = causal.prepare((SAMPLES / text).read_text("utf-8"), limit=Limit(truncate=True))
        heads = measure_heads(causal, prepared, Selection()).heads
        seen[name] = {head.address: head.scores[name].value for head in heads}
    induction = max(seen["induction"], key=seen["induction"].__getitem__)
    before = [head for head in seen["previous"] if head.layer < induction.layer]
    fed = measure_composition(causal, causal.prepare("A cat."), induction).feeds
    assert fed[0].way == "K"
    assert fed[0].head == max(before, key=seen["previous"].__getitem__)
    assert fed[0].lift > 0.02


def test_composition_does_not_depend_on_the_text(causal):
    every = measure_composition(causal, causal.prepare("A cat.")).feeds
    assert len(every) == 3 * (4 * 4 + 4 * 8)
    named = measure_composition(causal, causal.prepare("The cat sat on the mat. " * 12), Head("L2H3"))
    assert named.fed == Head("decoder L2H3")
    assert set(named.feeds) == {each for each in every if each.fed == named.fed}
    assert {layer: len(heads) for layer, heads in named.by("Q").items()} == {0: 4, 1: 4}


class ByHand(Attends):
    """The same with its softmax written out."""

    def forward(self, x):
        parts = (part(x).unflatten(-1, (self.heads, -1)) for part in (self.query, self.key, self.value))
        query, key, value = (part.transpose(1, 2) for part in parts)
        later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        weights = (query @ key.mT).masked_fill(later, -torch.inf).softmax(-1)
        return self.output((weights @ value).transpose(1, 2).flatten(-2))


def test_hand_written_softmax_has_only_v_composition():
    module = Planted()
    fused = measure_composition(wrap_planted(module), wrap_planted(module).prepare("ash bay cod"))
    for layer in module.layers:
        layer.__class__ = ByHand
    model = wrap_planted(module)
    found = measure_composition(model, model.prepare("ash bay cod"))
    values = {(each.head, each.fed): each.score for each in fused.feeds if each.way == "V"}
    assert {(each.head, each.fed): each.score for each in found.feeds} == pytest.approx(values)
    (note,) = (note for note in found.notes if "V alone" in note)
    assert "the softmax was seen" in note
    assert not any("V alone" in note for note in fused.notes)


def test_composition_covers_encoder_and_decoder_without_cross(tmp_path):
    model = load(t5(tmp_path))
    feeds = measure_composition(model, model.prepare("A cat.", "A dog.")).feeds
    assert {each.head.kind for each in feeds} == {"encoder", "decoder"}
    assert all(each.head.kind == each.fed.kind for each in feeds)


def test_composition_refuses_missing_or_first_layer_heads_and_traces(causal):
    prepared = causal.prepare("A cat.")
    with pytest.raises(SelectionError, match="layers 0-2 have heads 0-3"):
        measure_composition(causal, prepared, Head("L2H9"))
    with pytest.raises(SelectionError, match="no head comes before L0H1"):
        measure_composition(causal, prepared, Head("L0H1"))
    traced = TracedModel(record_trace(causal, prepared))
    with pytest.raises(ModelError, match="holds no weights of a model"):
        measure_composition(traced, traced.prepared)


@pytest.mark.parametrize(("name", "told"), [("llama", True), ("gpt2", False)])
def test_rotary_positions_and_shared_keys_are_noted(tmp_path, name, told):
    model = load(saved(tmp_path, name))
    notes = " ".join(measure_composition(model, model.prepare("A cat sat.")).notes)
    assert ("layers 0, 1: rotary positions; Q- and K-composition" in notes) == told
    assert ("2 heads share each key and value" in notes) == told


TEXT = "The cat sat"


def matrices(name, writer, layer, head):
    """Of a head: the norm before, values, output, a norm behind, and the last norm."""
    rows, shared = slice(8 * head, 8 * head + 8), slice(8 * (head // 2), 8 * (head // 2) + 8)
    if name in ("llama", "gemma2"):
        block = writer.model.layers[layer]
        behind = getattr(block, "pre_feedforward_layernorm", None) and block.post_attention_layernorm
        value, output = block.self_attn.v_proj.weight[shared].T, block.self_attn.o_proj.weight[:, rows].T
        return block.input_layernorm, value, output, behind, writer.model.norm
    block = writer.transformer.h[layer]
    if name == "gpt2":
        value, output = block.attn.c_attn.weight[:, 64:][:, rows], block.attn.c_proj.weight[rows]
        return block.ln_1, value, output, None, writer.transformer.ln_f
    value = block.self_attention.query_key_value.weight.unflatten(0, (4, 3, 8))[head, 2].T
    output = block.self_attention.dense.weight[:, rows].T
    return block.input_layernorm, value, output, None, writer.transformer.ln_f


@pytest.mark.sweep(3)
@pytest.mark.parametrize("name", ["gpt2", "bloom", "llama", "gemma2"])
def test_copying_scores_equal_those_of_the_full_matrix(name, tmp_path):
    model = load(writer_folder(tmp_path, DECODERS[name]()), predicting=True)
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
            parts = matrices(name, model.writer, each.head.layer, each.head.head)
            before, value, output, behind, final = parts
            moved = fold(before, fold(between, embed)) @ value.double() @ output.double()
            matrix = fold(final, fold(behind, moved)) @ unembed.mT  # [token, token]
            right = (matrix.argmax(1) == torch.arange(len(matrix))) & (matrix.diagonal() > 0)
            assert each.copies == pytest.approx(float(right.double().mean()), abs=1e-9)
            values = torch.linalg.eigvals(matrix)
            values = values[values.abs().argsort(descending=True)[:8]]
            assert each.positive == pytest.approx(float((values.real > 0).double().mean()))
            assert each.eigenvalues == pytest.approx(float(values.real.sum() / values.abs().sum()), abs=1e-4)


def test_copying_refuses_output_heads_beyond_one_matrix(tmp_path, causal):
    bert = writer_folder(tmp_path / "bert", transformers.BertConfig(**{**SIZES, "is_decoder": True}))
    for model in (causal, load(bert, predicting=True)):
        with pytest.raises(ModelError, match="behind its last layer"):
            measure_copying(model, model.prepare(TEXT))
    model = load(t5(tmp_path / "t5"))
    with pytest.raises(ModelError, match="load it with"):
        measure_copying(model, model.prepare(TEXT))


@pytest.mark.parametrize(("place", "known"), [((0, 1), 12), ((1, 2), 6)])
def test_only_the_planted_head_copies(place, known):
    module = Planted(seed=3, noise=0.001)
    module.plant_copy(place, at=1, copies=torch.diag((torch.arange(12) < known).float()))
    model = wrap_planted(module)
    first, *others = measure_copying(model, model.prepare("ash bay cod")).heads
    assert (first.head.layer, first.head.head) == place
    assert (first.copies, first.positive) == (known / 12, known / 12)
    assert first.eigenvalues == pytest.approx(1)
    assert len(others) == 5
    assert all(each.copies < 0.5 for each in others)


WIDTH = 12


def layer(heads, size, seed):
    generator = torch.Generator().manual_seed(seed)
    return LayerWeights(*(torch.randn(heads, WIDTH, size, generator=generator).double() for _ in range(4)))


def test_composition_score_is_normalized_product_norm():
    earlier, later = layer(3, 4, 0), layer(2, 5, 1)
    scores, norm = compose(earlier, later), torch.linalg.norm
    for one, other in product(range(3), range(2)):
        wrote = earlier.value[one] @ earlier.output[one].T
        qk, ov = later.query[other] @ later.key[other].T, later.value[other] @ later.output[other].T
        for way, read in {"Q": qk, "K": qk.T, "V": ov}.items():
            expected = norm(wrote @ read) / (norm(wrote) * norm(read))
            assert float(scores[way][other, one]) == pytest.approx(float(expected), rel=1e-9)


def test_random_composition_scores_equal_the_baseline():
    """The mean over many pairs of random heads, about one over the root of the width."""
    earlier, later = layer(60, 3, 2), layer(60, 3, 3)
    baseline, scatter = compose_random(earlier, later)
    assert (baseline, scatter) == compose_random(earlier, later)
    assert baseline == pytest.approx(WIDTH**-0.5, rel=0.1)
    for scores in compose(earlier, later).values():
        assert float(scores.mean()) == pytest.approx(baseline, rel=0.05)
        assert float(scores.std()) == pytest.approx(scatter, rel=0.2)
