"""``attnscope flow``, and ``--faithful``, which compares the ways of weighing."""

import json

import numpy as np

from tests.models.images import picture
from tests.models.vision_language import vision_language

TEXT = "The cat sat on the mat because it was tired."


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


BEGUN = "The cat sat on the"
OWN = ("-m", "own-causal")


def test_flow_lists_every_way_with_random_orders_among_them(run):
    printed = run("flow", BEGUN, *OWN, "--faithful").out
    title, prediction, _, header, alone, *lines = printed.splitlines()
    assert title.startswith("which tokens the prediction depends on · own-causal · “The cat sat on the”")
    assert prediction.startswith("the prediction: ")
    assert header.split() == ["order", "by", "deletion", "insertion", "first"]
    assert alone.startswith("one at a time")
    listed = lines[: next(number for number, line in enumerate(lines) if line.startswith("·"))]
    areas = [float(line[23:].split()[0]) for line in listed if not line.startswith("random")]
    assert areas == sorted(areas)
    names = {line[:23].strip() for line in listed}
    weighings = {f"--weigh {name}" for name in ("raw", "norm", "norm-residual", "zeroing", "gradient")}
    methods = {f"--method {name}" for name in ("rollout", "flow", "relevance", "alti")}
    assert names == weighings | methods | {"random order"}
