"""Two texts and two models: what changed is found, and what did not is not."""

import copy

import numpy as np
import pytest
import torch
from scipy.spatial.distance import jensenshannon

from attnscope.attention import Head
from attnscope.errors import InputError
from attnscope.models import load
from attnscope.questions import across as partners
from attnscope.questions.across import compare_models, compare_texts
from attnscope.questions.selection import Selection
from tests.models.folders import eager_minilm, gpt2, minilm, t5

TEXT = "The cat sat on the mat because it was tired."
LONGER = "The dog sat on the very old mat because it was tired."


@pytest.fixture(scope="module")
def causal(tmp_path_factory):
    return load(gpt2(tmp_path_factory.mktemp("gpt2")))


@pytest.fixture(scope="module")
def own():
    return load("own")


def of_head(head):
    """The columns of one head's query, key and value in GPT-2's projection."""
    return [block * 32 + head * 8 + i for block in range(3) for i in range(8)]


def shuffled(model, orders):
    """A copy whose heads stand in another order, layer by layer; it computes the same."""
    other = copy.deepcopy(model)
    with torch.no_grad():
        for layer, order in enumerate(orders):
            theirs, ours = other.module.h[layer].attn, model.module.h[layer].attn
            for new, old in enumerate(order):
                theirs.c_attn.weight[:, of_head(new)] = ours.c_attn.weight[:, of_head(old)]
                theirs.c_attn.bias[of_head(new)] = ours.c_attn.bias[of_head(old)]
                theirs.c_proj.weight[new * 8 : new * 8 + 8] = ours.c_proj.weight[old * 8 : old * 8 + 8]
    return other


def test_a_shuffled_copy_is_matched_head_by_head(causal):
    orders = [[2, 0, 3, 1], [1, 3, 2, 0]]
    other = shuffled(causal, orders)
    prepared = causal.prepare(TEXT)
    seen = compare_models(causal, other, [(prepared, other.prepare(TEXT))])
    assert len(seen.matches) == 8
    for pair in seen.matches:
        assert pair.one.layer == pair.other.layer
        assert orders[pair.one.layer][pair.other.head] == pair.one.head
        assert pair.distance == pytest.approx(0, abs=1e-6)
    assert seen.drift.max() > 1e-4


@pytest.mark.parametrize(("layer", "head"), [(0, 1), (1, 2)])
def test_one_head_that_was_trained_on_drifted_most(causal, layer, head):
    other = copy.deepcopy(causal)
    with torch.no_grad():
        columns = of_head(head)[:8]  # its query
        other.module.h[layer].attn.c_attn.weight[:, columns] *= -1
    seen = compare_models(causal, other, [(causal.prepare(TEXT), other.prepare(TEXT))])
    assert seen.units == "tokens"
    assert seen.ranking[0].one == Head(layer, head, "decoder")
    assert seen.ranking[0].distance > 2 * seen.ranking[1].distance
    assert (seen.drift[: 4 * layer] == pytest.approx(0, abs=1e-9)) if layer else True


def test_a_model_does_not_drift_from_itself(own):
    seen = compare_models(own, own, [(own.prepare(TEXT), own.prepare(TEXT))])
    assert seen.drift == pytest.approx(np.zeros(32), abs=1e-9)
    assert all(pair.one == pair.other for pair in seen.matches)


def test_other_shapes_are_matched_and_agree_with_scipy(own):
    real = load(minilm())
    seen = compare_models(real, own, [(real.prepare(TEXT), own.prepare(TEXT))])
    assert (len(seen.heads), len(seen.others), len(seen.matches)) == (72, 32, 32)
    assert seen.drift is None
    assert seen.ranking[-1].distance < 0.05, "both have a head that looks at the previous token"
    assert {seen.ranking[-1].one.name, seen.ranking[-1].other.name} == {"L0H2", "L2H1"}
    table = seen.view
    assert table.values.shape == (72, 32)
    diagonal = table.values.diagonal()
    assert list(diagonal) == sorted(diagonal)


def test_words_are_compared_where_tokenizers_differ(causal, tmp_path):
    other = load(t5(tmp_path))
    seen = compare_models(causal, other, [(causal.prepare(TEXT), other.prepare(TEXT))])
    assert (seen.units, seen.kind) == ("words", "decoder")
    pairs = partners.by_word(causal.prepare(TEXT).tokens, other.prepare(TEXT).tokens)
    spelled = [
        ("".join(causal.prepare(TEXT).tokens[i].text.strip() for i in mine),
         "".join(other.prepare(TEXT).tokens[j].text.strip() for j in theirs))
        for mine, theirs in pairs
    ]  # fmt: skip
    assert all(one == two for one, two in spelled)
    assert "".join(one for one, _ in spelled) == TEXT.replace(" ", "")


def test_drift_averages_over_texts(own):
    other = copy.deepcopy(own)
    with torch.no_grad():
        for weights in other.module.parameters():
            weights += 0.02 * torch.randn(weights.shape, generator=torch.Generator().manual_seed(1))
    texts = [TEXT, LONGER]
    each = [compare_models(own, other, [(own.prepare(t), other.prepare(t))]).distances for t in texts]
    seen = compare_models(own, other, [(own.prepare(t), other.prepare(t)) for t in texts])
    assert seen.distances == pytest.approx(np.mean(each, 0), abs=1e-9)
    assert seen.error == pytest.approx(np.abs(each[0] - each[1]) / 2, abs=1e-9)
    assert seen.stability is not None


def test_small_drifts_are_drawn_in_thousandths_and_heads_that_were_not_compared_stay_empty(own):
    other = copy.deepcopy(own)
    with torch.no_grad():
        for weights in other.module.parameters():
            weights *= 1.001
    prepared = own.prepare(TEXT), other.prepare(TEXT)
    seen = compare_models(own, other, [prepared], Selection(number=2))
    assert 0 < seen.drift.max() < 0.1
    assert seen.view.unit == "thousandths of a nat"
    assert seen.view.values[:, 2] == pytest.approx(1000 * seen.drift)
    assert np.isnan(seen.view.values[:, :2]).all()


def test_models_that_read_no_word_alike_are_refused(own):
    with pytest.raises(InputError, match="share no word"):
        compare_models(own, own, [(own.prepare("Cats sleep"), own.prepare("Nobody knows why"))])


def test_the_change_of_a_text_agrees_with_scipy():
    model = load(minilm())
    seen = compare_texts(model, model.prepare(TEXT), model.prepare(LONGER), Selection(Head("L1H3")))
    one, other = (np.concatenate(eager_minilm(text)) for text in (TEXT, LONGER))
    mine = list(range(13))
    theirs = [*range(6), *range(8, 15)]  # "very old" was put in
    other = other[:, theirs]
    kept = other[:, :, theirs]
    rest = (1 - kept.sum(-1, keepdims=True)).clip(0)
    one = np.concatenate([one, np.zeros((72, 13, 1))], -1)
    apart = jensenshannon(one, np.concatenate([kept, rest], -1), axis=-1) ** 2
    assert seen.change == pytest.approx(apart.mean(-1), abs=1e-6)
    assert seen.ranking[0].head == Head(*divmod(int(apart.mean(-1).argmax()), 12), "encoder")
    shown = seen.difference.values[np.ix_(theirs, theirs)]
    assert shown == pytest.approx(kept[15] - one[15, :, :13], abs=1e-5)
    masked = seen.difference.masked
    assert masked[6:8].all()
    assert masked[:, 6:8].all()
    labels = [place.text for place in seen.difference.weights.queries]
    assert [labels[i] for i in (0, 2, 6, 7, 8)] == ["[CLS]", "cat→dog", "+very", "+old", "mat"]
    assert mine == [i for i, (a, _) in enumerate(s for s in seen.aligned.steps if s[0] is not None) if a]


def test_the_same_text_changes_nothing(own):
    seen = compare_texts(own, own.prepare(TEXT), own.prepare(TEXT))
    assert seen.change == pytest.approx(np.zeros(32), abs=1e-9)
    assert seen.difference is None


def test_one_layer_may_be_compared_alone(own):
    one, other = own.prepare("The cat sat on the mat."), own.prepare("The dog sat on the old mat.")
    whole, layer = (
        compare_texts(own, one, other, selection) for selection in (Selection(), Selection(layers=(2,)))
    )
    assert {head.layer for head in layer.heads} == {2}
    mine = [head.layer == 2 for head in whole.heads]
    assert np.allclose(layer.change, whole.change[mine], atol=1e-9)


def test_a_causal_head_keeps_its_past(causal):
    """What stands behind a token cannot change what a causal head does there."""
    one, other = "The cat sat on the mat.", "The cat sat on the mat, and words look back."
    seen = compare_texts(causal, causal.prepare(one), causal.prepare(other), Selection(Head("L0H1")))
    values = np.where(seen.difference.masked, 0, seen.difference.values)
    same = next(
        i for i, (a, b) in enumerate(seen.aligned.steps) if a is None or b is None or a.text != b.text
    )
    assert values[:same] == pytest.approx(np.zeros_like(values[:same]), abs=1e-6)
    assert np.triu(~seen.difference.masked, 1).sum() == 0
