"""Weightings against NumPy on every vector A[i, j] v_j W_O, with norms before and after the sum."""

import numpy as np
import pytest
import torch

from attnscope.attention import HeldRows
from attnscope.capture.projections import Norm, Residual
from attnscope.measures import weighting
from attnscope.measures.weighting import Contributions, Values, WeightedRows

TEXTS, HEADS, COUNT, SIZE, WIDTH = 2, 3, 5, 4, 6
RNG = np.random.default_rng(0)
PAST = np.tri(COUNT, dtype=bool)
WEIGHTS = RNG.random((TEXTS, HEADS, COUNT, COUNT)) * PAST
WEIGHTS[0, :, 3, 3] = 0  # a token that does not look at itself
WEIGHTS /= WEIGHTS.sum(-1, keepdims=True)
VALUES, SHARED = RNG.normal(size=(TEXTS, HEADS, COUNT, SIZE)), RNG.normal(size=(TEXTS, 1, COUNT, SIZE))
PROJECTION = RNG.normal(size=(HEADS, SIZE, WIDTH))
BEFORE = RNG.normal(size=(TEXTS, COUNT, WIDTH))
HELD = HeldRows(torch.from_numpy(WEIGHTS), torch.from_numpy(PAST[None, None]))


def vectors_of(values=VALUES, projection=PROJECTION):
    """What each key gives to each row of each head.  -> [text, head, row, key, width]"""
    given = np.broadcast_to(values, VALUES.shape)
    moved = given if projection is None else given @ projection
    return WEIGHTS[..., None] * moved[:, :, None]


def values_of(values=VALUES, projection=PROJECTION):
    weight = None if projection is None else torch.from_numpy(projection)
    return Values.from_projection(torch.from_numpy(values), HEADS, weight)


def as_shares(amounts, beside=0.0):
    total = amounts.sum(-1, keepdims=True) + beside
    return amounts / np.where(total > 0, total, 1)


def lengths(vectors):
    return np.linalg.norm(vectors, axis=-1)


def turned(vectors):
    whole = vectors.sum(3, keepdims=True)
    left = whole - vectors
    cosine = (whole * left).sum(-1) / np.maximum(lengths(whole) * lengths(left), 1e-30)
    return np.where((lengths(vectors) > 0) & (1 - cosine > weighting.LEAST_TURN), 1 - cosine, 0)


SLOPES = RNG.normal(size=(TEXTS, HEADS, COUNT, SIZE))


def raised(values):
    slopes = np.einsum("bhis,bhjs->bhij", SLOPES, np.broadcast_to(values, VALUES.shape))
    return np.maximum(0, WEIGHTS * slopes)


@pytest.mark.parametrize("projection", [PROJECTION, None])
@pytest.mark.parametrize("values", [VALUES, SHARED])
@pytest.mark.parametrize("way", ["norm", "zeroing", "gradient"])
def test_weighted_cell_is_its_share_of_the_row(way, values, projection):
    known, vectors = values_of(values, projection), vectors_of(values, projection)
    amounts, expected = {
        "norm": lambda: (weighting.by_norm(known), lengths(vectors)),
        "zeroing": lambda: (weighting.by_zeroing(known), turned(vectors)),
        "gradient": lambda: (weighting.by_gradient(known, torch.from_numpy(SLOPES)), raised(values)),
    }[way]()
    weighted, expected = WeightedRows(HELD, amounts, may_be_none=way == "gradient"), as_shares(expected)
    check_rows(weighted, expected)
    opened = PAST & (expected.sum(-1, keepdims=True) > 0 if way == "gradient" else True)
    for rows in (slice(2, 4), slice(0, COUNT), slice(1, 4)):  # some heads of the first were read last
        found = weighted.allowed(rows.start, rows.stop).expand(TEXTS, HEADS, -1, -1)
        np.testing.assert_array_equal(found, np.broadcast_to(opened, expected.shape)[:, :, rows])


def check_rows(weighted, expected):
    """Some rows, of all heads, of some, and of those that were chosen before."""
    few = weighted.only([2, 0])
    for rows in (slice(0, COUNT), slice(2, 4)):
        for found, heads in (
            (weighted.rows(rows.start, rows.stop, None), [0, 1, 2]),
            (weighted.rows(rows.start, rows.stop, [1, 0]), [1, 0]),
            (few.rows(rows.start, rows.stop, None), [2, 0]),
            (few.rows(rows.start, rows.stop, [1]), [0]),
            (few.only([1]).rows(rows.start, rows.stop, None), [0]),
        ):
            np.testing.assert_allclose(found, expected[:, heads, rows], atol=1e-7)


def test_weighted_rows_without_contribution_are_masked():
    slopes = SLOPES.copy()
    slopes[0, 1, 3] = slopes[1, :, 2] = 0
    weighted = WeightedRows(
        HELD, weighting.by_gradient(values_of(), torch.from_numpy(slopes)), may_be_none=True
    )
    for few, heads in ((weighted, [0, 1, 2]), (weighted.only([1]), [1])):
        opened, rows = few.allowed(0, COUNT), few.rows(0, COUNT, None)
        assert opened.shape == rows.shape
        assert not opened[0, heads.index(1), 3].any()
        assert not opened[1, :, 2].any()
        assert not rows[1, :, 2].any()
        assert not rows.isnan().any()


def test_weighted_rows_use_the_mask_of_selected_heads():
    masks = RNG.random((TEXTS, HEADS, COUNT, COUNT)) > 0.5
    held = HeldRows(torch.from_numpy(WEIGHTS), torch.from_numpy(masks))
    few = WeightedRows(held, weighting.by_norm(values_of())).only([2, 0])
    np.testing.assert_array_equal(few.allowed(1, 4), masks[:, [2, 0], 1:4])


def norm(centred, seed):
    """A norm's weight over a deviation of each row, and what it makes of a row's summands in NumPy."""
    rng = np.random.default_rng(seed)
    scale = rng.normal(size=WIDTH) / rng.uniform(0.5, 2, (TEXTS, COUNT, 1))

    def of(vectors, scale=scale):
        """[text, ..., width], where ``scale`` is laid out alike"""
        return (vectors - centred * vectors.mean(-1, keepdims=True)) * scale

    return Norm(torch.from_numpy(scale), centred), lambda vectors: of(vectors, laid(scale, vectors))


def laid(rows, vectors):
    """What rows have, beside vectors of [text, row] or of [text, head, row, key]."""
    return rows if vectors.ndim == 3 else rows[:, None, :, None]


FORMS = {
    "no norm": (None, None),
    "behind the sum": (None, True),
    "behind the sum, uncentred": (None, False),
    "before the sum": (True, None),
    "before the sum, uncentred": (False, None),
}


def block(form):
    """The residual of a block, its vectors of heads, and its part of the residual in each head."""
    inner, outer = (None if each is None else norm(each, seed) for seed, each in enumerate(FORMS[form]))
    vectors, part = vectors_of(), BEFORE
    if inner is not None:
        vectors = inner[1](vectors)
    total = part + vectors.sum((1, 3))
    result = total if outer is None else outer[1](total)
    if outer is not None:
        vectors, part = outer[1](vectors), outer[1](part)
    residual = Residual(
        torch.from_numpy(BEFORE),
        torch.from_numpy(total),
        None if outer is None else torch.from_numpy(result),
        *(None if each is None else each[0] for each in (outer, inner)),
    )
    return residual, vectors, part, result


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("crossed", [False, True])
def test_residual_weighting_includes_the_tokens_own_part(form, crossed):
    residual, vectors, part, _ = block(form)
    weight = weighting.normed(torch.from_numpy(PROJECTION), residual)
    known = Values.from_projection(torch.from_numpy(VALUES), HEADS, weight)
    share = weighting.residual_part(residual, HEADS)
    if crossed:  # the residual belongs to no key
        amounts, beside = weighting.by_norm(known), share.norm(dim=-1)[:, None, :, None]
        expected = lengths(vectors), lengths(part / HEADS)[:, None, :, None]
    else:
        amounts, beside = weighting.by_block_norm(known, weight, share), None
        own = np.einsum("ij,biw->bijw", np.eye(COUNT), part / HEADS)
        expected = lengths(vectors + own[:, None]), 0.0
    if residual.inner is not None:
        amounts = weighting.spread_rows(amounts, residual.inner)
    check_rows(WeightedRows(HELD, amounts, beside=beside), as_shares(*expected))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("crossed", [False, True])
@pytest.mark.parametrize("tile", [1, 1 << 18])
def test_alti_contribution_is_reduction_of_distance(form, crossed, tile, monkeypatch):
    monkeypatch.setattr(weighting, "CPU_TILE", tile)
    residual, vectors, part, result = block(form)
    vectors = vectors.sum(1)  # [text, row, key, width]
    vectors = np.concatenate([vectors, part[:, :, None]], 2) if crossed else vectors
    if not crossed:
        vectors = vectors + np.einsum("ij,biw->bijw", np.eye(COUNT), part)
    away = np.abs(result[:, :, None] - vectors).sum(-1)
    expected = np.maximum(0, np.abs(result).sum(-1)[..., None] - away)
    given = torch.from_numpy(VALUES)[:1], torch.from_numpy(PROJECTION), residual, crossed
    for rows in (slice(0, COUNT), slice(2, 4)):
        found = Contributions(*given)(torch.from_numpy(WEIGHTS)[:1, :, rows], rows, None)
        np.testing.assert_allclose(found[0, 0], expected[0, rows], atol=1e-12)
