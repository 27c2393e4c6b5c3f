"""Distances between heads, groups of similar heads, and alignment of two sequences.

Heads are compared by the Jensen-Shannon divergence between their rows of attention, in nats:
``JS(P, Q) = H((P + Q) / 2) - (H(P) + H(Q)) / 2`` (Lin 1991, "Divergence measures based on the Shannon
entropy"), 0 for equal rows and log 2 for rows that share no key. Its square root is a metric. Clark et
al. 2019 ("What Does BERT Look At?") sum it over rows to compare heads; here it is averaged.

If a row sums to less than 1, the rest lies on a sink without a token and counts as one more key. A row
that sums to more than 1 is divided by its sum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Annotated, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from attnscope.axes import Array
from attnscope.progress import report
from attnscope.records import MATRIX, Meaning, record

MAX_DIVERGENCE = math.log(2)  # the divergence of two rows that share no key

BLOCK_WEIGHTS = 1 << 18
"""Weights compared with one head at a time: they and their logarithms stay in the processor's cache."""

REPORTED = 32  # heads from one report of progress to the next

TINY = 1e-30  # stands for zero: its ``p log p`` is below float32's resolution


class Distances(NamedTuple):
    """Mean distances of heads in nats, with their standard errors.

    ``stability`` is the rank correlation (Spearman) of one text's distances with the mean of all other
    texts', averaged over the texts: 1 if every text orders the pairs alike, 0 if the orders are unrelated.
    """

    mean: Array  # [head, other]
    error: Array  # [head, other]; of one text 0 if every row was compared
    stability: float | None = None  # of several texts
    texts: Sequence[Array] = ()  # the means of each, if there are several


def divergence(left: Tensor, right: Tensor) -> Tensor:
    """Divergence of two rows, in nats.  [..., key], [..., key] -> [...]"""
    left, right = _halves(left), _halves(right)
    return (_entropy(left + right) - (_entropy(left + left) + _entropy(right + right)) / 2).clamp(min=0)


def measure_distances(
    rows: Tensor, others: Tensor | None = None, *, population: float | None = None
) -> Distances:
    """Divergence of heads from each other, or ``others``, over rows: all, or a sample of a ``population``.

    [head, row, key] -> [head, other]
    """
    heads, count, keys = rows.shape
    size = heads if others is None else len(others)
    total, squares = np.zeros((2, heads, size))
    step = max(1, BLOCK_WEIGHTS // max(1, size * keys))
    for start in range(0, count, step):
        both = [_halves(each[:, start : start + step]) for each in (rows, others) if each is not None]
        used = torch.cat(both).amax(0) > TINY  # a key that no head attends to adds nothing
        used[:, -1] = True  # [row, key + 1]
        left, right = (both[at][:, used].T.contiguous().cpu().numpy() for at in (0, -1))  # [cell, head]
        cells = used.sum(1).cpu().numpy()
        starts = np.cumsum(cells) - cells  # the first cell of each row
        scratch = np.empty((2, *right.shape), right.dtype)  # reused for every head
        left_sums, right_sums = (_row_sums(2 * each, np.log(2 * each), starts) for each in (left, right))
        for head in range(heads):
            first = head + 1 if others is None else 0  # among the same heads, each pair is compared once
            mixed, logs = scratch[:, :, first:]
            np.add(right[:, first:], left[:, head, None], out=mixed)
            sums = _row_sums(mixed, np.log(mixed, out=logs), starts)  # [row, other]
            divergences = ((right_sums[:, first:] + left_sums[:, head, None]) / 2 - sums).clip(min=0)
            total[head, first:] += divergences.sum(0)
            squares[head, first:] += np.square(divergences).sum(0)
            if not (head + 1) % REPORTED:
                report("comparing head", (start * heads + (head + 1) * len(used)) // count, heads)
    if others is None:
        total, squares = total + total.T, squares + squares.T
    mean = total / max(count, 1)
    variance = (squares - count * np.square(mean)).clip(min=0) / max(count - 1, 1)
    return Distances(mean, np.sqrt(variance) * _error_factor(count, population or count))


def _row_sums(weights: Array, logs: Array, starts: Array) -> Array:
    """The sum of p log p over the cells of each row; ``logs`` is overwritten.  [cell, head] -> [row, head]"""
    return np.add.reduceat(np.multiply(weights, logs, out=logs), starts, axis=0, dtype=np.float64)


def sampling_error(divergences: Tensor, population: int) -> float:
    """Standard error of the mean divergence for a sample of rows of this size.  [row] -> number"""
    deviation = float(divergences.double().std()) if len(divergences) > 1 else 0.0
    return deviation * _error_factor(len(divergences), population)


def _error_factor(rows: int, population: float) -> float:
    """From deviation to error of the mean: 0 for all rows (sampling without replacement)."""
    return math.sqrt(max(0.0, 1 - rows / population) / rows)


def _halves(rows: Tensor) -> Tensor:
    """Half of each weight, the rest of the row as one more key.  [..., key] -> [..., key + 1]"""
    rows = rows.clamp(min=0)
    sums = rows.sum(-1, keepdim=True)
    rest = (1 - sums).clamp(min=0)
    return torch.cat([rows / sums.clamp(min=1), rest], -1) / 2 + TINY


def _entropy(rows: Tensor) -> Tensor:
    """Shannon entropy in nats, of rows without a zero.  [..., key] -> [...]"""
    return -rows.log().mul_(rows).sum(-1)


Alignment: TypeAlias = tuple[tuple[int | None, int | None], ...]
"""Two texts as pairs of positions in reading order; ``(3, None)`` was deleted, ``(None, 3)`` inserted."""


def align_tokens(left: Sequence[str], right: Sequence[str]) -> Alignment:
    """Align two texts by their longest common runs (difflib's SequenceMatcher).

    Where n tokens replace n others, each replaces one. Where the numbers differ, the pairing is unknown:
    they count as deleted and inserted.
    """
    steps: list[tuple[int | None, int | None]] = []
    matcher = SequenceMatcher(None, left, right, autojunk=False)
    for what, start, stop, begin, end in matcher.get_opcodes():
        if what == "equal" or stop - start == end - begin:
            steps += zip(range(start, stop), range(begin, end), strict=True)
        else:
            steps += [(position, None) for position in range(start, stop)]
            steps += [(None, position) for position in range(begin, end)]
    return tuple(steps)


def find_shared_words(left: Sequence[str], right: Sequence[str]) -> tuple[tuple[range, range], ...]:
    """The words that two tokenizations of a text share, as ranges of positions; other pieces are joined."""
    words: list[tuple[range, range]] = []
    matcher = SequenceMatcher(None, left, right, autojunk=False)
    for what, start, stop, begin, end in matcher.get_opcodes():
        if what == "equal":
            words += (
                (range(i, i + 1), range(i - start + begin, i - start + begin + 1)) for i in range(start, stop)
            )
        elif "".join(left[start:stop]) == "".join(right[begin:end]):
            words.append((range(start, stop), range(begin, end)))
    return tuple(words)


def average_over_texts(texts: Sequence[Distances]) -> Distances:
    """Average the distances of texts, each text counting once."""
    if len(texts) == 1:
        return texts[0]
    means = np.stack([text.mean for text in texts])
    count, total = len(means), means.sum(0)
    correlations = [_rank_correlation(mean, (total - mean) / (count - 1)) for mean in means]
    error = means.std(0, ddof=1) / np.sqrt(count)
    return Distances(total / count, error, float(np.mean(correlations)), [text.mean for text in texts])


def _rank_correlation(left: Array, right: Array) -> float:
    """Spearman's, with mean ranks for ties; a symmetric table's pairs count once.  [...], [...]"""
    from scipy.stats import rankdata

    if left.ndim == 2 and np.array_equal(left, left.T):
        upper = np.triu_indices(len(left), 1)
        left, right = left[upper], right[upper]
    ranks = [rankdata(numbers.ravel()) for numbers in (left, right)]
    if min((rank.std() for rank in ranks if len(rank)), default=0.0) == 0:
        return 1.0 if np.array_equal(*ranks) else 0.0
    return float(np.corrcoef(*ranks)[0, 1])


CUT = 0.75  # heads form a group if their average distance is below this share of the median of all pairs
MAX_ORDERED_HEADS = 600  # up to which the tree's neighbours are ordered optimally, in quadratic time


@dataclass(frozen=True, eq=False)
class Groups:
    """Heads in groups, similar ones side by side: the numbers of each group, and their mean silhouette."""

    members: tuple[tuple[int, ...], ...]
    silhouette: float


def group_heads(distances: Array) -> Groups:
    """Groups of similar heads by average linkage.  [head, head] -> Groups

    The tree is cut at ``CUT`` times the median distance of all pairs, so that the grouping does not
    depend on the scale of the distances.
    """
    count = len(distances)
    pairs = distances[np.triu_indices(count, 1)]
    if not pairs.any():
        return Groups((tuple(range(count)),), 0.0)
    from scipy.cluster.hierarchy import fcluster, leaves_list, linkage
    from scipy.spatial.distance import squareform

    tree = linkage(
        squareform(distances, checks=False), "average", optimal_ordering=count <= MAX_ORDERED_HEADS
    )
    labels = fcluster(tree, CUT * np.median(pairs), "distance")  # [head]
    members: dict[int, list[int]] = {}
    for head in leaves_list(tree):
        members.setdefault(int(labels[head]), []).append(int(head))
    return Groups(tuple(tuple(heads) for heads in members.values()), silhouette(distances, labels))


def silhouette(distances: Array, labels: Array) -> float:
    """The mean silhouette of a grouping (Rousseeuw 1987).  [head, head], [head] -> number

    For each head: ``(b - a) / max(a, b)``, with ``a`` its mean distance to the others of its group and
    ``b`` that to the nearest other group; 0 for a singleton.
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


def match_heads(distances: Array) -> tuple[tuple[int, int], ...]:
    """Pair heads one to one with the smallest sum of distances, exactly; some may stay without a partner."""
    from scipy.optimize import linear_sum_assignment

    rows, columns = linear_sum_assignment(distances)
    return tuple((int(row), int(column)) for row, column in zip(rows, columns, strict=True))


@record("the heads as points", eq=False)
class Plane:
    """Heads as points of a plane, as near to their distances as two axes can; the axes have no unit."""

    points: Annotated[Array, Meaning("[head, 2]", shape=MATRIX)]
    explained_variance: Annotated[float, Meaning("the share of the distances that the plane shows")]


def embed_in_plane(distances: Array) -> Plane:
    """Classical multidimensional scaling (Torgerson 1952).  [head, head] -> Plane

    ``distances`` are divergences, which are the *squares* of a metric that fits into a Euclidean space
    (Fuglede & Topsøe 2004), so that double centring gives exact inner products.
    """
    count = len(distances)
    centred = distances - distances.mean(0) - distances.mean(1)[:, None] + distances.mean()
    values, vectors = np.linalg.eigh(-centred / 2)  # ascending
    points = np.zeros((count, 2))
    for axis, number in enumerate(range(count - 1, max(count - 3, -1), -1)):
        vector = vectors[:, number]
        sign = np.sign(vector[np.abs(vector).argmax()])  # the same picture on every run
        points[:, axis] = sign * vector * np.sqrt(max(values[number], 0.0))
    whole = float(values.clip(min=0).sum())
    return Plane(points, float(values[-2:].clip(min=0).sum()) / whole if whole > 0 else 1.0)


LEFT, ABOVE, BOTH = range(3)


def first_columns(cost: Array) -> Array:
    """The column in which the cheapest path enters each row.  [..., row, column] -> [..., row]

    The path runs from the first cell to the last in steps right, down, or both. To reproduce Whisper's
    own times, sums are kept in float32 and ties resolve to the left, as in its alignment.
    """
    *outer, rows, columns = cost.shape
    cost = cost.reshape(-1, rows, columns)
    total = np.full((len(cost), rows + 1, columns + 1), np.inf, np.float32)
    total[:, 0, 0] = 0
    step = np.full(total.shape, LEFT, np.int8)
    for diagonal in range(2, rows + columns + 1):
        down = np.arange(max(1, diagonal - columns), min(rows, diagonal - 1) + 1)
        right = diagonal - down
        both, above = total[:, down - 1, right - 1], total[:, down - 1, right]
        left = total[:, down, right - 1]
        is_both, is_above = (both < above) & (both < left), (above < both) & (above < left)
        before = np.where(is_both, both, np.where(is_above, above, left))
        total[:, down, right] = cost[:, down - 1, right - 1].astype(np.float64) + before
        step[:, down, right] = np.where(is_both, BOTH, np.where(is_above, ABOVE, LEFT))
    first = np.zeros((len(cost), rows), np.int64)
    each, row, column = np.arange(len(cost)), np.full(len(cost), rows), np.full(len(cost), columns)
    while (on := row > 0).any():
        first[each[on], row[on] - 1] = column[on] - 1
        last = step[each, row, column]
        row = np.where(on, row - (last != LEFT), row)
        column = np.where(on, column - (last != ABOVE), column)
    return first.reshape(*outer, rows)


def most_likely_states(scores: Array, ids: Sequence[int], blank: int) -> Array | None:
    """The most likely CTC path through all letters of a text.  [frame, letter] -> [frame]

    State ``2 i + 1`` is letter ``i``, even states are blanks: one may be skipped where the two letters
    around it differ (Graves et al. 2006). ``None`` if there are too few frames for the letters.
    """
    letters = np.full(2 * len(ids) + 1, blank)
    letters[1::2] = ids
    skips = np.zeros(len(letters), bool)  # states that may also be entered from two states before
    skips[3::2] = letters[3::2] != letters[1:-2:2]
    best = np.full(len(letters), -np.inf)
    best[:2] = scores[0, letters[:2]]
    steps = np.zeros((len(scores), len(letters)), np.int8)  # states back that each best path came from
    for frame in range(1, len(scores)):
        before = np.full((3, len(letters)), -np.inf)
        before[0], before[1, 1:], before[2, 2:] = best, best[:-1], np.where(skips[2:], best[:-2], -np.inf)
        steps[frame] = before.argmax(0)
        best = before.max(0) + scores[frame, letters]
    path = np.zeros(len(scores), np.int64)
    path[-1] = len(letters) - 2 + best[-2:].argmax()
    for frame in range(len(scores) - 1, 0, -1):
        path[frame - 1] = path[frame] - steps[frame, path[frame]]
    return path if np.isfinite(best[-2:].max()) else None
