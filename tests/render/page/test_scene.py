"""Pages with images and sounds: a word highlights what it attends to, and a region its words."""

import numpy as np
import pytest

from attnscope.attention import Token
from attnscope.axes import SOUND_ID
from attnscope.render.colour import blend
from attnscope.views import Scene, SceneRegion
from tests.render.page.browser import MARKS, write_page
from tests.render.page.test_accessibility import every
from tests.render.page.test_page import PATCHES, QUARTERS, WHITE, WORDS, field

pytestmark = MARKS


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """A text with a picture in it, one that looks across at it, saves a picture, and a sound."""
    folder = tmp_path_factory.mktemp("pages")
    both = [*PATCHES, *WORDS]
    causal = np.tril(np.ones((8, 8), bool))
    mixed = np.tril(np.full((8, 8), 0.01))
    mixed[6] = [0.1, 0.05, 0.4, 0.05, 0.1, 0.1, 0.2, 0]  # "disc" looks at the patch below on the left
    mixed[7, 2] = 0.2
    across = [[0.1, 0.2, 0.3, 0.4], [0.7, 0.1, 0.1, 0.1], [0.25] * 4, [0.25] * 4]
    alone = [Token("[CLS]", 0, special=True), *PATCHES]
    frames = [Token(f"{n / 10:.2f} s", SOUND_ID + n, special=n > 7) for n in range(10)]
    bands = np.linspace(0, 255, 8 * 16).reshape(16, 8).astype(np.uint8)
    moments = {SOUND_ID + n: SceneRegion(n / 8, 0, (n + 1) / 8, 1, True) for n in range(8)}
    seen, heard = Scene(WHITE, QUARTERS), Scene(np.repeat(bands[..., None], 3, -1), moments, heard=True)
    for name, kind, weights_of_it, scene in (
        ("text", "decoder", field(mixed, both, both, causal), seen),
        ("across", "cross", field(across, WORDS, PATCHES), seen),
        ("alone", "encoder", field(np.full((5, 5), 0.2), alone, alone), seen),
        ("sound", "cross", field(np.eye(4, 10), WORDS, frames), heard),
    ):
        write_page(folder / f"{name}.html", {kind: [(0, weights_of_it)]}, scene=scene)
    return folder


@pytest.fixture
def opened(chromium, pages):
    def open_page(name, size=(1400, 900)):
        chromium.open_anew(pages / f"{name}.html", *size)
        chromium.until("scene.picture !== null")
        return chromium

    yield open_page
    assert chromium.troubles == []


def pixel(page, x: float, y: float) -> list[int]:
    """The colour at a place of the picture, in shares of it."""
    at = f"element('scene').width * {x}, element('scene').height * {y}, 1, 1"
    return page.run(f"[...element('scene').getContext('2d').getImageData({at}).data].slice(0, 3)")


def click_part(page, x: float, y: float) -> None:
    page.run("element('scene').scrollIntoView({ block: 'center' })")
    left, top, right, bottom = page.box("element('scene')")
    page.click(left + (right - left) * x, top + (bottom - top) * y)


def click_word(page, text: str) -> None:
    words = "[...document.querySelectorAll('[role=option]')]"
    page.run(f"{words}.find((o) => o.textContent === '{text}').click()")


def test_clicked_word_highlights_attended_image_parts(opened):
    page = opened("text")
    assert pixel(page, 0.25, 0.75) == [255, 255, 255]  # nothing is dimmed before
    click_word(page, "disc")
    assert page.run("[state.token, state.side]") == [6, "query"]
    wanted = blend(np.full((2, 2, 3), 255, np.uint8), np.array([[0.25, 0.125], [1, 0.125]]), "ember")
    for row, column in np.ndindex(2, 2):  # the light of the other pictures; weights have eight bits
        found = pixel(page, 0.25 + column / 2, 0.25 + row / 2)
        np.testing.assert_allclose(found, wanted[row, column], atol=4)
    told = "Lit: what “disc” (token 6) attends to in L0H0, 0.60 of its attention. Full brightness is 0.40."
    assert page.text("lit") == told


def test_clicked_image_part_highlights_words(opened):
    page = opened("text")
    assert page.run("document.querySelector('.text').textContent") == "<s> the disc <i>mat</i>"
    click_part(page, 0.25, 0.75)
    assert page.run("[state.token, state.side]") == [2, "key"]
    bar = "(o) => [o.textContent, o.style.getPropertyValue('--tall')]"
    bars = page.run(f"Object.fromEntries([...document.querySelectorAll('[role=option]')].map({bar}))")
    assert bars == {"<s>": "0px", "the": "0px", "disc": "5px", "<i>mat</i>": "3px"}
    assert page.text("lit").endswith("A full bar under a word is 0.40.")


def test_cross_attention_highlights_image_and_words(opened):
    page = opened("across")
    click_word(page, "the")
    assert min(pixel(page, 0.25, 0.25)) > 180
    assert max(pixel(page, 0.75, 0.25)) < 130
    click_part(page, 0.25, 0.25)
    assert page.run("[state.token, state.side]") == [0, "key"]
    assert page.text("lit") == "Outlined: “image 1 · 0,0” (token 0). A full bar under a word is 0.70."


def test_image_alone_highlights_attended_parts(opened):
    page = opened("alone")
    assert page.text("lit") == "Choose a part of the picture to light what it attends to."
    click_part(page, 0.75, 0.25)
    assert page.run("[state.token, state.side]") == [2, "query"]
    assert page.text("lit").startswith("Lit: what “image 1 · 0,1” (token 2) attends to in L0H0, 0.80 of")


def test_clicked_word_highlights_its_moment_of_sound(opened):
    page = opened("sound")
    assert page.text("sight") == "Sound"
    click_word(page, "disc")
    aglow = [max(pixel(page, (n + 0.5) / 8, 0.01)) for n in range(8)]
    assert int(np.argmax(aglow)) == 2
    click_part(page, 1.5 / 8, 0.5)
    assert page.text("lit") == "Outlined: “0.10 s” (token 1). A full bar under a word is 1.00."
    assert page.texts(".text")[1] == ""


def test_image_parts_are_reachable_by_keys_and_announced(opened):
    page = opened("text")
    click_word(page, "disc")
    page.run("element('view').focus()")
    page.press("ArrowDown")
    page.press("ArrowDown")
    assert page.text("live") == "image 1 · 1,0 2  0.400"
    page.press("ArrowRight")
    assert page.run("scene.over") == 3
    page.press("Enter")
    assert page.run("[state.token, state.side]") == [3, "key"]


@pytest.mark.sweep(2)
@pytest.mark.parametrize("name", ["alone", "sound"])
def test_scene_page_fits_any_window_width(opened, name):
    for width in (400, 700, 1100, 1200, 1400):
        page = opened(name, (width, 900))
        page.until("(e => e.scrollWidth <= e.clientWidth)(document.documentElement)")
        assert page.run("element('scene').clientWidth") > 100


@pytest.mark.sweep
@pytest.mark.slow
@pytest.mark.parametrize(("name", "size"), every(["text", "sound", "alone", "across"]))
def test_scene_page_has_no_axe_violations(opened, name, size):
    page = opened(name, size)
    for step in ("null", "pin(1)"):
        page.run(step)
        assert page.violations() == []
