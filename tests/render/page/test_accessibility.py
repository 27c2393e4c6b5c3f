"""The page with a keyboard and a screen reader, in both themes and at every size; no overlapping text."""

import itertools
import re
from importlib.resources import files

import numpy as np
import pytest

from attnscope.attention import Token
from attnscope.axes import weights
from attnscope.models import load
from attnscope.questions.layers import all_heads
from attnscope.questions.selection import Selection
from attnscope.render.colour import _lab
from attnscope.render.page import save_page
from tests.render.page.browser import MARKS, write_page
from tests.render.screen import tokens
from tests.render.test_colour import BLIND, linear

pytestmark = MARKS

CAT = "The cat sat on the mat because it was tired."
TEXTS = {
    "short": CAT,
    "long": " ".join([CAT] * 12),
    "mixed": "猫は 疲れて いた。 جلست القطة على السجادة The 🐈 sat on 🧶 Donaudampfschifffahrtskapitän",
}
SIZES = ((1400, 900), (1024, 768), (400, 844))

RECORDED = """
for (const name of ["clearRect", "fillText"]) {
  const before = CanvasRenderingContext2D.prototype[name];
  CanvasRenderingContext2D.prototype[name] = function (...given) {
    if (name === "clearRect") this.canvas.written = [];
    else {
      const [text, x, y] = given, size = this.measureText(text), at = this.getTransform();
      const corners = [[x - size.actualBoundingBoxLeft, y - size.actualBoundingBoxAscent],
        [x + size.actualBoundingBoxRight, y + size.actualBoundingBoxDescent]]
        .map(([left, top]) => new DOMPoint(left, top).matrixTransform(at));
      const xs = corners.map((corner) => corner.x), ys = corners.map((corner) => corner.y);
      (this.canvas.written ??= []).push(
        [text, Math.min(...xs), Math.min(...ys), Math.max(...xs), Math.max(...ys)]);
    }
    return before.apply(this, given);
  };
}
"""
"""Makes each canvas remember which text it has written where."""

VISIBLE = """(() => {
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode, parent = node.parentElement;
    if (!node.textContent.trim() || parent.closest("script, select, .heard, [hidden]")) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    let clip = { left: -1e9, top: -1e9, right: 1e9, bottom: 1e9 };
    for (let up = parent; up !== document.body; up = up.parentElement)
      if (getComputedStyle(up).overflowX !== "visible") {
        const { left, top, right, bottom } = up.getBoundingClientRect();
        clip = { left: Math.max(clip.left, left), top: Math.max(clip.top, top),
          right: Math.min(clip.right, right), bottom: Math.min(clip.bottom, bottom) };
      }
    for (const { left, top, right, bottom } of range.getClientRects()) {
      const box = [Math.max(left, clip.left), Math.max(top, clip.top),
        Math.min(right, clip.right), Math.min(bottom, clip.bottom)];
      if (box[2] - box[0] > 1 && box[3] - box[1] > 1) found.push([node.textContent.trim(), ...box]);
    }
  }
  return found;
})()"""
"""The boxes of all text that is seen, line by line."""


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder, model = tmp_path_factory.mktemp("pages"), load("own")
    for name, text in TEXTS.items():
        save_page(all_heads(model, model.prepare(text), Selection()), folder / f"{name}.html")
    axis, other = tokens("the", "cat", "sat"), tokens("le", "chat", "est", "assis")
    even = np.full((40, 3, 4), 0.25)
    wide = [(layer, weights(even[..., :3], axis, axis)) for layer in range(30)]
    write_page(folder / "wide.html", {"encoder": wide})
    cross = [(layer, weights(even[:4], axis, other)) for layer in range(2)]
    write_page(folder / "cross.html", {"cross": cross})
    return folder


@pytest.fixture(scope="module")
def chromium(chromium):
    chromium.page.add_init_script(RECORDED)
    return chromium


@pytest.fixture
def short(chromium, pages):
    """The page of a short text in a wide window."""
    chromium.open_anew(pages / "short.html")
    return chromium


def show_all(page) -> None:
    """Everything at once: a chosen token, a layer compared, the map and the lines."""
    page.run("tickLayer()", "pin(2)", "changeMode('both')", "new Promise((done) => setTimeout(done, 60))")


def every(names):
    """Each name in each size, by night; by day each name in one size, and each size with one name."""
    return [
        pytest.param(name, size, marks=[pytest.mark.nightly] if row != column else [])
        for row, size in enumerate(SIZES)
        for column, name in enumerate(names)
    ]


@pytest.mark.sweep(4)
@pytest.mark.slow
@pytest.mark.parametrize(("name", "size"), every(["short", "wide", "cross"]))
def test_page_has_no_axe_violations(chromium, pages, name, size) -> None:
    chromium.open_anew(pages / f"{name}.html", *size, dark=size != SIZES[0])
    for act in (lambda _: None, show_all):
        act(chromium)
        assert chromium.violations() == []
    assert chromium.troubles == []


def test_every_control_is_reachable_by_tab(short) -> None:
    show_all(short)
    wanted = short.run(
        "(window.wanted = [...document.querySelectorAll("
        "'select, button, input, [tabindex=\"0\"]')].filter((one) => one.checkVisibility())).length"
    )
    short.run("document.activeElement.blur()")
    for _ in range(wanted + 2):
        short.press("Tab")
        short.run("wanted = wanted.filter((one) => one !== document.activeElement)")
    assert short.run("wanted.map((one) => one.outerHTML)") == []


def test_overview_is_navigated_and_ticked_by_keys(short) -> None:
    short.run("openKind(0, 1, 2)")
    short.until("headName() === 'L1H2'")
    short.run("document.querySelector('[role=gridcell][tabindex=\"0\"]').focus()")
    short.press("ArrowRight")
    short.until("document.activeElement.getAttribute('aria-label')?.startsWith('L1H3, ')")
    assert short.run("document.activeElement.getAttribute('aria-current')") == "true"
    short.until("element('live').textContent.startsWith('L1H3')")
    short.press(" ")
    short.until("document.activeElement.getAttribute('aria-selected') === 'true'")
    assert short.text("live") == "L1H3 ticked"


def test_map_cells_are_navigated_by_keys_and_announced(short) -> None:
    short.run("element('stage').focus()")
    for key in ("ArrowDown", "ArrowRight", "ArrowRight"):
        short.press(key)
    assert short.run("[state.pointer.row, state.pointer.column]") == [0, 2]
    weight = short.run("WEIGHT[current.bytes[2]]")
    said = short.text("live")
    assert said.startswith("[CLS] 0 → cat 2")
    assert float(said.split()[-1]) == pytest.approx(weight, abs=6e-4)
    assert short.run("element('tip').hidden") is False
    short.press("Enter")
    assert short.run("[state.token, state.side]") == [0, "query"]


def test_text_is_a_listbox_of_tokens(short) -> None:
    assert short.run("document.querySelector('.text').textContent") == f"[CLS] {CAT} [SEP]"
    short.run("document.querySelector('.text [tabindex=\"0\"]').focus()")
    short.press("ArrowRight")
    short.press("ArrowRight")
    assert short.run("document.activeElement.textContent") == "cat"
    assert short.run("[state.token, document.activeElement.getAttribute('aria-selected')]") == [2, "true"]
    assert short.text("live").startswith("cat (token 2)")


def test_character_of_several_tokens_is_selectable_by_token(chromium, tmp_path) -> None:
    pieces = (("f", None), ("ü", "ü"), ("ü", ""), ("r", "r"), ("sie", " sie"), ("!", "!"))
    axis = tuple(Token(text, number, adds=adds) for number, (text, adds) in enumerate(pieces))
    field = weights(np.full((1, 6, 6), 1 / 6), axis, axis)
    chromium.open_anew(write_page(tmp_path / "page.html", {"encoder": [(0, field)]}))
    assert chromium.run("document.querySelector('.text').textContent") == "fü·r sie!"
    second = "document.querySelectorAll('.text [role=option]')[2]"
    assert chromium.run(f"{second}.getAttribute('aria-label')") == "ü, token 2"
    chromium.run(f"{second}.click()")
    assert chromium.run("state.token") == 2


def test_rtl_text_runs_right_to_left(chromium, tmp_path) -> None:
    axis = tokens("[CLS]", "جلست", "القطة", "هنا")
    field = weights(np.full((1, 4, 4), 0.25), axis, axis)
    chromium.open_anew(write_page(tmp_path / "page.html", {"encoder": [(0, field)]}))
    words = "[...document.querySelectorAll('.text [role=option]')]"
    places = chromium.run(f"{words}.map((one) => one.getBoundingClientRect().left)")
    assert places == sorted(places, reverse=True)
    chromium.run("document.querySelector('.text [tabindex=\"0\"]').focus()")
    chromium.press("ArrowLeft")
    assert chromium.run("document.activeElement.textContent") == "جلست"


@pytest.mark.sweep(2)
@pytest.mark.slow
@pytest.mark.parametrize(("text", "size"), every(["mixed", "short", "long"]))
def test_no_text_overlaps_or_leaves_the_window(chromium, pages, text, size) -> None:
    chromium.open_anew(pages / f"{text}.html", *size)
    left, top, right, bottom = chromium.box("element('board')")  # the thumbnails are in the first window
    assert 0 <= left < right
    assert 0 <= top < bottom <= size[1]
    for act in (lambda _: None, show_all):
        act(chromium)
        assert chromium.run("document.documentElement.scrollWidth") <= size[0]
        boxes = chromium.run(VISIBLE)
        assert len(boxes) > 30
        assert max(right for _, _, _, right, _ in boxes) <= size[0]
        assert min(left for _, left, *_ in boxes) >= 0
        assert overlapping(boxes) == []
        for name in ("picture", "strokes"):
            written = chromium.run(f"element('{name}').checkVisibility() ? element('{name}').written : []")
            assert all(left >= 0 and top >= 0 for _, left, top, *_ in written if top > -20)
            assert overlapping(written) == []


def overlapping(boxes: list) -> list[tuple[str, str]]:
    """Texts of which one lies on the other by more than a pixel both ways."""
    found = []
    for (one, *box), (other, *theirs) in itertools.combinations(boxes, 2):
        across, down = (min(box[low + 2], theirs[low + 2]) - max(box[low], theirs[low]) for low in (0, 1))
        if min(across, down) > 1:
            found.append((one, other))
    return found


def themes() -> list[dict[str, str]]:
    """The colours of both themes by their names."""
    css = (files("attnscope.render.page") / "page.css").read_text("utf-8")
    blocks = re.findall(r"^:root(?:\[data-theme=\"dark\"\])? \{(.*?)\}", css, re.DOTALL | re.MULTILINE)
    return [dict(re.findall(r"--(\w+): #(\w{6})", block)) for block in blocks]


def light(colours: list[str]) -> np.ndarray:
    """Linear light of colours.  -> [colour, red green blue]"""
    return linear(np.array([[*bytes.fromhex(colour)] for colour in colours]))


def contrast(one: str, other: str) -> float:
    """The contrast of two colours as WCAG 2 defines it, 1 to 21."""
    low, high = sorted(light([one, other]) @ [0.2126, 0.7152, 0.0722])
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", themes(), ids=["light", "dark"])
def test_text_and_lines_have_enough_contrast(theme) -> None:
    for name in ("text", "quiet", "mark"):
        assert contrast(theme[name], theme["ground"]) >= 4.5
    for name in ("edge", *(f"head{place}" for place in range(12))):
        assert contrast(theme[name], theme["ground"]) >= 3, name


@pytest.mark.parametrize("eyes", BLIND)
@pytest.mark.parametrize("theme", themes(), ids=["light", "dark"])
def test_twelve_head_colours_are_colour_blind_safe(theme, eyes) -> None:
    seen = np.clip(light([theme[f"head{place}"] for place in range(12)]) @ BLIND[eyes].T, 0, 1)
    srgb = np.where(seen <= 0.0031308, 12.92 * seen, 1.055 * seen ** (1 / 2.4) - 0.055) * 255
    lab = _lab(srgb)
    apart = np.linalg.norm(lab[:, None] - lab, axis=-1) + np.eye(12)
    assert apart.min() > 0.08  # four times what is just seen
