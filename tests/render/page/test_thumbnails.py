"""The page's thumbnails of long texts: pooled from the weights, not from colours, on a scale that is said."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.image import imread

from attnscope.axes import shrink, weights
from attnscope.render.colour import steps, table
from attnscope.render.page.page import Code, Page
from tests.render.page.browser import MARKS
from tests.render.screen import tokens

pytestmark = MARKS

COUNT = 512
TEXT = tokens(*(f"word{number}" for number in range(COUNT)))


def spread(causal: bool) -> np.ndarray:
    """A head whose weights are spread over all open keys, the first half threefold.  [query, key]"""
    values = np.tile(np.where(np.arange(COUNT) < COUNT // 2, 3.0, 1.0), (COUNT, 1))
    values = np.tril(values) if causal else values
    return (values / values.sum(-1, keepdims=True)).astype(np.float32)


def thumbnail(page, path, values, heads, open_=None) -> np.ndarray:
    """The pixels of the first head's thumbnail, and of nothing around it.  [row, column, colour]"""
    layers = [(0, weights(np.stack([values] * heads), TEXT, TEXT, open_))]
    path.write_text(Page({"decoder": layers}, title="a model").text(), "utf-8")
    page.open_anew(path, 1300, 900)
    assert page.troubles == []
    box = "((b) => [b.left, b.top, b.right, b.bottom])(overview.cells[0][0].getBoundingClientRect())"
    left, top, right, bottom = (round(edge) for edge in page.run(box))
    page.photograph(path.with_suffix(".png"))
    return np.round(255 * imread(path.with_suffix(".png"))[top + 2 : bottom - 2, left + 2 : right - 2, :3])


@pytest.mark.parametrize("heads", [2, 24])
def test_a_head_whose_weights_are_spread_over_512_tokens_is_no_black_square(
    chromium, tmp_path, heads
) -> None:
    values = spread(causal=False)
    seen = thumbnail(chromium, tmp_path / "page.html", values, heads)
    cells = min(32, chromium.run("overview.most"))
    assert (cells < 32) == (heads == 24)
    pooled = shrink(*shrink(values, np.ones_like(values, bool), 32, 32), cells, cells)[0]
    colours = table("ember")[steps(pooled / pooled.max())]
    height, width = seen.shape[:2]
    for column in (0, cells - 1):
        x = 0 if column == 0 else width - 1
        np.testing.assert_allclose(seen[height // 2, x], colours[cells // 2, column], atol=8)
    said = chromium.run("element('shades').textContent")
    assert said == "Nearly nothing is above 0.1: full colour is each head's largest weight, not 1."


def test_the_first_rows_of_a_causal_head_do_not_turn_the_others_black(chromium, tmp_path) -> None:
    causal = np.tril(np.ones((COUNT, COUNT), bool))
    seen = thumbnail(chromium, tmp_path / "page.html", spread(causal=True), 2, causal)
    width = seen.shape[1]
    assert seen[-1, width // 4].sum() > 200  # a weight on the map of the darkest ground
    assert "where most keys are open, not 1" in chromium.run("element('shades').textContent")
    assert "this head's largest where most keys are open" in chromium.run("element('high').textContent")


def test_few_cells_are_pooled_from_the_weights_as_everywhere(chromium, tmp_path) -> None:
    values = np.random.default_rng(0).dirichlet(np.full(COUNT, 0.01), COUNT).astype(np.float32)
    thumbnail(chromium, tmp_path / "page.html", values, 2)
    found = chromium.run(
        "(() => { const small = pooled(overview.layers[0], 7);"
        "return Array.from(small.bytes.subarray(0, 49), (byte) => WEIGHT[byte]) })()"
    )
    stored = shrink(values, np.ones_like(values, bool), 32, 32)
    expected = shrink(*stored, 7, 7)[0]
    bytes_off = 32 / 7 * Code().error(stored[0].max()) + Code().error(
        expected.max()
    )  # of the keys, of the sum
    np.testing.assert_allclose(np.reshape(found, (7, 7)), expected, atol=bytes_off)
