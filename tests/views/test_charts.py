"""Bars, curves, stacks, terms, graphs and pairs of heads: their texts and places, by hand."""

import numpy as np
import pytest

from attnscope.axes import Place
from attnscope.views import head_pair
from attnscope.views.charts import (
    Bar,
    Bars,
    Curve,
    Curves,
    GraphEdge,
    GraphNode,
    LayerGraph,
    MovedWords,
    Overlay,
    Scene,
    SceneRegion,
    Stack,
    Term,
    Terms,
    TokenView,
    full_light,
)
from attnscope.views.heads import distance_map, joint
from attnscope.views.maps import RowGap
from tests.render.screen import bare


def curves(edges, *values, unit="share", along="row"):
    heads = tuple(Curve(f"L0H{head}", each, (0.05,) * len(each)) for head, each in enumerate(values))
    return Curves("previous", unit, edges, heads, along=along)


@pytest.mark.parametrize(
    ("along", "ends", "at_points"),
    [
        ("row", ("row 0", "1,999"), False),
        ("step", ("step 0", "1,000"), True),
        ("layers", ("layers 0", "1,000"), True),
    ],
)
def test_curve_axis_ends_at_its_last_row_or_run(along, ends, at_points):
    view = curves((0, 1000, 2000), (0.5, 0.25), along=along)
    assert (view.ends, view.at_points) == (ends, at_points)


@pytest.mark.parametrize(
    ("values", "unit", "top", "least"),
    [
        ((0.04, None, 0.02), "share", 0.05, 0.02),
        ((0.11, 0.3, None), "share", 0.5, 0.05),
        ((0.25, 0.06), "share", 0.25, 0.05),
        ((1.5, 3.5), "nats", 5.0, 0.05),
        ((-4.0, 2.0), "keys", 5.0, -4.0),
    ],
)
def test_curve_scale_tops_at_the_largest_value_rounded_up(values, unit, top, least):
    view = curves(tuple(range(len(values) + 1)), values, unit=unit)
    assert (view.top, view.least) == (top, least)
    known = [value for value in values if value is not None]
    assert view.curves[0].mean == pytest.approx(sum(known) / len(known))


PIXELS = np.zeros((4, 4, 3), np.uint8)
DIM, BRIGHT = np.array([[0.1, 0.2]]), np.array([[0.4, 0.3]])


def test_overlay_brightness_scales_to_the_largest_weight():
    both, one = Overlay(PIXELS, DIM, BRIGHT), Overlay(PIXELS, None, DIM)
    assert [verb for verb, _ in both.maps] == ["attends to", "is attended to by"]
    assert [(verb, each is DIM) for verb, each in one.maps] == [("is attended to by", True)]
    assert [full_light(shown) for shown in ([both, one], [one], [])] == [0.4, 0.2, 0.0]


def test_place_has_the_scene_parts_of_all_its_tokens():
    whole = SceneRegion(0, 0, 1, 1, True)
    scene = Scene(PIXELS, {7: whole, 8: whole, 10: whole})
    places = Place("a", 0, 1, id=7), Place("b", 1, 5, id=7), Place("c", 5, 7, id=8), Place("d", 7, 8)
    assert [scene.ids_of(place) for place in places] == [(7,), (7, 8, 10), (8,), ()]


MOST = "at most 0.25", "at most 0.001", "less than 0.001"


def test_bar_list_counts_the_rest_and_describes_boxes():
    counts = [(0, 0.5), (3, 0.25), (3, 0.001), (3, 0.0009)]
    told = [Bars((), more, most).rest for more, most in counts]
    assert told == ["", *(f"and 3 more, each {most}" for most in MOST)]
    told = [Bar("a", 0, 0.5, box).where for box in (None, (0.4, 1.6, 7.5, 8.2))]
    assert told == ["", "0-8 across, 2-8 down"]


@pytest.mark.parametrize(
    ("weights", "full", "expected"),
    [
        ((0.05, 0.1), None, 0.1),
        ((0.05, 0.3), None, 0.5),
        ((), None, 1.0),
        ((1.7,), None, 2.0),
        ((0.3,), 2, 2),
    ],
)
def test_full_bar_is_the_smallest_round_weight_above_all(weights, full, expected):
    lists = [Bars((Bar("a", 0, weight),)) for weight in weights]
    view = TokenView("cat", 1, *(*lists, None, None)[:2], full=full)
    assert view.full_bar == expected
    assert [verb for verb, _ in view.lists] == ["attends to", "is attended to by"][: len(weights)]


def test_stack_parts_have_letters_tones_and_mean_shares():
    view = Stack(("heads", "norm\n"), ("L0", "L1"), np.array([[0.5, 0.5], [0.25, 0.75]]))
    assert view.legend == "A heads 0.38 · B norm⏎ 0.62"
    for count in (1, 2, 5, 6, 7, 10, 12):
        tones = Stack(("part",) * count, (), np.zeros((0, count))).tones
        places = np.array(sorted(tones)) - 0.15
        np.testing.assert_allclose(places, np.linspace(0, 0.75, count) if count > 1 else [0])
    assert Stack(("part",) * 54, (), np.zeros((0, 54))).letters[51:] == ("z", "A", "B")
    far = np.abs(np.diff(Stack(("part",) * 12, (), np.zeros((0, 12))).tones)) * 11 / 0.75
    assert far.min() > 4  # places of twelve


def test_moved_words_read_as_a_sentence():
    words = (Term("cat", 0.5), Term("", 0.25)), (Term("\x1b", -0.5),)
    said = [MovedWords("L0H1", *(words[at] if keep[at] else () for at in (0, 1))).sentence for keep in KEPT]
    assert said == [
        "L0H1 raises cat, ␣; lowers ␛",
        "L0H1 raises cat, ␣",
        "L0H1 lowers ␛",
        "L0H1 changes no word",
    ]


KEPT = [(True, True), (True, False), (False, True), (False, False)]


@pytest.mark.parametrize(
    ("values", "rest", "span"),
    [((0.5, -0.25), None, (0.25, 0.5)), ((0.5, 0.25), -2.0, (2.0, 0.5)), ((0.0,), None, (0.0, 1.0))],
)
def test_term_bars_span_the_largest_value_on_either_side(values, rest, span):
    terms = tuple(Term(str(value), value) for value in values)
    last = None if rest is None else Term("rest", rest)
    view = Terms(terms, Term("sum", 0.0), terms[:1], last)
    assert view.span == span
    assert [len(block) for block in view.blocks] == [len(values) + 1, 1 + (last is not None)]


def test_graph_nodes_are_centred_in_their_column():
    columns = {"a": 0, "b": 1, "c": 1, "d": 2, "e": 3}
    nodes = tuple(GraphNode(name, column) for name, column in columns.items())
    places = LayerGraph(nodes, (GraphEdge("b", "e", 1.0),)).places()
    assert places == {"a": (0, 0), "b": (1, -0.5), "c": (1, 0.5), "d": (2, 0), "e": (3, 0)}


def test_joint_axis_marks_replacement_deletion_and_insertion():
    the, cat, dog, old = (Place(text, at, at + 1) for at, text in enumerate(("the", "cat", "dog", "old")))
    special = Place("[CLS]", 0, 1, special=True)
    axis = joint([(special, special), (the, the), (cat, dog), (old, None), (None, old)])
    assert [place.label for place in axis] == ["[CLS]", "the", "cat→dog", "−old", "+old"]
    assert [(place.start, place.stop) for place in axis] == [(at, at + 1) for at in range(5)]
    assert [place.special for place in axis] == [True, False, False, False, False]


def test_distance_map_is_ordered_by_cluster_and_pooled_by_mean():
    apart = np.arange(25.0).reshape(5, 5)
    names = [f"L0H{head}" for head in range(5)]
    view = distance_map(apart, names, names, groups=[[4, 0], [1, 2, 3]])
    order = [4, 0, 1, 2, 3]
    assert (view.rows, view.columns, view.groups, view.starts) == (tuple(names[at] for at in order),) * 2 + (
        (2, 3),
        (0, 2),
    )
    np.testing.assert_array_equal(view.values, apart[np.ix_(order, order)])
    np.testing.assert_allclose(view.nearness(), 1 - view.values / 24)
    assert view.fit(5, 5) is view
    small = view.fit(5, 3)
    means = [[view.values[r : r + 2, c : c + 2].mean() for c in (0, 2, 4)] for r in (0, 2, 4)]
    np.testing.assert_allclose(small.values, means)
    assert (small.rows, small.columns) == (view.rows[::2],) * 2
    assert small.notes == ("each cell is the mean over 2 × 2 heads; a wider picture shows every head",)
    matched = distance_map(apart, names, names, matched=True).fit(4, 3)
    np.testing.assert_array_equal(matched.values, apart[:3, :3])
    assert matched.notes == ("the first 3 of 5 rows and 5 columns",)


@pytest.mark.parametrize(("peaks", "tops"), [((0.05, 0.08), (0.1, 0.05)), ((0.05, 0.9), (1, 1))])
def test_head_pair_shares_a_scale_apart_from_the_difference(peaks, tops):
    one, other = (bare(np.full((2, 3), peak), np.tri(2, 3, 1) > 0) for peak in peaks)
    parting = RowGap("cat", 2, 0.51, ("a", "b"), (0.9, 0.2))
    view = head_pair(("L0H1", "L2H3"), (one, other), (parting,), scale="auto")
    ends = [(0, tops[0]), (0, tops[0]), (-tops[1], tops[1])]
    assert [each.limits for each in (*view.maps, view.difference)] == ends
    assert [each.title for each in (*view.maps, view.difference)] == ["L0H1", "L2H3", "L0H1 − L2H3"]
    np.testing.assert_allclose(view.difference.values, np.full((2, 3), peaks[0] - peaks[1]))
    assert view.difference.masked.tolist() == [[False, False, True], [False] * 3]
    assert view.sentences == ("cat 2: 0.51 nats apart; L0H1 attends to a (0.90) · L2H3 attends to b (0.20)",)
