"""Labelled axes: what each row and column of a map stands for, and the one way to make a map coarser.

Keys of a group are summed and queries averaged, so that a cell says which share of the attention of these
queries goes to these keys. NumPy and strings: no torch is imported here.
"""

from attnscope.axes.coarsening import Coarsening, coarsen_axis, edges, group_places
from attnscope.axes.places import Array, Place, places
from attnscope.axes.weights import Weights, coarsen, fit, label_map, shrink, weights
from attnscope.text import visible

__all__ = [
    "Array",
    "Coarsening",
    "Place",
    "Weights",
    "coarsen",
    "coarsen_axis",
    "edges",
    "fit",
    "group_places",
    "label_map",
    "places",
    "shrink",
    "visible",
    "weights",
]
