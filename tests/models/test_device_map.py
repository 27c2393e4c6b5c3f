"""A model whose layers live in different places is captured where each of them lives."""

import pytest

from attnscope.attention import Head
from attnscope.errors import ModelError
from attnscope.models import load
from attnscope.questions.corpus_stats import corpus_stats
from attnscope.questions.head import one_head
from attnscope.questions.selection import Selection
from attnscope.storage.corpus import ListedTexts
from tests.models.folders import gpt2

TEXT = "The cat sat on the mat because it was tired."
SPREAD = {"wte": "cpu", "wpe": "cpu", "drop": "cpu", "ln_f": "cpu", "h.0": "cpu", "h.1": "disk"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    pytest.importorskip("accelerate")
    return gpt2(tmp_path_factory.mktemp("gpt2"))


def test_a_layer_that_lives_on_disk_shows_the_same_attention(folder):
    whole, spread = load(folder), load(folder, device_map=SPREAD)
    assert {weights.device.type for weights in spread.module.h[1].parameters()} == {"meta"}
    for layer in (0, 1):
        one, other = (
            one_head(m, m.prepare(TEXT), Selection(Head(layer, 2))).heatmap.values for m in (whole, spread)
        )
        assert (one == other).all()
    one, other = (corpus_stats(model, ListedTexts([TEXT, TEXT[:20]])).heads for model in (whole, spread))
    assert one == other


def test_auto_finds_a_place_for_every_layer(folder):
    model = load(folder, device_map="auto")
    assert (
        corpus_stats(model, ListedTexts([TEXT])).heads
        == corpus_stats(load(folder), ListedTexts([TEXT])).heads
    )


def test_a_device_map_without_its_package_names_the_package(folder, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ModelError, match="needs the package accelerate: pip install accelerate"):
        load(folder, device_map="auto")


@pytest.mark.parametrize("name", ["own", "torch.nn:Identity"])
def test_only_hugging_face_models_are_spread(name):
    with pytest.raises(ModelError, match="lives on one device"):
        load(name, device_map="auto")


def test_a_device_map_and_a_device_are_one_too_many(folder):
    with pytest.raises(ModelError, match="leave out the device"):
        load(folder, device_map="auto", device="cpu")


def test_a_map_that_does_not_exist_is_one_sentence(folder):
    with pytest.raises(ModelError, match="cannot be loaded"):
        load(folder, device_map="sideways")
