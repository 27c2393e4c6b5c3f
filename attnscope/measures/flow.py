"""From the last layer's tokens back to those of the text: what flows through all layers.

Each layer has one matrix, whose row ``i`` says what token ``i`` is made of there: a share for each token of
the layer below. All of it is NumPy, float64.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from attnscope.axes.weights import Array

CAPACITY = 1 << 24
"""The capacity of an edge with all of a row, as a whole number."""


def with_residual(weights: Array) -> Array:
    """Half of each row from its own token, half by attention (Abnar & Zuidema 2020).  [query, key]

    Rows are made to sum to 1 before; one without attention keeps its token.
    """
    return 0.5 * as_shares(weights) + 0.5 * np.eye(len(weights))


def as_shares(rows: Array) -> Array:
    """Rows over their sums; one that is all 0 is its own token's, where there is one.  [query, key]"""
    rows = np.asarray(rows, np.float64)
    total = rows.sum(-1, keepdims=True)
    shares: Array = np.where(total > 0, rows / np.where(total > 0, total, 1), np.eye(*rows.shape))
    return shares


def roll_out(matrices: Sequence[Array]) -> list[Array]:
    """What each layer's tokens are made of, of the first layer's: the product of all matrices so far."""
    maps: list[Array] = []
    for matrix in matrices:
        maps.append(matrix @ maps[-1] if maps else np.asarray(matrix, np.float64))
    return maps


def add_up_relevance(matrices: Sequence[Array]) -> list[Array]:
    """``R ← R + A R`` from the identity on, layer by layer (Chefer et al. 2021), as shares of each row."""
    relevance = np.eye(len(matrices[0]))
    maps = []
    for matrix in matrices:
        relevance = relevance + matrix @ relevance
        maps.append(as_shares(relevance))
    return maps


def max_flow(matrices: Sequence[Array], row: int) -> Array:
    """The largest flow from one token of the last layer to each of the text (Abnar & Zuidema 2020).  -> [key]

    Edges go from each token to those of the layer below, with the matrix as capacities; shares.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import maximum_flow

    size, layers = len(matrices[0]), len(matrices)
    starts, ends, capacities = [], [], []
    for layer, matrix in enumerate(matrices):
        queries, keys = np.nonzero(matrix)
        starts.append((layer + 1) * size + queries)
        ends.append(layer * size + keys)
        capacities.append(np.rint(matrix[queries, keys] * CAPACITY).astype(np.int32))
    nodes = (layers + 1) * size
    places = tuple(np.concatenate(each).astype(np.int32) for each in (starts, ends))  # as scipy 1.14 asks
    parts = np.concatenate(capacities), places
    graph = coo_array(parts, shape=(nodes, nodes)).tocsr()
    source = layers * size + row
    flows = [maximum_flow(graph, source, key).flow_value / CAPACITY for key in range(size)]
    shares: Array = as_shares(np.array([flows]))[0]
    return shares
