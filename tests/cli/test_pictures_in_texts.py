"""Pictures in a text at the command line: several, videos, and which attention leads."""

import json

import numpy as np
import pytest
from PIL import Image

from tests.models.vision_folders import vision_language

TEXT = "what is on the mat ?"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return vision_language(tmp_path_factory.mktemp("llava"), "llava")


@pytest.fixture(scope="module")
def picture(tmp_path_factory):
    file = tmp_path_factory.mktemp("pictures") / "a.png"
    pixels = np.random.default_rng(0).integers(0, 256, (90, 120, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file)
    return file


def test_two_images_are_drawn_under_each_other_and_listed_with_their_parts(run, folder, picture):
    asked = ["show", TEXT, "--image", picture, "--image", picture, "-m", folder, "--token", "mat"]
    ran = run(*asked)
    assert "image 1: mat looks at" in ran.out
    assert "image 2: mat looks at" in ran.out
    answer = json.loads(run(*asked, "--json").out)
    assert [shown["picture"] for shown in answer["patches"]] == ["image 1", "image 2"]
    boxes = [bar["box"] for bar in answer["looks_at"] if bar["text"].startswith("image")]
    assert boxes
    assert all(0 <= left < right <= 120 and 0 <= top < bottom <= 90 for left, top, right, bottom in boxes)


def test_one_of_two_images_can_be_asked_about(run, folder, picture):
    asked = ["--image", picture, "--image", picture, "-m", folder, "--json"]
    both, one = (json.loads(run("find", q, TEXT, *asked).out) for q in ("mat -> image", "mat -> image 2"))
    weights = [answer["questions"][0]["heads"][0] for answer in (both, one)]
    assert weights[1]["weight"] < weights[0]["weight"]


def test_the_text_leads_in_comparisons_and_flows(run, folder, picture):
    given = [TEXT, "--image", picture, "-m", folder]
    assert "decoder attention" in run("compare", *given).out
    ran = run("flow", *given, "--token", "mat")
    assert "decoder attention" in ran.out
    assert "mat is made of" not in ran.err
    assert "│" in ran.out  # the picture is lit


def test_what_has_no_place_for_a_video_says_so(run, folder, picture):
    run("show", TEXT, "--video", picture, "-m", folder).refuses("sees no videos")
    assert run("show", "--video", picture, "-m", folder).code == 2
