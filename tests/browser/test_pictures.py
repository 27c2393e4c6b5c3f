"""The browser of models that see or hear: a word lights the picture, a click on a patch pins its token."""

import asyncio

import numpy as np
import pytest

pytest.importorskip("textual", reason="Textual is not installed: there is nothing to browse with")

from PIL import Image
from textual.widgets import Static

from attnscope.browser import Browser
from attnscope.models import load
from attnscope.questions.layers import all_heads
from attnscope.questions.selection import Selection
from tests.models import speech
from tests.models.vision_language import vision_language


@pytest.fixture(autouse=True)
def colours(monkeypatch):
    monkeypatch.setattr("textual.constants.COLOR_SYSTEM", "truecolor")
    monkeypatch.delenv("NO_COLOR", raising=False)


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """All heads of a text with a picture in it."""
    folder = tmp_path_factory.mktemp("llava")
    model = load(vision_language(folder / "model", "llava"))
    pixels = np.random.default_rng(0).integers(0, 256, (60, 60, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(folder / "a.png")
    return all_heads(model, model.prepare_image(folder / "a.png", "what is on the mat ?"), Selection())


@pytest.fixture(scope="module")
def heard(tmp_path_factory):
    """All heads of a sound."""
    folder = tmp_path_factory.mktemp("whisper")
    model = load(speech.whisper(folder / "model"))
    return all_heads(model, model.prepare_audio(speech.sound(folder / "a.wav"), "cat"), Selection())


def use(heads, kind, act, size=(140, 50)):
    """The browser on the first head of a kind, after what ``act`` does."""

    async def go():
        app = Browser(heads)
        async with app.run_test(size=size) as pilot:
            while app.kind != kind:
                await pilot.press("tab")
            await pilot.press("enter")
            await act(app, pilot)
            await pilot.pause()
            return app

    return asyncio.run(go())


def lines_of(app, name: str) -> list[str]:
    widget = app.query_one(name, Static)
    return [widget.render_line(y).text for y in range(widget.size.height)]


def places(app):
    return app.heads.weights[app.head[:2]]


def test_a_click_on_a_word_lights_the_picture(seen):
    async def click(app, pilot):
        await pilot.pause()
        lines = lines_of(app, "#picture")
        await pilot.click(
            "#picture", offset=(3, next(y for y, line in enumerate(lines) if "mat" in line[:24]))
        )
        await pilot.pause()
        app.said = lines_of(app, "#looks-at")

    app = use(seen, "decoder", click)
    word = next(place for place in places(app).queries if place.start == app.pinned)
    assert word.text.strip() == "mat"
    assert "mat looks at" in app.said[0]
    assert sum("▀" in line for line in app.said) > 10
    assert any("full light is" in line for line in app.said)


def test_a_click_on_a_patch_pins_its_token(seen):
    async def click(app, pilot):
        await pilot.press("k")  # the last word
        await pilot.pause()
        lines = [y for y, line in enumerate(lines_of(app, "#looks-at")) if "▀" in line]
        await pilot.click("#looks-at", offset=(1, lines[-1]))

    app = use(seen, "decoder", click)
    grid = app.heads.pictures[0].grid
    token = next(place for place in places(app).queries if place.start == app.pinned)
    assert token.text == f"image 1 · {grid[0] - 1},0"


def test_a_click_on_a_moment_shows_the_words_that_look_at_it(heard):
    async def click(app, pilot):
        await pilot.press("j")
        await pilot.pause()
        lines = [y for y, line in enumerate(lines_of(app, "#looks-at")) if "▀" in line]
        await pilot.click("#looks-at", offset=(0, lines[0]))
        await pilot.pause()
        app.said = lines_of(app, "#looked-at-by")

    app = use(heard, "cross", click)
    assert (app.pinned, app.row) == (0, False)
    assert "0.00 s (token 0) is looked at by" in "\n".join(app.said)


def test_a_click_beside_everything_changes_nothing(seen):
    async def click(app, pilot):
        await pilot.click("#title")
        await pilot.click("#picture", offset=(60, 0))

    assert use(seen, "decoder", click).pinned is None


def test_both_lists_of_a_token_have_one_scale(seen):
    async def pin(app, pilot):
        await pilot.press("k")
        await pilot.pause()
        app.said = [line.strip() for name in ("#looks-at", "#looked-at-by") for line in lines_of(app, name)]

    app = use(seen, "decoder", pin)
    scales = {line for line in app.said if line.startswith("a full bar is")}
    assert len(scales) == 1
    heaviest = app.focus_of(app.pinned)
    assert max(heaviest.looks_at.bars[0].weight, heaviest.looked_at_by.bars[0].weight) <= heaviest.full_bar
