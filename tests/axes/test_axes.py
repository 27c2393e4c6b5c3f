"""Coarser maps against plain loops over their definition, and the labels of places."""

from typing import Any

import numpy as np
import pytest

from attnscope.attention import Token
from attnscope.axes import (
    PICTURE_ID,
    SEPARATOR_ID,
    SOUND_ID,
    Weights,
    coarsen,
    find_senses,
    fit,
    group_places,
    join_places,
    places,
    shrink,
    weights,
)
from attnscope.errors import SelectionError
from attnscope.models.text.tokens import spell_tokens

WORDS = {"[CLS]": None, "an": 0, "un": 1, "believ": 1, "able": 1, "ca": 2, "t": 2, "[SEP]": None}
TOKENS = tuple(
    Token(text, i, special=word is None, word=word) for i, (text, word) in enumerate(WORDS.items())
)


def grouped(field: Weights, **how: Any) -> tuple[Weights, float]:
    """A map coarsened in the same way along both axes."""
    return coarsen(field, group_places(field.queries, **how), group_places(field.keys, **how))


def merge_words(field: Weights) -> Weights:
    return grouped(field, words=True)[0]


def rows(*shape: int, seed: int = 0) -> np.ndarray:
    values = np.random.default_rng(seed).random(shape)
    return values / values.sum(-1, keepdims=True)


def looped(values: np.ndarray, down: list[range], across: list[range]) -> np.ndarray:
    """Keys summed, queries averaged, one cell after the other.  -> [..., group, group]"""
    cells = [[values[..., q, :][..., k].sum(-1).mean(-1) for k in across] for q in down]
    return np.moveaxis(np.array(cells), (0, 1), (-2, -1))


@pytest.mark.parametrize("shape", [(8, 8), (3, 8, 8)])
def test_word_merging_sums_columns_and_averages_rows(shape) -> None:
    values = rows(*shape)
    before = values.copy()
    merged = merge_words(weights(values, TOKENS, TOKENS))
    groups = [range(1), range(1, 2), range(2, 5), range(5, 7), range(7, 8)]
    np.testing.assert_allclose(merged.values, looped(values, groups, groups), rtol=1e-12)
    np.testing.assert_allclose(merged.values.sum(-1), 1)
    assert [place.text for place in merged.keys] == ["[CLS]", "an", "unbelievable", "cat", "[SEP]"]
    assert [range(place.start, place.stop) for place in merged.keys] == groups
    np.testing.assert_array_equal(values, before)


SPECIALS = (Token("<s>", 0, special=True), Token("<s>", 0, special=True))
SEGMENTS = (Token("a", 0, word=0, segment=0), Token("b", 1, word=0, segment=1))


@pytest.mark.parametrize("axis", [SEGMENTS, SPECIALS, range(4)])
def test_word_merging_leaves_segments_special_tokens_and_positions(axis) -> None:
    assert len(merge_words(weights(rows(len(axis), len(axis)), axis, axis)).keys) == len(axis)


def test_merged_cell_is_unmasked_if_any_of_its_cells_is() -> None:
    causal = np.tril(np.ones((8, 8), bool))
    merged = merge_words(weights(rows(8, 8) * causal, TOKENS, TOKENS, causal))
    assert merged.allowed[2].tolist() == [True, True, True, False, False]


def test_hidden_special_tokens_report_their_mass() -> None:
    values = rows(8, 8)
    shown, hidden = grouped(weights(values, TOKENS, TOKENS), hide_special=True)
    kept = range(1, 7)
    gone = sum(values[i, j] for i in kept for j in (0, 7)) / sum(values[i, j] for i in kept for j in range(8))
    assert hidden == pytest.approx(gone, rel=1e-12)
    np.testing.assert_array_equal(shown.values, values[1:7, 1:7])
    assert [place.start for place in shown.queries] == list(kept)
    with pytest.raises(SelectionError, match="no other tokens"):
        grouped(weights(np.ones((2, 2)), SPECIALS, SPECIALS), hide_special=True)


@pytest.mark.parametrize(("down", "across"), [(1, 3), (3, 1), (4, 4), (5, 2), (10, 7)])
def test_pooling_equals_a_loop_and_preserves_row_sums(down: int, across: int) -> None:
    values = rows(10, 7)
    pooled = fit(weights(values, range(10), range(7)), -(-10 // down), -(-7 // across))
    by_row = [range(i, min(i + down, 10)) for i in range(0, 10, down)]
    by_column = [range(i, min(i + across, 7)) for i in range(0, 7, across)]
    np.testing.assert_allclose(pooled.values, looped(values, by_row, by_column), rtol=1e-12)
    np.testing.assert_allclose(pooled.values.sum(-1), 1)


def test_pooled_places_have_range_labels_and_near_equal_sizes() -> None:
    pooled = fit(weights(rows(8, 8), TOKENS, TOKENS), 3, 3)
    labels = [place.label for place in pooled.queries]
    assert labels == ["0-2 [CLS] an un", "3-5 believable ca", "6-7 t [SEP]"]
    cells = fit(weights(rows(13, 13), range(13), range(13)), 5, 5, even=True).queries
    assert [place.stop - place.start for place in cells] == [2, 3, 2, 3, 3]


@pytest.mark.parametrize(("first", "then"), [(6, 3), (9, 4), (5, 2), (7, 7)])
def test_pooling_unequal_blocks_again_weights_by_tokens(first: int, then: int) -> None:
    values = rows(2, 13, 13)
    field = weights(values, range(13), range(13))
    twice = fit(fit(field, first, first), then, then)
    groups = [range(place.start, place.stop) for place in twice.queries]
    assert [token for group in groups for token in group] == list(range(13))
    np.testing.assert_allclose(twice.values, looped(values, groups, groups), rtol=1e-12)


def test_shrinking_weights_rows_by_their_tokens() -> None:
    coarse = fit(weights(rows(5, 5), range(5), range(5)), 3, 3)  # two blocks of two tokens, and one token
    for values, size, tokens, expected in (
        (coarse.values, (1, 1), ([2, 2, 1], [2, 2, 1]), [[1]]),
        (np.eye(3), (3, 1), ([2, 2, 1], [2, 2, 1]), [[1]] * 3),
        (np.array([[0.0], [0.0], [1.0]]), (1, 1), ([2, 2, 1], [1]), [[0.2]]),
    ):
        small, _ = shrink(values, np.ones(values.shape, bool), *size, tokens)
        np.testing.assert_allclose(small, expected, atol=1e-6)


def test_shrinking_by_whole_numbers_pools_and_splits_border_cells() -> None:
    values = rows(2, 12, 8)
    small, allowed = shrink(values, np.ones((12, 8), bool), 4, 4)
    np.testing.assert_allclose(small, fit(weights(values, range(12), range(8)), 4, 4).values, atol=1e-6)
    assert allowed.all()
    small, _ = shrink(np.array([[0.0, 1.0, 0.0]]), np.ones((1, 3), bool), 1, 2)
    np.testing.assert_allclose(small, [[0.5, 0.5]])


@pytest.mark.parametrize("cells", [1, 2, 3, 5, 7, 11, 40])
def test_shrinking_preserves_row_sums_for_any_size(cells: int) -> None:
    small, _ = shrink(rows(11, 11), np.ones((11, 11), bool), cells, cells)
    assert small.shape == (min(cells, 11),) * 2
    np.testing.assert_allclose(small.sum(-1), 1, rtol=1e-5)


def test_weights_and_mask_must_fit_their_labels() -> None:
    assert weights(rows(3, 4, 4), range(4), range(4), np.ones((1, 4, 4), bool)).allowed.shape == (1, 4, 4)
    for shape, queries, mask, said in (
        ((2, 2), 3, (2, 2), "do not fit 3 queries"),
        ((4, 4), 4, (1, 4, 4), "do not fit"),
        ((3, 4, 4), 4, (2, 4, 4), "do not fit"),
    ):
        with pytest.raises(ValueError, match=said):
            weights(rows(*shape), range(queries), range(shape[-1]), np.ones(mask, bool))


def test_consecutive_moments_have_a_range_label():
    moments = places(tuple(Token(f"{0.02 * at:.2f} s", SOUND_ID + at) for at in range(4)))
    two = [join_places(moments[:2], pooled=True), join_places(moments[2:], pooled=True)]
    assert [place.label for place in two] == ["0.00–0.02 s", "0.04–0.06 s"]
    four = join_places(two, pooled=True)
    assert (four.label, four.moment, four.heard) == ("0.00–0.06 s", "0.00 s", True)
    assert not any(place.pictured for place in (*moments, *two))


def seen(*names: str) -> list[Token]:
    """Tokens of pictures by their names, signs of a processor among them."""
    return [
        Token(name, 5, special=True)
        if name.startswith("<")
        else Token(name, (SEPARATOR_ID if "end" in name else PICTURE_ID) + number, special="end" in name)
        for number, name in enumerate(names)
    ]


SPELLED = [Token(word, number, word=number) for number, word in enumerate(("what", "is", "this", "?"))]
TILED = seen("<img>", "thumbnail 1 · 0,0", "<tile>", "image 1 · 0,0", "image 1 · row end", "<tile>",
             "image 1 · 1,0", "</img>")  # fmt: skip


def test_separators_between_tiles_belong_to_their_numbered_image():
    assert find_senses([*TILED, *SPELLED]) == [None, *["image"] * 6, *[None] * 5]
    two = [*TILED, *seen("<img>", "image 2 · 0,0", "</img>"), *SPELLED]
    assert [sense for sense in find_senses(two) if sense] == ["image 1"] * 6 + ["image 2"]
    assert find_senses(seen("frame 1 · 0,0", "frames 2-3 · 0,0")) == ["frame 1", "frames 2-3"]
    assert find_senses([Token("0,1", PICTURE_ID + 1), Token("0.02 s", SOUND_ID)]) == ["image", "sound"]


def test_spelled_text_has_one_placeholder_per_image_or_sound():
    assert spell_tokens([*TILED, *SPELLED]) == "<img> [image] </img> what is this?"
    sound = [Token("0.00 s", SOUND_ID), Token("0.02 s", SOUND_ID + 1)]
    assert spell_tokens([*sound, *SPELLED]) == "[sound] what is this?"
