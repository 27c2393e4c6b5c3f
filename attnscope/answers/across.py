"""What a comparison of texts or models found, on its way out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from attnscope.analysis.comparison.compare import Pair
from attnscope.analysis.comparison.models import ModelComparison, compare_models
from attnscope.analysis.comparison.texts import TextComparison, compare_texts
from attnscope.analysis.selection import Selection
from attnscope.answers.answer import Answer
from attnscope.answers.compared import (
    Compared,
    apart,
    names,
    numbers_of,
    pair_numbers,
    pair_table,
    round_values,
)
from attnscope.errors import ModelError
from attnscope.models import Model, ModelInput
from attnscope.models.kept.file import FileModel
from attnscope.views import Ranked, Ranking

LISTED = 8
"""Heads that are listed; --csv has all of them."""


def of_texts(result: TextComparison, command: str | None) -> Compared:
    """Two texts: how they are aligned, how much each head changes, and the difference map of one head."""
    ranking = Ranking(
        tuple(
            Ranked(
                result.heads[head].name,
                f"changes by {result.change[head]:.3f} nats",
                f"{command} --head {result.heads[head].name}"
                if command and result.difference is None
                else "",
            )
            for head in result.ranking[:LISTED]
        ),
        "Heads that change most",
    )
    steps = [[None if place is None else place.text for place in step] for step in result.aligned.steps]
    numbers: dict[str, Any] = {
        "kind": result.kind,
        "tokens": steps,
        "heads": [
            {"head": head.name, "change": float(change), "error": float(error)}
            for head, change, error in zip(result.heads, result.change, result.error, strict=True)
        ],
        "notes": list(result.notes),
    }
    table: list[list[object]] = [["head", "change", "error"]]
    table += [
        [result.heads[head].name, float(result.change[head]), float(result.error[head])]
        for head in result.ranking
    ]
    arrays = {"heads": numbers_of(result.heads), "change": result.change, "error": result.error}
    if result.difference is None:
        return Compared(
            Answer((result.aligned, result.view, ranking), {"change": result.view}, lambda: numbers),
            table,
            arrays,
        )
    weights = result.difference.weights
    values = np.where(weights.allowed, weights.values, np.nan)
    arrays |= {
        "difference": values,
        "queries": np.array([place.text for place in weights.queries], np.str_),
        "keys": np.array([place.text for place in weights.keys], np.str_),
    }
    numbers["difference"] = [[None if np.isnan(x) else round(float(x), 7) for x in row] for row in values]
    answer = Answer(
        (result.aligned, result.difference, ranking), {"difference": result.difference}, lambda: numbers
    )
    return Compared(answer, table, arrays)


def of_models(result: ModelComparison) -> Compared:
    """Two models: the drift of every head, or the best match of each."""
    drift = result.drift
    partner = {pair.one: pair for pair in result.matches}
    if drift is not None:
        title = "Heads that drifted most"
        listed = [
            Ranked(pair.one.name, f"{apart(pair)} from the same head{_now(partner[pair.one])}")
            for pair in result.ranking[:LISTED]
        ]
    else:
        title = "Best matches, each head in one of them at most"
        listed = [
            Ranked(f"{pair.one.name} {pair.other.name}", apart(pair))
            for pair in sorted(result.matches, key=lambda pair: pair.distance)[:LISTED]
        ]
    numbers = {
        "kind": result.kind,
        "heads": names(result.heads),
        "others": names(result.others),
        "units": result.units,
        "distances": round_values(result.distances),
        "error": round_values(result.error),
        "drift": None if drift is None else round_values(drift),
        "matches": [pair_numbers(pair) for pair in result.matches],
        "texts": result.texts,
        "stability": result.stability,
        "notes": list(result.notes),
    }
    arrays = {
        "heads": numbers_of(result.heads),
        "others": numbers_of(result.others),
        "distances": result.distances,
        "error": result.error,
        "matches": np.array(
            [[result.heads.index(pair.one), result.others.index(pair.other)] for pair in result.matches]
        ),
    }
    pairs = result.ranking if drift is not None else result.matches
    view = result.view
    answer = Answer((view, Ranking(tuple(listed), title)), {"models": view}, lambda: numbers)
    return Compared(answer, [*pair_table(pairs)], arrays)


def compare_passes(
    model: Model, prepared: ModelInput, rival: FileModel, selection: Selection, opening: str | None
) -> Compared:
    """A pass and one that was kept: two texts where the model is of one name, else two models.

    Raises ``ModelError`` for a model that is weighed: what was kept is not, and cannot be.
    """
    if model.weigh != "raw":
        raise ModelError(f"{rival.name} keeps no values to weigh by: compare it without --weigh")
    if rival.name == model.name and rival.prepared.tokens != prepared.tokens:
        other = replace(rival.prepared, notes=(*rival.notes, *rival.prepared.notes))
        return of_texts(compare_texts(model, prepared, other, selection), opening)
    return of_models(compare_models(model, rival, [(prepared, rival.prepared)], selection))


def _now(match: Pair) -> str:
    """What the head of the other model is that a head is most like, if it is another one."""
    if match.one == match.other:
        return ""
    return f"; its match in the other model is {match.other.name} ({match.distance:.3f})"
