"""One token: what it looks at, and who looks at it, in one head or on average over several."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch

from attnscope.attention import Attention, Axis
from attnscope.capture import SiteRecord
from attnscope.capture.fold import Fold, Folded, Folding
from attnscope.capture.only import Only
from attnscope.errors import SelectionError
from attnscope.look.choice import Choice, tensor
from attnscope.look.sentences import broken, expect, kind_title, kinds_of, spans
from attnscope.models import Model, Prepared
from attnscope.views import Bars, Focus, Place, ranked
from attnscope.views.folding import AxisFolding

TOP = 10
"""Tokens that are listed on each side."""


def one_token(model: Model, prepared: Prepared, choice: Choice) -> Focus:
    """Run the model once, and rank the row and the column of the token that is meant.

    With a layer and a head: of that head; otherwise the mean over the heads of that layer, or of all.
    In cross-attention a token of the decoder has a row, and one of the encoder a column; a number is one
    of the decoder's. Raises ``SelectionError`` if there is no such token, layer or head.
    """
    rows, columns = Fold(_one_row(choice)), Fold(_one_column(choice))
    record = model.run(prepared, [Only(choice.heads, [rows, columns])])
    seen = [site for site in record.sites if choice.heads(site.site, site.heads)]
    expect(seen, record, choice)
    kind = kinds_of(site.site for site in seen)[0]
    seen = [site for site in seen if site.site.kind == kind]
    queries, keys = (choice.fold(axis) for axis in _axes(prepared, seen[0]))
    meant = _meant(queries, keys, choice)
    if meant.row:
        place, again = queries.places[meant.row[0]], [queries.places[other].start for other in meant.row[1:]]
    elif meant.column:
        place, again = keys.places[meant.column[0]], [keys.places[other].start for other in meant.column[1:]]
    else:
        raise SelectionError(_nowhere(choice, queries, keys))
    looks_at = [folded for folded in rows.maps if folded.site.kind == kind]
    looked_at_by = [folded for folded in columns.maps if folded.site.kind == kind]
    notes = (*model.notes, *prepared.notes, *broken(looks_at or looked_at_by))
    if again:
        notes += (f"token {place.start} is shown; the same text stands at {spans(again)} too",)
    return Focus(
        label=place.label,
        position=place.start,
        looks_at=_rank(looks_at, keys.places) if looks_at else None,
        looked_at_by=_rank(looked_at_by, queries.places) if looked_at_by else None,
        title=f"{_which(choice, seen)} · {model.title} · {kind_title(kind)}",
        notes=notes,
    )


def _axes(prepared: Prepared, seen: SiteRecord) -> tuple[Axis, Axis]:
    """The tokens of a site's rows and columns, or bare positions where there are none for them."""
    axes = prepared.axes.get(seen.site.kind)
    if axes is not None and (len(axes[0]), len(axes[1])) == (seen.queries, seen.keys):
        return axes
    return range(seen.queries), range(seen.keys)


class _Meant(NamedTuple):
    """The places that a token's name fits, the first of them meant; in cross-attention on one axis only."""

    row: list[int]
    column: list[int]


def _meant(queries: AxisFolding, keys: AxisFolding, choice: Choice) -> _Meant:
    for fits in (_exactly, _loosely):
        row = fits(queries, (choice.token or "").strip())
        if queries.places == keys.places:
            column = row
        else:
            column = [] if row else fits(keys, (choice.token or "").strip())
        if row or column:
            return _Meant(row, column)
    return _Meant([], [])


def _exactly(folding: AxisFolding, wanted: str) -> list[int]:
    if wanted.isascii() and wanted.isdigit():
        return [i for i, place in enumerate(folding.places) if place.start <= int(wanted) < place.stop]
    return [i for i, place in enumerate(folding.places) if wanted in (place.text.strip(), place.label)]


def _loosely(folding: AxisFolding, wanted: str) -> list[int]:
    folded = wanted.casefold()
    return [i for i, place in enumerate(folding.places) if place.text.strip().casefold() == folded]


def _one_row(choice: Choice) -> Callable[[Attention], Folding | None]:
    """The row of the token, averaged over its pieces; its columns as they are shown."""

    def matrices(attention: Attention) -> Folding | None:
        queries, keys = choice.fold(attention.queries), choice.fold(attention.keys)
        row = _meant(queries, keys, choice).row
        return (_tokens(queries, row[0], mean=True), tensor(keys.summing())) if row else None

    return matrices


def _one_column(choice: Choice) -> Callable[[Attention], Folding | None]:
    """The column of the token, summed over its pieces; its rows as they are shown."""

    def matrices(attention: Attention) -> Folding | None:
        queries, keys = choice.fold(attention.queries), choice.fold(attention.keys)
        column = _meant(queries, keys, choice).column
        return (tensor(queries.averaging()), _tokens(keys, column[0], mean=False)) if column else None

    return matrices


def _tokens(folding: AxisFolding, place: int, *, mean: bool) -> torch.Tensor:
    """What takes one place out of an axis.  -> [1, token]"""
    tokens = [token for word in folding.parts[place] for token in word]
    matrix = torch.zeros(1, folding.size)
    matrix[0, tokens] = 1 / len(tokens) if mean else 1.0
    return matrix


def _nowhere(choice: Choice, *foldings: AxisFolding) -> str:
    places = [place for folding in foldings for place in folding.places]
    known = list(dict.fromkeys(place.label for place in places))
    listed = ", ".join(known[:12]) + (", ..." if len(known) > 12 else "")
    last = max(place.stop for place in places) - 1
    return f"no token {choice.token!r}: the text has the tokens 0-{last}, which read {listed}"


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
