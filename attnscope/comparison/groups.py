"""Heads that are alike: groups within a model (hierarchical clustering), pairs between two models."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

CUT = 0.75
"""Heads are of one group if they are nearer, on average, than this share of the median of all pairs."""

ORDERED = 600
"""Heads up to which neighbours in the tree are put next to each other; the time grows with their square."""


@dataclass(frozen=True, eq=False)
class Groups:
    """Heads in groups, in an order in which alike heads stand together.

    ``members`` holds the numbers of the heads of each group, in that order; a singleton is a group of one.
    ``silhouette`` is the mean silhouette (Rousseeuw 1987), 1 for groups that stand far apart, 0 for none.
    """

    members: tuple[tuple[int, ...], ...]
    silhouette: float

    @property
    def order(self) -> tuple[int, ...]:
        """All heads, group by group."""
        return tuple(head for group in self.members for head in group)

    @property
    def singletons(self) -> tuple[int, ...]:
        """The heads that are in no group with any other."""
        return tuple(group[0] for group in self.members if len(group) == 1)


def group_heads(distances: NDArray[np.float64]) -> Groups:
    """Groups of alike heads by average linkage.  [head, head] -> Groups

    The tree is cut at ``CUT`` times the median distance of all pairs, so that the grouping is the same for a
    model whose heads are all near each other as for one whose heads are all far apart.
    """
    count = len(distances)
    pairs = distances[np.triu_indices(count, 1)]
    if not pairs.any():
        return Groups((tuple(range(count)),), 0.0)
    from scipy.cluster.hierarchy import fcluster, leaves_list, linkage
    from scipy.spatial.distance import squareform

    tree = linkage(squareform(distances, checks=False), "average", optimal_ordering=count <= ORDERED)
    labels = fcluster(tree, CUT * np.median(pairs), "distance")  # [head]
    members: dict[int, list[int]] = {}
    for head in leaves_list(tree):
        members.setdefault(int(labels[head]), []).append(int(head))
    return Groups(tuple(tuple(heads) for heads in members.values()), silhouette(distances, labels))


def silhouette(distances: NDArray[np.float64], labels: NDArray[np.int_]) -> float:
    """The mean silhouette of a grouping (Rousseeuw 1987).  [head, head], [head] -> number

    Of each head: ``(b - a) / max(a, b)``, with ``a`` its mean distance to the others of its group and ``b``
    that to the nearest other group; 0 for a head that is alone.
    """
    member = labels == np.unique(labels)[:, None]  # [group, head]
    sizes = member.sum(1)
    if len(sizes) < 2:
        return 0.0
    sums = member @ distances  # [group, head]
    own = np.where(member, sums / np.maximum(sizes - 1, 1)[:, None], 0).sum(0)  # [head]
    nearest = np.where(member, np.inf, sums / sizes[:, None]).min(0)
    larger = np.maximum(own, nearest)
    alone = member.T @ (sizes == 1)
    scores = np.where(alone | (larger == 0), 0.0, (nearest - own) / np.where(larger == 0, 1, larger))
    return float(scores.mean())


def match_heads(distances: NDArray[np.float64]) -> tuple[tuple[int, int], ...]:
    """Pairs of heads, each head in one pair at most, with the smallest sum of distances.  [head, other]

    The assignment problem, solved exactly. Of the model with more heads some stay without a partner.
    Pairs come in the order of the first model's heads.
    """
    from scipy.optimize import linear_sum_assignment

    rows, columns = linear_sum_assignment(distances)
    return tuple((int(row), int(column)) for row, column in zip(rows, columns, strict=True))
