"""Several views in one file: each identical to its single picture; size, bytes and vector text."""

import io
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import matplotlib
import numpy as np
import pytest
from PIL import Image

from attnscope.cli.deliver import apply_title_options
from attnscope.cli.options import PrintedOptions
from attnscope.errors import OutputError, SelectionError
from attnscope.render.colour import table
from attnscope.render.image import FORMATS, drawing, encode, save_image
from attnscope.views import head_map, head_row, heatmap
from attnscope.views.charts import Panels
from tests.render.image.test_images import curves
from tests.render.screen import random_head

WIDE, LOW = {0: [0.1] * 14}, {0: [0.5] * 12, 1: [-0.25] * 12}
PARTS = (
    head_map(WIDE, "previous", title="first", subtitle="above", notes=("a note",)),
    heatmap(random_head(9), title="second"),
    curves((None, *[0.3] * 9), title="third"),
    head_map(LOW, "change", title="fourth", signed=True),
)
BOTH = Panels(parts=PARTS[:2])


DPI = 300  # lengths in hundredths of an inch are whole dots then, and no edge is half a dot


def pixels(view, **look) -> np.ndarray:
    """What a PNG shows.  -> [row, column, 3]"""
    with drawing(view, **look) as (figure, _):
        return np.asarray(Image.open(io.BytesIO(encode(figure, "png", DPI))))


def corners(whole: np.ndarray, part: np.ndarray) -> list[tuple[int, int]]:
    """Where a picture holds another one, white at its edges left out; the place of its upper left."""
    rows, columns = ((part < 255).any(-1).any(side).nonzero()[0] for side in (1, 0))
    inked = part[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    tall, wide = inked.shape[:2]
    line = int((inked[:, 0] < 255).any(-1).argmax())  # that begins with ink
    begun = (whole[line:, :] == inked[line, 0]).all(-1)
    return [
        (int(y - rows[0]), int(x - columns[0]))
        for y, x in np.argwhere(begun)
        if np.array_equal(whole[y + line, x : x + wide], inked[line])
        and np.array_equal(whole[y : y + tall, x : x + wide], inked)
    ]


@pytest.mark.sweep(2)
@pytest.mark.parametrize("count", [2, 3, 4])
def test_panels_are_pixel_identical_to_single_pictures(count) -> None:
    whole, alone = pixels(Panels(parts=PARTS[:count])), [pixels(part) for part in PARTS[:count]]
    found = [corners(whole, part) for part in alone]
    assert [len(places) for places in found] == [1] * count
    assert sorted(found) == found  # row by row
    wide, tall = whole.shape[1], whole.shape[0]
    assert 0.5 < wide / tall < 3
    inked = sum((part < 255).any(-1).sum() for part in alone)
    assert (whole < 255).any(-1).sum() == inked  # nothing else, and none on another


@pytest.mark.sweep(3)
@pytest.mark.parametrize(("width", "beside"), [(1.5, 1), (3.3, 1), (6.3, 1), (12, 2)])
def test_panel_width_is_that_of_the_whole_picture(width, beside) -> None:
    parts = (PARTS[1], replace(PARTS[1], title="other"))
    whole = pixels(Panels(parts=parts), width=width)
    assert whole.shape[1] == round(DPI * width)
    alone = [pixels(part, width=width / beside) for part in parts]
    (first, second) = (place for part in alone for place in corners(whole, part))
    apart = (0, round(DPI * width / 2)) if beside == 2 else (alone[0].shape[0], 0)
    assert np.subtract(second, first) == pytest.approx(apart, abs=DPI / 150)  # a dot of a usual picture


@pytest.mark.parametrize(("count", "beside"), [(6, True), (12, False)])
def test_heads_in_a_column_are_beside_where_each_token_is_labelled(count, beside) -> None:
    two = [heatmap(random_head(count), title=name) for name in ("L0H0", "L0H1")]
    with drawing(head_row(two), width=3.3) as (figure, _):
        first, second = (axes.get_position() for axes in figure.axes if len(axes.texts) > count)
        assert (second.x0 > first.x1) == beside
        assert (second.y1 < first.y0) != beside


@pytest.mark.sweep(3)
@pytest.mark.parametrize("form", FORMATS)
def test_panel_files_are_byte_identical_on_repeat(form, tmp_path) -> None:
    for name in "ab":
        assert save_image(BOTH, tmp_path / f"{name}.{form}", width=7) == []
    assert (tmp_path / f"a.{form}").read_bytes() == (tmp_path / f"b.{form}").read_bytes()
    assert len(list(tmp_path.iterdir())) == 2


def svg(view, **look) -> str:
    with drawing(view, **look) as (figure, _):
        return encode(figure, "svg").decode()


def texts(drawn: str) -> list[str]:
    return re.findall("<text [^>]*>([^<]+)</text>", drawn)


def test_panel_svg_has_all_texts_and_images_and_unique_ids() -> None:
    drawn, parts = svg(BOTH), [svg(part) for part in BOTH.parts]
    assert texts(drawn) == [text for part in parts for text in texts(part)]
    assert drawn.count("<image") == sum(part.count("<image") for part in parts) > 0
    named = re.findall(r' id="([^"]+)"', drawn)
    reused = [name for name in named if named.count(name) > 1]
    assert {name for name in reused if re.search(rf"#{name}\b", drawn)} == set()
    sizes = [ElementTree.fromstring(each).get("height") for each in (drawn, *parts)]
    tall, *heights = (float(size.removesuffix("pt")) for size in sizes)
    assert tall == pytest.approx(sum(heights), abs=0.01)


SVG_PLACE = r'<text [^>]*?(?:translate\(| x=")([\d.]+)(?: |" y=")([\d.]+)'


@pytest.mark.sweep(2)
@pytest.mark.parametrize("form", ["svg", "pdf"])
def test_panel_texts_move_with_their_part(form) -> None:
    def places(view) -> np.ndarray:
        """Where the texts begin, in points.  -> [text, 2]"""
        with drawing(view) as (figure, _):
            matplotlib.rcParams["pdf.compression"] = 0
            drawn = encode(figure, form).decode("latin-1")
        before = {"svg": SVG_PLACE, "pdf": r"([\d.]+) ([\d.]+) cm\nBT"}[form]
        return np.array(re.findall(before, drawn), float)

    first, second = map(places, BOTH.parts)
    assert len(first) > len(WIDE[0])
    moved = places(BOTH) - np.concatenate([first, second])
    heights = []
    for part in BOTH.parts:
        with drawing(part) as (figure, _):
            heights.append(72 * figure.get_figheight())
    down = heights[0] if form == "svg" else -heights[1]  # a PDF counts from below
    for part, way in ((moved[: len(first)], 0), (moved[len(first) :], down)):
        np.testing.assert_allclose(part, [part[0]] * len(part), atol=1e-4)  # as written
        np.testing.assert_allclose(part[0] - moved[0], [0, way], atol=72 / 150)  # a dot of a usual picture


def test_panel_title_stands_above_the_titles_of_parts() -> None:
    named = apply_title_options(BOTH, PrintedOptions(title="猫 of the whole"))
    assert sorted(texts(svg(named))) == sorted(["猫 of the whole", *texts(svg(BOTH))])
    bare = apply_title_options(named, PrintedOptions(title="", no_caption=True))
    assert not {"猫 of the whole", "first", "above", "second", "a note"} & set(texts(svg(bare)))
    with drawing(named) as (figure, _), drawing(BOTH) as (without, _):
        higher = figure.get_figheight() - without.get_figheight()
    assert 0.2 < higher < 0.6


def test_panels_have_own_colour_maps_and_annotations() -> None:
    plain, signed = PARTS[0], PARTS[3]
    with drawing(Panels(parts=(plain, signed))) as (figure, _):
        maps = [part.axes[0].images[0].get_cmap() for part in figure.subfigs]
    for found, name in zip(maps, ("ember", "tide"), strict=True):
        np.testing.assert_allclose(found(np.arange(256))[:, :3], table(name) / 255, atol=1e-6)
    with pytest.raises(SelectionError, match="tide is a map for differences"), drawing(BOTH, cmap="tide"):
        pass
    with drawing(Panels(parts=(plain, heatmap(random_head(3)))), annotate=True) as (_, warnings):
        assert not warnings
    unlettered = Panels(parts=(plain, signed))
    with pytest.raises(OutputError, match="weights do not fit"), drawing(unlettered, annotate=True):
        pass
