"""How fast a prediction goes when tokens are taken away in an order, and comes when they are given back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from attnscope.analysis.faithful.deletion import Deletion, open_deletion, reads_across
from attnscope.analysis.faithful.ranking import rank_tokens, rows_of_prediction, weigh_heads
from attnscope.analysis.selection import Selection
from attnscope.analysis.sentences import name_pass
from attnscope.attention import Head
from attnscope.axes.weights import Array
from attnscope.errors import AttnscopeError, SelectionError
from attnscope.figures import Weigh
from attnscope.models import Model, ModelInput
from attnscope.views.charts.faithful import Faithful, Ranked

STEPS = 24
"""Steps in which tokens are taken away, at most."""

ORDERS = 10
"""Random orders, each from a seed of its own."""

FIRST = 3
"""Tokens that are named of each order."""

ALONE = "one at a time"
"""The order in which the prediction falls when each token is taken away alone."""


class Curves(NamedTuple):
    """The probability of a prediction after each step of each order."""

    deletion: Array  # [order, step]
    insertion: Array  # [order, step]


def compare_methods(model: Model, prepared: ModelInput, target: str | None) -> Faithful:
    """Which way of weighing or following attention ranks first the tokens that a prediction needs.

    Raises ``ModelError`` for a model without a prediction, or whose tokens cannot be taken away.
    """
    deletion = open_deletion(model, prepared, target)
    counts = rows_of_prediction(model, prepared, target, deletion.prediction.at)
    scores, failed = dict[str, Array](), []
    for name, found in rank_tokens(model, prepared, target, counts):
        if isinstance(found, AttnscopeError):
            failed.append(f"{name}: {found}")
        else:
            scores[name] = found
    means = "--weigh: the mean over all heads; --method: through all layers"
    return _compare(deletion, scores, (means, *failed))


def compare_heads(
    model: Model, prepared: ModelInput, weigh: Weigh, target: str | None, selection: Selection
) -> Faithful:
    """Which head ranks first the tokens that a prediction needs, by one way of weighing.

    Raises ``SelectionError`` where no head is meant.
    """
    deletion = open_deletion(model, prepared, target)
    counts = rows_of_prediction(model, prepared, target, deletion.prediction.at)
    found = weigh_heads(model, prepared, weigh, target, counts)
    scores = {
        Head(site.layer, number, site.kind).name: row
        for site, rows in found.items()
        for number, row in enumerate(rows)
        if number in (selection.heads(site, len(rows)) or ())
    }
    if not scores:
        raise SelectionError(f"no such heads: this model has layers 0-{max(site.layer for site in found)}")
    scores["all heads"] = np.mean([rows.mean(0) for rows in found.values()], 0)
    return _compare(deletion, scores, (f"heads weighed by {weigh}",))


def _compare(deletion: Deletion, scores: Mapping[str, Array], notes: tuple[str, ...]) -> Faithful:
    """The curves of every order, beside random ones and that of each token alone."""
    size = len(deletion.places)
    taken = np.unique(np.linspace(0, size, min(size, STEPS) + 1).round().astype(int))
    alone = deletion.shares(np.concatenate([np.ones((1, size), bool), ~np.eye(size, dtype=bool)]))
    scores = {ALONE: alone[0] - alone[1:]} | {
        name: each[list(deletion.places)] for name, each in scores.items()
    }
    orders = [np.argsort(-each, kind="stable") for each in scores.values()]
    orders += [np.random.default_rng(seed).permutation(size) for seed in range(ORDERS)]
    curves = measure_orders(deletion, np.array(orders), taken)
    ranked = []
    for number, (name, order) in enumerate(zip(scores, orders, strict=False)):
        first = tuple(_name(deletion, deletion.places[place]) for place in order[:FIRST])
        ranked.append(_rank(name, first, Curves(*(each[number : number + 1] for each in curves)), taken))
    random = _rank("random order", (), Curves(*(each[len(scores) :] for each in curves)), taken)
    alone_, *others = ranked
    others.sort(key=lambda each: each.deletion_area)
    said = (
        f"of a token that is taken away, {deletion.said}; {size:,} can be, {_staying(deletion)} stay",
        "1 is the probability with all tokens; deletion: its mean while the tokens that count most go first, "
        "lower is better; insertion: while they come back first, higher is better",
        f"random order: the mean of {ORDERS} orders, ± its standard error; {ALONE}: by how far the "
        "prediction falls without each token alone",
    )
    return Faithful(
        tuple(int(each) for each in taken),
        tuple(others),
        random,
        alone_,
        f"which tokens the prediction needs · {name_pass(deletion.model, deletion.prepared)}",
        deletion.prediction.said,
        (*said, *notes, *deletion.model.notes, *deletion.prepared.notes),
    )


def _staying(deletion: Deletion) -> str:
    """What is never taken away."""
    if reads_across(deletion.prepared):
        return "special ones and all of the decoder's, whose cross attention is asked,"
    return "special ones and where the prediction is made"


def _name(deletion: Deletion, place: int) -> str:
    """A token with its number; a patch has a row and a column for a name."""
    text = deletion.prepared.tokens[place].text
    return text if deletion.prepared.picture is not None else f"{text} {place}"


def measure_orders(deletion: Deletion, orders: Array, taken: Array) -> Curves:
    """The probability along every order; ``taken`` is how many are gone at each step.  [order, place]"""
    ranks = np.argsort(orders, -1)[:, None]  # [order, 1, place]
    gone = ranks < taken[:, None]  # [order, step, place]
    both = np.concatenate([~gone, gone]).reshape(-1, orders.shape[-1])
    unique, where = np.unique(both, axis=0, return_inverse=True)  # many orders begin and end alike
    shares = deletion.shares(unique)[where.reshape(-1)].reshape(2, len(orders), len(taken))
    return Curves(*shares)


def _rank(name: str, first: tuple[str, ...], curves: Curves, taken: Array) -> Ranked:
    """The means over orders, and the areas under them with their standard errors."""
    width = np.diff(taken) / taken[-1]
    areas = [((each[:, 1:] + each[:, :-1]) / 2) @ width for each in curves]  # [order] each
    count = len(curves.deletion)
    errors = [float(each.std(ddof=1) / count**0.5) if count > 1 else 0.0 for each in areas]
    deleted, inserted = (tuple(each.mean(0).tolist()) for each in curves)
    return Ranked(name, first, deleted, inserted, float(areas[0].mean()), float(areas[1].mean()), *errors)
