"""Curves along a text and shares of parts, as pictures: what is drawn is what was measured."""

from dataclasses import replace

import numpy as np
import pytest

from attnscope.render.image import drawing
from attnscope.views.charts import Curve, Curves, Stack

TEXT = "The king said that the queen"


def curves(*values: tuple[float | None, ...]) -> Curves:
    drawn = tuple(Curve(f"L{number}H0", one, (0.2,) * len(one)) for number, one in enumerate(values))
    return Curves("previous", "share", tuple(range(0, 10 * len(values[0]) + 1, 10)), drawn)


def test_every_head_is_drawn_as_steps_on_one_scale_with_its_baseline():
    view = curves((None, 0.4, 0.3), (0.1, 0.2, 0.25))
    with drawing(view) as (figure, _):
        shown = [[patch.get_data() for patch in axes.patches] for axes in figure.axes]
        limits = {axes.get_ylim() for axes in figure.axes}
    for (steps, baseline), curve in zip(shown, view.curves, strict=True):
        np.testing.assert_array_equal(steps.values, [np.nan if x is None else x for x in curve.values])
        assert tuple(steps.edges) == view.edges
        assert list(baseline.values) == [0.2] * 3
    assert limits == {(0.0, 0.5)}


def test_values_at_points_are_lines_over_one_axis():
    view = replace(curves((None, 0.4, 0.3), (0.1, 0.2, 0.25)), along="% of the cache")
    with drawing(view) as (figure, _):
        (axes,) = figure.axes
        lines = [(line.get_label(), line.get_xdata(), line.get_ydata()) for line in axes.lines]
        assert (axes.get_xlabel(), axes.get_ylabel()) == ("% of the cache", "previous, share")
    for (name, across, up), curve in zip(lines, view.curves, strict=True):
        assert (name, tuple(across)) == (curve.head, view.edges[:-1])
        np.testing.assert_array_equal(up, [np.nan if x is None else x for x in curve.values])


@pytest.mark.parametrize(("values", "top"), [((0.02, 0.09), 0.25), ((0.7, 0.1), 1.0)])
def test_the_scale_is_a_round_share_that_holds_every_figure_and_the_baseline(values, top):
    assert curves(values).top == top


def test_bars_of_parts_stand_one_behind_the_other_as_wide_as_their_shares():
    shares = np.array([[0.5, 0.25, 0.25], [0.1, 0.2, 0.7]])
    view = Stack(("[CLS]", "text", "written"), ("was", "a"), shares)
    with drawing(view) as (figure, _):
        bars = [(bar.get_x(), bar.get_width()) for bar in figure.axes[0].patches]
        letters = [text.get_text() for text in figure.axes[0].texts]
        said = [text.get_text() for text in figure.texts]
    assert np.allclose(np.array(bars).reshape(3, 2, 2)[..., 1].T, shares)
    assert np.allclose(np.array(bars).reshape(3, 2, 2)[2, :, 0], shares[:, :2].sum(1))
    assert "A" in letters
    assert said[0].replace("\n", " ") == view.legend
    assert view.legend.startswith("A [CLS] 0.30 · B text 0.2")


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_commands_that_draw_them_save_them(run, tmp_path, suffix):
    for number, asked in enumerate(
        (
            ("stats", TEXT, "-m", "own-causal", "--by-position", "previous"),
            ("spans", TEXT, "-m", "own-causal", "--generate", "3", "--written"),
        )
    ):
        path = tmp_path / f"{number}.{suffix}"
        assert run(*asked, "-o", str(path)).code == 0
        assert path.stat().st_size > 1000
