"""How much each token counts for a prediction, by every way of weighing and of following attention."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import get_args

import numpy as np

from attnscope.analysis.faithful.deletion import reads_across
from attnscope.analysis.flow.flow import Method, follow_flow
from attnscope.analysis.selection import Selection
from attnscope.attention import Attention, Site
from attnscope.axes.weights import Array
from attnscope.capture.observers.shared_rows import rows_at_a_time
from attnscope.capture.projections import Projections
from attnscope.errors import AttnscopeError, ModelError
from attnscope.figures import Weigh
from attnscope.models import Model, ModelInput
from attnscope.models.weighed import WeighedModel, gradients_of

BLOCK = 1 << 22
"""Weights that are read at a time."""

NOTHING = 1e-6
"""The share of the largest slope below which a prediction does not hang on a row."""


@dataclass(eq=False)
class ReadRows:
    """An observer that keeps what some rows look at, each as much as it counts: [head, key] of every call.

    Where two texts are read, of cross attention alone: ``keys`` is how many tokens the other text has.
    """

    counts: Array  # [query]
    name: str
    keys: int | None = None
    found: dict[Site, Array] = field(default_factory=dict)

    def observe(self, attention: Attention) -> None:
        """Read the rows that count."""
        size = len(self.counts)
        if self.keys is not None and attention.site.kind != "cross":
            return
        keys = size if self.keys is None else self.keys
        if attention.batch != 1 or (len(attention.queries), len(attention.keys)) != (size, keys):
            shape = f"{attention.batch} × {len(attention.queries)} × {len(attention.keys)}"
            raise ModelError(f"{attention.site.name} of {self.name} has no row a token ({shape})")
        where, step = np.flatnonzero(self.counts), rows_at_a_time(attention, BLOCK)
        total = np.zeros((attention.heads, keys))
        for start in range(int(where[0]), int(where[-1]) + 1, step):
            stop = min(start + step, int(where[-1]) + 1)
            rows = attention.rows(start, stop)[0].nan_to_num().double().cpu().numpy()  # [head, row, key]
            total += np.einsum("q,hqk->hk", self.counts[start:stop], rows)
        self.found[attention.site] = total


def rows_of_prediction(model: Model, prepared: ModelInput, target: str | None, at: int | None) -> Array:
    """How much each row of the last layer counts for a prediction; they sum to 1.  -> [query]

    That of the token ``at`` which it is made, or the rows on which its gradient hangs.
    """
    counts = np.zeros(len(prepared.axes["cross"][0] if reads_across(prepared) else prepared.tokens))
    if at is not None:
        counts[at] = 1
        return counts
    projections = Projections()
    slopes, _ = gradients_of(model, replace(prepared, replay=None), target, projections)
    last = slopes.get(projections.sites[-1]) if projections.sites else None
    if last is None or last.shape[2] != len(counts):
        raise ModelError(
            f"the rows that {model.name} makes its prediction of were not found: its last attention has no "
            "output projection for each token"
        )
    counts = last[0].double().norm(dim=(0, -1)).cpu().numpy()
    counts[counts < NOTHING * counts.max()] = 0
    shares: Array = counts / counts.sum()
    return shares


def weigh_heads(
    model: Model, prepared: ModelInput, weigh: Weigh, target: str | None, counts: Array
) -> Mapping[Site, Array]:
    """What each head's rows that count look at, by one way of weighing.  -> [head, key]"""
    shown = ReadRows(counts, model.name, len(prepared.tokens) if reads_across(prepared) else None)
    weighed = model if weigh == "raw" else WeighedModel(model, weigh, target)
    weighed.run(prepared, [shown])
    return shown.found


def rank_tokens(
    model: Model, prepared: ModelInput, target: str | None, counts: Array
) -> Iterator[tuple[str, Array | AttnscopeError]]:
    """By every way in turn, how much each token counts, or why that way does not go.  -> [key]

    Weighings are the mean over all heads of all layers, ways through the layers the last layer's map: of an
    encoder-decoder those of cross attention.
    """
    weighings: tuple[Weigh, ...] = get_args(Weigh)
    for weigh in weighings:
        try:
            found = weigh_heads(model, prepared, weigh, target, counts)
            yield f"--weigh {weigh}", np.mean([each.mean(0) for each in found.values()], 0)
        except AttnscopeError as error:
            yield f"--weigh {weigh}", error
    (first, *more) = np.flatnonzero(counts).tolist()
    methods: tuple[Method, ...] = get_args(Method)
    for method in methods:
        try:
            yield (
                f"--method {method}",
                _follow(model, prepared, method, target, counts, None if more else first),
            )
        except AttnscopeError as error:
            yield f"--method {method}", error


def _follow(
    model: Model, prepared: ModelInput, method: Method, target: str | None, counts: Array, row: int | None
) -> Array:
    """[key]"""
    token = None if row is None else str(row)
    result = follow_flow(model, prepared, method, Selection(), target=target, token=token)
    _, _, weights = result.map("cross" if "cross" in result.maps else None, None)
    rows = [place.start for place in weights.queries]  # of the largest flow, of one token alone
    made: Array = counts[rows] @ weights.values.astype(np.float64)
    return made
