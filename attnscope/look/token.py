"""One token: what it looks at, and who looks at it, in one head or on average over several."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from attnscope.attention import Attention
from attnscope.capture import SiteRecord
from attnscope.capture.fold import Fold, Folded, Folding
from attnscope.capture.only import Only
from attnscope.errors import SelectionError
from attnscope.look.choice import Choice, tensor
from attnscope.look.sentences import expect, kind_title, kinds_of, spans
from attnscope.models import Model, Prepared
from attnscope.views import Bars, Focus, Place, ranked
from attnscope.views.folding import AxisFolding

TOP = 10
"""Tokens that are listed on each side."""


def one_token(model: Model, prepared: Prepared, choice: Choice) -> Focus:
    """Run the model once, and rank the row and the column of the token that is meant.

    With a layer and a head: of that head; otherwise the mean over the heads of that layer, or of all.
    In cross-attention a token has a row if the decoder reads it and a column if the encoder does.
    Raises ``SelectionError`` if there is no such token, layer or head.
    """
    rows, columns = Fold(_one_row(choice)), Fold(_one_column(choice))
    record = model.run(prepared, [Only(choice.heads, [rows, columns])])
    seen = [site for site in record.sites if choice.heads(site.site, site.heads)]
    expect(seen, record, choice)
    kind = kinds_of(site.site for site in seen)[0]
    seen = [site for site in seen if site.site.kind == kind]
    queries, keys = prepared.axes[seen[0].site.kind]
    below, across = choice.fold(queries), choice.fold(keys)
    row, column = _find(below, choice), _find(across, choice)
    if row is not None:
        place = below.places[row]
    elif column is not None:
        place = across.places[column]
    else:
        raise SelectionError(_nowhere(choice, below, across))
    looks_at = [folded for folded in rows.maps if folded.site.kind == kind]
    looked_at_by = [folded for folded in columns.maps if folded.site.kind == kind]
    return Focus(
        label=place.label,
        position=place.start,
        looks_at=_rank(looks_at, across.places) if looks_at else None,
        looked_at_by=_rank(looked_at_by, below.places) if looked_at_by else None,
        title=f"{_which(choice, seen)} · {model.title} · {kind_title(kind)}",
        notes=(*model.notes, *prepared.notes, *_again(below if row is not None else across, choice)),
    )


def _one_row(choice: Choice) -> Callable[[Attention], Folding | None]:
    """The row of the token, averaged over its pieces; its columns as they are shown."""

    def matrices(attention: Attention) -> Folding | None:
        folding = choice.fold(attention.queries)
        row = _find(folding, choice)
        if row is None:
            return None
        return _tokens(folding, row, mean=True), tensor(choice.fold(attention.keys).summing())

    return matrices


def _one_column(choice: Choice) -> Callable[[Attention], Folding | None]:
    """The column of the token, summed over its pieces; its rows as they are shown."""

    def matrices(attention: Attention) -> Folding | None:
        folding = choice.fold(attention.keys)
        column = _find(folding, choice)
        if column is None:
            return None
        return tensor(choice.fold(attention.queries).averaging()), _tokens(folding, column, mean=False)

    return matrices


def _tokens(folding: AxisFolding, place: int, *, mean: bool) -> torch.Tensor:
    """What takes one place out of an axis.  -> [1, token]"""
    tokens = [token for word in folding.parts[place] for token in word]
    matrix = torch.zeros(1, folding.size)
    matrix[0, tokens] = 1 / len(tokens) if mean else 1.0
    return matrix


def _find(folding: AxisFolding, choice: Choice) -> int | None:
    """The number of the place that is meant: by a token's number, or by its text, the first of several."""
    matches = _matches(folding, choice)
    return matches[0] if matches else None


def _matches(folding: AxisFolding, choice: Choice) -> list[int]:
    wanted = (choice.token or "").strip()
    if wanted.isascii() and wanted.isdigit():
        position = int(wanted)
        return [i for i, place in enumerate(folding.places) if place.start <= position < place.stop]
    exact = [i for i, place in enumerate(folding.places) if wanted in (place.text.strip(), place.label)]
    same = [i for i, place in enumerate(folding.places) if place.text.strip().casefold() == wanted.casefold()]
    return exact or same


def _nowhere(choice: Choice, *foldings: AxisFolding) -> str:
    places = [place for folding in foldings for place in folding.places]
    known = list(dict.fromkeys(place.label for place in places))
    listed = ", ".join(known[:12]) + (", ..." if len(known) > 12 else "")
    last = max(place.stop for place in places) - 1
    return f"no token {choice.token!r}: the text has the tokens 0-{last}, which read {listed}"


def _again(folding: AxisFolding, choice: Choice) -> list[str]:
    matches = _matches(folding, choice)
    if len(matches) < 2:
        return []
    starts = [folding.places[match].start for match in matches]
    return [f"token {starts[0]} is shown; the same text stands at {spans(starts[1:])} too"]


def _which(choice: Choice, seen: Sequence[SiteRecord]) -> str:
    if choice.head is not None:
        return f"L{choice.layer}H{choice.head}"
    heads = sum(site.heads for site in seen)
    where = f"layer {choice.layer}" if choice.layer is not None else f"{len(seen)} layers"
    return f"mean of {heads} heads of {where}"


def _rank(maps: Sequence[Folded], places: Sequence[Place]) -> Bars:
    """The heads' mean, ranked; what was folded aside is not listed."""
    weights = np.concatenate([folded.values[0].flatten(1).cpu().numpy() for folded in maps])  # [head, place]
    opened = np.concatenate([folded.open[0].flatten(1).cpu().numpy() for folded in maps])
    size = len(places)
    return ranked(weights[:, :size].mean(0), np.logical_or.reduce(opened[:, :size]), places, TOP)
