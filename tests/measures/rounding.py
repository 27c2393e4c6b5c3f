"""Bounds on the rounding error of a score, for every test that compares it with another way of computing it.

A weight is a float32: the products, exponentials and sums behind it leave it off by a few units in the last
place, and another processor, number of threads or order of summing by a few others. A score is a mean of
sums of weights, each times the measure's value for a key, which is at most the measure's range; so the
rounding error grows with that range, and with nothing else. On the bundled encoders and MiniLM, a score is
at most 2e-7 of its range from float64, whatever instructions the libraries use.
"""

import math

import pytest

ROUNDING = 1e-6  # 17 units of 2^-24, of a measure's range


def reach(name, keys):
    """The width of a measure's range over so many keys."""
    wide = dict.fromkeys(("effective_keys", "distance", "coverage90", "distance2d"), keys)
    return {"entropy": math.log(keys), "offset": 2 * keys, **wide}.get(name, 1.0)


def near(value, name, keys, within=ROUNDING):
    """Equals a score of a measure, or the error of one, that only rounding keeps apart from ``value``.

    A divergence is a difference of entropies, and rounded as they are.
    """
    return pytest.approx(value, abs=within * reach(name, keys))


def rounded(answer, keys=1):
    """The same answer of JSON, whose every number rounding may have moved; some range over so many keys."""
    if isinstance(answer, dict):
        return {name: rounded(each, keys) for name, each in answer.items()}
    if isinstance(answer, list):
        return [rounded(each, keys) for each in answer]
    return pytest.approx(answer, abs=ROUNDING * keys) if isinstance(answer, float) else answer
