"""The browser, driven by keys and clicks as a person would; also of models that see or hear."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("textual", reason="Textual is not installed: there is nothing to browse with")


from attnscope.browser import Browser
from attnscope.models import load
from attnscope.models.trace_model import WeightsFile
from attnscope.questions.head import one_head
from attnscope.questions.layers import all_heads
from attnscope.questions.selection import Selection
from attnscope.render.image import save_image
from tests.models import speech
from tests.models.folders import t5
from tests.models.images import save_noise
from tests.models.vision_language import vision_language

TEXT = "The cat sat on the mat because it was tired."


@pytest.fixture(autouse=True)
def colours(monkeypatch):
    """A terminal of true colour, whatever the tests run in."""
    monkeypatch.setattr("textual.constants.COLOR_SYSTEM", "truecolor")


@pytest.fixture(scope="module")
def given():
    model = load("own")
    return model, model.prepare(TEXT)


@pytest.fixture(scope="module")
def heads(given):
    return all_heads(*given, Selection())


def screen(app) -> str:
    return "\n".join(strip.text for strip in app.screen._compositor.render_strips())


def browsed(heads, *keys: str, size=(80, 24), folder=".", act=None):
    """The browser after some keys and what ``act`` does, and its screen."""

    async def go():
        app = Browser(heads, folder)
        async with app.run_test(size=size) as pilot:
            await pilot.press(*keys)
            if act is not None:
                await act(app, pilot)
            await pilot.pause()
            return app, screen(app)

    return asyncio.run(go())


def stages(heads, *steps: str) -> list:
    """After each of some steps of keys: what is chosen, whether it is open, the pinned token, the screen."""
    found = []

    async def act(app, pilot):
        for keys in steps:
            await pilot.press(*keys.split())
            await pilot.pause()
            found.append((app.head, app.opened, app.pinned, screen(app)))

    browsed(heads, act=act)
    return found


def test_browser_starts_with_overview_and_selected_head(heads):
    app, shown = browsed(heads)
    assert (app.head, app.opened) == (("encoder", 0, 0), False)
    assert shown.splitlines()[0].strip() == "L0H0 · own · encoder attention"
    assert all(name in shown for name in ["H0", "H7", "L0", "L3", "Head", "Layer", "Open", "Save", "Quit"])


STEPS = {
    "right right down": ((1, 2), False, None),
    "left left left up": ((0, 7), False, None),
    "up": ((3, 7), False, None),
    "down right": ((0, 0), False, None),
    "enter down right": ((1, 1), True, None),
    "k": ((1, 1), True, 12),
    "j j k": ((1, 1), True, 0),
    "j right down": ((2, 2), True, 1),
    "escape": ((2, 2), True, None),
    "escape left": ((2, 1), False, None),
    "j": ((2, 1), True, 0),
}
"""One after another: layer and head, whether it is open, and the pinned token."""


def test_arrow_keys_wrap_and_pin_survives_head_change(heads):
    for (keys, state), (head, opened, pinned, shown) in zip(
        STEPS.items(), stages(heads, *STEPS), strict=True
    ):
        assert (head[1:], opened, pinned) == state, keys
        assert not opened or shown.splitlines()[0].strip().startswith("L{}H{}".format(*head[1:])), keys


def test_n_key_cycles_heads_with_a_role(heads):
    worth = [("encoder", head.layer, head.head) for head in heads.worth]
    found = [head for head, *_ in stages(heads, *["n"] * 6)]
    assert (found[:2], found[5]) == (worth[:2], worth[0])
    scores = heads.scores.items()
    roleless = {site: [replace(each, role=None) for each in row] for site, row in scores}
    nothing = replace(heads, scores=roleless)
    app, _ = browsed(nothing, "n")
    assert app.head == ("encoder", 0, 0)
    assert [told.message for told in app._notifications] == ["no head shows a clear pattern on this text"]


def test_only_the_selected_head_is_in_brackets(heads):
    _, shown = browsed(heads, "right", "down", size=(120, 60))
    first, *others = [line for line in shown.splitlines() if "▐" in line]
    assert all(line.index("▐") < line.index("▌") for line in (first, *others))
    assert first.startswith(" L1")


def test_enter_opens_the_head_as_show_prints_it(heads, given):
    app, shown = browsed(heads, "down", "right", "right", "right", "enter", size=(120, 50))
    assert app.opened
    assert "attends to the previous token" in shown
    score = one_head(*given, "L1H3").scores.scores["entropy"]
    assert f"{score.value:.2f} nats" in " ".join(shown.split())
    assert "because 7" in shown


@pytest.mark.parametrize("size", [(80, 24), (160, 45)])
def test_pinned_token_shows_its_row_and_column(heads, size):
    app, shown = browsed(heads, "j", "j", "j", size=size)
    assert (app.opened, app.pinned) == (True, 2)
    assert "cat (token 2) attends to" in shown
    assert "cat (token 2) is attended to by" in shown
    assert "▼" in shown
    heaviest = heads.head("encoder", 0, 0).values[2].max()
    assert f"{heaviest:.2f} █" in shown


def test_s_key_saves_view_under_free_name_or_reports_error(heads, tmp_path):
    browsed(heads, "s", "right", "enter", "s", "s", "j", "s", folder=tmp_path)
    names = {path.stem for path in tmp_path.glob("*.png")}
    assert names == {"L00H01-2", "L00H01-token0", "L00H01", "overview"}
    save_image(heads.head("encoder", 0, 1), tmp_path / "same.png")
    assert (tmp_path / "L00H01.png").read_bytes() == (tmp_path / "same.png").read_bytes()
    app, _ = browsed(heads, "s", "right", folder=tmp_path / "nowhere")
    (told,) = app._notifications
    assert (told.severity, "there is no folder" in told.message) == ("error", True)
    assert app.head == ("encoder", 0, 1)


def test_question_mark_lists_keys_until_escape(heads):
    shown, closed = (screen for *_, screen in stages(heads, "question_mark", "escape right"))
    assert "unpin the token; then back to the overview" in " ".join(shown.split())
    assert closed.splitlines()[0].strip().startswith("L0H1")


def test_dark_mode_toggles_and_shades_replace_colour(heads, monkeypatch):
    for key, dark in (("escape", True), ("d", False)):
        app, shown = browsed(heads, key)
        assert (app.current_theme.dark, "▓" in shown) == (dark, False)
    monkeypatch.setenv("NO_COLOR", "1")
    assert "▓" in browsed(heads)[1]


def test_tab_cycles_attention_kinds_and_cross_attention_pins_rows_only(tmp_path):
    pair = load(t5(tmp_path))
    heads = all_heads(pair, pair.prepare(TEXT, "It slept."), Selection())
    assert [head[0] for head, *_ in stages(heads, *["tab"] * 3)] == ["decoder", "cross", "encoder"]
    _, shown = browsed(heads, "tab", "tab", "j")
    assert "attends to" in shown
    assert "is attended to by" not in shown
    assert "Kind" in shown


def heads_of(path, maps):
    """All heads of a file of weights."""
    np.savez(path, maps)
    saved = WeightsFile(path)
    return all_heads(saved, saved.prepared, Selection())


def test_weights_file_with_nan_is_browsed_with_a_note(tmp_path):
    maps = np.random.default_rng(0).dirichlet(np.ones(5), (1, 2, 5))
    maps[0, 1, 2, 3] = np.nan
    _, shown = browsed(heads_of(tmp_path / "odd.npz", maps), "right", "enter", size=(80, 40))
    assert "no role: its scores are not finite" in shown
    assert "not finite numbers: 1" in " ".join(shown.split())


def test_token_text_cannot_control_the_browser_screen(heads):
    model = load("own")
    hostile = all_heads(model, model.prepare("[bold red]x[/] \x1b[2J $a$ [link=x]"), Selection())
    _, shown = browsed(hostile, "j", "j", size=(160, 60))
    assert "\x1b" not in shown
    assert "[ 1" in shown


def test_deep_model_scrolls_to_selected_layer(tmp_path):
    deep = heads_of(tmp_path / "deep.npz", np.random.default_rng(0).dirichlet(np.ones(6), (24, 16, 6)))
    _, shown = browsed(deep, *["up"] * 4)
    assert "▐" in shown
    assert any(line.startswith(" L20") for line in shown.splitlines())


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """All heads of a text with a picture in it."""
    folder = tmp_path_factory.mktemp("llava")
    model, image = load(vision_language(folder / "model", "llava")), save_noise(folder / "a.png", 60, 60)
    return all_heads(model, model.prepare_image(image, "what is on the mat ?"), Selection())


@pytest.fixture(scope="module")
def heard(tmp_path_factory):
    """All heads of a sound."""
    folder = tmp_path_factory.mktemp("whisper")
    model = load(speech.whisper(folder / "model"))
    return all_heads(model, model.prepare_audio(speech.sound(folder / "a.wav"), "cat"), Selection())


def lines_of(app, name: str) -> list[str]:
    widget = app.query_one(name)
    return [widget.render_line(y).text for y in range(widget.size.height)]


def use(heads, kind, *keys, clicks=()):
    """The browser on the first head of a kind after keys and clicks, and the lines of a token's two lists.

    A click is on a part of the screen, at a column of one of the lines that hold a text.
    """
    lists = {}

    async def act(app, pilot):
        await pilot.press(*keys)
        await pilot.pause()
        for part, column, text, number in clicks:
            rows = [y for y, line in enumerate(lines_of(app, part)) if text in line[:24]]
            await pilot.click(part, offset=(column, rows[number]))
            await pilot.pause()
        lists.update({name: lines_of(app, name) for name in ("#looks-at", "#looked-at-by")})

    turns = list(heads.layers.kinds).index(kind)
    return browsed(heads, *["tab"] * turns, "enter", size=(140, 50), act=act)[0], lists


def test_click_on_word_highlights_image(seen):
    _, lists = use(seen, "decoder", clicks=[("#picture", 3, "mat", 0)])
    assert "mat attends to" in lists["#looks-at"][0]
    assert sum("▀" in line for line in lists["#looks-at"]) > 10
    assert any("full brightness:" in line for line in lists["#looks-at"])


@pytest.mark.nightly
def test_click_on_patch_pins_its_token_and_elsewhere_does_nothing(seen):
    app, _ = use(seen, "decoder", "k", clicks=[("#looks-at", 1, "▀", -1)])  # of the last word
    (pinned,) = (row for row in app.heads.weights[app.head[:2]].queries if row.start == app.pinned)
    assert pinned.text == f"image 1 · {app.heads.pictures[0].grid[0] - 1},0"
    app, _ = use(seen, "decoder", clicks=[("#title", 0, "", 0), ("#picture", 60, "", 0)])
    assert app.pinned is None


@pytest.mark.nightly
def test_click_on_moment_lists_words_attending_to_it(heard):
    app, lists = use(heard, "cross", "j", clicks=[("#looks-at", 0, "▀", 0)])
    assert (app.pinned, app.row) == (0, False)
    assert "0.00 s (token 0) is attended to by" in "\n".join(lists["#looked-at-by"])


def test_token_lists_share_one_bar_scale(seen):
    app, lists = use(seen, "decoder", "k")
    lines = (line.strip() for each in lists.values() for line in each)
    assert len({line for line in lines if line.startswith("full bar:")}) == 1
    heaviest = app.focus_of(app.pinned)
    assert max(heaviest.looks_at.bars[0].weight, heaviest.looked_at_by.bars[0].weight) <= heaviest.full_bar
