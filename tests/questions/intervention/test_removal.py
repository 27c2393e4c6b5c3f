"""The loss without each head, against the same heads removed by hand, one at a time."""

import math
from contextlib import suppress

import pytest
import torch
from torch.nn import functional as F

from attnscope.attention import Head
from attnscope.errors import InputError, ModelError
from attnscope.models import load
from attnscope.models.targets import batch_predictions
from attnscope.questions.ablate import Removals, ablate, measure_ablation
from attnscope.questions.cause import cut
from attnscope.questions.corpus_stats import corpus_stats
from attnscope.questions.find import parse_questions
from attnscope.questions.selection import Selection
from attnscope.questions.stats import measure_heads
from attnscope.storage.corpus import ListedTexts
from tests.models.folders import t5
from tests.questions.intervention import shapes, test_importance
from tests.questions.intervention.shapes import Hooked, close, sent
from tests.questions.intervention.test_cause import chosen, places_of
from tests.questions.intervention.test_importance import FOLDERS, TEXT, without

model, shaped = test_importance.model, shapes.shaped

TEXTS = [
    TEXT,
    "The dog slept on the mat.",
    "It was tired of the cat because it sat.",
    "a",
    "The dog sat on it.",
]


def predicted(model, text):
    """The loss of every prediction in a text."""
    prepared, found = model.prepare(text), []
    with torch.no_grad(), suppress(InputError):
        for predictions in batch_predictions(model, prepared, [prepared.tokens]):
            found += F.cross_entropy(
                predictions.logits(model), predictions.target_ids, reduction="none"
            ).tolist()
    return found


def rise_by_hand(plain, other, texts):
    """The mean rise, its standard error over texts, and the loss, from two models."""
    before = [predicted(plain, text) for text in texts]
    after = [predicted(other, text) for text in texts]
    tokens = sum(map(len, before))
    rises = [sum(a) - sum(b) for a, b in zip(after, before, strict=True)]
    mean = sum(rises) / tokens
    spread = sum((rise - mean * len(one)) ** 2 for rise, one in zip(rises, before, strict=True))
    count = len(texts)
    error = math.sqrt(count / (count - 1) * spread) / tokens if count > 1 else None
    return mean, error, sum(map(sum, after)) / tokens


@pytest.mark.slow
def test_every_head_over_a_corpus_is_what_its_removal_by_hand_gives(model):
    asked = [text for text in TEXTS if predicted(model, text)]
    seen = corpus_stats(model, ListedTexts(TEXTS), ablation="zero").ablation
    heads = sorted(seen)
    assert len(heads) == len({head.layer for head in heads}) * len({head.head for head in heads})
    for head in (heads[0], heads[len(heads) // 2], heads[-1]):
        rise, error, loss = rise_by_hand(model, without(model, head.layer, head.head), asked)
        assert seen[head].value == pytest.approx(rise, rel=1e-4, abs=1e-7)
        assert seen[head].error == pytest.approx(error, rel=1e-3, abs=1e-7)
        assert seen[head].loss == pytest.approx(loss, rel=1e-5)
        assert seen[head].texts == len(asked)
    assert max(abs(found.value) for found in seen.values()) > 1e-4


def test_the_layers_before_a_head_run_once_for_all_heads(tmp_path):
    causal = load(FOLDERS["gpt2"](tmp_path), predicting=True)
    ran = [0, 0]
    for number, layer in enumerate(causal.module.h):
        layer.register_forward_hook(lambda *_, number=number: ran.__setitem__(number, ran[number] + 1))
        forward = layer.attn.forward

        def attend(*args, forward=forward, number=number, **kwargs):
            ran[number] += 100
            return forward(*args, **kwargs)

        layer.attn.forward = attend
    measure_heads(causal, causal.prepare(TEXT), Selection(), ablation=True)
    attended = [count // 100 for count in ran]
    # measured, kept, and layer 1 proved to need no other; then layer 0 for its heads, layer 1 for all
    assert attended == [2 + 4, 2 + 1 + 8]
    assert all("forward" not in vars(layer) for layer in causal.module.h)


def test_a_model_whose_layers_keep_something_is_run_anew_for_each_head(tmp_path):
    causal = load(FOLDERS["gpt2"](tmp_path), predicting=True)
    exact = measure_heads(causal, causal.prepare(TEXT), Selection(), ablation=True).ablation
    kept = []
    first, last = causal.module.h
    start, end = first.forward, last.forward

    def leave(*args, **kwargs):
        kept.append(start(*args, **kwargs))
        return kept[-1]

    def take(hidden, *args, **kwargs):
        return end(kept.pop() if kept else hidden * 2, *args, **kwargs)

    first.forward, last.forward = leave, take
    again = measure_heads(causal, causal.prepare(TEXT), Selection(), ablation=True).ablation
    for head, found in exact.items():
        assert again[head].value == pytest.approx(found.value, abs=1e-6)


def test_the_mean_of_a_head_stands_in_its_place(tmp_path):
    causal = load(FOLDERS["gpt2"](tmp_path), predicting=True)
    seen = corpus_stats(causal, ListedTexts(TEXTS), ablation="mean").ablation
    outputs, texts = [], [text for text in TEXTS if len(text) > 1]
    projection = causal.module.h[1].attn.c_proj
    watching = projection.register_forward_pre_hook(lambda module, given: outputs.append(given[0][0]))
    plain = [predicted(causal, text) for text in texts]
    watching.remove()
    mean = torch.cat(outputs).mean(0)[8:16]

    def replace(module, given):
        hidden = given[0].clone()
        hidden[..., 8:16] = mean
        return (hidden,)

    projection.register_forward_pre_hook(replace)
    other = [predicted(causal, text) for text in texts]
    rise = (sum(map(sum, other)) - sum(map(sum, plain))) / sum(map(len, plain))
    assert seen[Head(1, 1, "decoder")].value == pytest.approx(rise, rel=1e-3, abs=1e-6)


@pytest.mark.parametrize("everywhere", [True, False])
def test_heads_at_some_tokens_are_columns_of_zeros_before_the_projection(shaped, everywhere):
    side = shaped.edge.split(" -> ")[0]
    if everywhere:
        found = measure_ablation(shaped.model, shaped.clean, Selection())
    else:
        found = cut(shaped.model, shaped.clean, parse_questions(f"{side} -> *"), how="zero")
    hooked = Hooked(shaped, chosen(shaped.model, shaped.clean))
    here, count = hooked.score(shaped.clean), 1 + max(each.head.head for each in found.heads)

    def zeroed(heads):
        hooks = []
        for each in heads:
            (call, head), axes = sent(shaped, each.head), shaped.clean.axes[each.head.kind]
            rows = slice(None) if everywhere else places_of(axes[0], side)

            def change(given, rows=rows, head=head):
                given = given.clone()
                given.unflatten(-1, (count, -1))[:, rows, head] = 0
                return given

            hooks.append((shaped.projections[call], "input", change))
        return hooked.score(shaped.clean, hooks)

    assert len(found.heads) == count * len(shaped.projections)
    for each in found.heads:
        close(each.effect, zeroed([each]) - here)
    close(found.together.score, zeroed(found.heads))


def test_several_heads_are_removed_in_one_pass(model):
    prepared = model.prepare(TEXT)
    heads = [Head("L0H1"), Head("L1H2")]
    found = ablate(model, prepared, Selection(), heads)
    other = without(without(model, 0, 1), 1, 2)
    plain, gone = (predicted(each, TEXT) for each in (model, other))
    assert found.head == "L0H1, L1H2"
    assert found.losses == pytest.approx((sum(plain) / len(plain), sum(gone) / len(gone)), abs=1e-5)
    first, both = (ablate(model, prepared, Selection(), heads[:count]).divergence for count in (1, 2))
    assert first != pytest.approx(both)


def test_some_layers_alone_are_taken_away():
    own = load("own-causal")
    prepared = own.prepare(TEXT)
    every = measure_heads(own, prepared, Selection(), ablation=True).ablation
    some = measure_heads(own, prepared, Selection(layers=(1,)), ablation=True).ablation
    assert {head.layer for head in some} == {1}
    for head, found in some.items():
        assert found.value == pytest.approx(every[head].value, abs=1e-6)


def test_all_kinds_of_an_encoder_decoder_are_taken_away(tmp_path):
    pair = load(t5(tmp_path), predicting=True)
    prepared = pair.prepare("The cat sat.", "It was tired.")
    seen = measure_heads(pair, prepared, Selection(), ablation=True).ablation
    assert {head.kind for head in seen} == {"encoder", "decoder", "cross"}
    assert len(seen) == 6 * 4


def test_sums_of_two_halves_merge_and_come_back_from_a_file():
    own = load("own-causal")
    whole = corpus_stats(own, ListedTexts(TEXTS), ablation="zero").ablation
    assert whole[Head(0, 0, "decoder")].texts == len(TEXTS)
    halves = []
    for text in (TEXTS[0], TEXTS[1]):
        made = Removals()
        prepared = own.prepare(text)
        made.add(own, prepared, {"decoder": ([prepared.tokens], [prepared.tokens])}, Selection())
        halves.append(made)
    halves[0].merge(halves[1])
    again = Removals.from_state(halves[0].state())
    assert again.figures() == halves[0].figures()
    both = corpus_stats(own, ListedTexts(TEXTS[:2]), ablation="zero").ablation
    for head, found in again.figures().items():
        assert found.value == pytest.approx(both[head].value, abs=1e-6)


MODULE = """
import torch
from torch import nn
from torch.nn import functional as F


class Layer(nn.Linear):
    def forward(self, hidden):
        parts = super().forward(hidden).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*parts, is_causal={causal})
        return hidden + mixed.transpose(1, 2).flatten(-2)


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(8192, 16)
        self.layers = nn.ModuleList([Layer(16, 48), Layer(16, 48)])
        self.output = nn.Linear(16, 8192)

    def forward(self, ids):
        hidden = self.embedding(ids)
        for layer in self.layers:
            hidden = layer(hidden)
        return {returned}
"""


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("returned", ["self.output(hidden)", "(self.output(hidden), hidden)"])
def test_a_module_in_a_file_that_returns_logits_is_asked(tmp_path, causal, returned):
    file = tmp_path / f"small_{causal}_{len(returned)}.py"
    file.write_text(MODULE.format(causal=causal, returned=returned))
    made = load(f"{file}:Small", predicting=True)
    assert (made.objective.mask is None) == causal
    prepared = made.prepare(TEXT)
    seen = measure_heads(made, prepared, Selection(), importance=True, ablation=True)
    assert len(seen.ablation) == len(seen.importance) == 4
    plain = predicted(made, TEXT)

    with torch.no_grad():  # the values of head 1 in layer 1
        made.module.layers[1].weight[2 * 16 + 8 :] = 0
        made.module.layers[1].bias[2 * 16 + 8 :] = 0
    rise = sum(predicted(made, TEXT)) / len(plain) - sum(plain) / len(plain)
    head = next(head for head in seen.ablation if (head.layer, head.head) == (1, 1))
    assert seen.ablation[head].value == pytest.approx(rise, abs=1e-5)


WITH_TORCHS_OWN = """
import torch
from torch import nn


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.attend = nn.MultiheadAttention(16, 2, batch_first={batch_first})

    def forward(self, hidden, src_mask, is_causal):
        states = hidden if {batch_first} else hidden.transpose(0, 1)
        mixed, _ = self.attend(states, states, states, attn_mask=src_mask, need_weights={need_weights})
        return hidden + (mixed if {batch_first} else mixed.transpose(0, 1))


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.output = nn.Embedding(8192, 16), nn.Linear(16, 8192)
        self.layers = nn.ModuleList([{layer}, {layer}])

    def forward(self, ids):
        hidden, size = self.embedding(ids), ids.shape[-1]
        mask = nn.Transformer.generate_square_subsequent_mask(size)
        for layer in self.layers:
            hidden = layer(hidden, src_mask=mask, is_causal=True)
        return self.output(hidden)
"""


@pytest.mark.parametrize(
    ("layer", "batch_first", "need_weights"),
    [
        ("Layer()", True, False),
        ("Layer()", False, True),
        ("nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)", True, True),
    ],
)
def test_a_head_of_torchs_own_attention_is_taken_away_before_its_last_projection(
    tmp_path, layer, batch_first, need_weights
):
    file = tmp_path / f"torchs_own_{len(layer)}_{batch_first}.py"
    file.write_text(WITH_TORCHS_OWN.format(layer=layer, batch_first=batch_first, need_weights=need_weights))
    made = load(f"{file}:Small", predicting=True)
    prepared = made.prepare(TEXT)
    seen = measure_heads(made, prepared, Selection(), importance=True, ablation=True)
    assert len(seen.ablation) == len(seen.importance) == 4
    alone = ablate(made, prepared, "L1H1")
    plain = predicted(made, TEXT)

    own = getattr(made.module.layers[1], "attend" if layer == "Layer()" else "self_attn")
    with torch.no_grad():  # what the last projection reads of head 1
        own.out_proj.weight[:, 8:] = 0
    without = predicted(made, TEXT)
    rise = sum(without) / len(plain) - sum(plain) / len(plain)
    head = next(head for head in seen.ablation if (head.layer, head.head) == (1, 1))
    assert abs(rise) > 1e-4
    assert seen.ablation[head].value == pytest.approx(rise, abs=1e-5)
    assert alone.losses[1] - alone.losses[0] == pytest.approx(rise, abs=1e-5)


def test_a_module_without_scores_is_told_apart():
    with pytest.raises(ModelError, match="predicts no tokens: it returns"):
        print(load("torch.nn:Identity").objective)
