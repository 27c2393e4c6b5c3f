"""A token in every head of a layer, one text of a pair, and the strongest lines of a layer, in Chromium."""

import numpy as np
import pytest

from attnscope.attention import Token
from attnscope.axes import weights
from attnscope.render.colour import steps, table
from tests.render.page.browser import MARKS, stored, write_page
from tests.render.screen import random_head

pytestmark = MARKS

WORDS = ("[CLS]", "the", "cat", "[SEP]", "it", "sat", "here", "[SEP]")
COUNT, SECOND, HEADS = len(WORDS), 4, 5
CAUSAL = np.tril(np.ones((COUNT, COUNT), bool))
PAIR = tuple(
    Token(text, 7, special=text[0] == "[", segment=int(i >= SECOND), word=None if text[0] == "[" else i)
    for i, text in enumerate(WORDS)
)


def head(layer: int, number: int) -> np.ndarray:
    """What the page can hold of a head, with what its rows may not see as NaN.  [query, key]"""
    values = random_head(COUNT, seed=10 * layer + number).values
    return stored(values, CAUSAL | (layer == 0))


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    layers = []
    for layer, mask in ((0, None), (1, CAUSAL)):
        values = np.nan_to_num(np.stack([head(layer, number) for number in range(HEADS)]))
        layers.append((layer, weights(values, PAIR, PAIR, mask)))
    return write_page(tmp_path_factory.mktemp("page") / "page.html", {"encoder": layers}, "a pair")


def point_at(page, token: int) -> None:
    """Move the pointer over a token of the list."""
    page.page.locator(".text [role=option]").nth(token).hover()
    page.until(f"layered.shown?.token === {token}")


BAND = "layered.labels + {} * layered.cell", "layered.top + {} * ROW"
"""Where the cell of a head and a token is."""


def colours(page) -> np.ndarray:
    """The colours of all cells.  [token, head, channel]"""
    at = ", ".join(BAND).format("(head + 0.5)", "(token + 0.5)")
    pixel = f"element('bands').getContext('2d').getImageData({at}, 1, 1).data"
    row = f"Array.from({{ length: {HEADS} }}, (_, head) => [...{pixel}])"
    return np.array(page.run(f"Array.from({{ length: {COUNT} }}, (_, token) => {row})"))[..., :3]


@pytest.mark.sweep(3)
@pytest.mark.parametrize("side", ["query", "key"])
@pytest.mark.parametrize("scale", ["auto", "fixed"])
def test_hovered_token_is_shown_in_every_head_of_the_layer(opened, side, scale) -> None:
    opened.run("openHead(1, 2)", f"restyle({{ scale: '{scale}' }})", f"pin(0, '{side}')")
    point_at(opened, 5)
    all_heads = np.stack([head(1, number) for number in range(HEADS)], -1)  # [query, key, head]
    expected = all_heads[5] if side == "query" else all_heads[:, 5]
    top = 1 if scale == "fixed" else np.nanmax(expected)
    known = np.isfinite(expected)
    drawn = table("ember")[steps(np.nan_to_num(expected) / top)]
    np.testing.assert_allclose(colours(opened)[known], drawn[known], atol=3)
    assert (~known).any()
    assert opened.run("state.token") == 0  # what is chosen stays chosen
    verb = "attends to" if side == "query" else "is attended to by"
    assert opened.text("who") == f"sat 5 {verb}, in every head of layer 1"


def test_focused_token_is_shown_with_its_strongest_keys(opened) -> None:
    opened.run("document.querySelector('.text [tabindex=\"0\"]').focus()")
    opened.press("ArrowRight")
    opened.until("layered.shown?.token === 1")
    best = [int(head(0, number)[1].argmax()) for number in range(HEADS)]
    told = [f"H{number} {WORDS[key]} {head(0, number)[1, key]:.2f}" for number, key in enumerate(best)]
    said = opened.run("element('ranks').getAttribute('aria-label')")
    assert said == f"the attends to, most in each head: {', '.join(told)}"
    opened.press("Escape")
    opened.until("element('layer').hidden")


def test_column_shows_its_weight_and_opens_its_head(opened) -> None:
    point_at(opened, 2)
    x, y = BAND
    place = opened.inside("bands", x.format(3.5), y.format(6.5))
    opened.move(*place)
    opened.until("!element('tip').hidden")
    name, *_, weight = opened.text("tip").split()
    assert (name, float(weight)) == ("L0H3", pytest.approx(head(0, 3)[2, 6], abs=6e-4))
    opened.click(*place)
    opened.until("element('name').textContent === 'L0H3 · encoder'")


@pytest.mark.sweep(3)
@pytest.mark.parametrize("between", ["AA", "AB", "BA", "BB"])
def test_text_pair_shows_one_direction_alone(opened, between) -> None:
    parts = {"A": slice(0, SECOND), "B": slice(SECOND, COUNT)}
    opened.run("tick(0, 1)")
    opened.page.select_option("#between", between)
    opened.until(f"current.axes === axesBetween(0, '{between}').axes && compared.length === 1")
    for number, bytes_ in ((0, "current"), (1, "compared[0]")):
        found = opened.run(f"Array.from({bytes_}.bytes, (byte) => WEIGHT[byte])")
        expected = head(0, number)[parts[between[0]], parts[between[1]]]
        np.testing.assert_allclose(np.array(found).reshape(expected.shape), expected, atol=1e-6)
    assert opened.run("current.axes.keys.map(([text]) => text)") == list(WORDS[parts[between[1]]])
    opened.page.select_option("#between", "")
    opened.until(f"current.rows === {COUNT}")


def test_single_text_has_no_direction_choice(chromium, tmp_path) -> None:
    field = weights(np.full((1, SECOND, SECOND), 0.25), PAIR[:SECOND], PAIR[:SECOND])
    chromium.open(write_page(tmp_path / "page.html", {"encoder": [(0, field)]}))
    assert chromium.run("element('texts').hidden")


def test_layer_lines_start_with_five_per_token(opened) -> None:
    opened.run("changeMode('lines')", "tickLayer()")
    strengths = np.stack([head(0, number) for number in range(HEADS)], 1).reshape(COUNT, -1)
    drawn = strengths >= 0.1
    assert drawn.sum(-1).max() > 5
    assert len(opened.strokes()) == np.minimum(drawn.sum(-1), 5).sum()
    kept = opened.run("strongestLines(drawnHeads()).map((line) => [line.row, line.place, line.column])")
    best = np.argsort(-strengths, axis=-1, kind="stable")[:, :5]
    chosen = {(row, place) for row, places in enumerate(best) for place in places if drawn[row, place]}
    assert {(row, place * COUNT + column) for row, place, column in kept} == chosen
    opened.run("element('few').firstChild.click()")
    assert len(opened.strokes()) == drawn.sum()
    opened.press("f")
    assert opened.run("element('few').firstChild.checked")
    assert opened.text("least").endswith("the five strongest of each token")
