"""Exact sums: equal to fractions, rounded once, in any order and grouping."""

import json
import math
import pickle
import random
from fractions import Fraction
from functools import reduce
from operator import add

import pytest
import torch

from attnscope.measures.exact import MOST_PENDING, ExactSum


def addends(count, seed=0):
    """Numbers of both signs over 60 powers of ten, and some that cancel.  [addend, 3]"""
    draw = random.Random(seed)
    numbers = [[draw.uniform(-1, 1) * 10.0 ** draw.randint(-40, 20) for _ in range(3)] for _ in range(count)]
    return torch.tensor(
        [*numbers, *(-torch.tensor(numbers[: count // 2], dtype=torch.float64)).tolist()]
    ).double()


def total(parts):
    return reduce(add, map(ExactSum, parts))


@pytest.mark.parametrize("count", [1, 2, MOST_PENDING - 1, MOST_PENDING, 100])
def test_sum_equals_that_of_fractions_to_one_rounding(count):
    parts = addends(count)
    for found, column in zip(total(parts).value().tolist(), parts.T.tolist(), strict=True):
        exact = sum(map(Fraction, column))
        assert abs(Fraction(found) - exact) <= abs(exact) * Fraction(2) ** -51  # of five digits added up


def test_order_and_grouping_change_no_bit():
    parts, draw = addends(300), random.Random(1)
    expected = total(parts).value()
    for size in (1, 2, 7, 40, 299):
        order = draw.sample(range(len(parts)), len(parts))
        groups = [total(parts[order[start : start + size]]) for start in range(0, len(parts), size)]
        draw.shuffle(groups)
        assert reduce(add, groups).value().equal(expected)
    assert not parts.sum(0).equal(parts.flip(0).sum(0))  # as floats do


def test_state_survives_json_and_pickle_exactly():
    for count in (1, 5, 50):
        sums = total(addends(count))
        again = ExactSum.from_state(json.loads(json.dumps(sums.state())))
        more = ExactSum(addends(1, seed=9)[0])
        assert (again + more).value().equal((sums + more).value())
        assert pickle.loads(pickle.dumps(sums)).value().equal(sums.value())
        assert again.value().equal(sums.value())


def test_sums_keep_nan_infinity_and_zeros():
    first = torch.tensor([math.nan, math.inf, math.inf, 0.0, 1e300, 1e-320], dtype=torch.float64)
    second = torch.tensor([1.0, 1.0, -math.inf, 0.0, 1e300, 0.0], dtype=torch.float64)
    found = (ExactSum(first) + ExactSum(second)).value().tolist()
    assert math.isnan(found[0])
    assert math.isnan(found[2])
    assert (found[1], *found[3:]) == (math.inf, 0.0, 2e300, 0.0)  # below 2^-304, nothing
    zeros = ExactSum(torch.zeros(2, 2).double()) + ExactSum(torch.zeros(2, 2).double())
    assert ExactSum.from_state(zeros.state()).value().equal(torch.zeros(2, 2).double())


def test_many_large_sums_carry_over():
    sums = ExactSum(torch.full((1,), 1 - 2.0**-53, dtype=torch.float64))
    for _ in range(40):
        sums = sums + sums
    assert sums.value().item() == 2.0**40 - 2.0**-13


def test_rows_are_placed_among_others():
    parts = addends(30).reshape(-1, 3, 1)
    for sums in (ExactSum(parts[0]), total(parts)):
        placed = sums.place([3, 0, 1], 5).value()[:, 0].tolist()
        one, two, three = sums.value()[:, 0].tolist()
        assert placed == [two, three, 0.0, one, 0.0]


def test_sums_of_other_shapes_are_refused():
    with pytest.raises(ValueError, match="sums of the shapes"):
        ExactSum(torch.zeros(2)) + ExactSum(torch.zeros(3))
