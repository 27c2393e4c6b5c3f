"""What Tab offers in a shell."""

from types import SimpleNamespace

import pytest

from attnscope.cli import complete
from attnscope.measures import MEASURES, ROLES
from attnscope.render.colour import choose_map
from tests.models.folders import gpt2


def words(**params):
    return SimpleNamespace(params={"saved": None, "model": None} | params)


def test_every_measure_and_role_is_offered():
    assert set(complete.complete_measure(words(), "")) == set(MEASURES)
    assert set(complete.complete_explained(words(), "")) >= {*MEASURES, *ROLES}
    assert complete.complete_measure(words(), "ind") == ["induction"]


def test_every_colour_map_that_is_offered_exists():
    for name in complete.complete_cmap(words(), ""):
        choose_map(name, signed=True)
    assert "viridis" in complete.complete_cmap(words(), "VI")


def test_heads_and_layers_are_those_of_the_model_or_the_trace(run, tmp_path):
    assert len(complete.complete_head(words(), "")) == 32
    assert complete.complete_head(words(), "l3h7") == ["L3H7"]
    assert complete.complete_layer(words(model="own-causal"), "")[0] == "0"
    folder = gpt2(tmp_path / "gpt2")
    assert complete.complete_head(words(model=folder), "L1") == [f"L1H{head}" for head in range(4)]
    run("show", "The cat", "-m", folder, "--keep", tmp_path / "a.trace")
    assert complete.complete_layer(words(saved=tmp_path / "a.trace"), "") == ["0", "1"]


@pytest.mark.parametrize("content", ["", "[]", '{"layers": "x"}', "[" * 5000])
def test_what_cannot_be_read_offers_nothing(tmp_path, content):
    (tmp_path / "config.json").write_text(content)
    assert complete.complete_head(words(model=str(tmp_path)), "") == []
    assert complete.complete_head(words(model="no/model"), "") == []
    assert complete.complete_head(words(saved=tmp_path / "config.json"), "") == []


def test_models_of_the_hub_that_are_here_are_offered(tmp_path, monkeypatch):
    (tmp_path / "models--someone--a-bert").mkdir()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    assert complete.complete_model(words(), "") == ["own", "own-causal", "someone/a-bert"]
