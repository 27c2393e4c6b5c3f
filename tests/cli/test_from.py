"""``--from``, ``--save-trace``, and ``export``; test_every_architecture.py runs every command on traces."""

import json
import re

import numpy as np
import pytest
import typer
from PIL import Image

from attnscope.cli.options import parse_numbers
from tests.cli.run import numbers

TEXT = "The cat sat on the mat because it was tired."
OTHER = "The dog sat on the mat because it was tired."
MAT = "The cat sat on the mat."


@pytest.fixture
def heads(run, tmp_path):
    run("show", TEXT, "-o", tmp_path / "heads.npz")
    return tmp_path / "heads.npz"


@pytest.mark.parametrize("arguments", [["--head", "L1H3"], ["--layer", "0"], ["--token", "cat"]])
def test_show_from_file_equals_show_of_model(run, heads, arguments):
    told = "13 tokens|its inputs|attnscope show|… --head"
    there, live = (
        [line for line in run("show", *words, *arguments).out.splitlines() if not re.search(told, line)]
        for words in (("--from", heads), (TEXT,))
    )
    assert there == live != []


def test_json_from_file_equals_model_json_except_sites(run, heads):
    there, live = run.json("show", "--from", heads), run.json("show", TEXT)
    for name in ("sites", "input", "options"):
        del there[name], live[name]
    assert there == live


def test_weights_from_file_save_again_unchanged(run, heads, tmp_path):
    assert run("show", "--from", heads, "-o", tmp_path / "again.npz").code == 0
    with np.load(heads) as first, np.load(tmp_path / "again.npz") as second:
        np.testing.assert_array_equal(first["encoder.03"], second["encoder.03"])


@pytest.mark.parametrize("arguments", [["--head", "L0H1"], ["--token", "0"], []])
def test_non_finite_weights_are_null_in_json(run, tmp_path, arguments):
    weights = np.full((2, 3, 3), 1 / 3, np.float32)
    weights[1, 0] = np.nan, np.inf, 0.5
    np.savez(tmp_path / "odd.npz", **{"encoder.00": weights})

    ran = run("show", "--from", tmp_path / "odd.npz", *arguments, "--json")
    json.loads(ran.out, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert "not finite numbers: 2" in ran.out


def test_curve_has_a_gap_at_non_finite_weight(run, tmp_path):
    weights = np.full((1, 2, 60, 60), 1 / 60, np.float32)
    weights[0, 0, 5, 3] = np.inf
    np.savez(tmp_path / "odd.npz", weights)
    asked = ("stats", "--from", tmp_path / "odd.npz", "--by-position", "entropy")
    (broken,) = (curve for curve in run.json(*asked)["curves"] if curve["head"] == "L0H0")
    assert broken["values"][2] is None
    assert broken["values"][0] == pytest.approx(np.log(60), abs=1e-4)
    assert run(*asked).code == 0


def test_two_traces_compare_like_texts_and_models(run, tmp_path):
    one, two, three = (tmp_path / f"{name}.trace" for name in ("one", "two", "three"))
    run("show", TEXT, "--save-trace", one)
    run("show", OTHER, "--save-trace", two)
    run("show", TEXT, "-m", "own-causal", "--kind", "decoder", "--save-trace", three)
    live = numbers(run("compare", TEXT, "--with-text", OTHER, "--json"))
    assert numbers(run("compare", "--from", one, "--with-trace", two, "--json")) == live
    assert numbers(run("compare", TEXT, "--with-trace", two, "--json")) == live
    drift = run.json("compare", "--from", one, "--with-trace", one)
    assert max(drift["drift"]) == 0
    live = run.json("compare", TEXT, "--with-model", "own-causal")
    recorded = run.json("compare", "--from", one, "--with-trace", three)
    assert (recorded["kind"], recorded["other_kind"]) == ("encoder", "decoder")
    assert recorded["distances"] == live["distances"]


def test_two_traces_compare_like_checkpoints(run, tmp_path, causal_folder, chat_folder):
    for name, folder in (("one", causal_folder), ("two", chat_folder)):
        assert run("show", TEXT, "-m", folder, "--save-trace", tmp_path / f"{name}.trace").code == 0
    live = run("compare", TEXT, "-m", causal_folder, "--with-model", chat_folder, "--json")
    there = run("compare", "--from", tmp_path / "one.trace", "--with-trace", tmp_path / "two.trace", "--json")
    assert numbers(there) == numbers(live)
    assert max(json.loads(live.out)["drift"]) > 0


def test_importance_is_unchanged_by_saving_a_trace(run, tmp_path):
    ran = run("ablate", TEXT, "--importance", "--save-trace", tmp_path / "a.trace", "--json")
    assert numbers(ran) == numbers(run("ablate", TEXT, "--importance", "--json"))


def test_spans_of_an_image_trace_are_refused(run, tmp_path, picture, vit):
    run("show", "--image", picture, "-m", vit, "--save-trace", tmp_path / "a.trace")
    run("spans", "--from", tmp_path / "a.trace").refuses("holds no plain text to cut")


def test_export_manifest_command_repeats_the_export(run, tmp_path):
    arguments = ("export", MAT, "-o", tmp_path, "--layer", "0", "--head", "0", "--dpi", "40")
    run(*arguments)
    first = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    command = json.loads(first["manifest.json"])["command"]
    assert command == f"attnscope export --layer 0 --head 0 -o {tmp_path} --dpi 40.0 '{MAT}'"
    assert run(*arguments, "--force").code == 0
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == first


def test_exported_token_pictures_equal_show(run, tmp_path):
    arguments = ("--token", "cat", "--dpi", "40")
    assert run("export", MAT, *arguments, "-o", tmp_path / "out", "--layer", "1", "--head", "0-2").code == 0
    names = [f"L01H0{head}.png" for head in range(3)]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [*names, "manifest.json"]
    run("show", MAT, *arguments, "--head", "L1H2", "-o", tmp_path / "shown.png")
    saved, shown = (Image.open(tmp_path / name) for name in ("out/L01H02.png", "shown.png"))
    assert np.array_equal(saved, shown)  # show also writes its source into the file


@pytest.mark.parametrize(
    ("spelling", "listed"), [("0-3,7", (0, 1, 2, 3, 7)), ("7, 2,2", (2, 7)), ("05", (5,)), (None, None)]
)
def test_numbers_and_ranges_are_parsed(spelling, listed):
    assert parse_numbers(spelling, "--layer") == listed


@pytest.mark.parametrize("spelling", ["", "L5H3", "1-", "-1", "3-1", "1,,2", "0-99999999", "٣", "1.5"])
def test_invalid_number_list_is_refused(spelling):
    with pytest.raises(typer.BadParameter, match="write numbers and ranges, like 0-3,7"):
        parse_numbers(spelling, "--layer")


def test_export_draws_only_keys_of_the_kept_mass(run, tmp_path):
    arguments = (MAT, "--token", "cat", "--layer", "2", "--head", "1", "--format", "svg")
    drawn = {}
    for name, more in {"all": (), "few": ("--keep-mass", "0.5")}.items():
        assert run("export", *arguments, *more, "-o", tmp_path / name).code == 0
        drawn[name] = (tmp_path / name / "L02H01.svg").read_text("utf-8")
    assert drawn["all"] != drawn["few"]
    command = json.loads((tmp_path / "few" / "manifest.json").read_text("utf-8"))["command"]
    assert "--keep-mass 0.5" in command


def test_file_of_some_heads_has_their_weights_and_numbers(run, tmp_path):
    read = {}
    for name, more in {"all": (), "some": ("--head", "L1H3,L2H1")}.items():
        assert run("show", MAT, *more, "-o", tmp_path / f"{name}.csv").code == 0
        run("show", MAT, *more, "-o", tmp_path / f"{name}.json")
        read[name] = (tmp_path / f"{name}.csv").read_text("utf-8").splitlines()
    kept = [line for line in read["all"] if line.startswith(("kind,", "encoder,1,3,", "encoder,2,1,"))]
    assert read["some"] == kept
    every, some = (json.loads((tmp_path / f"{name}.json").read_text("utf-8")) for name in ("all", "some"))
    assert some["weights"] == {
        f"encoder.0{layer}": [every["weights"][f"encoder.0{layer}"][head]] for layer, head in ((1, 3), (2, 1))
    }
    assert [each["heads"] for each in some["layers"]] == [[3], [1]]
    run("show", "--from", tmp_path / "some.json").refuses("it holds some heads alone, as --head saves them")
