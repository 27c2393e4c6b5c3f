"""What the parts of a model write to a score, as views."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from attnscope.answers.answer import Answer
from attnscope.render.terminal import View
from attnscope.views import HeadMap, head_map
from attnscope.views.charts.terms import Moved, Term, Terms

if TYPE_CHECKING:
    from attnscope.analysis.writes import Word, Writes
    from attnscope.attention import Head

MOST = 10
"""Parts that are listed; the numbers have all of them."""


def of_writes(result: Writes, head: Head | None = None) -> Answer:
    """The groups of parts, the largest parts, the words that heads move, and a map of all heads a kind."""
    effects, several = result.effects, len({each.kind for each in result.effects.heads}) > 1

    def name(each: Head) -> str:
        return str(each) if several else each.name

    parts = {name(each): effect for each, effect in effects.heads.items()}
    parts |= {f"feed-forward {layer}": effect for layer, effect in effects.feed_forward.items()}
    parts |= {f"{module} {layer}": effect for (layer, module), effect in effects.mixers.items()}
    parts |= {"embeddings": effects.embeddings, "biases": effects.biases}
    marked = next((name(each) for each in result.words), None) if head is not None else None
    told = {name(each) for each in result.words}  # heads whose words stand below
    order = sorted(parts, key=lambda part: (part not in told, -abs(parts[part])))
    listed = sorted(order[:MOST], key=lambda part: -abs(parts[part]))
    groups = {"heads": list(effects.heads.values())} if effects.heads else {}
    groups |= {"feed-forward": list(effects.feed_forward.values())} if effects.feed_forward else {}
    groups |= {"other mixers": list(effects.mixers.values())} if effects.mixers else {}
    groups |= {"embeddings": [effects.embeddings], "biases": [effects.biases]}
    rest = order[MOST:]
    maps = _maps(result, several)
    view = Terms(
        groups=tuple(Term(group, sum(values)) for group, values in groups.items()),
        total=Term("= the score", result.score),
        largest=tuple(Term(part, parts[part]) for part in listed),
        rest=Term(f"{len(rest):,} others", sum(parts[part] for part in rest)) if rest else None,
        moved=tuple(
            Moved(name(each), _terms(favours.raised), _terms(favours.lowered))
            for each, favours in result.words.items()
        ),
        marked=marked,
        heads=next(iter(maps.values()), None),
        title=f"what writes to the score · {result.title}",
        subtitle=result.said,
        notes=result.notes,
    )
    views: list[View] = [replace(view, notes=() if maps else view.notes), *maps.values()]
    if maps:
        views[-1] = replace(list(maps.values())[-1], notes=result.notes)
    return Answer(tuple(views), {"writes": view}, dict)


def _terms(words: tuple[Word, ...]) -> tuple[Term, ...]:
    return tuple(Term(word.text, word.moved) for word in words)


def _maps(result: Writes, several: bool) -> dict[str, HeadMap]:
    """The effect of every head, by kind; one colour scale for all."""
    kinds: dict[str, dict[int, dict[int, float]]] = {}
    for head, effect in result.effects.heads.items():
        kinds.setdefault(head.kind or "", {}).setdefault(head.layer, {})[head.head] = effect
    top = max(map(abs, result.effects.heads.values()), default=0.0) or 1.0
    return {
        kind: head_map(
            {layer: [heads[head] for head in sorted(heads)] for layer, heads in layers.items()},
            "written to the score",
            unit="logits",
            limits=(-top, top),
            signed=True,
            title=f"every {kind} head" if several else "every head",
        )
        for kind, layers in kinds.items()
    }
