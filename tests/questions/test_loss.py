"""The loss of each token, against a plain pass, and the strip under a head's map."""

import numpy as np
import pytest
import torch

from attnscope.errors import SelectionError
from attnscope.models import load
from attnscope.models.targets import TURNS
from attnscope.questions.head import one_head
from attnscope.questions.loss import token_losses
from attnscope.questions.selection import Selection
from attnscope.render.image import drawing
from tests.models.folders import made_once
from tests.questions.intervention.shapes import saved

TEXT = "The unhappiest cat sat on the mat."


def next_tokens(model, inputs, ids):
    """What a pass says of each next token, for itself."""
    given = model.writer(**inputs).logits[0].log_softmax(-1)
    return [None, *(-float(given[at - 1, ids[at]]) for at in range(1, len(ids)))]


def masked_tokens(model, inputs, ids):
    """What a pass says of each token while it and every seventh other one are masked."""
    special = model.reader.tokenizer.all_special_ids
    plain = [at for at, id_ in enumerate(ids) if id_ not in special]
    found = dict.fromkeys(range(len(ids)))
    for turn in range(TURNS):
        hidden = inputs["input_ids"].clone()
        hidden[0, plain[turn::TURNS]] = model.reader.tokenizer.mask_token_id
        given = model.writer(**{**inputs, "input_ids": hidden}).logits[0].log_softmax(-1)
        found |= {at: -float(given[at, ids[at]]) for at in plain[turn::TURNS]}
    return list(found.values())


MODELS = {"gpt2": next_tokens, "bert": masked_tokens, "t5": next_tokens}


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory):
    return made_once(tmp_path_factory, saved)


@pytest.mark.parametrize("name", MODELS)
def test_each_token_has_the_loss_of_a_plain_pass(name, folder_of):
    model = load(folder_of(name), predicting=True)
    prepared = model.prepare(TEXT, TEXT if name == "t5" else None)
    tokens = prepared.axes["decoder"][0]
    with torch.no_grad():
        plain = MODELS[name](model, prepared.inputs, [token.id for token in tokens])
    losses = token_losses(model, prepared)
    assert [each.token for each in losses] == [token.text for token in tokens]
    for token, each, wanted in zip(tokens, losses, plain, strict=True):
        assert each.loss == (None if token.special else pytest.approx(wanted, abs=1e-5))
    assert sum(each.loss is not None for each in losses) > 6


def test_a_column_has_the_mean_loss_of_its_tokens(causal):
    prepared = causal.prepare(TEXT)
    losses = token_losses(causal, prepared)
    view = one_head(causal, prepared, Selection(words=True).of("L1H0"), losses).heatmap
    places = [place for place in view.weights.keys if place.stop - place.start > 1]
    assert places
    for place, shown in zip(view.weights.keys, view.strip, strict=True):
        mine = [each.loss for each in losses[place.start : place.stop] if each.loss is not None]
        assert shown == (pytest.approx(np.mean(mine)) if mine else None)
    with drawing(view) as (figure, _):
        heights = [bar.get_height() for axes in figure.axes for bar in axes.patches]
        assert heights == pytest.approx([each or 0 for each in view.strip])


def test_other_tokens_than_those_that_are_predicted_have_no_strip(folder_of):
    model = load(folder_of("t5"), predicting=True)
    prepared = model.prepare(TEXT, "A dog")
    losses = token_losses(model, prepared)
    for kind in ("encoder", "cross"):
        with pytest.raises(SelectionError, match="name --kind decoder"):
            one_head(model, prepared, Selection(kind=kind).of("L0H0"), losses)
