"""Compared heads as images: the figures hold the numbers, and token text is literal."""

from __future__ import annotations

import numpy as np
import pytest

from attnscope.render.image import drawing, encode, save_image
from attnscope.render.image.maps import _beside_dots, _overlap
from tests.render.compared import all_heads, pair, table


def images(figure):
    return [axes.images[0] for axes in figure.axes if axes.images]


def test_the_table_holds_nearness_and_the_plane_its_points():
    view = all_heads(20)
    with drawing(view) as (figure, warnings):
        assert warnings == []
        assert np.allclose(images(figure)[0].get_array(), view.table.nearness())
        plane_axes = next(axes for axes in figure.axes if len(axes.texts) > 20 and axes.collections)
        assert np.allclose(plane_axes.collections[0].get_offsets(), view.points)
        assert {text.get_text() for text in plane_axes.texts} >= set(view.names)
        low, high = plane_axes.get_xlim()
        assert low < view.points[:, 0].min()
        assert view.points[:, 0].max() < high


def test_groups_have_frames():
    with drawing(all_heads(9)) as (figure, _):
        frames = [patch.get_bbox() for patch in figure.axes[0].patches]
    assert [(frame.x0, frame.width) for frame in frames] == [(-0.5, 3), (2.5, 6)]


def test_names_stand_apart_where_there_is_room():
    view = all_heads(24)
    at = (view.points - view.points.min(0)) * 70
    places = _beside_dots(at, view.names, 6.0)
    boxes = []
    for (x, y), (right, up), name in zip(at, places, view.names, strict=True):
        wide = 0.64 * 6 * len(name)
        boxes.append(np.array([x + right - wide / 2, y + up - 3, x + right + wide / 2, y + up + 3]))
    covered = [_overlap(box, np.array(boxes[:i] + boxes[i + 1 :])) for i, box in enumerate(boxes)]
    assert np.mean([area > 0 for area in covered]) < 0.2


def test_a_table_of_two_models_stands_alone():
    view = table(14)
    with drawing(view) as (figure, _):
        assert np.allclose(images(figure)[0].get_array(), view.nearness())


@pytest.mark.parametrize("width", [None, 1, 3.3, 10])
def test_two_heads_of_many_tokens_have_every_nth_label(width):
    with drawing(pair(40), width=width) as (figure, _):
        written = {text.get_text() for axes in figure.axes for text in axes.texts}
    assert written


def test_two_heads_and_their_difference():
    view = pair()
    with drawing(view) as (figure, _):
        one, other, difference = [image for image in images(figure) if image.get_array().shape == (5, 5)]
        assert np.allclose(one.get_array(), view.maps[0].values)
        assert np.allclose(difference.get_array(), one.get_array() - other.get_array())
        low, high = difference.get_clim()
        assert low == -high
        assert difference.cmap.name != one.cmap.name


@pytest.mark.parametrize("view", [all_heads(30), table(8), pair()], ids=lambda v: type(v).__name__)
def test_the_same_view_gives_the_same_bytes_in_the_width_that_is_asked_for(view):
    made = []
    for _ in range(2):
        with drawing(view, width=7.0) as (figure, _):
            assert figure.get_size_inches()[0] == pytest.approx(7.0, abs=0.01)
            made.append(encode(figure, "svg"))
    assert made[0] == made[1]


def test_token_text_is_no_formula(tmp_path):
    assert save_image(pair(label="$x$"), tmp_path / "pair.svg") == []
