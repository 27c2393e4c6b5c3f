"""Deletion and insertion: on a model whose prediction depends on one known token, and by hand."""

from itertools import permutations

import numpy as np
import pytest
import torch
import transformers
from torch import nn

from attnscope.errors import ModelError
from attnscope.models import load
from attnscope.models.text.reader import ModuleModel
from attnscope.questions.faithful import compare_methods, measure_orders, open_deletion, rows_of_prediction
from tests.models.images import VIT, WHOLE, picture, save_images
from tests.questions.intervention.shapes import saved

TEXT = "The small cat sat on the mat."


class OneToken(nn.Module):
    """Two layers of one head: every row looks hard at "cat", which alone raises the score of "mat"."""

    def __init__(self, tokenizer):
        super().__init__()
        torch.manual_seed(0)
        count, cat, mat = tokenizer.get_vocab_size(), *map(tokenizer.token_to_id, ("cat", "mat"))
        self.embedding, self.query = nn.Embedding(count, 8), nn.Linear(8, 8)
        self.out = nn.ModuleList(nn.Linear(8, 8, bias=False) for _ in range(2))
        self.head = nn.Linear(8, count, bias=False)
        for each in self.out:
            nn.init.eye_(each.weight)
        with torch.no_grad():
            for small in (self.embedding.weight, self.query.weight):
                small.normal_(std=1e-3)
            for weights in (self.query.bias, self.head.weight):
                weights.zero_()
            self.embedding.weight[cat, 0], self.query.bias[0], self.head.weight[mat, 0] = 1, 3, 12

    def forward(self, ids):
        states = self.embedding(ids)  # [batch, token, width]
        for out in self.out:
            scores = self.query(states)[:, None] @ states[:, None].mT  # [batch, 1, query, key]
            mixed = torch.softmax(scores, -1) @ states[:, None]
            states = states + out(mixed[:, 0])
        return self.head(states)


@pytest.fixture(scope="module")
def one_token(own):
    model = ModuleModel("one", OneToken(own.reader.tokenizer), own.reader)
    return model, model.prepare(TEXT)


@pytest.fixture(scope="module")
def compared(one_token):
    return compare_methods(*one_token, "mat")


def test_faithful_methods_rank_planted_token_first(compared):
    found = {each.name: each for each in compared.ranked}
    unfollowed = {"--weighting norm-residual", "--method alti"}  # no module is given the sum of its residual
    assert len(found) == 7
    assert {note.partition(":")[0] for note in compared.notes} >= unfollowed
    for name in ("--weighting gradient", "--method relevance", "--weighting raw", "--method rollout"):
        each, least = found[name], min(other.deletion_area for other in compared.ranked)
        whole, *rest = each.deletion
        assert each.first[0] == "cat 3"
        assert max(rest) < 0.1 * whole
        assert each.insertion[1] > 0.9 * whole
        assert each.deletion_area == pytest.approx(least, rel=0.1)
    assert compared.alone.first[0] == "cat 3"


def test_random_deletion_order_agrees_with_closed_form(one_token, compared):
    """Of one token that counts among N, a share k / N of all orders has taken it away after k steps."""
    model, prepared = one_token
    deletion = open_deletion(model, prepared, "mat")
    size = len(deletion.places)
    with_it, without = (deletion.shares(np.array([[keep] * size]))[0] for keep in (True, False))
    middle = (with_it + without) / 2
    near = 4 * compared.random.deletion_error
    assert 0 < near < 0.5 * with_it
    assert compared.random.deletion_area == pytest.approx(middle, abs=near)
    assert compared.random.insertion_area == pytest.approx(middle, abs=near)

    small = open_deletion(model, model.prepare("A cat sat on it."), "mat")
    every = np.array(list(permutations(range(len(small.places)))))
    taken = np.arange(len(small.places) + 1)
    curves = measure_orders(small, every, taken)
    first, last = (small.shares(np.array([[keep] * (len(taken) - 1)]))[0] for keep in (True, False))
    expected = first + (last - first) * taken / taken[-1]
    np.testing.assert_allclose(curves[0].mean(0), expected, atol=0.02 * first)
    np.testing.assert_allclose(curves[1].mean(0), expected[::-1], atol=0.02 * first)


def test_deletion_with_mask_tokens_equals_by_hand(own):
    prepared = own.prepare("The [MASK] sat on the mat.")
    deletion = open_deletion(own, prepared, None)
    assert deletion.said == "a mask token takes its place"
    assert deletion.places == (1, 3, 4, 5, 6, 7)
    order = np.array([[2, 0, 5, 1, 4, 3]])
    curves = measure_orders(deletion, order, np.arange(7))[:, 0]
    mask = own.reader.tokenizer.token_to_id("[MASK]")
    for step in range(7):
        for curve, changed in zip(curves, (order[0, :step], order[0, step:]), strict=True):
            ids = prepared.inputs["ids"].clone()
            ids[0, [deletion.places[place] for place in changed]] = mask
            with torch.no_grad():
                logits = own.encoder.logits(own.encoder(**prepared.inputs | {"ids": ids}))[0, 2]
            expected = float(logits.softmax(-1)[deletion.prediction.chosen])
            assert curve[step] == pytest.approx(expected, rel=1e-4)


def test_causal_deletion_masks_removed_tokens(tmp_path):
    model = load(saved(tmp_path, "gpt2"), predicting=True)
    deletion = open_deletion(model, model.prepare(TEXT), None)
    ids, at = deletion.prepared.inputs["input_ids"], deletion.prediction.at
    assert deletion.said == "masked for all others"
    assert at not in deletion.places
    mask = torch.ones_like(ids)
    mask[0, [deletion.places[1], deletion.places[3]]] = 0
    with torch.no_grad():
        logits = model.writer(input_ids=ids, attention_mask=mask).logits[0, at]
    require_share(deletion, (1, 3), logits)


def require_share(deletion, gone, logits):
    """What the prediction has left without some places is its share of these logits."""
    kept = np.ones((1, len(deletion.places)), bool)
    kept[0, list(gone)] = False
    expected = float(logits.softmax(-1)[deletion.prediction.chosen])
    assert deletion.shares(kept)[0] == pytest.approx(expected, rel=1e-4)


def test_removed_patch_is_grey(tmp_path):
    network = transformers.ViTForImageClassification(transformers.ViTConfig(**VIT))
    model = load(save_images(tmp_path, network, "ViTImageProcessor", WHOLE), predicting=True)
    prepared = model.prepare_image(picture(tmp_path / "cat.png"))
    deletion = open_deletion(model, prepared, "1")
    assert deletion.said == "its patch of the image is grey"
    pixels = prepared.inputs["pixel_values"].clone()
    pixels[:, :, 16:32, 32:48] = 0
    with torch.no_grad():
        logits = model.writer(pixel_values=pixels).logits[0]
    require_share(deletion, (6,), logits)  # the second row of patches, the third one
    seen = compare_methods(model, prepared, "1")
    assert len(seen.ranked) == 9
    assert seen.ranked[0].first[0].count(",") == 1


def test_classifier_counts_only_the_row_its_head_reads(tmp_path):
    model = load(saved(tmp_path, "classifier"), predicting=True)
    counts = rows_of_prediction(model, model.prepare(TEXT), None, None)
    assert counts[0] == 1
    assert not counts[1:].any()


def test_faithful_refuses_model_of_two_texts(tmp_path):
    model = load(saved(tmp_path, "t5"), predicting=True)
    with pytest.raises(ModelError, match="reads several texts: --faithful removes tokens from one"):
        open_deletion(model, model.prepare(TEXT, "A cat."), "2")
