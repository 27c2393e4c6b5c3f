"""What one token looks at in a picture, beside what a neutral text looks at in it.

A_rel[x] = A[token, x] / A'[last, x]: the attention from a token of a question to a part x of the picture,
over that from the last token of a neutral text about the same picture, each the mean over the heads that are
meant. What any text looks at, such as a corner that gathers attention, falls away. After Zhang, Khayatkhan,
Chhikara and Ilievski (2025), "MLLMs Know Where to Look", where the token is the last of the question.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attnscope.analysis.places.overlays import boxes_of, lay_over
from attnscope.analysis.selection import Selection
from attnscope.analysis.token import TokenRow, token_row
from attnscope.axes import visible
from attnscope.errors import InputError
from attnscope.models import Model, ModelInput
from attnscope.views import Focus, rank_places

NEUTRAL = "Write a general description of the image."
"""The neutral text of the paper."""

TOP = 10
"""Parts of the picture that are listed."""

VERBS = "looks at, relative to a neutral text", ""


def relative_token(
    model: Model, prepared: ModelInput, neutral: ModelInput, selection: Selection, text: str = NEUTRAL
) -> Focus:
    """Run the model on both texts, and divide what the token looks at by what the ``neutral`` one looks at.

    Raises ``InputError`` where the picture has other tokens in the two texts, or is not seen from one.
    """
    asked = token_row(model, prepared, selection)
    last = str(len(neutral.axes[asked.kind][0]) - 1)
    plain = token_row(model, neutral, replace(selection, token=last, kind=asked.kind))
    mine, other = _on_pictures(asked), _on_pictures(plain)
    names, others = [asked.keys[at].text for at in mine], [plain.keys[at].text for at in other]
    if names != others or not names:
        raise InputError(
            f"the picture has {len(names):,} tokens in the text and {len(others):,} in the neutral one, and "
            "they are not the same: --relative divides token by token"
        )
    opened = asked.opened[mine] & plain.opened[other] & (plain.mean[other] > 0)
    if not opened.any():
        raise InputError(f"{asked.place.label} cannot look at the picture: choose a token behind it")
    ratio = np.where(opened, asked.mean[mine] / np.where(opened, plain.mean[other], 1), 0)
    places = [asked.keys[at] for at in mine]
    overlays, left_out = lay_over(prepared.pictures, asked.place, (ratio, places), None)
    said = (
        f"each figure is the attention from {asked.place.label} over that from the last token of "
        f'"{visible(text)}": above 1, the picture is looked at more there',
    )
    return Focus(
        label=asked.place.label,
        position=asked.place.start,
        looks_at=rank_places(ratio, opened, places, TOP, boxes_of(prepared.pictures)),
        looked_at_by=None,
        title=f"relative attention · {asked.title}",
        notes=(*said, *asked.notes, *left_out),
        overlays=overlays,
        verbs=VERBS,
    )


def _on_pictures(row: TokenRow) -> list[int]:
    """The keys that stand for a part of a picture."""
    return [number for number, place in enumerate(row.keys) if place.pictured]
