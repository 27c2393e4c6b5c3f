"""Rows of every head of one kind of attention, for comparison."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnscope.attention import Attention, Head, Kind
from attnscope.capture import Observer, Record, SiteRecord
from attnscope.capture.observers.coarsen import SharedRows
from attnscope.capture.observers.rows import Rows, Sample, Sampled
from attnscope.errors import SelectionError
from attnscope.models import Model, ModelInput
from attnscope.questions.selection import Selection
from attnscope.questions.sentences import kind_title, kinds_of, require_selected
from attnscope.views import HeadMap, head_map
from attnscope.views.heads import layer_rows

CELLS = 3 << 14  # weights compared per head: 221 rows of 221 keys, or 96 of 512. More rows are sampled.
SMALL = 0.1  # below this many nats, a map of heads counts in thousandths
FEWEST = 32  # least rows compared, however long they are


@dataclass(frozen=True, eq=False)
class HeadRows:
    """The same rows of every head of one kind; ``of`` is how many the text has, ``record`` what ran.

    Rows of all texts of a batch, or of all windows of a picture, are concatenated.
    """

    kind: Kind
    heads: tuple[Head, ...]
    rows: Tensor  # float32, [head, row, key]
    of: int
    record: Record
    notes: tuple[str, ...]

    @property
    def sites(self) -> list[SiteRecord]:
        """The calls that the rows come from."""
        layers = {head.layer for head in self.heads}
        return [
            site for site in self.record.sites if site.site.kind == self.kind and site.site.layer in layers
        ]


Choosing = Callable[[Attention], Rows]


def head_rows(
    model: Model,
    prepared: ModelInput,
    selection: Selection,
    choosing: Choosing | None = None,
    beside: Sequence[Observer] = (),
) -> HeadRows:
    """Run the model once and keep the same rows of every selected head, an even sample if there are many.

    Without a ``kind``, the first one that the model runs is taken (for a text with pictures, the text's);
    self- and cross-attention are never mixed. ``choosing`` picks specific rows and keys, observers
    ``beside`` see all heads. Raises ``SelectionError`` for what does not exist, and if layers have
    different numbers of tokens.
    """
    led = replace(selection, kind=selection.kind or (prepared.lead if prepared.pictures else None))
    choose, first = choosing or even_rows(selection), led.kind

    def choose_one_kind(attention: Attention) -> Rows | None:
        nonlocal first
        first = first or attention.site.kind
        return choose(attention) if attention.site.kind == first else None

    sample = Sample(choose_one_kind)
    record = model.run(prepared, [SharedRows([sample], led.heads), *beside])
    require_selected(sample.maps, record, led)
    maps = sample.maps
    kind = maps[0].site.kind
    sizes = {(len(kept.queries), len(kept.keys), len(kept.values)) for kept in maps}
    if len(sizes) > 1:
        listed = " and ".join(f"{queries} × {keys}" for queries, keys, _ in sorted(sizes))
        raise SelectionError(
            f"heads can be compared that see the same tokens, and the layers see {listed}: "
            "choose one with --layer"
        )
    counts = {site.site: site.heads for site in record.sites}
    heads = tuple(
        Head(kept.site.layer, head, kind)
        for kept in maps
        for head in selection.heads(kept.site, counts[kept.site]) or ()
    )
    aside = []
    others_run = [other for other in kinds_of(counts) if other != kind]
    if selection.kind is None and others_run:
        listed = " and ".join(map(kind_title, others_run))
        compares = f"--kind {others_run[0]} compares others ({listed} exist too)"
        aside = [f"{kind_title(kind)} alone is compared; {compares}"]
    return HeadRows(
        kind=kind,
        heads=heads,
        rows=torch.cat([kept.values.transpose(0, 1).flatten(1, 2).cpu() for kept in maps]),
        of=len(selection.coarsening(maps[0].queries).places) * len(maps[0].values),
        record=record,
        notes=(*record.notes, *aside, *oddities(maps)),
    )


def map_of_nats(
    heads: Sequence[Head],
    values: NDArray[np.float64],
    name: str,
    *,
    title: str,
    subtitle: str,
    notes: tuple[str, ...],
) -> HeadMap:
    """A distance of each head as a map; small ones in thousandths, to keep the numbers readable.

    Heads that were not compared stay empty.
    """
    small = float(values.max(initial=0)) < SMALL
    layers = layer_rows(dict(zip(heads, (values * (1000 if small else 1)).tolist(), strict=True)))
    unit = "thousandths of a nat" if small else "nats"
    return head_map(layers, name, unit=unit, title=title, subtitle=subtitle, notes=notes)


def even_rows(selection: Selection, cells: int = CELLS) -> Choosing:
    """All rows of the selection, or an even sample of at most ``cells`` weights; all keys."""

    def choose(attention: Attention) -> Rows:
        queries, keys = selection.coarsening(attention.queries), selection.coarsening(attention.keys)
        rows = evenly(len(queries.places), len(keys.places), cells)
        return Rows([queries.tokens(row) for row in rows], keys.summing())

    return choose


def evenly(rows: int, keys: int, cells: int = CELLS) -> list[int]:
    """Which of the rows to compare: all, or an even sample of at most ``cells`` weights."""
    count = min(rows, max(FEWEST, cells // max(keys, 1)))
    return [(2 * number + 1) * rows // (2 * count) for number in range(count)]


def oddities(maps: Iterable[Sampled]) -> list[str]:
    """Notes on rows that are not shares of a whole."""
    maps = list(maps)
    notes = []
    broken = sum(kept.broken for kept in maps)
    if broken:
        notes.append(f"{broken:,} weights are not finite numbers and count as 0")
    if max(float(kept.values.sum(-1).max()) for kept in maps) > 1 + 1e-2:
        notes.append("rows that sum to more than 1 are compared by their shares")
    if any(float((1 - kept.values.sum(-1)).max()) > 1e-2 for kept in maps):
        notes.append("what a row does not give to these tokens counts as one more key")
    return notes
