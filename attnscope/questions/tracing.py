"""Where in a text a prediction is decided: residual stream states of one text put into the pass of the other.

Causal tracing (Meng et al. 2022): after each layer, the state of one token is replaced by that of the
other text.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated

import torch
from torch import Tensor

from attnscope.attention import Axis, Kind
from attnscope.errors import ModelError
from attnscope.models.model import Model
from attnscope.progress import tell
from attnscope.questions.answer import Answer, csv_rows
from attnscope.questions.cause import LISTED, Columns, ScoreOutcome, subtract_scores, tabulate_effects
from attnscope.questions.intervention import (
    NEAR,
    Effect,
    KeptLayers,
    RanLayer,
    Scored,
    attending_layers,
    run_keeping_layers,
)
from attnscope.questions.patching import TextPair
from attnscope.questions.sentences import name_pass, quote_text
from attnscope.records import Meaning, record
from attnscope.views.heads import head_map, number

COLUMNS = "kind", "layer", "position", "token", "effect", "score", "divergence"  # of a state, in a CSV file


@record("a layer's residual stream at a token, patched alone")
class PatchedToken(Effect):
    """A prediction after one token's state after one layer was replaced."""

    kind: Annotated[Kind, Meaning("the side of the model")]
    layer: Annotated[int, Meaning("the layer behind which it is patched")]
    position: Annotated[int, Meaning("the token's number")]
    token: Annotated[str, Meaning("the token; with the other text's behind ← where they differ")]


@record("the residual stream patched token by token (--by token)", "patch")
class TokenTrace(ScoreOutcome):
    """How much of the difference between two texts each token's state holds after each layer."""

    changed: Annotated[str, Meaning("what was changed")]
    tokens: Annotated[tuple[PatchedToken, ...], Meaning("every token behind every layer, in their order")]


def trace_tokens(model: Model, pair: TextPair, *, noise: bool = False) -> TokenTrace:
    """Put the state of each token after each layer into the pass of the other text, one at a time.

    States of ``pair.clean`` go into the pass of ``pair.corrupt``, or the other way with ``noise``. Raises
    ``InputError`` for texts of different lengths or with the same score, ``ModelError`` for layers that
    do not return one state per token.
    """
    with pair.scoring(model, noise) as (base, donor):
        there, theirs, _ = run_keeping_layers(model, donor.prepared, donor.logits)
        before, mine, seen = run_keeping_layers(model, base.prepared, base.logits)
        whole = subtract_scores(float(base.score(there)), float(base.score(before)))
        found, layers = [], attending_layers(model, mine, seen)
        alone = len({kind for _, kind, _ in layers}) == 1
        for done, (at, kind, layer) in enumerate(layers):
            tell("layer", done + 1, len(layers))
            queries, others = (each.prepared.axes[kind][0] for each in (base, donor))
            after = _patch_layer(
                base, mine, theirs.ran[at], at, len(queries), before, there if alone else None
            )
            for position, logits in enumerate(after):
                effect = base.effect(before, logits)
                shared = replace(effect, effect=effect.effect / whole)
                token = _label(queries, others, position)
                found.append(
                    PatchedToken(**vars(shared), kind=kind, layer=layer, position=position, token=token)
                )
    return TokenTrace(
        changed=f"patch states of {'the other text into this' if noise else 'this into the other'}",
        prediction=base.prediction.description,
        unit=base.unit,
        score=float(base.score(before)),
        reference=float(base.score(there)),
        tokens=tuple(found),
        title=f"{name_pass(model, base.prepared)} ← {quote_text(donor.prepared)}",
        notes=(*model.notes, *pair.clean.notes, *seen.notes),
    )


def _patch_layer(
    scored: Scored,
    kept: KeptLayers,
    other: RanLayer,
    at: int,
    length: int,
    before: Tensor,
    there: Tensor | None,
) -> Iterator[Tensor]:
    """The prediction with each token's state after a layer taken from the other pass.

    With all of them it is the other pass's, ``there``, if the model has a single side.
    """
    name, ran, states, theirs = scored.model.name, kept.ran[at], kept.ran[at].states, other.states
    if states is None or theirs is None or {s[..., 0].numel() for s in (states, theirs)} != {length}:
        raise ModelError(f"the layers of {name} do not each give one state a token")

    def run(changed: Tensor) -> Tensor:
        with kept.giving([*kept.ran[:at], ran.with_states(changed)]):
            return scored.logits()

    all_, expected = (states, before) if there is None else (theirs, there)
    if not torch.allclose(run(all_), expected, atol=NEAR, rtol=0):
        raise ModelError(f"what a layer of {name} returns is not all that those behind it read: no stream")
    mine, theirs = states.reshape(length, -1), theirs.reshape(length, -1)
    for token in range(length):
        if torch.equal(mine[token], theirs[token]):
            yield before
            continue
        changed = mine.clone()
        changed[token] = theirs[token]
        yield run(changed.view_as(states))


def _label(mine: Axis, others: Axis, position: int) -> str:
    here, there = mine[position], others[position]
    if isinstance(here, int) or isinstance(there, int):
        return str(position)
    return here.text if here.text == there.text else f"{here.text}←{there.text}"


def of_trace(result: TokenTrace) -> Answer:
    """The states that restore most, and a map of tokens × layers for each side of the model."""

    def name(each: PatchedToken) -> str:
        return f"{each.token.strip()} {each.position}"

    kinds: dict[str, dict[int, list[PatchedToken]]] = {}
    for each in result.tokens:
        kinds.setdefault(each.kind, {}).setdefault(each.position, []).append(each)
    top = max((abs(each.effect) for each in result.tokens), default=0.0) or 1.0
    maps = {
        kind: head_map(
            {position: [each.effect for each in layers] for position, layers in tokens.items()},
            "recovered",
            limits=(-top, top),  # all on one scale
            signed=True,
            title=f"recovered, the {kind}'s residual stream behind each layer",
            marks=("", "L"),
            labels=tuple(name(first) for first, *_ in tokens.values()),
        )
        for kind, tokens in kinds.items()
    }
    columns: Columns = {
        "layer": lambda each: str(each.layer),
        **({"kind": lambda each: each.kind} if len(maps) > 1 else {}),
        "token": name,
        "recovered": lambda each: f"{each.effect:+.3f}",
        "score": lambda each: f"{each.score:.3f}",
        "KL": lambda each: number(each.divergence),
    }
    most = sorted(result.tokens, key=lambda each: -abs(each.effect))[:LISTED]
    table = tabulate_effects(result, result.changed, columns, most)
    return Answer((table, *maps.values()), maps, lambda: result, lambda: csv_rows(result.tokens, COLUMNS))
