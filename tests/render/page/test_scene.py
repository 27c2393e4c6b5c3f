"""Pages of pictures and sounds: a word lights what it looks at, and a part of a picture lights the words."""

from __future__ import annotations

import base64
import io
from importlib.resources import files

import numpy as np
import pytest
from PIL import Image

from attnscope.attention import Token
from attnscope.axes import HEARD, PICTURED, places, weights
from attnscope.render.page import LOSSLESS, SIDE, Page, data_uri
from attnscope.views import Scene, SceneRegion
from tests.render.page.browser import MARKS, write_page
from tests.render.page.test_page import content

PATCHES = [Token(f"image 1 · {n // 2},{n % 2}", PICTURED + n) for n in range(4)]
QUARTERS = {
    PICTURED + n: SceneRegion((n % 2) / 2, (n // 2) / 2, (n % 2 + 1) / 2, (n // 2 + 1) / 2) for n in range(4)
}
WHITE = np.full((40, 60, 3), 255, np.uint8)
WORDS = [Token("<s>", 1, special=True), Token("the", 10), Token("disc", 11), Token("<i>mat</i>", 12)]


def field(rows, queries, keys, allowed=None):
    return weights(np.asarray(rows, float)[None], tuple(queries), tuple(keys), allowed)


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
    frames = [Token(f"{n / 10:.2f} s", HEARD + n, special=n > 7) for n in range(10)]
    bands = np.linspace(0, 255, 8 * 16).reshape(16, 8).astype(np.uint8)
    moments = {HEARD + n: SceneRegion(n / 8, 0, (n + 1) / 8, 1) for n in range(8)}
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
    page.run(
        f"[...document.querySelectorAll('[role=option]')].find((o) => o.textContent === '{text}').click()"
    )


@pytest.mark.browser
class TestPage:
    pytestmark = MARKS

    def test_a_word_that_is_clicked_lights_what_it_looks_at(self, opened):
        page = opened("text")
        assert pixel(page, 0.25, 0.75) == [255, 255, 255]  # nothing is dimmed before
        click_word(page, "disc")
        assert page.run("[state.token, state.side]") == [6, "query"]
        bright, dim = pixel(page, 0.25, 0.75), pixel(page, 0.75, 0.75)
        assert min(bright) > 180
        assert max(dim) < 130
        told = "Lit: what “disc” (token 6) looks at in L0H0, 0.60 of its attention. Full light is 0.40."
        assert page.text("lit") == told

    def test_light_is_that_of_the_other_pictures(self, opened):
        from attnscope.render.colour import blend
        from attnscope.views import Overlay

        page = opened("text")
        click_word(page, "disc")
        view = Overlay(WHITE, np.array([[0.25, 0.125], [1, 0.125]]), None)
        wanted = blend(np.full((2, 2, 3), 255, np.uint8), view.looks_at, "ember")
        for row in range(2):
            for column in range(2):
                found = pixel(page, 0.25 + column / 2, 0.25 + row / 2)
                np.testing.assert_allclose(found, wanted[row, column], atol=4)  # weights have eight bits

    def test_a_part_that_is_clicked_lights_the_words(self, opened):
        page = opened("text")
        click_part(page, 0.25, 0.75)
        assert page.run("[state.token, state.side]") == [2, "key"]
        bars = page.run(
            "Object.fromEntries([...document.querySelectorAll('[role=option]')]"
            ".map((o) => [o.textContent, o.style.getPropertyValue('--tall')]))"
        )
        assert bars == {"<s>": "0px", "the": "0px", "disc": "5px", "<i>mat</i>": "3px"}
        assert page.text("lit").endswith("A full bar under a word is 0.40.")

    def test_parts_are_chosen_in_the_picture_and_words_in_the_text(self, opened):
        page = opened("text")
        assert page.run("document.querySelector('.text').textContent") == "<s> the disc <i>mat</i>"

    def test_a_word_that_looks_across_lights_it_and_a_part_lights_the_words(self, opened):
        page = opened("across")
        click_word(page, "the")
        assert min(pixel(page, 0.25, 0.25)) > 180
        assert max(pixel(page, 0.75, 0.25)) < 130
        click_part(page, 0.25, 0.25)
        assert page.run("[state.token, state.side]") == [0, "key"]
        assert page.text("lit") == "Outlined: “image 1 · 0,0” (token 0). A full bar under a word is 0.70."

    def test_a_picture_alone_lights_what_a_part_looks_at(self, opened):
        page = opened("alone")
        assert page.text("lit") == "Choose a part of the picture, and what it looks at is lit."
        click_part(page, 0.75, 0.25)
        assert page.run("[state.token, state.side]") == [2, "query"]
        assert page.text("lit").startswith("Lit: what “image 1 · 0,1” (token 2) looks at in L0H0, 0.80 of")

    def test_a_word_lights_its_moment_of_a_sound(self, opened):
        page = opened("sound")
        assert page.text("sight") == "Sound"
        click_word(page, "disc")
        aglow = [max(pixel(page, (n + 0.5) / 8, 0.01)) for n in range(8)]
        assert int(np.argmax(aglow)) == 2
        click_part(page, 1.5 / 8, 0.5)
        assert page.text("lit") == "Outlined: “0.10 s” (token 1). A full bar under a word is 1.00."
        assert page.texts(".text")[1] == ""

    def test_the_picture_is_walked_with_keys_and_said(self, opened):
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

    @pytest.mark.slow
    @pytest.mark.parametrize(
        "size", [(1400, 900), pytest.param((400, 844), marks=pytest.mark.nightly)], ids=str
    )
    def test_axe_finds_nothing(self, opened, size):
        pytest.importorskip("axe_playwright_python", reason="axe-playwright-python is not installed")
        axe = (files("axe_playwright_python") / "axe.min.js").read_text("utf-8")
        for name in ("text", "across", "alone", "sound"):
            page = opened(name, size)
            page.send("Runtime.evaluate", expression=axe)
            for step in ("null", "pin(1)"):
                page.run(step)
                found = page.run("axe.run().then(({ violations }) => violations.map((one) => one.id))")
                assert found == [], name


def test_only_a_page_with_a_picture_may_load_one():
    kinds = {"encoder": [(0, field(np.full((4, 4), 0.25), WORDS, WORDS))]}
    plain = Page(kinds, title="words").text()
    assert "img-src" not in plain
    assert content(plain)["scene"] is None
    kinds = {"cross": [(0, field(np.full((4, 4), 0.25), WORDS, PATCHES))]}
    seen = Page(kinds, title="x", scene=Scene(WHITE, QUARTERS)).text()
    assert "img-src data:;" in seen
    assert content(seen)["scene"]["parts"] == [[*part[:4], 1] for part in QUARTERS.values()]


def decoded(uri: str) -> tuple[bytes, Image.Image]:
    raw = base64.b64decode(uri.partition(",")[2])
    return raw, Image.open(io.BytesIO(raw))


def test_a_picture_in_a_page_is_bounded_and_drawn_anew():
    pixels = np.random.default_rng(0).integers(0, 256, (900, 3000, 3), dtype=np.uint8)
    uri, across, down = data_uri(Scene(pixels))
    raw, image = decoded(uri)
    assert (across, down) == image.size == (SIDE, SIDE * 900 // 3000)
    assert uri.startswith("data:image/jpeg;base64,")  # noise is too large without loss
    assert len(raw) <= 2 * LOSSLESS
    flat = np.zeros((30, 50, 3), np.uint8)
    flat[:15] = (10, 200, 30)
    uri, *size = data_uri(Scene(flat))
    _, image = decoded(uri)
    assert image.format == "PNG"
    assert size == [50, 30]
    np.testing.assert_array_equal(np.asarray(image), flat)
    assert image.info == {}


def test_places_of_several_neighbours_have_the_parts_of_all():
    from attnscope.axes import join_places

    scene = Scene(WHITE, QUARTERS)
    joined = join_places(places(tuple(PATCHES))[1:3], pooled=True)
    assert scene.ids_of(joined) == (PICTURED + 1, PICTURED + 2)
    assert scene.ids_of(join_places(places(tuple(WORDS))[1:3], pooled=True)) == ()
