"""One score of a head by dimension: query × key products, which sum to the score before the softmax.

Apart from ``logits.py``, whose imports a cached pass does without.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import starmap
from typing import Annotated

import torch
from torch import Tensor

from attnscope.attention import Attention, Head, Site
from attnscope.axes import Place, places
from attnscope.capture.record import FunctionObserver, tolerance
from attnscope.capture.rows.scores import ScoredRows, call_behind
from attnscope.errors import ModelError, SelectionError
from attnscope.models import Model, ModelInput
from attnscope.questions import sentences
from attnscope.questions.answer import Answer
from attnscope.questions.selection import Selection
from attnscope.questions.token import find_place
from attnscope.records import Address, Meaning, Notes, record
from attnscope.text import number_ranges
from attnscope.views import Term, Terms, head_map

ARROW = "->"


@record("a dimension", slots=True)
class Dimension:
    """What one dimension of a head adds to a score."""

    query: Annotated[float, Meaning("the query's entry")]
    key: Annotated[float, Meaning("the key's entry")]
    product: Annotated[float, Meaning("query × key × scale")]


@record("a score by dimension (--neurons)", "show")
class Neurons:
    """How the score of a query and a key comes about, and the weight after the softmax.

    Queries and keys are those that the kernel received: after projection, norm and rotation.
    """

    head: Address
    query: Annotated[str, Meaning("the token that attends, with its number")]
    key: Annotated[str, Meaning("the token that is attended to, with its number")]
    key_number: Annotated[int, Meaning("the number of that key in the row of scores")]
    scale: Annotated[float, Meaning("what products are multiplied by")]
    dimensions: Annotated[tuple[Dimension, ...], Meaning("every dimension of the head")]
    softcap: Annotated[float, Meaning("what a cap of the scores changes; 0 without one")]
    bias: Annotated[float, Meaning("what position biases and additive masks add")]
    score: Annotated[float, Meaning("products, cap and bias: what goes into the softmax")]
    weight: Annotated[float, Meaning("the attention weight: the softmax of the row at this key")]
    scores: Annotated[
        tuple[float | None, ...],
        Meaning("the score of every key of the row; null where masked", shape=list[float]),
    ]
    sink: Annotated[float | None, Meaning("the sink's score, which takes part in the softmax; null without")]
    title: Annotated[str, Meaning("the head, the model and the text")]
    notes: Notes


def _split(
    attention: Attention, address: Head, axes: Sequence[Sequence[Place]], at: Sequence[int], title: str
) -> Neurons:
    named = f"{address} ({attention.kernel})"
    call = call_behind(attention.read)
    if call is None:
        raise ModelError(f"the queries and keys of {named} are unknown, so its scores cannot be split")
    if attention.batch > 1:
        raise ModelError(f"{named} runs over {attention.batch} windows: no pair of tokens is one score")
    head, (query, key) = address.head, at
    read, weights = ScoredRows(call), attention.rows(query, query + 1, [head])[0, 0, 0]  # [key]
    recomputed = read.rows(query, query + 1, [head])[0, 0, 0]
    if not torch.allclose(recomputed, weights.to(recomputed.dtype), rtol=0, atol=tolerance(call.query.dtype)):
        raise ModelError(
            f"the weights of {named} are not made from query × key, so its scores cannot be split"
        )
    query_name, key_name = (
        f"{axis[place].label} {axis[place].start}" for axis, place in zip(axes, at, strict=True)
    )
    scores = read.scores(query, query + 1, [head])[0, 0, 0].tolist()  # [key]
    allowed = attention.allowed(query, query + 1).expand(1, attention.heads, 1, -1)[0, head, 0].tolist()
    if not allowed[key]:
        raise SelectionError(f"{query_name} cannot attend to {key_name}: the mask hides it")

    def entry(numbers: float | Tensor) -> float:
        whole = torch.as_tensor(numbers).expand(1, attention.heads, len(axes[0]), len(axes[1]))
        return float(whole[0, head, query, key])

    own = call.query[0, head, query].cpu().double()  # [size]
    other = call.key[0, head * call.key.shape[1] // call.query.shape[1], key].cpu().double()  # [size]
    scale = entry(call.scale)
    products = own * scale * other
    total = products.sum()
    capped = total if call.softcap is None else call.softcap * (total / call.softcap).tanh()
    bias = sum(map(entry, call.biases))
    sink = call.sinks if call.sinks is None or call.sinks.ndim > 1 else call.sinks[:, None, None]
    return Neurons(
        Head(address.layer, address.head, attention.site.kind),
        query_name,
        key_name,
        key,
        scale,
        tuple(starmap(Dimension, zip(own.tolist(), other.tolist(), products.tolist(), strict=True))),
        float(capped - total),
        bias,
        float(capped) + bias,
        float(weights[key]),
        tuple(score if is_open else None for score, is_open in zip(scores, allowed, strict=True)),
        None if sink is None else entry(sink),
        title,
        tuple(filter(None, map(_note_again, axes, at))),
    )


def _note_again(axis: Sequence[Place], at: int) -> str:
    """The note on other places that match a token, if any."""
    label, start = axis[at].label, axis[at].start
    again = [place.start for place in axis if place.label == label and place.start != start]
    return f"token {start} is shown; {label} is also at {number_ranges(again)}" if again else ""


def split_score(model: Model, prepared: ModelInput, selection: Selection, pair: str) -> Neurons:
    """Run the model once, and decompose a head's score for a ``pair``, ``"it -> cat"``, by dimension."""
    names = [name.strip() for name in pair.split(ARROW)]
    if len(names) != 2 or selection.head is None:
        raise SelectionError(
            f'{pair!r} is not a pair: write two tokens of the text, such as "it {ARROW} cat"'
        )
    address, title, results = selection.head, sentences.name_pass(model, prepared), dict[Site, Neurons]()

    def split(attention: Attention) -> None:
        if selection.heads(attention.site, attention.heads):
            axes = places(attention.queries), places(attention.keys)
            at = [find_place(axis, name) for axis, name in zip(axes, names, strict=True)]
            results[attention.site] = _split(attention, address, axes, at, title)

    record = model.run(prepared, [FunctionObserver(split)])
    sentences.require_selected(list(results), record, selection)
    lead = sentences.kinds_of(results, prepared.first_kind)[0]
    site, result = next((site, each) for site, each in results.items() if site.kind == lead)
    differences = sentences.note_differences([each for each in record.sites if each.site == site])
    notes = (*model.notes, *prepared.notes, *record.notes, *differences, *result.notes)
    return replace(result, notes=notes)


DIMENSIONS = 8  # dimensions that are listed; the map has all of them


def neurons_answer(result: Neurons) -> Answer:
    """The largest products, the other terms of the score, and a map of all products."""
    products = [each.product for each in result.dimensions]
    order = sorted(range(len(products)), key=lambda at: -abs(products[at]))
    groups = [
        Term("above zero", sum(each for each in products if each > 0)),
        Term("below zero", sum(each for each in products if each < 0)),
    ]
    others = Term("softcap", result.softcap), Term("position bias", result.bias)
    groups += [each for each in others if abs(each.value) >= 5e-4]
    largest = [
        Term(f"{at}: {result.dimensions[at].query:+.2f} × {result.dimensions[at].key:+.2f}", products[at])
        for at in order[:DIMENSIONS]
    ]
    rest = order[DIMENSIONS:]
    wide = 8 if len(products) <= 128 else 16
    rows = {at: products[at : at + wide] for at in range(0, len(products), wide)}
    map_ = head_map(
        rows, "added to the score", signed=True, title="query × key × scale, by dimension", marks=("", "+")
    )
    unmasked = [score for score in result.scores if score is not None]
    view = Terms(
        bar="added to the score before the softmax",
        groups=tuple(groups),
        total=Term("= the score", result.score),
        largest=tuple(largest),
        rest=Term(f"{len(rest)} others", sum(products[at] for at in rest)) if rest else None,
        heads=map_,
        title=f"{result.head.name} · {result.query} → {result.key} · {result.title}",
        subtitle=f"score {result.score:.2f}; softmax weight {result.weight:.2g} ({len(unmasked)} keys, "
        f"scores {min(unmasked):.2f} to {max(unmasked):.2f})",
        notes=(f"products are × {result.scale:.4g}, the head's scale", *result.notes),
    )
    views = replace(view, notes=()), replace(map_, notes=view.notes)
    return Answer(views, {"neurons": view}, lambda: result)
