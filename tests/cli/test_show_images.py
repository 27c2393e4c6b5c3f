"""``show --image`` as a user meets it."""

import io
import json

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from attnscope.attention import Head
from attnscope.models import load
from attnscope.questions.selection import Selection
from attnscope.questions.token import one_token
from attnscope.render.overlay import blend, resize
from attnscope.render.terminal import print_view
from tests.models import images


@pytest.fixture(scope="module")
def picture(tmp_path_factory):
    return images.picture(tmp_path_factory.mktemp("images") / "corner.png")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return images.vision(tmp_path_factory.mktemp("vit"), "vit")


@pytest.fixture(scope="module")
def both_folder(tmp_path_factory):
    return images.clip(tmp_path_factory.mktemp("clip"))


def test_every_head_is_shown_of_an_image_too(run, folder, picture):
    ran = run("show", "--image", picture, "-m", folder)
    assert (ran.code, ran.err) == (0, "")
    assert "2 layers × 2 heads · 17 tokens" in ran.out
    assert "no head stands out from even attention" in ran.out  # of random weights


def test_a_patch_is_shown_as_shades_in_a_pipe(run, folder, picture):
    ran = run("show", "--image", picture, "-m", folder, "--token", "1,2", "--head", "L0H1")
    assert ran.code == 0
    assert "1,2 looks at" in ran.out
    assert "1,2 is looked at by" in ran.out
    assert "\x1b" not in ran.out
    rows = [line for line in ran.out.splitlines() if line.count("│") == 4]
    assert len(rows) == 4
    assert [row.count("××") for row in rows] == [0, 2, 0, 0]
    answer = json.loads(
        run("show", "--image", picture, "-m", folder, "--token", "1,2", "--head", "L0H1", "--json").out
    )
    heaviest = np.unravel_index(np.argmax(answer["patches"][0]["looks_at"]), (4, 4))
    if heaviest != (1, 2):
        cell = rows[heaviest[0]].split("│")[1][2 * heaviest[1] :][:2]
        assert cell == "██"


def coloured(view, width=80):
    out = io.StringIO()
    console = Console(
        file=out, force_terminal=True, color_system="truecolor", width=width, legacy_windows=False
    )
    print_view(view, console)
    return out.getvalue()


def test_a_terminal_shows_the_picture_where_it_is_looked_at(folder, picture):
    model = load(folder)
    view = one_token(model, model.prepare_image(picture), Selection(Head("L0H1"), token="CLS"))
    out = coloured(view)
    levels = view.overlays[0].looks_at / view.overlays[0].looks_at.max()
    pixels = blend(resize(view.overlays[0].pixels, 38, 38), resize(levels, 38, 38), "ember")
    for row, column in ((0, 0), (20, 11), (36, 37)):
        red, green, blue = pixels[row, column]
        under = pixels[row + 1, column]
        assert f"\x1b[38;2;{red};{green};{blue};48;2;{under[0]};{under[1]};{under[2]}m" in out
    assert out.count("▀") == 2 * 19 * 38


@pytest.mark.parametrize("width", [40, 80, 160])
def test_no_line_is_wider_than_the_terminal(folder, picture, width):
    import re

    model = load(folder)
    view = one_token(model, model.prepare_image(picture), Selection(token="3,0"))
    for line in coloured(view, width).splitlines():
        assert len(re.sub(r"\x1b\[[\d;]*m", "", line)) <= width


def test_a_patch_over_the_picture_is_saved(run, folder, picture, tmp_path):
    for suffix in (".png", ".svg", ".pdf"):
        out = tmp_path / f"patch{suffix}"
        assert run("show", "--image", picture, "-m", folder, "--token", "0,3", "-o", out).code == 0
        assert out.stat().st_size > 5000
    assert min(Image.open(tmp_path / "patch.png").size) > 400


def test_all_heads_of_an_image_are_exported(run, folder, picture, tmp_path):
    out = tmp_path / "out"
    assert run("export", "--image", picture, "-m", folder, "-o", out, "--format", "npz,png").code == 0
    with np.load(out / "heads.npz") as arrays:
        assert arrays["tokens"].tolist()[:3] == ["[CLS]", "0,0", "0,1"]
    assert (out / "L01H01.png").is_file()


def test_an_image_and_a_text_go_through_both_towers(run, both_folder, picture):
    out = run("show", "a tired cat", "--image", picture, "-m", both_folder).out
    assert "encoder attention" in out
    assert "decoder attention" in out
    answer = json.loads(run("show", "a tired cat", "--image", picture, "-m", both_folder, "--json").out)
    assert {site["name"].partition(".")[0] for site in answer["sites"]} == {"vision_model", "text_model"}
    one = run("show", "--image", picture, "-m", both_folder, "--token", "2,2")
    assert "2,2 looks at" in one.out
    text = run("show", "a tired cat", "-m", both_folder, "--token", "tired")
    assert "tired (token 2) looks at" in text.out
    cat = run(
        "show", "a tired cat", "--image", picture, "-m", both_folder, "--kind", "decoder", "--token", "cat"
    )
    assert "cat (token 3) looks at" in cat.out


def test_light_is_full_where_attention_is_heaviest_and_dim_where_there_is_none():
    pixels = np.full((2, 2, 3), 200, np.uint8)
    shown = blend(pixels, np.array([[0.0, 1.0], [0.5, 0.0]]), "ember").astype(int)
    assert shown[0, 0].tolist() == [60, 60, 60]
    assert shown[0, 0].sum() < shown[1, 0].sum() < shown[0, 1].sum()
    black = blend(np.zeros((1, 2, 3), np.uint8), np.array([[0.0, 1.0]]), "ember").astype(int)
    assert black[0, 0].sum() == 0
    assert black[0, 1].sum() > 100


def test_scaling_keeps_a_mean_when_it_shrinks_and_edges_when_it_grows():
    field = np.arange(16.0).reshape(4, 4)
    assert resize(field, 2, 2).tolist() == [[2.5, 4.5], [10.5, 12.5]]
    assert resize(field, 1, 1).item() == field.mean()
    assert np.array_equal(resize(field, 8, 4)[:, 0], np.repeat(field[:, 0], 2))
    assert np.array_equal(resize(field, 4, 4), field)
    assert resize(np.zeros((5, 7, 3)), 3, 9).shape == (3, 9, 3)
