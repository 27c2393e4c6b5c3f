"""Several heads on one token, saving the view as a picture, and the page on a touch screen."""

import base64
import io
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from matplotlib.image import imread

from attnscope.attention import Head
from attnscope.axes import weights
from attnscope.render.colour import steps, table
from attnscope.views import HeadDescription, NamedScore, round_up
from tests.render.page.browser import MARKS, stored, write_page
from tests.render.screen import random_head, tokens

pytestmark = MARKS

COUNT = 8
TEXT = tokens("the", "<b>cat</b>", "</text>", "猫", "مرحبا", "sat", "\n", "🐱")


def head(layer: int, number: int) -> np.ndarray:
    """What the page can hold of a head.  [query, key]"""
    return stored(random_head(COUNT, seed=100 * layer + number).values)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    layers, said = [], {}
    for layer in range(2):
        heads = np.stack([head(layer, number) for number in range(13)])
        layers.append((layer, weights(heads, TEXT, TEXT)))
        scores = [(NamedScore("entropy", number, 2.0, "nats", "how even"),) for number in range(13)]
        told = [HeadDescription("mixed", f"says {layer}, {number}", one) for number, one in enumerate(scores)]
        said["encoder", layer] = told
    found = tmp_path_factory.mktemp("page") / "page.html"
    worth = (Head(1, 5, "encoder"), Head(0, 2, "encoder"))
    return write_page(found, {"encoder": layers}, "a <i>model</i>", described=said, worth=worth)


def test_page_opens_the_top_suggested_head_with_its_role(opened) -> None:
    assert opened.text("name") == "L1H5 · encoder"
    assert opened.text("role") == "mixed: says 1, 5"
    assert opened.texts("#scores td") == ["5.00 nats", "2.00"]
    assert opened.run("document.querySelector('#scores th').innerText") == "entropy\nhow even"
    assert opened.texts("#worth b") == ["L1H5", "L0H2"]
    opened.run("document.querySelectorAll('#worth button')[1].click()")
    opened.until("element('name').textContent === 'L0H2 · encoder'")
    assert opened.text("role") == "mixed: says 0, 2"


def test_page_by_a_measure_suggests_heads_far_from_its_baseline(opened) -> None:
    choose = "element('by').value = '{}'; element('by').dispatchEvent(new Event('change'))"
    opened.run(choose.format("entropy"))
    assert opened.texts("#worth button") == ["L0H12entropy 12.00 nats", "L1H12entropy 12.00 nats"]
    opened.run("document.querySelectorAll('#worth button')[1].click()")
    opened.until("element('name').textContent === 'L1H12 · encoder'")
    assert opened.texts("#worth [aria-current=true] b") == ["L1H12"]
    opened.run(choose.format("map"))
    assert opened.texts("#worth b") == ["L1H5", "L0H2"]


def test_number_of_a_place_is_written_once(opened) -> None:
    places = '["cat", 3]', '["16-31 a Large", 16]', '["16-31", 16]', '["7", 7]', '["1-2", 3]'
    assert [opened.run(f"behind({each})") for each in places] == [" 3", "", "", "", " 3"]


def test_pointer_lists_the_weight_of_each_ticked_head(opened) -> None:
    ticked = ((0, 3), (1, 7), (1, 12))
    opened.run(*(f"tick({row}, {number})" for row, number in ticked), "pin(2)", "changeMode('lines')")
    opened.move(*opened.inside("strokes", "lines.right + 40", "4 + 4.5 * LINE"))
    opened.until("!element('tip').hidden")
    shown = opened.run("element('tip').querySelector('div').textContent")
    shares = {f"L{row}H{number}": head(row, number)[2, 4] for row, number in ticked}
    ranked = sorted(shares, key=lambda name: -shares[name])
    written = [f"{name}{shares[name]:.{5 if shares[name] < 0.01 else 3}f}" for name in ranked]
    assert shown == "".join(written)


def test_unticked_head_has_no_lines(opened) -> None:
    one, other = opened.run("[css('--head0'), css('--head1')]")
    opened.run("tick(0, 3)", "tick(1, 7)", "pin(2)", "changeMode('lines')")
    assert {colour for colour, *_ in opened.strokes()} == {one, other}
    opened.run("document.querySelector('#chips input').click()")
    opened.until("!compared[0].on")
    assert {colour for colour, *_ in opened.strokes()} == {other}
    ticked = opened.run("[...document.querySelectorAll('#chips input')].map((one) => one.checked)")
    assert ticked == [False, True]


def test_at_most_twelve_heads_are_compared(opened) -> None:
    opened.run("tickLayer()")
    opened.until("element('chips').children.length === 12")
    assert len(set(opened.run("compared.map((one) => css(`--head${one.slot}`))"))) == 12
    opened.run("tick(0, 0)")
    assert opened.run("compared.length") == 12
    assert "12 heads are compared at most" in opened.text("live")
    opened.run("tick(1, 4)")  # a tick taken away makes room, and its colour is free again
    slot = opened.run("compared[4].slot")
    opened.run("tick(0, 0)")
    opened.until("compared.some((one) => one.row === 0 && one.bytes)")
    assert opened.run("compared.find((one) => one.row === 0).slot") == slot
    opened.run("tickNone()")
    assert opened.run("element('chips').children.length") == 0


def test_page_legend_matches_the_drawing(opened) -> None:
    visible = "['mapped', 'drawn', 'zoom'].map((id) => element(id).checkVisibility())"
    seen = {mode: opened.run(f"changeMode('{mode}')", visible) for mode in ("map", "lines", "both")}
    assert seen == {"map": [True, False, True], "lines": [False, True, False], "both": [True, True, True]}
    for act, said in (
        ("pin(null)", "below 0.1 no line"),
        ("pin(2)", "below 0.02 no line; full bar = 1"),
        ("pin(null), tickLayer()", "below 0.1 no line; the five strongest of each token"),
        ("pin(2)", "below 0.05 no line; full bar = 1"),
        ("restyle({ scale: 'row' })", "of the largest; below 0.05 of it no line; full bar = the largest"),
    ):
        opened.run(act)
        assert opened.text("least") == said


def test_lines_have_full_colour_at_any_strength(opened) -> None:
    opened.run("changeMode('lines')")
    drawn = opened.strokes()
    assert drawn
    assert {(colour, alpha) for colour, alpha, _ in drawn} == {(opened.run("css('--head0')"), 1)}
    widths = [width for _, _, width in drawn]
    assert widths == sorted(widths)  # strong ones lie above
    assert min(widths) >= 0.75


def saved(page, form: str) -> bytes:
    letters = "btoa(Array.from(new Uint8Array(found), (byte) => String.fromCharCode(byte)).join(''))"
    found = f"posterAs('{form}').then((blob) => blob.arrayBuffer()).then((found) => {letters})"
    return base64.b64decode(page.run(found))


def test_page_saves_svg_with_text_elements(opened) -> None:
    opened.run("tick(0, 3)", "tick(1, 7)", "pin(2)")
    root = ElementTree.fromstring(saved(opened, "svg"))
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    texts = [one.text.replace("\u2068", "").replace("\u2069", "") for one in root.iter() if one.text]
    assert texts[0] == "L1H5 · encoder · a <i>model</i>"
    assert texts.count("<b>cat</b> 1") == 3  # a row, a column and a query; the key has its number first
    assert {"</text> 2", "L0H3", "L1H7", "rows attend to columns"} <= {*texts}
    tags = {one.tag.rpartition("}")[2] for one in root.iter()}
    assert tags <= {"svg", "rect", "text", "image", "path", "pattern"}
    links = [one.get("href") for one in root.iter() if one.get("href")]
    assert all(link.startswith("data:image/png;base64,") for link in links)


def test_page_saves_png_with_the_colours_of_the_weights(opened) -> None:
    picture = imread(io.BytesIO(saved(opened, "png")))[..., :3] * 255
    left, top, cell = opened.run("[map.left, map.top, map.cell]")
    start = opened.run("14 + posterLines(made('canvas').getContext('2d'), 900).length * 18 + 6")
    middles = (np.arange(COUNT) + 0.5) * cell
    rows, columns = (2 * (start + top + middles)).astype(int), (2 * (14 + left + middles)).astype(int)
    found = picture[np.ix_(rows, columns)]
    np.testing.assert_allclose(found, table("ember")[steps(head(1, 5) / round_up(head(1, 5).max()))], atol=3)


@pytest.mark.parametrize(("key", "form"), [("p", "png"), ("v", "svg")])
def test_save_keys_name_the_file(opened, key, form) -> None:
    click = "HTMLAnchorElement.prototype.click = function () { links.push(this.download) }"
    opened.run("window.links = []", click)
    opened.press(key)
    opened.until("links.length === 1")
    assert opened.run("links") == [f"encoder-L1H5.{form}"]


def test_tap_shows_the_weight_permanently(opened) -> None:
    opened.size(400, 844, 2)
    opened.send("Emulation.setTouchEmulationEnabled", enabled=True)
    opened.until("innerWidth === 400 && !waiting")
    opened.run("element('stage').scrollIntoView()", "new Promise((done) => setTimeout(done, 100))")
    x, y = opened.over_cell(3, 2)
    opened.send("Input.dispatchTouchEvent", type="touchStart", touchPoints=[{"x": x, "y": y}])
    opened.send("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])
    opened.until("!element('tip').hidden && state.token === 3")
    opened.send("Emulation.setTouchEmulationEnabled", enabled=False)
    assert float(opened.text("tip").split()[-1]) == pytest.approx(head(1, 5)[3, 2], abs=6e-4)
    left, top, right, bottom = opened.box("element('tip')")
    assert 0 <= left < right <= 400
    assert 0 <= top < bottom <= 844


def test_generated_tokens_are_marked_on_the_page(chromium, tmp_path) -> None:
    causal = random_head(COUNT, seed=1, causal=True)
    field = weights(causal.values[None], TEXT, TEXT, causal.allowed)
    chromium.open(write_page(tmp_path / "page.html", {"decoder": [(0, field)]}, written=5))
    assert chromium.texts(".wrote") == ["sat", "⏎", "🐱"]
    label = chromium.run("document.querySelector('.wrote').getAttribute('aria-label')")
    assert label == "sat, token 5, generated by the model"
    assert chromium.text("direction") == "rows attend to columns; bold: generated by the model"
    font = "(writer(context, 11)(current.axes.keys[{}]), context.font)"
    chromium.run("window.context = made('canvas').getContext('2d'), null")
    assert [chromium.run(font.format(key)).startswith("bold ") for key in (4, 5)] == [False, True]


def test_selected_token_scrolls_into_view(chromium, tmp_path) -> None:
    axis = tokens(*(f"t{i}" for i in range(300)))
    field = weights(random_head(300, seed=1).values[None], axis, axis)
    chromium.open_anew(write_page(tmp_path / "page.html", {"encoder": [(0, field)]}))
    chromium.run("changeMode('lines')", "pin(280)")
    assert chromium.run("element('lined').scrollTop <= 280 * LINE")
    assert chromium.run("280 * LINE < element('lined').scrollTop + element('lined').clientHeight")


def test_open_head_of_a_large_model_is_in_view(chromium, tmp_path) -> None:
    layers = [(layer, weights(np.stack([head(0, 0)] * 40), TEXT, TEXT)) for layer in range(60)]
    path = write_page(tmp_path / "page.html", {"encoder": layers})
    wide, phone = (1400, 900), (400, 844)
    for size, name in ((wide, "L59H39"), (phone, "L59H39"), (phone, "L0H0")):
        chromium.open_anew(path, *size, fragment=f"#encoder-{name}")
        places = "#shelf", "#heads [aria-current=true]"
        shelf, cell = (np.array(chromium.box(f"document.querySelector('{place}')")) for place in places)
        assert (shelf[:2] <= cell[:2]).all()
        assert (cell[2:] <= shelf[2:]).all()
