"""The page in headless Chromium, opened from its file with the network off."""

from __future__ import annotations

import base64
import io
import zlib

import numpy as np
import pytest
from matplotlib.image import imread

from attnscope.axes import weights
from attnscope.render.colour import steps, table
from attnscope.render.page.page import UP, Code, Page, pack
from tests.render.page.browser import MARKS
from tests.render.screen import random_head, tokens

pytestmark = MARKS

COUNT = 8
TEXT = tokens("the", "<b>cat</b>", "$x$", "猫", "مرحبا", "sat", "\n", "🐱")
CAUSAL = np.tril(np.ones((COUNT, COUNT), bool))


def heads(layer: int) -> np.ndarray:
    """Three heads that differ, and one whose rows are almost alike: it is stored as differences."""
    found = [random_head(COUNT, seed=10 * layer + head).values for head in range(3)]
    stripes = np.tile(found[0][0], (COUNT, 1))
    stripes[3] = found[1][0]
    return np.stack([*found, stripes])


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    found = tmp_path_factory.mktemp("page") / "page.html"
    causal = heads(0) * CAUSAL
    cross = np.full((1, 2, COUNT), 1 / COUNT)
    kinds = {
        "encoder": [(layer, weights(heads(layer), TEXT, TEXT)) for layer in (0, 2)],
        "decoder": [(0, weights(causal, TEXT, TEXT, CAUSAL))],
        "cross": [(0, weights(cross, TEXT[:2], TEXT))],
    }
    found.write_text(
        Page(kinds, title="<i>a model</i>", subtitle="eight tokens", notes=("untrained",)).text(), "utf-8"
    )
    return found


@pytest.fixture
def opened(chromium, path):
    """The page, freshly loaded in a wide light window; nothing may go wrong in it during a test."""
    chromium.open_anew(path, 1300, 900)
    yield chromium
    assert chromium.troubles == []


def exact(values: np.ndarray) -> np.ndarray:
    """What the page can hold of some weights."""
    return Code().weights_of(Code().bytes_of(values, np.ones_like(values, bool)))


def shown(page) -> np.ndarray:
    """The weights of the open head, as the page decodes them."""
    rows = page.run("Array.from(current.bytes, (byte) => byte === CLOSED ? -1 : WEIGHT[byte])")
    return np.array(rows).reshape(page.run("[current.rows, current.columns]"))


def middle(page, name: str, x: str = "0", y: str = "0") -> tuple[float, float]:
    box = f"document.getElementById('{name}').getBoundingClientRect()"
    return page.run(f"{box}.left + {x}"), page.run(f"{box}.top + {y}")


def over_cell(page, row: int, column: int) -> tuple[float, float]:
    return middle(
        page, "picture", f"map.left + {column + 0.5} * map.cell", f"map.top + {row + 0.5} * map.tall"
    )


def over_thumbnail(page, row: int, head: int) -> tuple[float, float]:
    return middle(
        page,
        "grid",
        f"overview.left + {head + 0.5} * overview.pitch",
        f"overview.top + {row + 0.5} * overview.pitch",
    )


def test_it_opens_the_first_head_and_says_what_it_shows(opened) -> None:
    assert opened.run("element('name').textContent") == "L0H0 · encoder"
    assert opened.run("element('title').textContent") == "<i>a model</i>"
    assert "untrained" in opened.run("element('notes').textContent")
    np.testing.assert_allclose(shown(opened), exact(heads(0)[0]), atol=1e-7)


def test_few_rows_over_many_columns_are_as_tall_as_a_line_of_text(chromium, tmp_path) -> None:
    """As those of three words over six seconds of sound; and the label of the last column has its room."""
    wide = tmp_path / "wide.html"
    cross = np.full((1, 3, 300), 1 / 300)
    moments = tokens(*(f"{0.02 * frame:.2f} s" for frame in range(300)))
    wide.write_text(Page({"cross": [(0, weights(cross, TEXT[:3], moments))]}, title="it").text(), "utf-8")
    chromium.size(1300, 900)
    chromium.open(wide)
    assert chromium.run("[map.cell < 4, map.tall]") == [True, 14]
    chromium.click(*over_cell(chromium, 2, 150))
    assert chromium.run("[state.side, state.token]") == ["query", 2]
    assert chromium.run("wholeMap().width - map.left - map.cell * 299.5") >= 5.4
    assert chromium.run("element('stage').scrollWidth <= element('stage').clientWidth")
    assert chromium.troubles == []


def test_a_link_opens_a_head(chromium, path) -> None:
    chromium.open(path, "#encoder-L2H3")
    chromium.until("element('name').textContent === 'L2H3 · encoder'")
    chromium.run("location.hash = '#decoder-L0H1'")
    chromium.until("element('name').textContent === 'L0H1 · decoder'")
    found = shown(chromium)
    np.testing.assert_array_equal(found == -1, ~CAUSAL)
    np.testing.assert_allclose(found[CAUSAL], exact(heads(0)[1] * CAUSAL)[CAUSAL], atol=1e-7)


def test_heads_that_are_stored_as_differences_come_back(opened) -> None:
    packed_head = pack(Code().bytes_of(heads(0)[3], np.ones((COUNT, COUNT), bool)))
    assert zlib.decompress(base64.b64decode(packed_head), wbits=-15)[:1] == UP
    opened.run("openHead(0, 3)")
    opened.until("element('name').textContent === 'L0H3 · encoder'")
    np.testing.assert_allclose(shown(opened), exact(heads(0)[3]), atol=1e-7)


def test_a_click_on_a_thumbnail_opens_its_head(opened) -> None:
    opened.click(*over_thumbnail(opened, 1, 2))
    opened.until("element('name').textContent === 'L2H2 · encoder'")
    np.testing.assert_allclose(shown(opened), exact(heads(2)[2]), atol=1e-7)


def test_keys_move_over_layers_and_heads_and_stop_at_the_edge(opened) -> None:
    for key, name in (
        ("ArrowRight", "L0H1"),
        ("ArrowDown", "L2H1"),
        ("ArrowDown", "L2H1"),
        ("ArrowLeft", "L2H0"),
        ("ArrowLeft", "L2H0"),
        ("ArrowUp", "L0H0"),
    ):
        opened.press(key)
        opened.until(f"element('name').textContent === '{name} · encoder'")


def test_the_value_under_the_pointer_is_the_weight(opened) -> None:
    opened.move(*over_cell(opened, 5, 1))
    opened.until("!element('tip').hidden")
    text = opened.run("element('tip').textContent").replace("\u2068", "").replace("\u2069", "")
    value = exact(heads(0)[0])[5, 1]
    assert text == f"sat 5 → <b>cat</b> 1  {value:.{5 if value < 0.01 else 3}f}"


def test_pixels_have_the_colours_of_their_weights(opened) -> None:
    opened.press("Escape")
    opened.move(1, 1)
    opened.until("!waiting && state.pointer === null")
    spots = [over_cell(opened, row, column) for row in range(COUNT) for column in range(COUNT)]
    picture = imread(io.BytesIO(_screen(opened)))[..., :3] * 255
    levels = np.clip(exact(heads(0)[0]), 0, 1).ravel()
    expected = table("ember")[steps(levels)]
    found = np.array([picture[int(y), int(x)] for x, y in spots])
    np.testing.assert_allclose(found, expected, atol=3)


def test_hidden_cells_are_the_ground_in_light_and_dark_and_the_legend_says_so(chromium, tmp_path) -> None:
    values = heads(0)[:1]
    (tmp_path / "page.html").write_text(
        Page({"encoder": [(0, weights(values, TEXT, TEXT))]}, title="x", min_weight=0.1).text(), "utf-8"
    )
    chromium.size(1300, 900)
    chromium.dark(False)
    chromium.open(tmp_path / "page.html")
    assert chromium.run("element('direction').textContent") == "rows look at columns; hidden below 0.1: blank"
    faint = (values[0] < 0.1).ravel()
    assert 0 < faint.sum() < faint.size
    spots = [over_cell(chromium, row, column) for row in range(COUNT) for column in range(COUNT)]
    for dark, ground in ((False, (255, 255, 255)), (True, (22, 22, 26))):
        chromium.dark(dark)
        chromium.until(f"getComputedStyle(document.body).backgroundColor === 'rgb{ground}'")
        chromium.until("!waiting")
        picture = imread(io.BytesIO(_screen(chromium)))[..., :3] * 255
        found = np.array([picture[int(y), int(x)] for x, y in spots])
        np.testing.assert_array_equal(np.abs(found - ground).max(-1) <= 3, faint)
    assert chromium.troubles == []


def _screen(page) -> bytes:
    return base64.b64decode(page.send("Page.captureScreenshot", format="png")["data"])


def test_a_pinned_token_lists_its_row_and_its_column(opened) -> None:
    opened.click(*over_cell(opened, 3, 0))
    opened.until("state.token === 3")
    assert opened.run("element('token').textContent") == "猫 (token 3) in L0H0"
    values = exact(heads(0)[0])
    names = opened.run(
        "[...document.querySelectorAll('#lists ol')].map((list) => [...list.querySelectorAll('.place')]"
        ".map((name) => +name.textContent.split(' ').at(-1)))"
    )
    ranked = [np.argsort(-side, kind="stable").tolist() for side in (values[3], values[:, 3])]
    assert names == [
        [place for place in places if side[place] > 0]
        for places, side in zip(ranked, (values[3], values[:, 3]), strict=True)
    ]
    rest = opened.run("[...document.querySelectorAll('#lists .quiet')].map((one) => one.textContent)")
    assert rest[-1] == "and 2 more, each less than 0.00009"
    opened.press("j")
    assert opened.run("state.token") == 4
    opened.press("Escape")
    assert opened.run("element('token').textContent") == "No token chosen"


def test_cross_attention_lists_one_side_only(opened) -> None:
    opened.run("element('kind').value = 2, element('kind').dispatchEvent(new Event('change'))")
    opened.until("element('name').textContent === 'L0H0 · cross'")
    opened.press("j")
    assert opened.run("[...document.querySelectorAll('#lists h3')].map((e) => e.textContent)") == ["looks at"]


def test_lines_are_drawn_and_a_token_of_either_side_can_be_pinned(opened) -> None:
    opened.press("l")
    assert opened.run("state.mode") == "lines"
    opened.click(*middle(opened, "strokes", "lines.right + 20", "4 + 2.5 * LINE"))
    opened.until("state.token === 2 && state.side === 'key'")
    column = "element('strokes').getContext('2d').getImageData"
    drawn = opened.run(
        f"new Uint32Array({column}(lines.left + 20, 0, 2, 160).data.buffer).some((pixel) => pixel)"
    )
    assert drawn


def test_scales_change_what_full_colour_means(opened) -> None:
    high = "element('high').textContent"
    assert opened.run(high) == "1"  # the weights are strong, so that the automatic scale is 0 to 1
    opened.press("s")
    assert opened.run("state.scale") == "fixed"
    opened.press("s")
    assert opened.run(high) == "each row's largest"
    opened.press("s")
    largest, _, words = opened.run(high).partition(", ")
    assert float(largest) == pytest.approx(exact(heads(0)[0]).max(), abs=0.01)
    assert words == "this head's largest"
    opened.press("s")
    assert opened.run("state.scale") == "auto"


def test_light_and_dark_follow_the_system_until_they_are_chosen(opened) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    assert opened.run(ground) == "rgb(255, 255, 255)"
    opened.dark()
    opened.until(f"{ground} === 'rgb(22, 22, 26)'")
    opened.press("d")
    assert opened.run(ground) == "rgb(255, 255, 255)"


def test_a_phone_needs_no_scrolling_sideways(opened) -> None:
    opened.size(390, 844, 2, mobile=True)
    opened.until("document.documentElement.clientWidth === 390")
    opened.until("document.documentElement.scrollWidth <= 390")
    opened.press("l")
    opened.until("document.documentElement.scrollWidth <= 390")


def test_only_what_is_in_view_is_drawn(opened) -> None:
    for _ in range(12):
        opened.press("+")
    assert opened.run("map.cell") == 40
    assert opened.run("element('picture').clientHeight") <= 900


def test_a_policy_stops_every_request(opened) -> None:
    assert opened.run("fetch('data:text/plain,x').then(() => 'loaded', () => 'refused')") == "refused"
    assert any("Content Security Policy" in trouble for trouble in opened.troubles)
    opened.troubles.clear()
