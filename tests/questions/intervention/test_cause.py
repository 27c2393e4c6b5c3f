"""Edges cut, against the same done by hand in a plain attention function."""

import math
import random

import pytest
import torch
from torch.nn import functional as F

from attnscope.attention import Head
from attnscope.errors import ModelError
from attnscope.models import load
from attnscope.models.targets import score_prediction
from attnscope.questions.ablate import measure_ablation
from attnscope.questions.cause import cut
from attnscope.questions.circuit import find_circuit
from attnscope.questions.find import parse_questions
from attnscope.questions.patching import Receiver, TextPair, patch
from attnscope.questions.selection import Selection
from tests.models.folders import mamba
from tests.questions.intervention import shapes
from tests.questions.intervention.shapes import Hooked, close, sent
from tests.questions.planted import WORDS, Planted, wrap_planted

shaped = shapes.shaped

TEXT = "The cat sat on the mat because it was tired."


class Attends:
    """Torch's kernel written out; ``weigh(number, weights)`` and ``give(number, output)`` change a call."""

    def __init__(self, monkeypatch, mask=None, weigh=None, give=None, parts=None):
        self.number, self.mask, self.weigh, self.give, self.parts = -1, mask, weigh, give, parts
        monkeypatch.setattr(F, "scaled_dot_product_attention", self)

    def __call__(self, q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, **more):
        self.number += 1
        k, v = (part.repeat_interleave(q.shape[1] // part.shape[1], 1) for part in (k, v))
        if self.parts is not None:
            q, k, v = self.parts(self.number, q, k, v)
        scores = q @ k.mT * (scale or 1 / math.sqrt(q.shape[-1]))
        if is_causal:
            closed = torch.ones(scores.shape[-2:], dtype=torch.bool).tril().logical_not()
            scores = scores.masked_fill(closed, -torch.inf)
        if attn_mask is not None:
            bool_ = attn_mask.dtype == torch.bool
            scores = scores.masked_fill(~attn_mask, -torch.inf) if bool_ else scores + attn_mask
        if self.mask is not None:
            scores = self.mask(self.number, scores)
        weights = scores.softmax(-1)
        output = (weights if self.weigh is None else self.weigh(self.number, weights)) @ v
        return output if self.give is None else self.give(self.number, output)


def logits(model, prepared, at):
    with torch.no_grad():
        return model.logits(prepared, torch.tensor([0]), torch.tensor([at]))[0].double()


def chosen(model, prepared):
    with torch.no_grad():
        return score_prediction(model, prepared, None)


CORPUS = ["the cat sat on it.", "it was the cat and it was the mat.", "the mat was red.", "the cat sat"]


@pytest.mark.parametrize("how", ["renormalize", "zero", "mean"])
def test_a_cut_in_every_shape_of_model_is_that_of_attention_written_out(shaped, how, monkeypatch):
    network = shaped.model
    pictured = bool(shaped.clean.pictures)
    second = ["the cat sat"] if len(shaped.stacks) > 1 else []
    texts = [shaped.corrupt] if pictured else [network.prepare(text, *second) for text in CORPUS]
    result = cut(network, shaped.clean, parse_questions(shaped.edge), how=how, texts=texts)
    hooked = Hooked(shaped, chosen(network, shaped.clean))
    sides = [side.strip() for side in shaped.edge.split("->")]

    def pairs(prepared, kind):
        return [places_of(axis, side) for axis, side in zip(prepared.axes[kind], sides, strict=True)]

    kinds = {sent(shaped, each.head)[0]: each.head.kind for each in result.heads}
    sums = {}  # of each call: the weights of the pairs of all texts, [head, pair]
    for prepared in texts if how == "mean" else ():

        def add(number, weights, prepared=prepared):
            rows, keys = pairs(prepared, kinds[number])
            for row in rows:
                for key in keys:
                    if kinds[number] != "decoder" or key <= row:
                        sums.setdefault(number, []).append(weights[0, :, row, key])
            return weights

        with monkeypatch.context() as patched:
            Attends(patched, weigh=add)
            network.writer(**prepared.inputs)

    def by_hand(meant):
        def closed(number, values):
            values = values.clone()
            rows, keys = pairs(shaped.clean, kinds[number])
            for head in (head for call, head in meant if call == number):
                for row in rows:
                    for key in keys:
                        if kinds[number] != "decoder" or key <= row:
                            full = torch.stack(sums[number]).mean(0)[head] if how == "mean" else 0.0
                            values[:, head, row, key] = -torch.inf if how == "renormalize" else full
            return values

        with monkeypatch.context() as patched:
            Attends(patched, **{"mask" if how == "renormalize" else "weigh": closed})
            return hooked.log_shares(shaped.clean)

    before, at = hooked.log_shares(shaped.clean), hooked.prediction.chosen
    close(result.score, float(before[at]))
    assert len(result.heads) >= 4
    for each in result.heads:
        after = by_hand([sent(shaped, each.head)])
        close(each.score, float(after[at]))
        close(each.effect, float(after[at] - before[at]))
        close(each.divergence, float((before.exp() * (before - after)).sum()))
    close(result.together.score, float(by_hand([sent(shaped, each.head) for each in result.heads])[at]))
    sizes = [abs(each.effect) for each in result.heads]
    assert sizes == sorted(sizes, reverse=True)


def places_of(axis, side):
    """The tokens of every word, or the one of a number."""
    if side.isdecimal():
        return [int(side)]
    words = {}
    for place, token in enumerate(axis):
        words.setdefault(token.word, []).append(place)
    spelled = ("".join(axis[place].text for place in places).strip(" .") for places in words.values())
    named = [places for places, word in zip(words.values(), spelled, strict=True) if word == side]
    return [place for places in named for place in places]


SMALL = 0.05
"""What no head does that was not planted: nats, or a share of the difference."""


def sample(seed, count):
    return random.Random(seed).sample(WORDS, count)


def those(result):
    """The heads that do something, the strongest first."""
    return [each.head.name for each in result.heads if abs(each.effect) > SMALL]


def seeds(quick):
    """Twenty seeds; by day the first, which plant heads at every place."""
    later = (pytest.param(seed, marks=pytest.mark.nightly) for seed in range(quick, 20))
    return pytest.mark.parametrize("seed", [*range(quick), *later])


@seeds(6)
def test_a_head_that_is_planted_to_copy_is_the_only_one_named(seed):
    module, (layer, head) = Planted(seed), divmod(seed % 6, 3)
    module.plant_copy((layer, head), at=2)
    model, (a, b, c, d, other) = wrap_planted(module), sample(seed, 5)
    clean, corrupt = model.prepare(f"{a} {b} {c} {d}"), model.prepare(f"{a} {b} {other} {d}")
    found = cut(model, clean, parse_questions("3 -> 2"), target=c)
    assert those(found) == [f"L{layer}H{head}"]
    assert found.heads[0].effect < -1
    result = patch(model, [TextPair(clean, corrupt, c)])
    assert those(result) == [f"L{layer}H{head}"]
    assert result.heads[0].effect == pytest.approx(1, abs=SMALL)


@seeds(9)
def test_of_two_planted_heads_in_sequence_the_path_names_the_first(seed):
    module, (first, second) = Planted(seed), divmod(seed % 9, 3)
    module.plant_induction((0, first), (1, second))
    model, (a, b, c, d, other) = wrap_planted(module), sample(seed, 5)
    clean, corrupt = model.prepare(f"{a} {b} {c} {d} {a}"), model.prepare(f"{other} {b} {c} {d} {a}")
    before, behind = f"L0H{first}", f"L1H{second}"
    assert those(cut(model, clean, parse_questions("1 -> 0"), target=b)) == [before]
    assert those(cut(model, clean, parse_questions("4 -> 1"), target=b)) == [behind]
    pair = TextPair(clean, corrupt, b, d)
    result = patch(model, [pair])
    assert set(those(result)) == {before, behind}
    assert all(each.effect == pytest.approx(1, abs=0.1) for each in result.heads[:2])
    assert those(patch(model, [pair], to=Receiver.parse(f"{behind}:k"))) == [before]
    assert those(patch(model, [pair], to=Receiver.parse(f"{behind}:q"))) == []
    assert those(patch(model, [pair], to=Receiver.parse("logits"))) == [behind]


@seeds(9)
def test_of_two_heads_that_do_the_same_each_alone_is_missed_little(seed):
    module, places = Planted(seed), [(0, seed % 3), (1, seed // 3 % 3)]
    for place in places:
        module.plant_copy(place, at=2)
    model, (a, b, c, d) = wrap_planted(module), sample(seed, 4)
    found = cut(model, model.prepare(f"{a} {b} {c} {d}"), parse_questions("3 -> 2"), target=c)
    assert set(those(found)) == {f"L{layer}H{head}" for layer, head in places}
    alone = [each.effect for each in found.heads[:2]]
    assert found.together.effect < 3 * min(alone) < 0


@pytest.mark.parametrize("seed", range(20))
def test_a_backup_head_shows_in_no_head_alone_but_in_both_together(seed):
    module, (first, backup) = Planted(seed), ((0, seed % 3), (1, seed // 3 % 3))
    module.plant_copy(first, at=3)
    module.plant_backup(backup, at=3)
    model, (a, b, c, d, other) = wrap_planted(module), sample(seed, 5)
    clean, corrupt = (model.prepare(f"? {a} {b} {each} {d}") for each in (c, other))
    both = [Head(*first), Head(*backup)]
    cuts = cut(model, clean, parse_questions("4 -> 3"), how="zero", target=c)
    gone = measure_ablation(model, clean, Selection(), heads=both, target=c)
    at = cut(model, clean, parse_questions("4 -> *"), heads=both, how="zero", target=c)
    for found in (cuts, gone, at):
        assert those(found) == []
        assert found.together.effect < -2
    pair = TextPair(clean, corrupt, c)
    assert those(patch(model, [pair])) == [f"L0H{first[1]}"]
    circuit = find_circuit(model, [pair])
    assert [(each.head.layer, each.head.head) for each in circuit.heads] == [first]
    assert circuit.completeness < 0.3  # without the circuit, the backup brings most of it back


def test_heads_that_are_named_are_changed_alone_and_together():
    model = load("own-causal", predicting=True)
    prepared, edge = model.prepare("The cat sat on the mat"), parse_questions("on -> cat")
    whole = {each.head.name: each for each in cut(model, prepared, edge).heads}
    some = cut(model, prepared, edge, heads=[Head("L0H1"), Head("L1H0")])
    assert {each.head.name for each in some.heads} == {"L0H1", "L1H0"}
    assert all(each.effect == pytest.approx(whole[each.head.name].effect, abs=1e-6) for each in some.heads)
    one = cut(model, prepared, edge, heads=[Head("L0H1")])
    assert one.together.effect == pytest.approx(one.heads[0].effect, abs=1e-6)


def test_a_target_and_a_rival_make_a_logit_difference():
    model = load("own-causal", predicting=True)
    prepared = model.prepare("The cat sat on the")
    result = cut(model, prepared, parse_questions("the -> cat"), target="mat", against="door")
    scores = logits(model, prepared, chosen(model, prepared).at)
    vocabulary = model.reader.tokenizer.get_vocab()
    best = {
        word: max(
            float(scores[number]) for spelled, number in vocabulary.items() if spelled.strip("Ġ▁") == word
        )
        for word in ("mat", "door")
    }
    assert result.unit == "logit difference"
    assert result.score == pytest.approx(best["mat"] - best["door"], abs=1e-4)


def test_a_model_without_heads_has_no_edges(tmp_path):
    other = load(mamba(tmp_path / "mamba"), predicting=True)
    with pytest.raises(ModelError, match="no attention"):
        cut(other, other.prepare("The cat sat"), parse_questions("sat -> cat"))
