"""What the tokens of each layer are made of; test_flow_over_families.py holds it against eager attention."""

import numpy as np
import pytest
import torch

from attnscope.capture.record import Seeing
from attnscope.errors import ModelError, SelectionError
from attnscope.models import load
from attnscope.models.inputs import ModelInput
from attnscope.models.text.reader import ModuleModel
from attnscope.questions.flow import as_shares, focus_token, follow_flow
from attnscope.questions.selection import Selection
from tests.capture.test_projections import ALL, OTHERS, random_family
from tests.capture.tiny import inputs
from tests.models.folders import t5

TEXT = "The cat sat on the mat because it was tired."


def _follow(model, method="rollout", selection=None, **how):
    return follow_flow(model, model.prepare(TEXT), method, selection or Selection(), **how)


def _random(name):
    """A random model of a family, and six tokens."""
    ids = {"input_ids": inputs("text", 1, 6)["input_ids"]}
    return ModuleModel(name, random_family(name)[0], load("own").reader), ModelInput(ids, {}, ())


DENSE = {
    "gpt-neox": "layers.{}.attention.dense",
    "gptj": "h.{}.attn.out_proj",
    "falcon": "h.{}.self_attention.dense",
    "phi": "layers.{}.self_attn.dense",
}


@pytest.mark.parametrize("name", DENSE)
def test_alti_where_attention_and_feed_forward_read_the_same_states(name):
    """The sum that attention makes with the residual, which such a model never has by itself."""
    model, text = _random(name)
    eager = (ALL | OTHERS)[name].build("eager")
    eager.load_state_dict(model.module.state_dict())
    given, values = [], []  # the output projection of each layer with what it gives, and the value vectors
    for layer in range(2):
        eager.get_submodule(DENSE[name].format(layer)).register_forward_hook(
            lambda module, _, output: given.append((module.weight.T.unflatten(0, (4, 8)), output[0]))
        )
    model.run(text, [Seeing(lambda attention: values.append(attention.values[0].expand(4, -1, -1).clone()))])
    expected = np.eye(6)
    (maps,) = follow_flow(model, text, "alti", Selection()).maps.values()
    with torch.no_grad():
        own = eager(**text.inputs, output_attentions=True, output_hidden_states=True)
        parts = zip(maps, own.attentions, own.hidden_states, values, given, strict=False)
        for (_, ours), weights, (before,), value, (projection, attended) in parts:
            vectors = torch.einsum("hij,hjs,hsw->ijw", weights[0], value, projection)
            vectors += torch.eye(6)[:, :, None] * before[:, None]
            whole = before + attended
            moved = (whole[:, None] - vectors).abs().sum(-1)
            shares = (whole.abs().sum(-1, keepdim=True) - moved).clamp(min=0).double().numpy()
            expected = shares / shares.sum(-1, keepdims=True) @ expected
            np.testing.assert_allclose(ours.values, expected, atol=1e-5)


def test_a_block_that_alti_cannot_follow_is_named():
    with pytest.raises(ModelError, match="what its output is added to was not found"):
        follow_flow(*_random("granite"), "alti", Selection())


def test_relevance_is_that_of_the_prediction_that_is_asked_for(causal):
    mat, floor = (_follow(causal, "relevance", target=word) for word in ("mat", "floor"))
    assert any("the prediction: 'mat'" in note for note in mat.notes)
    assert np.abs(mat.map(None, None)[2].values - floor.map(None, None)[2].values).max() > 1e-3


def test_the_largest_flow_of_one_token_is_its_row_of_all_on_the_side_that_has_it(tmp_path):
    model = load(t5(tmp_path))
    text = model.prepare(TEXT, "The mat.")
    whole = follow_flow(model, text, "flow", Selection())
    first = next(place.start for place in whole.map("encoder", None)[2].queries if place.text == "ca")
    for token, row, kinds in (("ca", first, ["encoder"]), ("2", 2, ["encoder", "decoder", "cross"])):
        alone = follow_flow(model, text, "flow", Selection(), token=token)
        assert set(alone.maps) == set(kinds)
        for kind in kinds:
            for (_, ours), (_, theirs) in zip(alone.maps[kind], whole.maps[kind], strict=True):
                assert [place.start for place in ours.queries] == [row]  # no row that was not computed
                np.testing.assert_allclose(ours.values[0], theirs.values[row], atol=1e-6)
    with pytest.raises(SelectionError, match="no token 'dog'"):
        follow_flow(model, text, "flow", Selection(), token="dog")


def test_words_are_averaged_down_and_summed_across(own):
    whole = _follow(own).map(None, None)[2]
    words = _follow(own, selection=Selection(words=True)).map(None, None)[2]
    assert len(words.queries) == len(TEXT.replace(".", " .").split()) + 2
    np.testing.assert_allclose(words.values.sum(-1), 1, atol=1e-6)
    assert whole.values.shape == (13, 13)


def test_one_token_is_a_row_and_a_column(own):
    seen = _follow(own)
    values = seen.map(None, None)[2].values
    focus = focus_token(seen, None, None, "it")
    assert focus.verbs == ("is made of", "goes into")
    assert focus.looks_at.bars[0].weight == pytest.approx(values[8].max())
    assert focus.looked_at_by.bars[0].weight == pytest.approx(values[:, 8].max())


def test_what_cannot_be_followed_or_is_not_there_is_refused(own):
    long = own.prepare("cat " * 100)
    with pytest.raises(SelectionError, match="name one with --token"):
        follow_flow(own, long, "flow", Selection())
    alone = follow_flow(own, long, "flow", Selection(), token="5")
    assert focus_token(alone, None, None, "5").looked_at_by is None
    seen = _follow(own)
    for kind, layer, sentence in ((None, 9, "has layers 0-3"), ("decoder", None, "no decoder")):
        with pytest.raises(SelectionError, match=sentence):
            seen.map(kind, layer)
    with pytest.raises(SelectionError, match="no token 'dog'"):
        focus_token(seen, None, None, "dog")


def test_a_row_without_attention_keeps_its_token():
    np.testing.assert_allclose(as_shares([[0.2, 0.2], [0, 0]]), [[0.5, 0.5], [0, 1]])
    across = np.pad([[0.2, 0.2], [0.0, 0.0]], ((0, 0), (0, 2)))  # the last columns are its own tokens
    np.testing.assert_allclose(as_shares(across), [[0.5, 0.5, 0, 0], [0, 0, 0, 1]])
