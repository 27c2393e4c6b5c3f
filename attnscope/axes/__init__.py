"""Labelled axes: what each row and column of a map stands for, and the one way to make a map coarser.

Keys of a group are summed and queries averaged, so that a cell says which share of the attention of these
queries goes to these keys. NumPy and strings: no torch is imported here.
"""

from attnscope.axes.places import Place, places, visible
from attnscope.axes.weights import Array, Weights, hide_special, merge_words, pool, shrink, weights

__all__ = [
    "Array",
    "Place",
    "Weights",
    "hide_special",
    "merge_words",
    "places",
    "pool",
    "shrink",
    "visible",
    "weights",
]
