"""What was found of questions, parts, flows and claims, as pictures and as numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from attnscope.questions.answer import Answer
from attnscope.questions.sentences import kind_title
from attnscope.views import HeadMap, Heatmap, Ranked, Ranking, head_map, heatmap

if TYPE_CHECKING:
    from attnscope.models.inputs import Picture
    from attnscope.questions.check import Change, Verdict
    from attnscope.questions.find import Answer as Found
    from attnscope.questions.find import Answers, Looking
    from attnscope.questions.flow import Flow
    from attnscope.questions.spans import SpanMaps
    from attnscope.storage.arrays import Kinds
    from attnscope.views import Scale


LISTED = 8
"""Heads that are listed of each question."""


def of_found(answers: Answers) -> Answer:
    """For each question a map of all heads, and those that look most."""
    views: list[HeadMap | Ranking] = []
    pictures: dict[str, HeadMap] = {}
    for number, answer in enumerate(answers.answers, 1):
        maps = maps_of(answer, answers.title, (*answer.notes, *answers.notes))
        ranked = (Ranked(each.head.name, _say(each), "") for each in answer.heads[:LISTED])
        views += [*maps.values(), Ranking(tuple(ranked), str(answer.question))]
        pictures |= {f"{number}-{kind}": view for kind, view in maps.items()}
    return Answer(tuple(views), pictures, partial(found_numbers, answers))


def found_numbers(answers: Answers) -> dict[str, Any]:
    """All heads of all questions as plain data."""
    return {
        "notes": list(answers.notes),
        "questions": [
            {
                "question": str(answer.question),
                "notes": list(answer.notes),
                "heads": [asdict(each.head) | looking_numbers(each) for each in answer.heads],
            }
            for answer in answers.answers
        ],
    }


def looking_numbers(looking: Looking) -> dict[str, Any]:
    """How much one head looks, as plain data."""
    return {name: getattr(looking, name) for name in ("weight", "baseline", "rank", "rows")}


def maps_of(answer: Found, subtitle: str = "", notes: tuple[str, ...] = ()) -> dict[str, HeadMap]:
    """Every head's share as a map, one for each kind of attention."""
    tables: dict[str, dict[int, dict[int, float]]] = {}
    for each in answer.heads:
        tables.setdefault(each.head.kind or "", {}).setdefault(each.head.layer, {})[each.head.head] = (
            each.weight
        )
    return {
        kind: head_map(
            {
                layer: [heads.get(head, float("nan")) for head in range(max(heads) + 1)]
                for layer, heads in layers.items()
            },
            "share",
            limits=(0.0, 1.0),
            title=f"{answer.question} · {kind_title(kind)}",
            subtitle=subtitle,
            notes=notes,
        )
        for kind, layers in tables.items()
    }


def of_spans(result: SpanMaps, *, one: bool) -> Answer:
    """The parts as a map for each kind of attention: the mean of the heads, or the ``one`` that is meant."""
    views: dict[str, Heatmap] = {}
    notes = (result.ran, *result.notes)
    for kind in dict.fromkeys(head.kind for head in result.heads):
        count = sum(head.kind == kind for head in result.heads)
        which = result.heads[0].name if one else f"mean of {count} heads"
        title = f"{which} · {kind_title(kind or '')} · {len(result.spans)} parts"
        views[kind or ""] = heatmap(result.mean(kind), title=title, subtitle=result.title, notes=notes)
    return Answer(tuple(views.values()), views, partial(span_numbers, result))


def span_numbers(result: SpanMaps) -> dict[str, Any]:
    """Every head, part by part, as plain data."""
    return {
        "notes": [result.ran, *result.notes],
        "parts": [asdict(span) for span in result.spans],
        "heads": [
            asdict(head) | {"weights": weights.tolist(), "baseline": baseline.tolist()}
            for head, weights, baseline in zip(result.heads, result.weights, result.baseline, strict=True)
        ],
    }


def of_flow(
    result: Flow,
    *,
    kind: str | None = None,
    layers: Sequence[int] | None = None,
    token: str | None = None,
    scale: Scale = "fixed",
    pictures: Sequence[Picture] = (),
) -> Answer:
    """The map of one layer, small maps of several, or what one token is made of and goes into."""
    from attnscope.questions.flow import focus_token, maps_of_layers

    view: Any
    layer = layers[0] if layers else None
    if layers is not None and len(layers) > 1:
        view = maps_of_layers(result, kind, layers, scale)
    elif token is not None:
        view = focus_token(result, kind, layer, token, pictures)
    else:
        shown, last, weights = result.map(kind, layer)
        title = result.titled(shown, last)
        view = heatmap(weights, title=title, subtitle=result.subtitle, scale=scale, notes=result.notes)
    return Answer(
        (view,), {result.method: view}, partial(flow_numbers, result), layers=partial(_flow_layers, result)
    )


def _flow_layers(result: Flow) -> tuple[Kinds, str, tuple[str, ...]]:
    """The maps of all layers for a file of data, each as a layer of one head."""
    kinds = {
        kind: [(layer, replace(weights, values=weights.values[None])) for layer, weights in layers]
        for kind, layers in result.maps.items()
    }
    return kinds, f"{result.method} · {result.title}", result.notes


def flow_numbers(result: Flow) -> dict[str, Any]:
    """The maps of all layers as plain data."""
    return {
        "method": result.method,
        "notes": list(result.notes),
        "layers": [
            {
                "kind": kind,
                "layer": layer,
                "queries": [place.text for place in weights.queries],
                "positions": [place.start for place in weights.queries],
                "keys": [place.text for place in weights.keys],
                "weights": weights.values.tolist(),
            }
            for kind, layers in result.maps.items()
            for layer, weights in layers
        ],
    }


def verdict_numbers(
    verdicts: Sequence[Verdict], differences: Sequence[Change] | None = None
) -> dict[str, Any]:
    """Verdicts and changed figures as plain data."""
    return {
        "holds": all(verdict.holds for verdict in verdicts) and not differences,
        "claims": [
            {"claim": verdict.claim, "holds": verdict.holds, "figures": verdict.evidence}
            for verdict in verdicts
        ],
        "changes": None if differences is None else [asdict(change) for change in differences],
    }


def _say(looking: Looking) -> str:
    return f"share {looking.weight:.2f}, baseline {looking.baseline:.2f}"
