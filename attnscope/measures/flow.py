"""How much each input token contributes to each position, through all layers.

Each layer has one matrix, whose row ``i`` holds the share of each token of the layer below in token
``i``. All of it is NumPy, float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from attnscope.axes import Array
from attnscope.measures.weighing import Explanation

METHODS: dict[str, Explanation] = {
    "rollout": Explanation(
        "half of each token stays, half comes by the mean attention of all heads, layer by layer",
        "Â_l = 0.5 · mean_h A + 0.5 · I; Â_l Â_l-1 ... Â_0; across: 0.5 of each token stays, too",
        "Abnar & Zuidema 2020, Quantifying Attention Flow in Transformers",
    ),
    "flow": Explanation(
        "the largest flow to each token of the text, where a layer lets through rollout's shares",
        "the maximum flow from a token of the last layer to each of the text, capacities Â_l, over their "
        "sum; across: to the tokens of both texts, 0.5 of each token stays, too",
        "Abnar & Zuidema 2020, Quantifying Attention Flow in Transformers",
    ),
    "relevance": Explanation(
        "what raises a prediction: attention times its gradient, added up layer by layer",
        "R ← R + mean_h max(0, A · ∂y/∂A) R from R = I on, over its row's sum; across: R ← R + S A E, S and "
        "E what both sides are made of (Chefer et al. have Sᵀ, by which later tokens would count)",
        "Chefer et al. 2021, Generic Attention-model Explainability",
    ),
    "alti": Explanation(
        "how near each token's vector brings the sum of residual and heads, multiplied through layers",
        "c_ij = max(0, ‖y_i‖₁ - ‖y_i - T_i(x_j)‖₁) over its row's sum, T_i(x_j) what y_i has of token j, "
        "both behind the norm of the sum, where one follows; C_l C_l-1 ... C_0; of cross "
        "attention the residual is one token more",
        "Ferrando et al. 2022, Measuring the Mixing of Contextual Information in the Transformer",
    ),
}
"""How each method computes a cell."""

CAPACITY = 1 << 24  # the capacity, as a whole number, of an edge with all of a row's weight


def with_residual(weights: Array, crossed: bool = False) -> Array:
    """Half of each row from its own token, half by attention (Abnar & Zuidema 2020).  [query, key]

    Rows are normalized to sum to 1 first; a row without attention keeps its own token. In cross attention
    (``crossed``) the residual is an extra last column.
    """
    if not crossed:
        return 0.5 * as_shares(weights) + 0.5 * np.eye(len(weights))
    halves = 0.5 * _over_sums(weights)
    return np.hstack([halves, 1 - halves.sum(-1, keepdims=True)])


def as_shares(rows: Array, crossed: bool = False) -> Array:
    """Rows divided by their sums; a row of zeros goes to its own token, or to the last column if ``crossed``.

    [query, key], the same
    """
    shares = _over_sums(rows)
    empty = np.flatnonzero(~shares.any(-1))
    shares[empty, -1 if crossed else empty] = 1
    return shares


def _over_sums(rows: Array) -> Array:
    """Rows divided by their sums, where these are positive.  [query, key]"""
    rows = np.asarray(rows, np.float64)
    total = rows.sum(-1, keepdims=True)
    shares: Array = np.divide(rows, total, out=np.zeros_like(rows), where=total > 0)
    return shares


Both: TypeAlias = "tuple[Array, Array]"
"""The contributions to a decoder's tokens: of its own side [own, own], and of the encoder's [own, other]."""


def roll_out(steps: Sequence[tuple[str, Array]], own: int, other: int) -> list[Array | Both]:
    """Input tokens' contributions after each step: an encoder's, or those of both sides of a decoder.

    For a model of one sequence (kind encoder) this is the product of all matrices so far. A step is the
    kind of attention and its shares, including the residual: [query, key], and for cross attention [own,
    other + 1], whose last column is the residual's.
    """
    encoded, side, across = np.eye(other), np.eye(own), np.zeros((own, other))
    maps: list[Array | Both] = []
    for kind, shares in steps:
        if kind == "encoder":
            encoded = shares @ encoded
        elif kind == "decoder":
            side, across = shares @ side, shares @ across
        else:
            kept = shares[:, -1:]
            side, across = kept * side, kept * across + shares[:, :-1] @ encoded
        maps.append(encoded if kind == "encoder" else (side, across))
    return maps


def add_up_relevance(steps: Sequence[tuple[str, Array]], own: int, other: int) -> list[Array | Both]:
    """Relevance (Chefer et al. 2021); a row of an encoder-decoder is normalized over both sides together.

    ``R ← R + A R`` inside each side, and across sides ``R ← R + S A E``: E is the encoder's relevance and
    S the decoder's, each without the identity, rows normalized, and the identity added. Chefer et al.
    have Sᵀ, with which later tokens would contribute to earlier ones in a causal decoder.
    """
    encoded, side, across = np.eye(other), np.eye(own), np.zeros((own, other))
    maps: list[Array | Both] = []
    for kind, matrix in steps:
        if kind == "encoder":
            encoded = encoded + matrix @ encoded
            maps.append(as_shares(encoded))
            continue
        if kind == "decoder":
            side, across = side + matrix @ side, across + matrix @ across
        else:
            across = across + _evened(side) @ matrix @ _evened(encoded)
        total = (side.sum(-1) + across.sum(-1))[:, None]
        maps.append((side / total, across / total))
    return maps


def _evened(relevance: Array) -> Array:
    """The relevance of other tokens, rows normalized, plus the identity.  [query, key]"""
    own = np.eye(len(relevance))
    return _over_sums(relevance - own) + own


def max_flow(steps: Sequence[tuple[str, Array]], own: int, other: int, row: int) -> Array:
    """The maximum flow from one token of the last step to each input token (Abnar & Zuidema 2020), as shares.

    Steps are those of ``roll_out``; a model of one sequence has the kind encoder. Edges go from each
    token to those that contribute to it, with the shares as capacities.  -> [other + own]
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import maximum_flow

    starts, ends, capacities = [], [], []
    encoded, side, nodes = 0, other, other + own  # where the nodes of each side begin, and how many there are
    for kind, matrix in steps:
        queries, keys = np.nonzero(matrix)
        capacities.append(np.rint(matrix[queries, keys] * CAPACITY).astype(np.int32))
        starts.append(nodes + queries)
        if kind == "cross":
            ends.append(np.where(keys < other, encoded + keys, side + queries))
        else:
            ends.append((encoded if kind == "encoder" else side) + keys)
        encoded, side = (nodes, side) if kind == "encoder" else (encoded, nodes)
        nodes += len(matrix)
    places = tuple(np.concatenate(each).astype(np.int32) for each in (starts, ends))  # required by scipy 1.14
    parts = np.concatenate(capacities), places
    graph = coo_array(parts, shape=(nodes, nodes)).tocsr()
    source = (encoded if steps[-1][0] == "encoder" else side) + row
    flows = [maximum_flow(graph, source, key).flow_value / CAPACITY for key in range(other + own)]
    shares: Array = np.array(flows) / sum(flows)
    return shares
