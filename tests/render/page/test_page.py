"""The page as a file: its content, its precision, and that nothing foreign can run."""

import base64
import hashlib
import io
import json
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from PIL import Image

from attnscope.attention import Token
from attnscope.axes import PICTURE_ID, join_places, places, weights
from attnscope.models import load
from attnscope.questions.layers import all_heads
from attnscope.questions.selection import Selection
from attnscope.render.page import (
    MASKED_BYTE,
    MOST_PNG_BYTES,
    SIDE,
    Code,
    Page,
    data_uri,
    pack,
    page_of,
    unpack,
)
from attnscope.views import Scene, SceneRegion
from tests.render.page.browser import weights_of
from tests.render.screen import random_head, tokens


def two_layers(count: int = 6) -> dict:
    heads = np.stack([random_head(count, seed=seed).values for seed in range(3)])
    causal = np.tril(np.ones((count, count), bool))
    axis = tokens(*(f"t{i}" for i in range(count)))
    return {
        "decoder": [(layer, weights(heads[: 2 + layer] * causal, axis, axis, causal)) for layer in (0, 1)],
        "cross": [(0, weights(heads[:1, :2], axis[:2], axis))],
    }


def content(text: str) -> dict:
    (found,) = re.findall(r'<script type="application/json" id="page">(.*?)</script>', text, re.DOTALL)
    return json.loads(found)


def codes_in(text: str, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """The bytes of a head as a page holds them: packed, or as they are."""
    ((kind, stored),) = re.findall(f'type="text/(plain|bytes)" id="{name}">(.*?)<', text)
    if kind == "plain":
        return unpack(stored, *shape)
    return np.frombuffer(base64.b64decode(stored), np.uint8).reshape(shape)


@pytest.mark.parametrize(("tokens", "at_once"), [(5, True), (513, False)])
def test_first_head_is_embedded_unless_large(tokens: int, at_once: bool) -> None:
    even = np.full((2, tokens, tokens), 1 / tokens)
    text = Page({"encoder": [(0, weights(even, range(tokens), range(tokens)))]}, title="x").text()
    assert ('type="text/bytes" id="w0-0-0"' in text) == at_once
    assert codes_in(text, "w0-0-0", (tokens, tokens)).min() > 0
    assert text.count('type="text/bytes"') == at_once


def test_page_has_every_head_within_its_error_bound() -> None:
    kinds, code = two_layers(), Code()
    proofs = {("decoder", 0): "proved <b>", ("decoder", 1): "not proved"}
    text = Page(kinds, title="a model", proofs=proofs).text()
    assert Page(two_layers(), title="a model", proofs=proofs).text() == text
    data = content(text)
    assert [kind["kind"] for kind in data["kinds"]] == ["decoder", "cross"]
    assert len(data["axes"]) == 2  # labels that repeat are stored once
    assert [layer["axes"] for layer in data["kinds"][0]["layers"]] == [0, 0]
    assert [layer["proof"] for layer in data["kinds"][0]["layers"]] == [*proofs.values()]
    for number, (kind, layers) in enumerate(kinds.items()):
        for (layer, field), described in zip(layers, data["kinds"][number]["layers"], strict=True):
            assert (described["layer"], described["heads"]) == (layer, len(field.values))
            assert len(data["axes"][described["axes"]]["queries"]) == field.values.shape[1]
            for head, values in enumerate(field.values):
                found = weights_of(code, codes_in(text, f"w{number}-{layer}-{head}", values.shape))
                closed = ~np.broadcast_to(field.allowed, values.shape)
                np.testing.assert_array_equal(np.isnan(found), closed, kind)
                off = np.abs(np.nan_to_num(found) - np.where(field.allowed, values, 0))
                assert off.max() <= code.error(1.0)
                assert (off <= np.vectorize(code.error)(values) + 1e-12).all()
    assert f"errors are at most {code.error(1.0):.2g}" in data["notes"][-1]


@given(
    arrays(np.float64, st.integers(1, 40), elements=st.floats(0, 1)),
    st.floats(1e-6, 1.2),
    st.sampled_from([1.0, 1.7]),
)
def test_page_hides_exactly_the_weights_below_the_limit(values, least: float, top: float) -> None:
    near = (least, np.nextafter(least, 0), np.nextafter(least, 2))
    values = np.append(values, [each for each in near if each <= top])
    code = Code(top, least)
    codes = code.bytes_of(values, np.ones_like(values, bool))
    np.testing.assert_array_equal(codes < code.shown, values < least)
    assert (np.abs(weights_of(code, codes) - values) <= np.vectorize(code.error)(values) + 1e-12).all()


@given(arrays(np.float64, st.tuples(st.integers(1, 9), st.integers(1, 9)), elements=st.floats(0, 1)))
def test_page_bytes_survive_packing(values: np.ndarray) -> None:
    codes = Code().bytes_of(values, values < 0.9)
    np.testing.assert_array_equal(unpack(pack(codes), *codes.shape), codes)
    np.testing.assert_array_equal(codes == MASKED_BYTE, values >= 0.9)


@pytest.mark.parametrize("weight", [0.0, 1e-4, 0.002, 0.01, 0.1, 0.5, 1.0])
def test_page_code_error_stays_within_its_bound(weight: float) -> None:
    near = np.clip(np.linspace(weight - 0.01, weight + 0.01, 40001), 0, 1)
    found = weights_of(Code(), Code().bytes_of(near, np.ones_like(near, bool)))
    bounds = np.vectorize(Code().error)(near)
    assert (np.abs(found - near) <= bounds + 1e-12).all()
    assert np.abs(found - near).max() > 0.5 * bounds.max()  # and it is no idle bound


@pytest.mark.parametrize(("top", "weight"), [(1.0, -0.1), (1.0, -0.001), (1.0, 1.001), (1.7, 1.71)])
def test_page_code_refuses_weights_out_of_range(top: float, weight: float) -> None:
    with pytest.raises(ValueError, match=f"between 0 and {top:g}"):
        Code(top).bytes_of(np.array([0.5, weight]), np.array([True, True]))
    kept = Code(top).bytes_of(np.array([0.0, weight, top]), np.array([True, False, True]))
    assert kept.tolist() == [0, MASKED_BYTE, 254]


def test_page_cannot_run_or_load_foreign_content() -> None:
    evil = "</script><script>alert(1)</script>"
    axis = tokens(evil, "<b>")
    kinds = {"encoder": [(0, weights(np.eye(2)[None], axis, axis))]}
    text = Page(kinds, title=evil, subtitle=evil, notes=(evil,)).text()
    assert "<script>alert" not in text
    assert content(text)["axes"][0]["queries"][0][0] == evil
    (policy,) = re.findall(r'Content-Security-Policy" content="(.*?)"', text)
    assert policy.startswith("default-src 'none'; ")
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    (style,) = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
    for part, name in ((script, "script-src"), (style, "style-src")):
        digest = base64.b64encode(hashlib.sha256(part.encode()).digest()).decode()
        assert f"{name} 'sha256-{digest}'" in policy
    assert not re.search(r"(src|href)=|https?://|url\((?!#)|@import", text)


def test_page_has_the_largest_difference_of_each_layer() -> None:
    model = load("own")
    heads = all_heads(model, model.prepare("The cat sat on the mat."), Selection())
    (kind,) = content(page_of(heads))["kinds"]
    for layer, site in zip(kind["layers"], heads.layers.record.sites, strict=True):
        assert f"(error {site.difference:.1g})" in layer["proof"]


PATCHES = [Token(f"image 1 · {n // 2},{n % 2}", PICTURE_ID + n) for n in range(4)]
CORNERS = [(0, 0), (0.5, 0), (0, 0.5), (0.5, 0.5)]
QUARTERS = {PICTURE_ID + n: SceneRegion(x, y, x + 0.5, y + 0.5, True) for n, (x, y) in enumerate(CORNERS)}
WHITE = np.full((40, 60, 3), 255, np.uint8)
WORDS = [Token("<s>", 1, special=True), Token("the", 10), Token("disc", 11), Token("<i>mat</i>", 12)]


def field(rows, queries, keys, allowed=None):
    return weights(np.asarray(rows, float)[None], tuple(queries), tuple(keys), allowed)


def test_page_policy_allows_images_only_with_a_scene():
    kinds = {"cross": [(0, field(np.full((4, 4), 0.25), WORDS, PATCHES))]}
    plain, seen = (Page(kinds, title="x", scene=scene).text() for scene in (None, Scene(WHITE, QUARTERS)))
    assert "img-src" not in plain
    assert content(plain)["scene"] is None
    assert "img-src data:;" in seen
    assert content(seen)["scene"]["parts"] == [[*part[:4], 1] for part in QUARTERS.values()]


def test_page_image_is_bounded_and_re_encoded():
    noise = np.random.default_rng(0).integers(0, 256, (900, 3000, 3), dtype=np.uint8)
    flat = np.zeros((30, 50, 3), np.uint8)
    flat[:15] = (10, 200, 30)
    # noise is too large without loss
    for pixels, form, size in ((noise, "jpeg", (SIDE, SIDE * 900 // 3000)), (flat, "png", (50, 30))):
        uri, *told = data_uri(Scene(pixels))
        kind, _, coded = uri.partition(",")
        image = Image.open(io.BytesIO(base64.b64decode(coded)))
        assert (kind, image.format) == (f"data:image/{form};base64", form.upper())
        assert tuple(told) == image.size == size
        assert len(coded) <= 3 * MOST_PNG_BYTES
    np.testing.assert_array_equal(np.asarray(image), flat)
    assert image.info == {}


def test_joined_places_have_all_their_scene_parts():
    scene = Scene(WHITE, QUARTERS)
    joined = join_places(places(tuple(PATCHES))[1:3], pooled=True)
    assert scene.ids_of(joined) == (PICTURE_ID + 1, PICTURE_ID + 2)
    assert scene.ids_of(join_places(places(tuple(WORDS))[1:3], pooled=True)) == ()
