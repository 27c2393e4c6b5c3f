"""Cut edges against written-out attention; planted heads, which every intervention identifies."""

import random
from itertools import product

import pytest
import torch

from attnscope.attention import Head
from attnscope.errors import ModelError
from attnscope.models import load
from attnscope.models.targets import score_prediction
from attnscope.questions.cause import cut
from attnscope.questions.circuit import find_circuit
from attnscope.questions.find import parse_questions
from attnscope.questions.logits import direct_effects, logit_lens
from attnscope.questions.loss import ablate, token_losses
from attnscope.questions.patching import Receiver, TextPair, patch
from tests.models.folders import mamba, minilm
from tests.questions.intervention.shapes import (
    GROUPED,
    SHAPES,
    TEXT,
    Attends,
    Hooked,
    close,
    heads_are,
    network,
    places_of,
    saved,
    sent,
)
from tests.questions.planted import WORDS, Planted, wrap_planted

CORPUS = ["the cat sat on it.", "it was the cat and it was the mat.", "the mat was red.", "the cat sat"]


def test_layers_masking_the_edge_have_no_effect(tmp_path):
    window = {"sliding_window": 4, "layer_types": ["full_attention", "sliding_attention"]}
    model = load(
        saved(tmp_path, network("Gemma2ForCausalLM", **GROUPED, **window, head_dim=8)), predicting=True
    )
    result = cut(model, model.prepare(TEXT), parse_questions("it -> cat"))
    assert result.notes[-1].startswith("no effect in decoder layer 1: these pairs are already masked")
    assert {each.head.layer for each in result.heads if each.effect} == {0}


@pytest.mark.sweep
@pytest.mark.parametrize("shaped", SHAPES, indirect=True)
@pytest.mark.parametrize("how", ["renormalize", "zero", "mean"])
def test_cut_equals_written_out_attention(shaped, how, monkeypatch):
    network = shaped.model
    second = ["the cat sat"] if len(shaped.stacks) > 1 else []
    pictured = bool(shaped.clean.pictures)
    texts = [shaped.corrupt] if pictured else [network.prepare(text, *second) for text in CORPUS]
    result = cut(network, shaped.clean, parse_questions(shaped.edge), how=how, texts=texts)
    kinds = {sent(shaped, each.head)[0]: each.head.kind for each in result.heads}

    def pairs(prepared, number):
        """The open pairs of a call."""
        axes, sides = prepared.axes[kinds[number]], shaped.edge.split(" -> ")
        rows, keys = (places_of(axis, side) for axis, side in zip(axes, sides, strict=True))
        return [(row, key) for row in rows for key in keys if kinds[number] != "decoder" or key <= row]

    sums = {}  # of each call: the weights of the pairs of all texts, [head, pair]
    for prepared in texts if how == "mean" else ():

        def add(number, weights, prepared=prepared):
            for row, key in pairs(prepared, number):
                sums.setdefault(number, []).append(weights[0, :, row, key])
            return weights

        with monkeypatch.context() as patched:
            Attends(patched, weigh=add)
            network.writer(**prepared.inputs)

    hooked, moved = Hooked(shaped), {}
    before, at = hooked.log_shares(shaped.clean), hooked.prediction.chosen

    def by_hand(meant):
        def closed(number, values):
            values = values.clone()
            for head in (head for call, head in meant if call == number):
                full = torch.stack(sums[number]).mean(0)[head] if how == "mean" else 0.0
                for row, key in pairs(shaped.clean, number):
                    values[:, head, row, key] = -torch.inf if how == "renormalize" else full
            return values

        with monkeypatch.context() as patched:
            Attends(patched, **{"mask" if how == "renormalize" else "weigh": closed})
            after = hooked.log_shares(shaped.clean)
        moved[tuple(meant)] = float((before.exp() * (before - after)).sum())
        return float(after[at])

    close(result.score, float(before[at]))
    heads_are(shaped, result, by_hand, float(before[at]))
    for each in result.heads:
        close(each.divergence, moved[(sent(shaped, each.head),)])
    sizes = [abs(each.effect) for each in result.heads]
    assert sizes == sorted(sizes, reverse=True)


def test_renormalized_row_of_a_head_with_a_sink_keeps_the_sink(tmp_path):
    experts = {"num_local_experts": 2, "num_experts_per_tok": 1, "layer_types": ["full_attention"] * 2}
    made = network("GptOssForCausalLM", **GROUPED, **experts, head_dim=8)
    model = load(saved(tmp_path, made), predicting=True)
    prepared, writer = model.prepare("The cat sat on the mat because it"), model.writer
    result = cut(model, prepared, parse_questions("it -> cat"), how="renormalize")
    words = [token.text for token in prepared.tokens]
    row, key = words.index("it"), words.index("cat")
    writer.set_attn_implementation("eager")  # of transformers, whose weights have no column of the sink
    maps = writer(**prepared.inputs, output_attentions=True).attentions
    assert all((1 - each.sum(-1)).min() > 0.01 for each in maps)

    def score(head=None):
        """The log-probabilities of the next token, where a head's row is renormalized by hand."""
        values, hooks = [], []
        if head is not None:
            attention, mine = (
                writer.model.layers[head.layer].self_attn,
                slice(8 * head.head, 8 * head.head + 8),
            )
            share = maps[head.layer][0, head.head, row, key]

            def change(_, given):
                states = given[0].clone()
                cut_off = share * values[0].unflatten(-1, (2, 8))[0, key, head.head // 2]
                states[0, row, mine] = (states[0, row, mine] - cut_off) / (1 - share)
                return (states, *given[1:])

            keep = attention.v_proj.register_forward_hook(lambda *call: values.append(call[2]))
            hooks = [keep, attention.o_proj.register_forward_pre_hook(change)]
        with torch.no_grad():
            scores = writer(**prepared.inputs).logits[0, said.at].log_softmax(-1)
        for each in hooks:
            each.remove()
        return scores

    with torch.no_grad():
        said = score_prediction(model, prepared, None)
    before = float(score()[said.chosen])
    close(result.score, before)
    for each in result.heads:
        close(each.effect, float(score(each.head)[said.chosen]) - before)
    assert max(abs(each.effect) for each in result.heads) > 1e-3


SMALL = 0.05
"""What no head does that was not planted: nats, or a share of the difference."""


def sample(seed):
    return random.Random(seed).sample(WORDS, 5)


def those(result):
    """The heads that do something, the strongest first."""
    return [each.head.name for each in result.heads if abs(each.effect) > SMALL]


def ends(circuit):
    return {(each.source, each.target): each.way for each in circuit.edges}


def seeds(*by_day):
    """Twenty seeds; by day those that plant heads in both layers, and at every number of a head."""
    later = (pytest.param(seed, marks=pytest.mark.nightly) for seed in range(20) if seed not in by_day)
    return pytest.mark.parametrize("seed", [*by_day, *later])


@seeds(1, 3, 5)
def test_only_the_planted_copy_head_has_an_effect(seed):
    module, (layer, head) = Planted(seed), divmod(seed % 6, 3)
    module.plant_copy((layer, head), at=2)
    model, pairs, name = wrap_planted(module), [], f"L{layer}H{head}"
    for a, b, c, d, other in (sample(2 * seed), sample(2 * seed + 1)):
        clean, corrupt = model.prepare(f"{a} {b} {c} {d}"), model.prepare(f"{a} {b} {other} {d}")
        pairs.append(TextPair(clean, corrupt, c))
        found = cut(model, clean, parse_questions("3 -> 2"), target=c)
        assert those(found) == [name]
        assert found.heads[0].effect < -1
    result = patch(model, pairs)
    assert those(result) == [name]
    assert result.heads[0].effect == pytest.approx(1, abs=SMALL)
    circuit = find_circuit(model, pairs)
    assert [each.head.name for each in circuit.heads] == [name]
    assert ends(circuit).keys() == {("embeddings", name), (name, "prediction")}
    effects = [each.effect for each in (*circuit.edges, *circuit.heads)]
    assert [circuit.faithfulness, circuit.completeness, *effects] == pytest.approx([1] * 5, abs=0.02)


@seeds(1, 5, 6)
def test_cut_and_patch_identify_planted_induction_heads(seed):
    module, (first, second) = Planted(seed), divmod(seed % 9, 3)
    module.plant_induction((0, first), (1, second))
    model, pairs, before, behind = wrap_planted(module), [], f"L0H{first}", f"L1H{second}"
    for a, b, c, d, other in (sample(2 * seed), sample(2 * seed + 1)):
        clean, corrupt = model.prepare(f"{a} {b} {c} {d} {a}"), model.prepare(f"{other} {b} {c} {d} {a}")
        pairs.append(TextPair(clean, corrupt, b, d))
        assert those(cut(model, clean, parse_questions("1 -> 0"), target=b)) == [before]
        assert those(cut(model, clean, parse_questions("4 -> 1"), target=b)) == [behind]
    result = patch(model, pairs)
    assert set(those(result)) == {before, behind}
    assert all(each.effect == pytest.approx(1, abs=0.1) for each in result.heads[:2])
    for to, found in ((f"{behind}:k", [before]), (f"{behind}:q", []), ("logits", [behind])):
        assert those(patch(model, pairs, to=Receiver.parse(to))) == found
    circuit = find_circuit(model, pairs)
    assert [each.head.name for each in circuit.heads] == [before, behind]
    assert ends(circuit) == {
        ("embeddings", before): "V",  # it copies what differs, and looks at the same place
        (before, behind): "K",  # Olsson et al. 2022: by its keys
        (behind, "prediction"): None,
    }
    assert 0.8 <= circuit.faithfulness <= 1.1
    assert circuit.completeness == pytest.approx(1, abs=0.1)


@seeds(1, 5, 6)
def test_backup_head_shows_only_in_joint_effects(seed):
    module, (first, backup) = Planted(seed), ((0, seed % 3), (1, seed // 3 % 3))
    module.plant_copy(first, at=3)
    module.plant_backup(backup, at=3)
    model, (a, b, c, d, other) = wrap_planted(module), sample(seed)
    clean, corrupt = (model.prepare(f"? {a} {b} {each} {d}") for each in (c, other))
    both = [Head(*first), Head(*backup)]
    cuts = cut(model, clean, parse_questions("4 -> 3"), how="zero", target=c)
    at = cut(model, clean, parse_questions("4 -> *"), heads=both, how="zero", target=c)
    for found in (cuts, at):
        assert those(found) == []
        assert found.together.effect < -2
    pair = TextPair(clean, corrupt, c)
    assert those(patch(model, [pair])) == [f"L0H{first[1]}"]
    circuit = find_circuit(model, [pair])
    assert [(each.head.layer, each.head.head) for each in circuit.heads] == [first]
    assert circuit.completeness < 0.3  # without the circuit, the backup brings most of it back


def test_target_and_against_give_a_logit_difference(causal):
    prepared, words = causal.prepare("The cat sat on the"), {"target": "mat", "against": "door"}
    result = cut(causal, prepared, parse_questions("the -> cat"), **words)
    assert result.unit == "logit difference"
    assert result.score == pytest.approx(direct_effects(causal, prepared, *words.values()).score, abs=1e-4)


ASKED = {
    "ablate": lambda model, text: ablate(model, text, "L0H0"),
    "cut": lambda model, text: cut(model, text, parse_questions("sat -> cat")),
    "circuit": lambda model, text: find_circuit(model, [TextPair(text, text)]),
    "lens": lambda model, text: logit_lens(model, text, None),
    "effects": lambda model, text: direct_effects(model, text, None, None),
    "losses": token_losses,
}
NOT_ASKED = {
    "load it with predicting": lambda folder: load(minilm()),
    "returns .* not scores over the": lambda folder: load("torch.nn:Identity", predicting=True),
    "no attention|no list of layers": lambda folder: load(mamba(folder), predicting=True),
}
FINE = [(asked, "no attention|no list of layers") for asked in ("effects", "losses")]  # of mixers, too


@pytest.mark.parametrize(("asked", "sentence"), [e for e in product(ASKED, NOT_ASKED) if e not in FINE])
def test_unsuitable_model_for_cut_and_patch_is_explained(asked, sentence, tmp_path):
    model = NOT_ASKED[sentence](tmp_path / "model")
    with pytest.raises(ModelError, match=sentence):
        ASKED[asked](model, model.prepare("The cat sat"))
