"""Heatmap, Grid, TokenView, HeadMap: values, limits and notes before drawing."""

import math
import unicodedata
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnscope.attention import Head, Token
from attnscope.axes import Place, weights
from attnscope.errors import SelectionError
from attnscope.models import load
from attnscope.questions.selection import Selection
from attnscope.questions.stats import overview
from attnscope.text import visible
from attnscope.views import grid, head_row, heatmap, rank_places, thumbnail_levels, token_view
from attnscope.views.heads import effect_maps, head_map, joint_difference, number, plain_limits
from attnscope.views.maps import round_up
from tests.axes.test_axes import grouped
from tests.render.screen import bare, printed

TEXT = tuple(Token(text, i, word=i) for i, text in enumerate(("the", "cat", "sat", "down")))
VALUES = np.array([[1, 0, 0, 0], [0.25, 0.75, 0, 0], [0.5, 0.3, 0.2, 0], [0.1, 0.2, 0.3, 0.4]])
CAUSAL = np.tril(np.ones((4, 4), bool))
SIGNED, ZERO = np.array([[-0.5, 0, 0.25, 1]]), np.zeros((2, 2))


@pytest.mark.parametrize(
    ("values", "options", "limits", "levels"),
    [
        (VALUES, {}, (0, 1), VALUES),
        (VALUES, {"scale": "row"}, (0, 1), VALUES / VALUES.max(-1, keepdims=True)),
        (VALUES / 2, {"scale": "head"}, (0, 0.5), VALUES),
        (SIGNED, {"signed": True}, (-1, 1), [[0.25, 0.5, 0.625, 1]]),
        *((ZERO, {"scale": scale}, (0, 1), ZERO) for scale in ("fixed", "row", "head")),
    ],
)
def test_colour_scale_follows_row_head_or_signed_limits(values, options, limits, levels) -> None:
    view = heatmap(bare(values), **options)
    assert view.limits == limits
    np.testing.assert_allclose(view.levels(), levels)


def test_only_maps_that_do_not_fit_are_pooled_with_a_note() -> None:
    view = heatmap(bare(np.eye(10)))
    assert view.fit(10, 10) is view
    pooled = view.fit(5, 10)
    assert pooled.block == (2, 2)  # a diagonal stays one
    np.testing.assert_allclose(pooled.values, np.eye(5))
    assert "the mean over 2 queries of the sum over 2 keys" in pooled.notes[-1]
    wide = heatmap(weights(np.ones((4, 10)) / 10, TEXT, range(10))).fit(4, 5)
    assert wide.block == (1, 2)
    assert [place.label for place in wide.weights.queries] == ["the", "cat", "sat", "down"]


def test_bar_says_where_drawn_values_lie_beyond_its_ends() -> None:
    view = heatmap(bare(np.array([[np.nan, 2.0]])), scale="fixed")
    assert view.masked.tolist() == [[True, False]]
    assert view.notes == ("1 weights are not numbers and drawn as masked",)
    assert view.scale_ends(".2g") == ("0", "≥1")
    even = heatmap(bare(np.full((4, 4), 0.9)), scale="fixed")
    assert [each.scale_ends(".2g")[1] for each in (even, even.fit(2, 2))] == ["1", "≥1"]
    values = np.eye(8) / 50
    values[0, 0] = 1  # a row that cannot choose
    view = heatmap(bare(values, np.tri(8, dtype=bool)), scale="head")
    assert [each.scale_ends(".2g")[1] for each in (view, view.fit(4, 4))] == ["≥0.02", "≥0.02"]
    signed = heatmap(bare(np.array([[-2.0, 0.1]])), scale="fixed", signed=True)
    assert signed.scale_ends(".2g", minus="−") == ("≤−1", "≥1")
    row = head_row([replace(even, weights=bare(values)) for values in (np.eye(4), 2 * np.eye(4))])
    assert [each.exceeded for each in row.maps] == [False, True]
    assert row.key is row.maps[1]


@pytest.mark.parametrize("least", [0.0, 0.1, 0.3, 0.35, 0.45, 1.1])
def test_cells_below_min_weight_are_hidden_with_their_share(least: float) -> None:
    view = heatmap(weights(VALUES, TEXT, TEXT, CAUSAL), min_weight=least)
    hidden = np.array([[CAUSAL[i, j] and VALUES[i, j] < least for j in range(4)] for i in range(4)])
    np.testing.assert_array_equal(view.hidden, hidden)
    note = f"hidden: cells below {least:g} (blank), {VALUES[hidden].sum() / 4:.0%} of the attention"
    assert view.notes == (note,) * bool(hidden.any())
    assert ("hidden" in view.legend("", per_cent=False)) == hidden.any()


def test_pooled_map_hides_pooled_cells_and_weights_rows_by_tokens() -> None:
    even = bare(np.full((5, 5), 0.2))
    view = heatmap(even, min_weight=0.3).fit(3, 3)
    np.testing.assert_array_equal(view.hidden, [[False, False, True]] * 3)  # two keys together, and one
    told = [note for note in view.notes if "hidden" in note]
    assert told == ["hidden: cells below 0.3 (blank), 20% of the attention"]
    values = np.array([[0.9, 0.1], [0.9, 0.1], [0.6, 0.4]])
    view = heatmap(bare(values), min_weight=0.2).fit(2, 2)  # two rows together, and one
    share = (0.1 + 0.1) / 3
    assert view.notes[-1] == f"hidden: cells below 0.2 (blank), {share:.0%} of the attention"


def test_side_by_side_heads_note_hidden_cells_once() -> None:
    one, other = (weights(values, TEXT, TEXT, CAUSAL) for values in (VALUES, np.eye(4)))
    row = head_row([heatmap(one, min_weight=0.25), heatmap(other, min_weight=0.25)])
    share = (0.2 + 0.1 + 0.2) / 8
    assert row.notes == (f"hidden: cells below 0.25 (blank), {share:.0%} of the attention",)


def test_merged_words_keep_their_token_numbers() -> None:
    pieces = (Token(text, i, word=i // 3) for i, text in enumerate(("ca", "t", "!"), 1))
    tokens = (Token("[CLS]", 0, special=True), *pieces)
    field, _ = grouped(weights(VALUES, tokens, tokens), words=True, hide_special=True)
    assert [(place.label, place.start) for place in field.keys] == [("cat", 1), ("!", 3)]
    assert token_view(field, query=2, key=2).label == "cat"
    with pytest.raises(SelectionError, match="no token 0 here: this picture shows tokens 1-3"):
        token_view(field, query=0, key=0)


def test_grid_keeps_layer_numbers_gaps_and_ragged_heads() -> None:
    stacks = (np.stack([VALUES] * count) for count in (2, 3))
    view = grid(
        (layer, weights(each, TEXT, TEXT, CAUSAL)) for layer, each in zip((3, 0), stacks, strict=True)
    )
    assert [(layer.layer, layer.heads) for layer in view.layers] == [(0, 3), (3, 2)]
    assert (view.without_attention, view.heads, view.size) == ((1, 2), 3, (4, 4))
    np.testing.assert_allclose(view.layers[0].values[2], VALUES)
    np.testing.assert_array_equal(view.layers[0].masked[0], ~CAUSAL)
    small = grid([(0, bare(np.full((2, 100, 100), 0.01)))], cells=20).layers[0]
    np.testing.assert_allclose(small.values, np.full((2, 20, 20), 0.05), rtol=1e-5)


def test_head_scale_applies_to_each_thumbnail() -> None:
    stack = np.stack([VALUES, VALUES / 4])
    fixed, head = (grid([(0, weights(stack, TEXT, TEXT))], scale=scale) for scale in ("fixed", "head"))
    one, other = thumbnail_levels(head.layers[0], head)
    np.testing.assert_allclose(one, other)
    np.testing.assert_allclose(thumbnail_levels(fixed.layers[0], fixed), stack, rtol=1e-6)


@pytest.mark.parametrize(("peak", "top"), [(0.2, 0.2), (0.21, 0.25), (0.45, 0.5), (0.9, 1.0), (3.0, 1.0)])
def test_auto_scale_ends_at_the_largest_cell_rounded_up(peak: float, top: float) -> None:
    values = np.full((2, 6, 6), peak / 4)
    values[1, 3, 4] = peak
    one = bare(values[1])
    assert heatmap(one, scale="auto").limits == (0, top)
    assert heatmap(one, scale="fixed").limits == (0, 1)
    assert heatmap(one, scale="head").limits == (0, peak)
    row = head_row([heatmap(bare(each)) for each in values], scale="auto")  # one scale for both
    assert [each.limits for each in row.maps] == [(0, top)] * 2
    view = grid([(0, bare(values))], scale="auto")
    assert (view.shown_scale, view.top) == ("fixed", top)
    assert view.scale_ends() == ("0", "≥" * (peak > 1) + f"{top:.2g}")
    assert replace(view, scale="fixed").top == 1


@pytest.mark.parametrize(("far", "top"), [(0.2, 0.2), (0.3, 0.5), (0.6, 1.0)])
def test_rows_of_few_keys_do_not_set_the_scale(far: float, top: float) -> None:
    values = np.tri(12) / 10 + np.diag([0.9, *[far - 0.1] * 11])
    view = heatmap(bare(values, np.tri(12, dtype=bool)), scale="auto")
    assert view.limits == (0, top)
    assert view.exceeded == (top < 1)


@pytest.mark.parametrize(
    ("values", "options", "limits"),
    [
        ([0.0, 0.36], {}, (0, 0.5)),
        ([2.45, 2.93], {}, (0, 5)),
        ([2.45, 2.93], {"from_zero": False}, (2.4, 3.0)),
        ([1.2, 2.31], {"from_zero": False}, (1.0, 2.5)),
        ([0.9, 2.31], {"from_zero": False}, (0, 2.5)),
        ([4.0, 4.0], {"from_zero": False}, (0, 5)),
        ([-3.0, -2.0], {}, (-3, -2)),
        ([-0.3, 0.04], {"signed": True}, (-0.5, 0.5)),
        ([2.3e-5], {"signed": True, "least": 0.01}, (-0.01, 0.01)),
        ([], {}, (0, 1)),
    ],
)
def test_plain_limits_show_differences_but_no_noise(values, options, limits) -> None:
    assert plain_limits(values, **options) == limits


def test_row_scale_of_thumbnails_is_each_rows_largest_weight() -> None:
    stack = np.stack([VALUES, VALUES[::-1] / 4])
    (layer,) = (view := grid([(0, weights(stack, TEXT, TEXT))], scale="row")).layers
    np.testing.assert_allclose(thumbnail_levels(layer, view), stack / stack.max(-1, keepdims=True), rtol=1e-6)


def test_legend_mentions_pooling_only_if_pooled() -> None:
    model = load("own")
    prepared = model.prepare("The cat sat on the mat because it was")
    view = overview(model, prepared, Selection(hide_special=True)).grids["encoder"]
    assert len(prepared.tokens) == 11
    assert view.legend() == ["one map per head", "rows attend to columns; 9 × 9 tokens"]
    assert "shown as 4 × 6" in view.fit(4, 6).legend()[1]


def test_token_view_ranks_row_and_column_or_the_one_present() -> None:
    view = token_view(weights(VALUES, TEXT, TEXT, CAUSAL), query=2, key=2, top=2)
    ranked = [(bar.label, bar.position, bar.weight) for bar in view.looks_at.bars]
    assert ranked == [("the", 0, 0.5), ("cat", 1, 0.3)]
    assert (view.looks_at.more, view.looks_at.most) == (1, 0.2)  # the closed key is not among them
    assert [(bar.label, bar.weight) for bar in view.looked_at_by.bars] == [("down", 0.3), ("sat", 0.2)]
    assert view.looked_at_by.more == 0
    field = bare(np.full((2, 3), 1 / 3))
    assert token_view(field, query=1, key=None).looked_at_by is None
    assert token_view(field, query=None, key=2).looks_at is None


@pytest.mark.parametrize("rows", [[[1.0]], [[3.0, 5.0], [2.0]], [[2.0, math.nan, 6.0], [math.nan] * 3]])
def test_layer_mean_ignores_missing_scores(rows: list[list[float]]) -> None:
    known = [[value for value in row if math.isfinite(value)] for row in rows]
    expected = [sum(row) / len(row) if row else math.nan for row in known]
    np.testing.assert_array_equal(head_map(dict(enumerate(rows)), "entropy").means, expected)


def test_head_map_pads_ragged_layers() -> None:
    view = head_map({2: [0.5], 0: [1.0, 3.0]}, "entropy", unit="nats")
    assert (view.layers, view.limits, view.bar) == ((0, 2), (0, 5), "entropy, nats")
    assert math.isnan(view.values[1, 1])
    np.testing.assert_allclose(view.levels()[0], [1 / 5, 3 / 5])


def test_head_map_of_one_large_and_many_small_scores_has_digits_of_both() -> None:
    view = head_map({0: [0.034, 0.00089, 0.0], 1: [0.0013, math.nan, 0.00124]}, "attention", unit="share")
    assert view.texts == [["0.0340", "0.0009", "0.0000"], ["0.0013", "", "0.0012"]]
    assert head_map({0: [2.5, 0.5, 0.003]}, "entropy").texts == [["2.50", "0.50", "0.00"]]
    assert head_map({0: [0.0, math.nan]}, "entropy").texts == [["0.00", ""]]


def test_token_list_omits_non_finite_weights_and_has_image_boxes():
    axis = [Place(text, number, number + 1, id=number) for number, text in enumerate("abcd")]
    weights = np.array([np.inf, 0.2, np.nan, 0.7])
    bars = rank_places(weights, np.ones(4, bool), [*axis[:3], Place("d", 3, 4)], 10, {1: (0, 0, 8, 8)}).bars
    assert [(bar.label, bar.box) for bar in bars] == [("d", None), ("b", (0, 0, 8, 8))]


def test_effect_maps_of_all_kinds_share_one_signed_scale() -> None:
    values = {Head("encoder L0H1"): 0.5, Head("cross L0H0"): -2.0, Head("cross L1H0"): 1.0}
    maps = effect_maps(values, "effect", lead="nats, ")
    assert [view.title for view in maps.values()] == ["nats, every encoder head", "nats, every cross head"]
    assert {view.limits for view in maps.values()} == {(-2.0, 2.0)}
    (alone,) = effect_maps({Head("L0H0"): 0.0}, "effect").values()
    assert (alone.title, alone.limits) == ("every head", (-0.05, 0.05))


def test_effects_written_alike_have_one_colour_and_two_digits() -> None:
    values = {Head(0, at): value for at, value in enumerate((-0.00213, 0.00004, -0.00003, 0.0))}
    (view,) = effect_maps(values, "effect").values()
    assert view.texts == [["-0.0021", "0.0000", "0.0000", "0.0000"]]
    assert view.levels()[0] == pytest.approx([0.5 - 0.021, 0.5, 0.5, 0.5])


def test_difference_masks_unmatched_rows_and_shared_zeros():
    one, two, alone = (Place(text, number, number + 1) for number, text in enumerate("abc"))
    maps = np.array([[0.4, 0.6], [0.0, 0.0]]), np.array([[0.4, 0.0], [0.5, 0.0]])
    joined = joint_difference(maps, [(one, one), (None, alone), (two, two)], [(one, one), (two, two)])
    assert joined.allowed.tolist() == [[True, True], [False, False], [True, False]]
    np.testing.assert_allclose(joined.values, [[0, -0.6], [0, 0], [0.5, 0]], atol=1e-7)
    assert [place.text for place in joined.queries] == ["a", "+c", "b"]


@pytest.mark.parametrize(
    ("value", "largest", "text"),
    [
        *((0.42, 1, "0.42"), (-0.001, 1, "0.00"), (12.84, 20, "12.8"), (np.nan, 1, ""), (0.0, 0.0, "0.00")),
        *((-0.00144, 0.00144, "-0.0014"), (0.00003, 0.00144, "0.0000"), (0.03, 0.05, "0.030")),
    ],
)
def test_number_has_two_digits_of_the_largest(value, largest, text):
    assert number(value, largest) == text


@pytest.mark.parametrize(
    ("text", "label"),
    [
        *(("cat", "cat"), (" cat", "cat"), ("[CLS]", "[CLS]"), ("$a_1$", "$a_1$"), ("\n", "⏎"), ("\t", "⇥")),
        *(("\r\n", "␍⏎"), ("  ", "␣␣"), ("", "∅"), ("\x1b[31m", "␛[31m"), ("\x7f", "␡"), ("\x9b", "‹009B›")),
        *(("a\u202eb", "a‹202E›b"), ("\ufeff", "‹FEFF›"), ("\u0301", "◌\u0301"), ("\udcff", "‹DCFF›")),
        *((text, text) for text in ("🧑\u200d🚀", "مرحبا", "猫")),
    ],
)
def test_label_shows_invisible_characters(text: str, label: str) -> None:
    assert visible(text) == label


@given(st.text(max_size=20))
def test_labels_have_no_control_characters(text: str) -> None:
    label = visible(text)
    assert label
    for character in label:
        assert unicodedata.category(character) not in ("Cc", "Cs", "Zl", "Zp")
        assert unicodedata.category(character) != "Cf" or character in "\u200c\u200d"


@pytest.mark.parametrize("size", [12, 48, 300])
def test_auto_scale_leaves_even_heads_visible_beside_a_sharp_one(size: int) -> None:
    even, sharp = np.full((size, size), 1 / size), np.eye(size)
    sink = np.full((size, size), 0.2 / size)
    sink[:, 0] += 0.8
    for values in ([even, sharp], [sharp, sharp], [sink, sink], [even, sink, sharp]):
        view = grid([(0, bare(np.stack(values)))], scale="auto", cells=size)
        top = min(round_up(8 / size), 1)  # the mean of any weights that sum to 1 is 1 / size
        assert (view.shown_scale, view.top) == ("fixed", top)
        assert view.scale_ends()[1] == ("≥" * (top < 0.8) + f"{top:.2g}")
        for each in values:
            alone = {id(even): round_up(1 / size), id(sharp): 1.0}.get(id(each), top)  # a sink saturates
            assert heatmap(bare(each), scale="auto").limits[1] == alone
        assert thumbnail_levels(view.layers[0], view)[0].max() >= 1 / 16
    assert grid([(0, bare(sharp[None]))], scale="fixed").scale_ends() == ("0", "1")


def test_diagonal_in_half_of_the_rows_does_not_saturate() -> None:
    even = np.full((48, 48), 1 / 48)
    half, few = even.copy(), even.copy()
    half[24:], few[40:] = np.eye(48, k=-12)[24:], np.eye(48, k=-12)[40:]
    assert heatmap(bare(half), scale="auto").scale_ends(".2g") == ("0", "1")
    assert heatmap(bare(few), scale="auto").scale_ends(".2g") == ("0", "≥0.2")
    both = head_row([heatmap(bare(each)) for each in (half, even)], scale="auto")  # the other would be dark
    assert both.maps[0].limits[1] == 0.2


def test_faint_grids_share_the_largest_weight_rounded_up() -> None:
    even = bare(np.full((2, 12, 12), 0.08))
    view = grid([(0, even)], scale="auto")
    assert (view.shown_scale, view.scale_ends()) == ("fixed", ("0", "0.1"))
    asked = " ".join(printed(replace(view, scale="head")).split())
    assert "full scale: 0 to each head's largest weight" in asked


def test_grid_scale_ignores_first_causal_rows() -> None:
    open_ = np.tril(np.ones((48, 48), bool))
    even = bare((open_ / open_.sum(-1, keepdims=True))[None], open_)
    drawn = grid([(0, even)], scale="auto")
    assert drawn.scale_ends() == ("0", "≥0.05")  # 1 / 25 rounded up
    assert thumbnail_levels(drawn.layers[0], drawn)[0, -1, :-1].min() > 0.4  # the faintest row is seen
    said = " ".join(printed(replace(drawn, scale="head")).split())
    assert "full scale: 0 to each head's largest weight in rows with many unmasked keys" in said
    one = heatmap(replace(even, values=even.values[0]), scale="auto")
    assert one.scale_ends(".2g") == ("0", "≥0.05")
    previous = bare(np.eye(48, k=-1)[None], open_)
    assert grid([(0, previous)], scale="auto").scale_ends() == ("0", "≥0.25")
    assert grid([(0, previous)], scale="auto").fit(16, 16).scale_ends() == ("0", "≥0.5")  # 6 times 1 / 12


def test_two_rows_per_line_are_whole_rows() -> None:
    diagonal = bare(np.eye(13)[None])
    (layer,) = grid([(0, diagonal)]).fit(7, 13).layers
    whole = np.eye(14)[:, :13].reshape(7, 2, 13).sum(1) / 2
    whole[-1] = np.eye(13)[-1]
    np.testing.assert_allclose(layer.values[0], whole)


def test_marks_are_unmasked_cells_of_their_tokens() -> None:
    view = heatmap(weights(VALUES, TEXT, TEXT, CAUSAL), marks=((2, 1), (0, 3), (7, 0)))
    assert np.argwhere(view.marked).tolist() == [[2, 1]]  # the second is masked, the third is not there
    pooled = heatmap(bare(np.full((6, 6), 1 / 6)), marks=((5, 0),)).fit(3, 3)
    assert np.argwhere(pooled.marked).tolist() == [[2, 0]]
