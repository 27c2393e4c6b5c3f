"""A model spread over devices is captured with each layer in its place."""

import json
import shutil
from pathlib import Path

import pytest
from safetensors import safe_open
from transformers import modeling_utils

from attnscope.errors import ModelError
from attnscope.models import load
from attnscope.models.huggingface.load import can_spread
from attnscope.questions.corpus_stats import corpus_stats
from attnscope.questions.head import one_head
from attnscope.storage.corpus import ListedTexts
from tests.measures.rounding import rounded
from tests.models.folders import gpt2

TEXT = "The cat sat on the mat because it was tired."
SPREAD = {"wte": "cpu", "wpe": "cpu", "drop": "cpu", "ln_f": "cpu", "h.0": "cpu", "h.1": "disk"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    if not can_spread():
        pytest.skip("neither accelerate, nor a safetensors that reads one weight without mapping its file")
    return gpt2(tmp_path_factory.mktemp("gpt2"))


def test_layer_offloaded_to_disk_has_the_same_attention(folder):
    whole, spread = load(folder), load(folder, device_map=SPREAD)
    assert {weights.device.type for weights in spread.module.h[1].parameters()} == {"meta"}
    one, other = (one_head(m, m.prepare(TEXT), "L1H2").heatmap.values for m in (whole, spread))
    assert (one == other).all()


@pytest.fixture
def little_memory(monkeypatch):
    """Half of the weights of the small model find no room."""
    monkeypatch.setattr("attnscope.models.huggingface.load.free_memory", lambda: 200_000)


WORDS = [
    "stats",
    "stats --weighting norm",
    "stats --weighting norm-residual",
    "show --weighting gradient",
    "show --token cat",
]
WORDS += ["logits", "compare --composition", "info --copying"]


@pytest.mark.sweep(3)
@pytest.mark.parametrize("words", WORDS)
def test_offloaded_model_gives_the_same_answers(folder, little_memory, run, words):
    command, *options = words.split()
    asked = [command, TEXT, *options, "-m", folder, "--json"]
    plain, read = (json.loads(run(*asked, *more).out) for more in ([], ["--device-map", "auto"]))
    assert any("kB of the weights stay on disk and are read in each pass" in note for note in read["notes"])
    plain["notes"] = read["notes"] = []
    assert read["options"].pop("--device-map") == "auto"
    assert read == rounded(plain)


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="only Linux lists what is mapped")
def test_offloaded_weights_are_unmapped_and_libraries_restored(folder, little_memory, tmp_path):
    from accelerate import big_modeling

    before = big_modeling.OffloadedWeightsLoader
    folder = shutil.copytree(folder, tmp_path / "alone")  # that nobody else reads
    model, mapped = load(folder, device_map="auto"), []
    assert modeling_utils.safe_open is safe_open
    assert big_modeling.OffloadedWeightsLoader is before
    assert any(each.is_meta for each in model.module.h.parameters())
    model.module.h[1].register_forward_hook(lambda *_: mapped.append(Path("/proc/self/maps").read_text()))
    corpus_stats(model, ListedTexts([TEXT]))
    assert mapped
    assert not any(str(folder) in each for each in mapped)


@pytest.mark.parametrize(
    ("missing", "stand_in"),
    [
        ("importlib.util.find_spec", lambda name: None),
        ("safetensors.safe_open", lambda filename, framework: None),
    ],
)
def test_device_map_without_accelerate_names_the_package(tmp_path, monkeypatch, missing, stand_in):
    monkeypatch.setattr(missing, stand_in)
    with pytest.raises(ModelError, match=r"needs accelerate and .*: pip install 'attnscope\[large\]'"):
        load(gpt2(tmp_path), device_map="auto")


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("own", {"device_map": "auto"}, "runs on one device"),
        ("torch.nn:Identity", {"device_map": "auto"}, "runs on one device"),
        (None, {"device_map": "auto", "device": "cpu"}, "leave out the device"),
        (None, {"device_map": "sideways"}, "cannot be loaded"),
    ],
)
def test_unsupported_device_map_is_one_sentence(folder, name, options, sentence):
    with pytest.raises(ModelError, match=sentence):
        load(name or folder, **options)
