"""Which order of tokens a prediction depends on: tokens are removed in that order, and the model is rerun."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from attnscope.attention import Attention, Head, Site, tensor_of
from attnscope.axes import Array
from attnscope.capture.observers import rows_at_a_time
from attnscope.capture.projections import Projections
from attnscope.capture.record import FunctionObserver
from attnscope.errors import AttnscopeError, InputError, ModelError, SelectionError
from attnscope.models import Model, ModelInput
from attnscope.models.huggingface.load import Classifier
from attnscope.models.model import accepts
from attnscope.models.targets import BATCH_TOKENS, Prediction, score_prediction
from attnscope.models.weighting import gradients_of, with_weighting
from attnscope.progress import report
from attnscope.questions.answer import Answer
from attnscope.questions.flow import Method, follow_flow
from attnscope.questions.selection import Selection
from attnscope.questions.sentences import name_pass
from attnscope.scores import Weighting
from attnscope.text import visible
from attnscope.views import Column, Curve, Curves, Faithful, Table, TokenOrder


@dataclass(frozen=True, eq=False)
class Deletion:
    """A prediction, the numbers of the tokens that can be removed, and what replaces a removed one."""

    model: Model
    prepared: ModelInput
    prediction: Prediction
    places: tuple[int, ...]
    said: str
    _without: Callable[[Tensor], ModelInput]  # of [copy, token], bool: which are kept

    def shares(self, remaining: Array) -> Array:
        """The probability of the prediction if only some places are kept.  [copy, place] -> [copy]"""
        wanted = torch.ones(len(remaining), len(self.prepared.tokens), dtype=torch.bool)
        wanted[:, list(self.places)] = tensor_of(remaining)
        model, size, parts = self.model, max(1, BATCH_TOKENS // len(self.prepared.tokens)), []
        with torch.inference_mode(), model.threads(self.prepared):
            for start in range(0, len(wanted), size):
                part = wanted[start : start + size].to(model.device)  # [copy, token]
                scores = self.prediction.scores(model, self._without(part), len(part))
                parts.append(scores.float().softmax(-1)[:, self.prediction.chosen].double().cpu().numpy())
                report("text", min(start + size, len(wanted)), len(wanted))
        return np.concatenate(parts)


def open_deletion(model: Model, prepared: ModelInput, target: str | None) -> Deletion:
    """The input tokens that can be removed: all but special ones and the one that predicts."""
    if len(prepared.axes) > 2:
        raise ModelError(f"{model.name} reads several texts: --faithful removes tokens from one")
    with torch.no_grad():
        prediction = score_prediction(model, prepared, target)
    places = [n for n, each in enumerate(prepared.tokens) if not each.special and n != prediction.at]
    if len(places) < 2:
        raise InputError("fewer than two tokens can be removed: give a longer text")
    return Deletion(model, prepared, prediction, tuple(places), *_choose(model, prepared, places))


def _choose(
    model: Model, prepared: ModelInput, places: list[int]
) -> tuple[str, Callable[[Tensor], ModelInput]]:
    """What replaces a token, in words, and a function that makes such copies."""
    picture, inputs = prepared.picture, prepared.inputs

    def copies(kept: Tensor, **changed: Tensor) -> ModelInput:  # [copy, token]
        plain = replace(prepared, replay=None, scores=None, array_replay=None)
        return plain.texts(torch.zeros(len(kept), dtype=torch.long, device=kept.device), **changed)

    if picture is not None and picture.grid is not None and len(places) == math.prod(picture.grid):
        pixels, size = inputs["pixel_values"], picture.grid

        def grey(kept: Tensor) -> ModelInput:  # the mean of what the model was trained on
            grid = kept[:, places].view(len(kept), 1, *size).float()  # [copy, 1, row, column]
            shown = torch.nn.functional.interpolate(grid, size=pixels.shape[-2:], mode="nearest")
            return copies(kept, pixel_values=pixels * shown.to(pixels.dtype))

        return "its patch of the image is grey", grey
    where, mask = "input_ids" if isinstance(model, Classifier) else model.objective.input, None
    if picture is None and isinstance(model, Classifier):
        mask = getattr(model.reader.tokenizer, "mask_token_id", None)
    elif picture is None:
        mask = model.objective.mask
    if mask is not None:

        def masked(kept: Tensor) -> ModelInput:
            copied = copies(kept)
            ids = copied.inputs[where] if isinstance(where, str) else copied.arguments[where]
            ids[~kept] = mask
            return copied

        return "a mask token takes its place", masked
    if isinstance(where, str) and accepts(model.module, "attention_mask"):
        kind = inputs["attention_mask"].dtype if "attention_mask" in inputs else torch.bool
        return "masked for all others", lambda kept: copies(kept, attention_mask=kept.to(kind))
    raise ModelError(f"no token can be removed: {model.name} has neither a mask token nor an attention mask")


BLOCK = 1 << 22  # weights that are read at a time
NOTHING = 1e-6  # a prediction does not depend on a row whose gradient is below this share of the largest


def rows_of_prediction(model: Model, prepared: ModelInput, target: str | None, at: int | None) -> Array:
    """How much each row of the last layer counts: that at which it is made, or those with a gradient."""
    counts = np.zeros(len(prepared.tokens))
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
    return np.asarray(counts / counts.sum())


def weighted_heads(
    model: Model, prepared: ModelInput, weighting: Weighting, target: str | None, counts: Array
) -> Mapping[Site, Array]:
    """The weighted sum of each head's rows that count, under one weighting.  -> [head, key]"""
    where, size, sums = np.flatnonzero(counts), len(counts), dict[Site, Array]()

    def read(attention: Attention) -> None:
        if attention.batch != 1 or (len(attention.queries), len(attention.keys)) != (size, size):
            shape = f"{attention.batch} × {len(attention.queries)} × {len(attention.keys)}"
            raise ModelError(f"{attention.site.name} of {model.name} has no row a token ({shape})")
        step, total = rows_at_a_time(attention, BLOCK), np.zeros((attention.heads, size))
        for start in range(int(where[0]), int(where[-1]) + 1, step):
            stop = min(start + step, int(where[-1]) + 1)
            rows = attention.rows(start, stop)[0].nan_to_num().double().cpu().numpy()  # [head, row, key]
            total += np.einsum("q,hqk->hk", counts[start:stop], rows)
        sums[attention.site] = total

    weighted = model if weighting == "raw" else with_weighting(model, weighting, target)
    weighted.run(prepared, [FunctionObserver(read)])
    return sums


STEPS = 24  # most steps in which tokens are removed
ORDERS = 10  # random orders, each from its own seed
FIRST = 3  # tokens named for each order
ALONE = "one at a time"  # the order by how much the prediction falls when a token is removed alone


def compare_methods(model: Model, prepared: ModelInput, target: str | None) -> Faithful:
    """Which method of weighting or following attention ranks first the tokens that a prediction needs."""
    deletion = open_deletion(model, prepared, target)
    counts = rows_of_prediction(model, prepared, target, deletion.prediction.at)
    (row, *more) = np.flatnonzero(counts).tolist()
    options: dict[str, Any] = {"target": target, "token": None if more else str(row)}

    def weighted(weighting: Weighting) -> Array:
        rows = weighted_heads(model, prepared, weighting, target, counts)
        return np.asarray(np.mean([each.mean(0) for each in rows.values()], 0))

    def followed(method: Method) -> Array:
        _, _, weights = follow_flow(model, prepared, method, Selection(), **options).map(None, None)
        rows = [place.start for place in weights.queries]  # of the maximum flow, for one token
        return np.asarray(counts[rows] @ weights.values.astype(np.float64))

    kinds: tuple[tuple[str, Any, Callable[[Any], Array]], ...] = (
        ("--weighting", Weighting, weighted),
        ("--method", Method, followed),
    )
    scores, failed = dict[str, Array](), []
    for option, names, rank in kinds:
        for name in get_args(names):
            try:
                scores[f"{option} {name}"] = rank(name)
            except AttnscopeError as error:
                failed.append(f"{option} {name}: {error}")
    means = "--weighting: the mean over all heads; --method: through all layers"
    return _compare(deletion, scores, (means, *failed))


def compare_weighted_heads(
    model: Model, prepared: ModelInput, weighting: Weighting, target: str | None, selection: Selection
) -> Faithful:
    """Which head ranks first the tokens that a prediction needs, under one weighting."""
    deletion = open_deletion(model, prepared, target)
    counts = rows_of_prediction(model, prepared, target, deletion.prediction.at)
    sums = weighted_heads(model, prepared, weighting, target, counts)
    scores = {
        Head(site.layer, number, site.kind).name: rows[number]
        for site, rows in sums.items()
        for number in selection.heads(site, len(rows))
    }
    if not scores:
        raise SelectionError(f"no such heads: this model has layers 0-{max(site.layer for site in sums)}")
    scores["all heads"] = np.mean([rows.mean(0) for rows in sums.values()], 0)
    return _compare(deletion, scores, (f"heads weighted by {weighting}",))


def _compare(deletion: Deletion, scores: Mapping[str, Array], notes: tuple[str, ...]) -> Faithful:
    """The curves of every order, beside random ones and the one-token-alone order."""
    size = len(deletion.places)
    removed = np.unique(np.linspace(0, size, min(size, STEPS) + 1).round().astype(int))
    alone = deletion.shares(np.concatenate([np.ones((1, size), bool), ~np.eye(size, dtype=bool)]))
    scores = {ALONE: alone[0] - alone[1:]} | {
        name: each[list(deletion.places)] for name, each in scores.items()
    }
    orders = [np.argsort(-each, kind="stable") for each in scores.values()]
    orders += [np.random.default_rng(seed).permutation(size) for seed in range(ORDERS)]
    curves = measure_orders(deletion, np.array(orders), removed)
    texts = [(deletion.prepared.tokens[place].text, place) for place in deletion.places]
    pictured = deletion.prepared.picture is not None  # a patch is named by row and column
    names = [text if pictured else f"{text} {place}" for text, place in texts]

    def rank(name: str, first: Iterable[int], some: slice) -> TokenOrder:
        """The means over some orders, and the areas under them with standard errors."""
        parts, width = curves[:, some], np.diff(removed) / removed[-1]
        areas = [((each[:, 1:] + each[:, :-1]) / 2) @ width for each in parts]  # [order] each
        count = len(parts[0])
        errors = [float(each.std(ddof=1) / count**0.5) if count > 1 else 0.0 for each in areas]
        deleted, inserted = (tuple(each.mean(0).tolist()) for each in parts)
        means = [float(each.mean()) for each in areas]
        return TokenOrder(name, tuple(names[place] for place in first), deleted, inserted, *means, *errors)

    alone_, *others = (
        rank(name, orders[number][:FIRST], slice(number, number + 1)) for number, name in enumerate(scores)
    )
    random = rank("random order", (), slice(len(scores), None))
    others.sort(key=lambda each: each.deletion_area)
    explanation = (
        f"removed tokens: {deletion.said}; special tokens and the predicting token are never removed "
        f"({size:,} candidates)",
        "1 is the probability with all tokens; deletion: its mean while tokens are removed, most important "
        "first (lower is better); insertion: while they are restored in that order (higher is better)",
        f"random order: the mean of {ORDERS} orders, ± its standard error; {ALONE}: by how far the "
        "prediction falls without that token alone",
    )
    return Faithful(
        tuple(removed.tolist()),
        tuple(others),
        random,
        alone_,
        title=f"which tokens the prediction depends on · {name_pass(deletion.model, deletion.prepared)}",
        subtitle=deletion.prediction.description,
        notes=(*explanation, *notes, *deletion.model.notes, *deletion.prepared.notes),
    )


def measure_orders(deletion: Deletion, orders: Array, removed: Array) -> Array:
    """The probability along every order, [order, place]; ``removed`` is how many are removed at each step.

    -> [deletion | insertion, order, step]
    """
    ranks = np.argsort(orders, -1)[:, None]  # [order, 1, place]
    gone = ranks < removed[:, None]  # [order, step, place]
    both = np.concatenate([~gone, gone]).reshape(-1, orders.shape[-1])
    unique, where = np.unique(both, axis=0, return_inverse=True)  # many orders begin and end alike
    return deletion.shares(unique)[where.reshape(-1)].reshape(2, len(orders), len(removed))


def faithfulness_answer(result: Faithful, top: int) -> Answer:
    """The ``top`` orders, with random ones at their rank; pictures of their curves."""
    shown = replace(result, ranked=result.ranked[:top])
    random, alone = result.random, result.alone
    orders = [alone, *sorted([*shown.ranked, random], key=lambda each: each.deletion_area)]
    rows = []
    for each in orders:
        areas = [f"{area / result.whole:.2f}" for area in (each.deletion_area, each.insertion_area)]
        if each is random:
            errors = (each.deletion_error, each.insertion_error)
            areas = [f"{area} ±{error / result.whole:.2f}" for area, error in zip(areas, errors, strict=True)]
        rows.append((each.name, *areas, " · ".join(map(visible, each.first))))
    more = len(result.ranked) - top
    notes = [f"and {more:,} more with a higher deletion: --top {len(result.ranked)}"] if more > 0 else []
    table = Table(
        tuple(Column(name, long="cut") for name in ("order by", "deletion", "insertion", "first")),
        tuple(rows),
        notes=(*notes, *result.notes),
        edge=True,
        dim=frozenset(number for number, each in enumerate(orders) if each in (random, alone)),
    )
    lead = Table(title=result.title, subtitle=result.subtitle)
    percent = [round(100 * each / result.taken[-1]) for each in result.taken]
    drawn = [alone, *shown.ranked, random]
    pictures = {
        way: Curves(
            "probability of the prediction",
            "share",
            (*percent, percent[-1] + 1),
            tuple(Curve(each.name, getattr(each, way), (None,) * len(percent)) for each in drawn),
            title=f"{way} · {result.title}",
            subtitle=result.subtitle,
            notes=result.notes,
            along=f"% of the tokens {what}, the most important first",
        )
        for way, what in (("deletion", "removed"), ("insertion", "restored"))
    }
    return Answer((lead, table), pictures, lambda: result)
