"""The page in headless Chromium, opened from its file without a network; thumbnails of long texts."""

import base64
import zlib
from functools import partial

import numpy as np
import pytest

from attnscope.axes import shrink, weights
from attnscope.render.colour import role_colour, steps, table
from attnscope.render.page import UP, Code, pack
from attnscope.views import (
    ROLE_LETTERS,
    HeadDescription,
    NamedScore,
    grid,
    heatmap,
    letter_of,
    name_weight,
    round_up,
)
from tests.questions.roles import plant_roles
from tests.render.page.browser import MARKS, stored, write_page
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
    kinds = {"encoder": [(layer, weights(heads(layer), TEXT, TEXT)) for layer in (0, 2)]}
    kinds |= {"decoder": [(0, weights(causal, TEXT, TEXT, CAUSAL))]}
    kinds |= {"cross": [(0, weights(cross, TEXT[:2], TEXT))]}
    return write_page(found, kinds, "<i>a model</i>", subtitle="eight tokens", notes=("untrained",))


def shown(page) -> np.ndarray:
    """The weights of the open head, as the page decodes them."""
    rows = page.run("Array.from(current.bytes, (byte) => byte === CLOSED ? -1 : WEIGHT[byte])")
    return np.array(rows).reshape(page.run("[current.rows, current.columns]"))


def cells(page) -> np.ndarray:
    """The pixels in the middle of all cells of the map, row after row.  [cell, channel]"""
    spots = [page.over_cell(row, column) for row in range(COUNT) for column in range(COUNT)]
    picture = page.pixels()
    return np.array([picture[int(y), int(x)] for x, y in spots])


def test_page_opens_first_head_with_title_notes_and_colours(opened) -> None:
    assert opened.text("name") == "L0H0 · encoder"
    assert opened.text("title") == "<i>a model</i>"
    assert "untrained" in opened.text("notes")
    first = stored(heads(0)[0])
    np.testing.assert_allclose(shown(opened), first, atol=1e-7)
    opened.move(1, 1)
    opened.until("!waiting && state.pointer === null")
    np.testing.assert_allclose(cells(opened), table("ember")[steps(first.ravel())], atol=3)


def test_wide_map_rows_are_as_tall_as_text(chromium, tmp_path) -> None:
    """As those of three words over six seconds of sound; and the label of the last column has its room."""
    cross = np.full((1, 3, 300), 1 / 300)
    moments = tokens(*(f"{0.02 * frame:.2f} s" for frame in range(300)))
    kinds = {"cross": [(0, weights(cross, TEXT[:3], moments))]}
    chromium.open_anew(write_page(tmp_path / "wide.html", kinds), 1300)
    assert chromium.run("[map.cell < 4, map.tall]") == [True, 14]
    chromium.click(*chromium.over_cell(2, 150))
    assert chromium.run("[state.side, state.token]") == ["query", 2]
    assert chromium.run("wholeMap().width - map.left - map.cell * 299.5") >= 5.4
    assert chromium.run("element('stage').scrollWidth <= element('stage').clientWidth")
    assert chromium.troubles == []


def test_link_opens_head_and_delta_coded_weights_decode(chromium, path) -> None:
    values = heads(2)[3]
    packed_head = pack(Code().bytes_of(values, np.ones_like(values, bool)))
    assert zlib.decompress(base64.b64decode(packed_head), wbits=-15)[:1] == UP
    chromium.open(path, "#encoder-L2H3")
    chromium.until("element('name').textContent === 'L2H3 · encoder'")
    np.testing.assert_allclose(shown(chromium), stored(values), atol=1e-7)
    chromium.run("location.hash = '#decoder-L0H1'")
    chromium.until("element('name').textContent === 'L0H1 · decoder'")
    found = shown(chromium)
    np.testing.assert_array_equal(found == -1, ~CAUSAL)
    np.testing.assert_allclose(found[CAUSAL], stored(heads(0)[1] * CAUSAL)[CAUSAL], atol=1e-7)


def test_thumbnail_click_opens_head_and_arrows_stop_at_edge(opened) -> None:
    x, y = (f"overview.{side} + {at} * overview.pitch" for side, at in (("left", 2.5), ("top", 1.5)))
    opened.click(*opened.inside("grid", x, y))
    opened.until("element('name').textContent === 'L2H2 · encoder'")
    np.testing.assert_allclose(shown(opened), stored(heads(2)[2]), atol=1e-7)
    steps = ["Down", "L2H2", "Left", "L2H1", "Left", "L2H0", "Left", "L2H0", "Up", "L0H0", "Right", "L0H1"]
    for key, name in zip(steps[::2], steps[1::2], strict=True):
        opened.press(f"Arrow{key}")
        opened.until(f"element('name').textContent === '{name} · encoder'")


def test_pointer_shows_the_weight(opened) -> None:
    opened.move(*opened.over_cell(5, 1))
    opened.until("!element('tip').hidden")
    text = opened.text("tip").replace("\u2068", "").replace("\u2069", "")
    value = stored(heads(0)[0])[5, 1]
    assert text == f"sat 5 → <b>cat</b> 1  {value:.{5 if value < 0.01 else 3}f}"


def test_hidden_cells_have_theme_background_and_a_note(chromium, tmp_path) -> None:
    values = heads(0)[:1]
    kinds = {"encoder": [(0, weights(values, TEXT, TEXT))]}
    chromium.open_anew(write_page(tmp_path / "page.html", kinds, min_weight=0.1), 1300)
    assert chromium.text("direction") == "rows attend to columns; hidden below 0.1: blank"
    faint = (values[0] < 0.1).ravel()
    assert 0 < faint.sum() < faint.size
    light, dark, choose = (255, 255, 255), (22, 22, 26), partial(chromium.press, "d")
    for act, ground in ((partial(chromium.dark, False), light), (chromium.dark, dark), (choose, light)):
        act()
        chromium.until(f"getComputedStyle(document.body).backgroundColor === 'rgb{ground}' && !waiting")
        np.testing.assert_array_equal(np.abs(cells(chromium) - ground).max(-1) <= 3, faint)
    assert chromium.troubles == []


def test_pinned_token_lists_its_row_and_column(opened) -> None:
    opened.click(*opened.over_cell(3, 0))
    opened.until("state.token === 3")
    assert opened.text("token") == "猫 (token 3) in L0H0"
    values = stored(heads(0)[0])
    places = "[...list.querySelectorAll('.place')].map((name) => +name.textContent.split(' ').at(-1))"
    names = opened.run(f"[...document.querySelectorAll('#lists ol')].map((list) => {places})")
    ranked = [(side, np.argsort(-side, kind="stable").tolist()) for side in (values[3], values[:, 3])]
    assert names == [[place for place in order if side[place] > 0] for side, order in ranked]
    rest = opened.texts("#lists .quiet")
    assert rest[-1] == "and 2 more, each less than 0.00009"
    opened.press("j")
    assert opened.run("state.token") == 4
    opened.press("Escape")
    assert opened.text("token") == "No token chosen"


def test_cross_attention_token_lists_one_side(opened) -> None:
    opened.page.select_option("#kind", "2")
    opened.until("element('name').textContent === 'L0H0 · cross'")
    opened.press("j")
    assert opened.texts("#lists h3") == ["attends to"]


def test_lines_mode_pins_tokens_of_either_side(opened) -> None:
    opened.press("l")
    assert opened.run("state.mode") == "lines"
    opened.click(*opened.inside("strokes", "lines.right + 20", "4 + 2.5 * LINE"))
    opened.until("state.token === 2 && state.side === 'key'")
    column = "element('strokes').getContext('2d').getImageData(lines.left + 20, 0, 2, 160)"
    assert opened.run(f"new Uint32Array({column}.data.buffer).some((pixel) => pixel)")


def test_scale_key_changes_the_colour_scale(opened) -> None:
    high = "element('high').textContent"
    largest = stored(heads(0)[0]).max()
    for scale, full in (
        ("auto", f"{round_up(largest):g} attention weight"),
        ("fixed", "1 attention weight"),
        ("row", "each row's largest attention weight"),
        ("head", f"{largest:.2f} attention weight, this head's largest"),
    ):
        assert opened.run(f"[state.scale, {high}]") == [scale, full]
        opened.press("s")
    assert opened.run("state.scale") == "auto"


def test_only_visible_cells_are_drawn(opened) -> None:
    for _ in range(12):
        opened.press("+")
    assert opened.run("map.cell") == 40
    assert opened.run("element('picture').clientHeight") <= 900


def test_page_policy_blocks_every_request(opened) -> None:
    assert opened.run("fetch('data:text/plain,x').then(() => 'loaded', () => 'refused')") == "refused"
    assert any("Content Security Policy" in trouble for trouble in opened.troubles)
    opened.troubles.clear()


LONG = 512
WORDS = tokens(*(f"word{number}" for number in range(LONG)))


def spread(causal: bool) -> np.ndarray:
    """A head whose weights are spread over all open keys, the first half threefold.  [query, key]"""
    values = np.tile(np.where(np.arange(LONG) < LONG // 2, 3.0, 1.0), (LONG, 1))
    values = np.tril(values) if causal else values
    return (values / values.sum(-1, keepdims=True)).astype(np.float32)


def thumbnail(page, path, values, heads, open_=None) -> np.ndarray:
    """The pixels of the first head's thumbnail, and of nothing around it.  [row, column, colour]"""
    layers = [(0, weights(np.stack([values] * heads), WORDS, WORDS, open_))]
    page.open_anew(write_page(path, {"decoder": layers}), 1300)
    assert page.troubles == []
    left, top, right, bottom = (round(edge) for edge in page.box("overview.cells[0][0]"))
    return np.round(page.pixels()[top + 2 : bottom - 2, left + 2 : right - 2])


@pytest.mark.sweep(2)
@pytest.mark.parametrize("heads", [2, 24])
def test_thumbnail_of_spread_weights_over_512_tokens_is_visible(chromium, tmp_path, heads):
    values = spread(causal=False)
    seen = thumbnail(chromium, tmp_path / "page.html", values, heads)
    cells = min(32, chromium.run("overview.most"))
    assert (cells < 32) == (heads == 24)
    pooled = shrink(*shrink(values, np.ones_like(values, bool), 32, 32), cells, cells)[0]
    top = round_up(pooled.max())
    colours = table("ember")[steps(pooled / top)]
    height, width = seen.shape[:2]
    for column in (0, cells - 1):
        x = 0 if column == 0 else width - 1
        np.testing.assert_allclose(seen[height // 2, x], colours[cells // 2, column], atol=8)
    assert chromium.text("shades") == f"Colour scale: 0 to {top:g}."


@pytest.mark.sweep(2)
@pytest.mark.parametrize("causal", [False, True])
def test_thumbnails_of_sharp_and_even_heads_end_where_those_of_views_do(chromium, tmp_path, causal):
    open_ = np.tril(np.ones((LONG, LONG), bool)) if causal else np.ones((LONG, LONG), bool)
    sharp = np.eye(LONG, dtype=np.float32)
    layers = [(0, weights(np.stack([spread(causal), sharp, sharp]), WORDS, WORDS, open_))]
    chromium.open_anew(write_page(tmp_path / "page.html", {"decoder": layers}), 1300)
    view = grid(layers, scale="auto", cells=32)
    assert view.scale_ends() == ("0", f"≥{view.top:g}")
    assert chromium.text("shades") == f"Colour scale: 0 to {view.top:g} or more."
    chromium.run("openHead(0, 1)")
    chromium.until("current && state.head === 1")
    one = heatmap(weights(sharp, WORDS, WORDS, open_), scale="auto")
    assert chromium.text("high") == f"{one.scale_ends('g')[1]} attention weight"


def test_thumbnail_scale_ignores_first_causal_rows(chromium, tmp_path) -> None:
    causal = np.tril(np.ones((LONG, LONG), bool))
    seen = thumbnail(chromium, tmp_path / "page.html", spread(causal=True), 2, causal)
    width = seen.shape[1]
    assert seen[-1, width // 4].sum() > 200  # a weight on the map of the darkest ground
    pooled = shrink(spread(causal=True), causal, 32, 32)[0]
    assert chromium.text("shades") == f"Colour scale: 0 to {round_up(pooled[16:].max()):g} or more."
    largest = spread(causal=True)[LONG // 2 :].max()  # of rows with more than half of the keys
    assert chromium.text("high") == f"≥{round_up(largest):g} attention weight"


def test_page_pooling_equals_python_pooling(chromium, tmp_path) -> None:
    values = np.random.default_rng(0).dirichlet(np.full(LONG, 0.01), LONG).astype(np.float32)
    thumbnail(chromium, tmp_path / "page.html", values, 2)
    bytes_ = "pooled(overview.layers[0], 7).bytes.subarray(0, 49)"
    found = chromium.run(f"Array.from({bytes_}, (byte) => WEIGHT[byte])")
    small = shrink(values, np.ones_like(values, bool), 32, 32)
    expected = shrink(*small, 7, 7)[0]
    bytes_off = 32 / 7 * Code().error(small[0].max()) + Code().error(expected.max())  # of keys, of the sum
    np.testing.assert_allclose(np.reshape(found, (7, 7)), expected, atol=bytes_off)


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """A page of 32 × 32 heads with planted roles, and the letters of each layer."""
    files, letters = plant_roles(32, 32)
    layers = [
        (at, weights(maps, *map(range, maps.shape[1:]), np.tril(np.ones((13, 13), bool))))
        for at, maps in enumerate(files.values())
    ]
    names = {letter_of(role): role for role in ROLE_LETTERS}
    scores = {letter: (NamedScore("entropy", at / 4, 1.0, "nats"),) for at, letter in enumerate("PSFOHB")}
    about = {
        ("decoder", at): tuple(HeadDescription(names[each], "", scores[each]) for each in row)
        for at, row in enumerate(letters)
    }
    path = tmp_path_factory.mktemp("many") / "page.html"
    return write_page(path, {"decoder": layers}, described=about), letters


def overview_colours(page, letters) -> np.ndarray:
    """The pixels near the upper left corner of each head's cell.  [layer, head, channel]"""
    spot = "[overview.left + overview.pitch * {} + 1.5, overview.top + overview.pitch * {} + 1.5]"
    left, top, *_ = page.box("element('grid')")
    picture, spots = page.pixels(), []
    (x0, y0), (x1, y1) = (page.run(spot.format(at, at)) for at in (0, 1))
    for row in range(len(letters)):
        spots.append(
            [picture[int(top + y0 + row * (y1 - y0)), int(left + x0 + at * (x1 - x0))] for at in range(32)]
        )
    return np.array(spots)


@pytest.mark.sweep(2)
@pytest.mark.parametrize("dark", [False, True])
def test_many_heads_have_the_colours_of_roles_and_open_by_a_click(chromium, many, dark) -> None:
    path, letters = many
    chromium.open_anew(path, dark=dark)
    chromium.until("overview.pitch > 0 && overview.cells.length === 32")
    chromium.run("element('shelf').style.maxHeight = 'none'")
    names = {letter_of(role): role for role in ROLE_LETTERS}
    wanted = np.array([[role_colour(names[letter]) for letter in row] for row in letters])
    drawn = overview_colours(chromium, letters)
    drawn[:2, :2] = wanted[:2, :2]  # the open head has a frame
    np.testing.assert_allclose(drawn, wanted, atol=3)
    counts = f"previous {sum(row.count('P') for row in letters)}"
    assert counts in chromium.text("shades")
    chromium.click(
        *chromium.inside(
            "grid", "overview.left + overview.pitch * 20.5", "overview.top + overview.pitch * 9.5"
        )
    )
    chromium.until("headName() === 'L9H20'")
    assert chromium.troubles == []


def test_wide_overview_of_many_heads_fills_the_window(chromium, many) -> None:
    chromium.open_anew(many[0], 1300)
    chromium.until("overview.cells.length === 32")
    narrow, room = (
        chromium.run(f"[overview.pitch, element('{id}').clientWidth]") for id in ("shelf", "head")
    )
    chromium.run("element('wide').click()")
    wide = chromium.run("[overview.pitch, element('shelf').clientWidth]")
    assert min(wide[0] / narrow[0], wide[1] / narrow[1]) > 2
    assert chromium.run("element('head').clientWidth") > room[1]
    assert chromium.run("overview.pitch * overview.heads + overview.left") <= wide[1]
    chromium.run("element('wide').click()")
    again = chromium.run("[overview.pitch, element('shelf').clientWidth]")
    assert again == pytest.approx(narrow, rel=0.1)  # a scroll bar may have come


def test_heads_of_a_large_layer_are_those_around_the_open_one(chromium, many) -> None:
    chromium.open_anew(many[0])
    chromium.until("overview.cells.length === 32")
    for head, first in ((25, 19), (2, 0), (31, 20)):
        chromium.run(f"openHead(7, {head})")
        chromium.until(f"current && state.head === {head}")
        assert chromium.text("whole") == "12 heads of the layer"
        chromium.run("tickLayer()")
        chromium.until("element('chips').children.length === 12")
        assert chromium.run("compared.map((one) => one.head)") == [*range(first, first + 12)]


def test_overview_shows_maps_roles_or_a_score_as_chosen(chromium, many) -> None:
    path, letters = many
    chromium.open_anew(path)
    chromium.until("overview.cells.length === 32")
    choose = "element('by').value = '{}'; element('by').dispatchEvent(new Event('change'))"
    chromium.run(choose.format("entropy"), "element('shelf').style.maxHeight = 'none'")
    values = np.array([["PSFOHB".index(letter) / 4 for letter in row] for row in letters])
    drawn, wanted = overview_colours(chromium, letters), table("ember")[steps(values / values.max())]
    drawn[:2, :2] = wanted[:2, :2]
    np.testing.assert_allclose(drawn, wanted, atol=3)
    assert "entropy, 0 to 1.25 nats" in chromium.text("shades")
    chromium.run(choose.format("map"))
    assert "Colour scale: 0 to 1" in chromium.text("shades")
    chromium.run(choose.format("auto"))
    assert "previous" in chromium.text("shades")


def test_signed_weights_are_coloured_from_the_middle(chromium, tmp_path) -> None:
    axis = tokens("the", "cat")
    field = weights(np.array([[[-1.0, 0.0], [0.25, 0.5]]], np.float32), axis, axis)
    bars = {"mixer": name_weight("raw", "mixer")}
    chromium.open(write_page(tmp_path / "page.html", {"mixer": [(0, field)]}, signed=True, bars=bars))
    shown = np.array(
        chromium.run("Array.from(current.bytes, (byte) => [WEIGHT[byte], toneOf(WEIGHT[byte], 1)])")
    )
    np.testing.assert_allclose(shown[:, 0], [-1, 0, 0.25, 0.5], atol=Code(signed=True).error(1))
    np.testing.assert_allclose(shown[:, 1], [0, 127.5, 159.4, 191.2], atol=1.5)
    assert chromium.text("low").startswith("-")
    assert chromium.text("high") == "1 weight"
    chromium.run("pin(0)")
    assert chromium.texts("#lists li button .place") == ["the 0", "the 0", "cat 1"]  # by size, not by sign
