"""``--keep`` and ``--from`` as a user meets them; ``test_every_architecture.py`` asks every command."""

import json
import shutil

from safetensors.numpy import load_file, save_file

from tests.cli.run import numbers
from tests.models.images import picture, vision

TEXT = "The cat sat on the mat because it was tired."
OTHER = "The dog sat on the mat because it was tired."


def test_two_traces_are_compared_as_two_texts_and_as_two_models(run, tmp_path, causal_folder):
    one, two, three = (tmp_path / f"{name}.trace" for name in ("one", "two", "three"))
    run("show", TEXT, "--keep", one)
    run("show", OTHER, "--keep", two)
    run("show", TEXT, "-m", "own-causal", "--kind", "decoder", "--keep", three)
    live = numbers(run("compare", TEXT, "--with-text", OTHER, "--json"))
    assert numbers(run("compare", "--from", one, "--with-trace", two, "--json")) == live
    assert numbers(run("compare", TEXT, "--with-trace", two, "--json")) == live
    drift = json.loads(run("compare", "--from", one, "--with-trace", one, "--json").out)
    assert max(drift["drift"]) == 0
    ran = run("compare", "--from", one, "--with-trace", three)
    assert "the models have no kind of attention in common" in ran.err


def test_two_traces_are_compared_as_two_checkpoints(run, tmp_path, causal_folder):
    other = shutil.copytree(causal_folder, tmp_path / "later")
    weights = load_file(other / "model.safetensors")
    save_file(
        {name: one * 1.01 for name, one in weights.items()}, other / "model.safetensors", {"format": "pt"}
    )
    for name, folder in (("one", causal_folder), ("two", other)):
        assert run("show", TEXT, "-m", folder, "--keep", tmp_path / f"{name}.trace").code == 0
    live = numbers(run("compare", TEXT, "-m", causal_folder, "--with-model", other, "--json"))
    two = ["--from", tmp_path / "one.trace", "--with-trace", tmp_path / "two.trace"]
    assert numbers(run("compare", *two, "--json")) == live
    assert max(json.loads(live)["drift"]) > 0


def test_the_next_look_that_is_named_is_one_at_the_trace(run, tmp_path):
    out = run("show", TEXT, "--keep", tmp_path / "a.trace").out
    assert f"attnscope show --from {tmp_path}/a.trace --head L0H7" in " ".join(out.split())


def test_a_model_that_is_there_predicts_though_its_pass_is_kept(run, tmp_path):
    ran = run("ablate", TEXT, "--importance", "--keep", tmp_path / "a.trace", "--json")
    assert numbers(ran) == numbers(run("ablate", TEXT, "--importance", "--json"))


def test_parts_of_what_is_no_plain_text_are_not_cut(run, tmp_path):
    file = picture(tmp_path / "a.png")
    run("show", "--image", file, "-m", vision(tmp_path / "vit", "vit"), "--keep", tmp_path / "a.trace")
    run("spans", "--from", tmp_path / "a.trace").refuses("holds no plain text to cut")
