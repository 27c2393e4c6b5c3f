"""How far rounding may move a figure, for every test that holds one to another way of computing it.

A weight is a float32: the products, exponentials and sums that lead to it leave it a few units in the last
place off, and another processor, number of threads or order of adding leaves it a few others. A figure is a
mean of sums of weights, each times what the measure makes of a key, which is nowhere more than the measure's
range; so what rounding moves grows with that range, and with nothing else. On the bundled encoders and
MiniLM, a figure lies at most 2e-7 of its range from float64, whatever instructions the libraries may use.
"""

import math

import pytest

ROUNDING = 1e-6  # 17 units of 2^-24, of a measure's range


def reach(name, keys):
    """The width of a measure's range over so many keys."""
    wide = dict.fromkeys(("effective_keys", "distance", "coverage90", "distance2d"), keys)
    return {"entropy": math.log(keys), "offset": 2 * keys, **wide}.get(name, 1.0)


def near(value, name, keys, within=ROUNDING):
    """Equals a figure of a measure, or the error of one, that only rounding keeps apart from ``value``.

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
