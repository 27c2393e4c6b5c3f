"""The cost of a short cache: planted heads are identified, and losses equal hand-written masks."""

import copy
import itertools
import random
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from attnscope.models import load
from attnscope.models.inputs import Limit
from attnscope.questions.cachecost import NEEDLE, cachecost
from tests.questions.intervention.shapes import GROUPED, OLDER, Attends, network, saved
from tests.questions.planted import Planted, wrap_planted

WORDS = [f"word{number}" for number in range(24)]
LENGTH, PERIOD, LAYERS, HEADS = 80, 24, 2, 3
NEEDED = [(0, 1), (1, 2)]
SINK, RECENT = 2, 9
COMMON = "the cat sat on mat dog ran park because it was tired".split()  # noqa: SIM905


@pytest.fixture(scope="module")
def planted():
    """The model, which reads words, and what two heads that need the far past are asked to predict.

    They look at the token after the one that stood a period ago; each copies half of the words. The others
    look at the token before and write next to nothing.
    """
    module = Planted(layers=LAYERS, heads=HEADS, words=WORDS, length=LENGTH)
    for place in itertools.product(range(LAYERS), range(HEADS)):
        copies, back = 0.0025 * torch.randn(module.ids, module.ids), 1
        if place in NEEDED:
            mine = torch.arange(module.ids) % 2 == NEEDED.index(place)
            copies, back = 3 * torch.diag(mine.float()), PERIOD - 1
        module.plant_back(place, back, module.out, copies, sharp=5)
    model = wrap_planted(module)
    texts = [" ".join((random.Random(seed).sample(WORDS, PERIOD) * 4)[:LENGTH]) for seed in range(2)]
    return model, [model.prepare(text) for text in texts]


def test_cachecost_names_exactly_the_long_range_heads(planted):
    result = cachecost(*planted, SINK, RECENT, keep=[2 / 6])
    first, second, *others = result.heads
    assert sorted((each.layer, each.head) for each in (first, second)) == NEEDED
    assert min(first.loss, second.loss) > 0.5
    assert max(abs(each.loss) for each in others) < 1e-3
    none, two, all_ = result.kept
    assert (none.heads, two.heads, all_.heads) == (0, 2, LAYERS * HEADS)
    assert two.loss < 0.01 < 1 < none.loss
    assert two.mass == pytest.approx(two.loss)
    assert (all_.loss, all_.memory) == (pytest.approx(0, abs=1e-9), 1)
    assert none.memory == pytest.approx((SINK + RECENT) / LENGTH)
    assert [result.pattern[layer][head] > 0.5 for layer, head in NEEDED] == [True, True]
    assert {each.role for each in others} == {"streaming"}


def made(name, tokens):
    if name == "gpt2":
        return network("GPT2LMHeadModel", **OLDER | {"n_positions": tokens})
    return network("LlamaForCausalLM", **GROUPED | {"max_position_embeddings": tokens})


def by_masks(module, ids, heads, limited=()):
    """The mean loss of all next tokens with some of so many key-value heads limited; what all heads miss."""
    row, column = torch.arange(ids.shape[1])[:, None], torch.arange(ids.shape[1])
    far, missed = (column >= SINK) & (row - column >= RECENT), []

    def limit(layer, scores):
        closed = [((layer, head * heads // scores.shape[1]) in limited) for head in range(scores.shape[1])]
        return scores.masked_fill(far & torch.tensor(closed)[:, None, None], -torch.inf)

    def keep(layer, weights):
        missed.append((weights * far).sum(-1).mean((0, 2)).unflatten(0, (heads, -1)).mean(1))
        return weights

    with pytest.MonkeyPatch.context() as patched, torch.inference_mode():
        Attends(patched, mask=limit, weigh=keep)
        logits = module(ids).logits[0, :-2].double()
    return float(F.cross_entropy(logits, ids[0, 1:-1])), missed  # [SEP] is not predicted


@pytest.mark.parametrize(
    ("name", "tokens", "attention"),
    [("gpt2", 48, "eager"), ("grouped", 48, "sdpa"), ("grouped", 48, "eager"), ("gpt2", 540, "sdpa")],
)
def test_cachecost_losses_equal_hand_written_masks(tmp_path, name, tokens, attention):
    """With 540 tokens masses come from the fused pass, and fewer copies than heads go through together."""
    model = load(saved(tmp_path, made(name, tokens)), predicting=True)
    for weights in model.writer.parameters():  # heads with large weights look at something
        weights.data.mul_(5)
    module = copy.deepcopy(model.writer)
    model.module.set_attn_implementation(attention)
    words = random.Random(2).choices(COMMON, k=tokens)
    text = model.prepare(" ".join(words), limit=Limit(truncate=True))
    result = cachecost(model, [text], SINK, RECENT, keep=[0.5])
    asked = module, text.inputs["input_ids"], len(result.pattern[0])
    plain, missed = by_masks(*asked)
    assert result.loss == pytest.approx(plain, abs=1e-5)
    for each in result.heads:
        alone, _ = by_masks(*asked, {(each.layer, each.head)})
        assert each.loss == pytest.approx(alone - plain, abs=1e-5)
        assert each.missed == pytest.approx(float(missed[each.layer][each.head]), abs=1e-5)
    assert max(abs(each.loss) for each in result.heads) > 0.01  # a limit does something
    ranked = [(each.layer, each.head) for each in result.heads]
    by_mass = sorted(ranked, key=lambda head: -result.heads[ranked.index(head)].missed)
    none, half, _ = result.kept
    for limited, found in (
        (ranked, none.loss),
        (ranked[len(ranked) // 2 :], half.loss),
        (by_mass[len(ranked) // 2 :], half.mass),
    ):
        assert found == pytest.approx(by_masks(*asked, limited)[0] - plain, abs=1e-5)


def test_needles_are_recalled_only_with_unlimited_heads(causal):
    words = random.Random(1).choices(COMMON, k=80)
    text = causal.prepare(" ".join(words))
    result = cachecost(causal, [text], 1, 16, keep=[0.5], depths=[0.1, 0.4])
    none, _, all_ = result.kept
    assert max(none.recall) <= 1 / (NEEDLE // 2)
    words = [token for token in causal.repeat_random(NEEDLE).tokens if not token.special][:NEEDLE]
    recalled = []
    for depth in (0.1, 0.4):
        ids = text.inputs["ids"].clone()
        at = 1 + round(depth * (ids.shape[1] - 2 - 2 * NEEDLE))  # between [CLS] and [SEP]
        for start in (at, ids.shape[1] - 1 - NEEDLE):
            ids[0, start : start + NEEDLE] = torch.tensor([token.id for token in words])
        rows = torch.arange(ids.shape[1] - 2 - NEEDLE // 2, ids.shape[1] - 2)
        prepared = replace(text, inputs=text.inputs | {"ids": ids})
        with torch.inference_mode():
            said = causal.logits(prepared, torch.zeros_like(rows), rows).argmax(-1)
        recalled.append((said == ids[0, rows + 1]).double().mean().item())
    assert all_.recall == tuple(recalled)
    assert min(recalled) >= 0.5
    retrieving = {(each.layer, each.head) for each in result.heads if each.role == "retrieval"}
    assert (1, 0) in retrieving  # its induction head
    assert all(each.retrieval is not None and 0 <= each.retrieval <= 1 for each in result.heads)
    assert all((each.role == "retrieval") == (each.retrieval >= 0.1) for each in result.heads)


def test_no_retrieval_head_without_recall_by_the_full_cache(causal):
    model = load("own-causal", predicting=True)
    with torch.no_grad():
        model.module.head_bias[7] = 1e4  # it writes one token whatever its heads look at
    text = model.prepare(" ".join(random.Random(1).choices(COMMON, k=80)))
    result = cachecost(model, [text], 1, 16, keep=[], depths=[0.1])
    assert result.kept[-1].recall == (0.0,)
    assert {(each.retrieval, each.role == "retrieval") for each in result.heads} == {(None, False)}
    assert sum("no needle is recalled" in note for note in result.notes) == 1
    same = cachecost(causal, [text], 1, 16, keep=[], depths=[0.1])
    assert "retrieval" in {each.role for each in same.heads}
    assert not any("no needle is recalled" in note for note in same.notes)


def test_texts_within_the_window_are_skipped_and_counted(planted):
    model, texts = planted
    short = model.prepare("word1 word2 word3")
    both, one = (cachecost(model, each, SINK, RECENT, keep=[]) for each in ([*texts, short], texts))
    assert both.heads == one.heads
    assert both.notes[0] == "2 of 3 texts are longer than the window"
