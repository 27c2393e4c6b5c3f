"""What a head or a token attends to beyond what any text attends to there: sinks and corners fall away.

Each weight over that of the same cell under a neutral text, or over its mean under several. On a picture, as
Zhang et al. 2025 ("MLLMs Know Where to Look"): each row over the last row of the neutral text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from attnscope.axes import Weights
from attnscope.errors import InputError
from attnscope.models import Model, ModelInput
from attnscope.questions.head import OneHead, one_head
from attnscope.questions.layers import AllHeads
from attnscope.questions.selection import Selection
from attnscope.questions.sentences import pluralize, quote_text
from attnscope.questions.token import SeenToken, boxes_of, overlay_pictures, see_token
from attnscope.views import TokenView, heatmap, rank_places

LEAST = 0.001  # smaller weights count as this one: quotients of nearly nothing would say nothing
BAR = "log₂ of weight over neutral weight"
TOP = 10  # parts of a picture that are listed


def describe_neutral(neutral: Sequence[ModelInput], scale: str = "+1 is twice the weight, 0 the same") -> str:
    """What the weights are relative to, and how to read their quotients."""
    texts = f"the mean of {pluralize(len(neutral), 'text')}"
    texts = texts if len(neutral) > 1 else quote_text(neutral[0]) or "another text"
    return f"relative to {texts}: {scale}; weights below {LEAST:g} count as {LEAST:g}"


def relative_weights(own: Weights, neutral: Sequence[Weights]) -> Weights:
    """log₂ of each weight over its mean in the others, 0 where all are small.  [..., query, key] -> the same

    Texts of other lengths have the parts of a picture in common: then those are the keys, and the last row
    of the others stands for each. Raises ``InputError`` for texts with nothing in common.
    """
    shape = own.values.shape[-2:]
    if all(each.values.shape[-2:] == shape for each in neutral):
        keys, values = own.keys, own.values
        others, allowed = [each.values for each in neutral], own.allowed
    else:
        at = [number for number, key in enumerate(own.keys) if key.pictured]
        keys, values, allowed = (
            tuple(own.keys[number] for number in at),
            own.values[..., at],
            own.allowed[..., at],
        )
        others = []
        for each in neutral:
            theirs = [number for number, key in enumerate(each.keys) if key.pictured]
            if not at or [each.keys[number].text for number in theirs] != [key.text for key in keys]:
                sizes = f"{shape[1]:,} and {each.values.shape[-1]:,}"
                raise InputError(f"--relative divides cell by cell, and the texts have {sizes} tokens")
            others.append(each.values[..., -1:, theirs])
    mean = np.mean(others, 0, dtype=np.float64)
    quotient = np.maximum(values.astype(np.float64), LEAST) / np.maximum(mean, LEAST)
    return Weights(np.log2(quotient).astype(np.float32), allowed, own.queries, keys)


def relative_head(
    model: Model, prepared: ModelInput, neutral: Sequence[ModelInput], selection: Selection
) -> OneHead:
    """One head on a text, relative to neutral ones; its scores are those of the plain weights."""
    shown = one_head(model, prepared, selection)
    alike = replace(selection, kind=shown.site.site.kind)
    others = [one_head(model, each, alike).heatmap.weights for each in neutral]
    view = heatmap(
        relative_weights(shown.heatmap.weights, others),
        title=shown.heatmap.title,
        subtitle=describe_neutral(neutral),
        scale=selection.scale,
        signed=True,
        notes=shown.heatmap.notes,
        bar=BAR,
        per_cent=False,
    )
    return replace(shown, heatmap=view)


def relative_heads(own: AllHeads, others: Sequence[AllHeads], neutral: Sequence[ModelInput]) -> AllHeads:
    """All heads, for a page; their scores are those of the plain weights."""
    kinds = {
        kind: [
            (layer, relative_weights(weights, [each.weights[kind, layer] for each in others]))
            for layer, weights in layers
        ]
        for kind, layers in own.layers.kinds.items()
    }
    plain = own.layers
    notes = ("scores are those of the plain weights", *plain.notes)
    record = replace(plain.record, sites=[])  # no proof of plain weights stands beside quotients
    said = describe_neutral(neutral)
    return replace(
        own, layers=replace(plain, kinds=kinds, record=record, subtitle=said, notes=notes), bar=BAR
    )


def relative_token(
    model: Model, prepared: ModelInput, neutral: Sequence[ModelInput], selection: Selection
) -> TokenView:
    """What a token attends to, over what the last token of neutral texts attends to."""
    seen = see_token(model, prepared, selection)
    alike = replace(selection, kind=seen.sites[0].site.kind)
    last = (replace(alike, token=str(len(each.tokens) - 1)) for each in neutral)
    others = [_row(see_token(model, each, chosen)) for each, chosen in zip(neutral, last, strict=True)]
    whole = relative_weights(_row(seen), others)
    quotient = 2 ** whole.values[0]  # [key]
    overlays, left_out = overlay_pictures(prepared.pictures, seen.place, (quotient, whole.keys), None)
    return TokenView(
        label=seen.place.label,
        position=seen.place.start,
        looks_at=rank_places(quotient, whole.allowed[0], whole.keys, TOP, boxes_of(prepared.pictures)),
        looked_at_by=None,
        title=f"{seen.place.label} · {seen.title}",
        subtitle=describe_neutral(neutral, "1 is the same weight"),
        notes=(*seen.notes, *left_out),
        overlays=overlays,
        bar="weight over neutral weight",
    )


def _row(seen: SeenToken) -> Weights:
    """A token's row, averaged over heads.  [1, key]"""
    rows, opened = (
        np.concatenate([part[:, 0, : len(seen.keys)] for part in parts])  # [head, key]
        for parts in ([each.mean for each in seen.looks_at], [each.opened for each in seen.looks_at])
    )
    return Weights(rows.mean(0)[None], np.asarray(opened.any(0))[None], (seen.place,), tuple(seen.keys))
