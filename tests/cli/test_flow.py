"""``attnscope flow``: what it prints, saves and refuses."""

import json
import re

import numpy as np
import pytest

from tests.models.images import picture, vision
from tests.models.vision_folders import vision_language

TEXT = "The cat sat on the mat because it was tired."


def test_the_last_layer_is_drawn_and_any_other_when_named(run):
    title = " ".join(run("flow", TEXT).out.split())
    assert title.startswith("rollout through layers 0-3 · own “The cat sat on the")
    assert run("flow", TEXT, "--layer", "1").out.startswith("rollout through layers 0-1 ·")


@pytest.mark.parametrize("method", ["rollout", "flow", "relevance", "alti"])
def test_a_token_is_a_list_of_what_it_is_made_of(run, method):
    ran = run("flow", TEXT, "--token", "it", "--method", method)
    assert ran.code == 0
    assert "it (token 8) is made of" in ran.out


def test_several_layers_are_small_maps_each_on_a_line(run, tmp_path):
    printed = run("flow", TEXT, "--layer", "0-2").out
    assert " ".join(printed.split()).startswith("rollout layer by layer · own “The cat sat on the")
    assert "each map is a layer: 13 queries" in printed
    assert [line[:3] for line in printed.splitlines() if re.match(r"L\d ", line)] == ["L0 ", "L1 ", "L2 "]
    assert "H0" not in printed
    assert run("flow", TEXT, "--layer", "0-3", "-o", tmp_path / "maps.png", "--dpi", "50").code == 0


def test_json_and_arrays_hold_every_layer(run, tmp_path):
    layers = json.loads(run("flow", TEXT, "--json").out)["layers"]
    assert [each["layer"] for each in layers] == [0, 1, 2, 3]
    run("flow", TEXT, "-o", tmp_path / "flow.npz")
    with np.load(tmp_path / "flow.npz") as maps:
        np.testing.assert_allclose(maps["encoder.03"][0], layers[3]["weights"], atol=1e-6)


def test_maps_that_were_saved_name_the_text_once(run, tmp_path):
    run("flow", TEXT, "-o", tmp_path / "flow.npz")
    commands = (["show"], ["stats"], ["find", "it -> cat"])
    looks = [run(*command, "--from", tmp_path / "flow.npz").out for command in commands]
    assert [look.splitlines()[0].count("“The cat sat") for look in looks] == [1, 1, 1]


def test_json_of_one_tokens_largest_flow_has_its_row_alone(run):
    whole = json.loads(run("flow", TEXT, "--method", "flow", "--json").out)["layers"]
    alone = json.loads(run("flow", TEXT, "--method", "flow", "--token", "it", "--json").out)["layers"]
    assert [each["positions"] for each in whole] == [list(range(13))] * 4
    assert [(each["queries"], each["positions"]) for each in alone] == [(["it"], [8])] * 4
    for one, every in zip(alone, whole, strict=True):
        np.testing.assert_allclose(one["weights"][0], every["weights"][8], atol=1e-6)
    ran = run("flow", TEXT, "--method", "flow", "--token", "it", "--words", "--json")
    words = json.loads(ran.out)["layers"]
    np.testing.assert_allclose(words[3]["weights"][0], alone[3]["weights"][0], atol=1e-6)


def test_pictures_are_saved_and_an_image_is_lit(run, tmp_path):
    assert run("flow", TEXT, "-o", tmp_path / "flow.png", "--dpi", "50").code == 0
    image, model = picture(tmp_path / "cat.png"), vision(tmp_path / "vit", "dinov2")
    ran = run("flow", "--image", image, "-m", model, "--token", "CLS", "-o", tmp_path / "lit.png")
    assert ran.code == 0
    assert (tmp_path / "lit.png").exists()
    lit = run("flow", "--image", image, "-m", model, "--token", "CLS").out
    assert "[CLS] is made of" in lit
    assert "looks at" not in lit


def test_the_tower_of_several_pictures_is_left_out_and_the_text_is_followed(run, tmp_path):
    folder = vision_language(tmp_path / "llava", "llava")
    image = picture(tmp_path / "picture.png")
    asked = ("flow", "what is on the mat ?", "-m", folder, "--image", image)
    assert "attends in 2 parts: attention cannot be followed through it" not in flat(run(*asked).out)
    both = run(*asked, "--image", image, "--token", "mat")
    assert "decoder attention" in both.out
    assert "attends in 2 parts: attention cannot be followed through it" in flat(both.out)


def flat(text):
    return " ".join(text.split())


def test_a_file_of_kilobytes_whose_flow_takes_gigabytes_is_one_sentence(run, tmp_path):
    np.save(tmp_path / "a.npy", np.full((1, 1, 120_000), 1 / 120_000, np.float32))
    run("flow", "--from", tmp_path / "a.npy").refuses(
        "out of memory: NumPy asked for 114.9 GB; the command may take"
    )
