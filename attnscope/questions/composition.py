"""Which head feeds which: composition between heads, from the weights alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Literal

import torch

from attnscope.attention import Head, Site
from attnscope.capture.projections import Circuits
from attnscope.errors import ModelError, SelectionError
from attnscope.measures.composition import Circuit, compose, compose_random
from attnscope.models import Model, ModelInput
from attnscope.models.kept import TracedModel
from attnscope.questions.answer import Answer
from attnscope.records import ADDRESS, Meaning, plain, record
from attnscope.views import Column, Table, View, head_map, layer_rows

WAYS = {"Q": "queries", "K": "keys", "V": "values"}
"""What the later head computes from the earlier head's output."""

TURNED = "positions turn queries and keys (rotary): Q and K are as at distance 0, where nothing is turned"


@record("a head")
class HeadAddress:
    """A head as an object."""

    head: Annotated[Head, ADDRESS]


def _addressed(text: str) -> Meaning:
    """The meaning of a head that is written as an object."""
    return Meaning(text, shape=HeadAddress, plain=lambda head: plain(HeadAddress(head)))


@record("one way of a pair of heads")
class Feed:
    """One composition between two heads, beside the scores of random matrices: mean and deviation."""

    head: Annotated[Head, _addressed("the earlier head")]
    fed: Annotated[Head, _addressed("the later head")]
    way: Annotated[str, Meaning("what of the later head is made of it", shape=Literal["Q", "K", "V"])]
    score: Annotated[float, Meaning("how much of what one writes is what the other reads")]
    baseline: Annotated[float, Meaning("the score of random matrices of the same shapes")]
    scatter: Annotated[float, Meaning("the standard deviation of their scores")]

    @property
    def lift(self) -> float:
        """The score minus its baseline."""
        return self.score - self.baseline


@record("how much later heads read of earlier ones (--composition)", "compare", eq=False)
class Feeds:
    """The compositions of pairs of heads, the largest lift first; ``fed`` is the one later head asked for."""

    feeds: Annotated[
        tuple[Feed, ...], Meaning("every way of every pair, the one farthest above its baseline first")
    ]
    title: Annotated[str, Meaning("the model")]
    notes: Annotated[tuple[str, ...], Meaning("what to know")]
    fed: Head | None = None

    def by(self, way: str) -> Mapping[int, list[float]]:
        """The lift of each earlier head's score for that head, by layer."""
        mine = (each for each in self.feeds if (each.way, each.fed) == (way, self.fed))
        return layer_rows({each.head: each.lift for each in mine})


def find_feeds(model: Model, prepared: ModelInput, fed: Head | None = None) -> Feeds:
    """Run the model once, to see which weights belong to what, and compose them, for one later head or all.

    The text does not matter. Heads of cross-attention, which read two sequences, are left out.
    """
    if isinstance(model, TracedModel):
        raise ModelError(f"{model.name} is {model.what} and holds no weights of a model: give the model")
    circuits = Circuits()
    with circuits.watching(model.module):
        record = model.run(prepared, [circuits])
    found = {site: circuit for site in circuits.sites if (circuit := _circuit(circuits, site)) is not None}
    if fed is not None:
        fed = _require(fed, found, circuits)
    feeds: list[Feed] = []
    baselines: dict[tuple[torch.Size, ...], tuple[float, float]] = {}
    for later, reads in found.items():
        if fed is not None and (later.layer, later.kind) != (fed.layer, fed.kind):
            continue
        for earlier, wrote in found.items():
            one_width = wrote.output.shape[1] == reads.value.shape[1]  # of the states between them
            if earlier.kind != later.kind or earlier.layer >= later.layer or not one_width:
                continue
            shapes = wrote.value.shape[1:], wrote.output.shape[1:], reads.value.shape[1:]
            if shapes not in baselines:
                baselines[shapes] = compose_random(wrote, reads)
            for way, scores in compose(wrote, reads).items():
                for number, row in enumerate(scores.tolist()):
                    reader = Head(later.layer, number, later.kind)
                    writers = (Head(earlier.layer, each, earlier.kind) for each in range(len(row)))
                    made = zip(writers, row, strict=True)
                    feeds += (Feed(each, reader, way, score, *baselines[shapes]) for each, score in made)
    if fed is not None:
        feeds = [each for each in feeds if each.fed.head == fed.head]
    left_out = {site.layer for site in circuits.sites if site not in found and site.kind != "cross"}
    unread = {site.layer for site, circuit in found.items() if circuit.query is None}
    turned = {site.layer for site in found if circuits.reads[site].turned}
    shared = max((circuits.reads[site].shared for site in found), default=1)
    notes = [*model.notes, *record.notes]
    for layers, what in (
        (left_out, "values or output projection were not found: left out"),
        (unread, "queries and keys are not a plain product: V alone"),
        (turned, TURNED),
    ):
        if layers:
            notes.append(f"layer{'s' * (len(layers) > 1)} {', '.join(map(str, sorted(layers)))}: {what}")
    if shared > 1:
        notes.append(
            f"{shared} heads share each key and value: composition with one of them is composition with all"
        )
    return Feeds(
        tuple(sorted(feeds, key=lambda each: -each.lift)),
        f"{model.title} · from the weights",
        tuple(notes),
        fed,
    )


LISTED = 4  # pairs listed for each composition, since scores of different ones do not compare; --csv has all

EXPLAINED = (
    "score: how much of what a head writes is what the later one reads, from the weights alone; norms "
    "and feed-forward parts between them are left out",
    "baseline: random matrices of the same shapes, ± how far their scores scatter",
)


def of_feeds(result: Feeds) -> Answer:
    """A map for each composition with the named head, and the largest lifts."""
    tables = {way: table for way in WAYS if (table := result.by(way))}
    top = max((abs(lift) for table in tables.values() for row in table.values() for lift in row), default=0)
    maps = {
        way: head_map(
            table,
            "above random weights",
            limits=(-(top or 1.0), top or 1.0),
            signed=True,
            title=f"what feeds the {WAYS[way]} of {result.fed and result.fed.name} · {way}-composition",
            subtitle=result.title,
        )
        for way, table in tables.items()
    }
    several = len({each.head.kind for each in result.feeds}) > 1
    rows = []
    shown = [each for way in WAYS for each in [one for one in result.feeds if one.way == way][:LISTED]]
    for each in shown:
        head, fed = (str(one) if several else one.name for one in (each.head, each.fed))
        beside = f"{each.baseline:.3f} ±{each.scatter:.3f}"
        rows.append((head, f"{WAYS[each.way]} of {fed}", f"{each.score:.3f}", beside))
    rest, columns = len(result.feeds) - len(shown), ("head", "feeds the", "score", "baseline")
    listed = Table(
        tuple(Column(name, name in ("score", "baseline"), "keep") for name in columns),
        tuple(rows),
        notes=(*([f"--csv has {rest:,} more"] if rest > 0 else ()), *EXPLAINED, *result.notes),
    )
    printed = (replace(each, subtitle="") for each in maps.values())
    views: tuple[View, ...] = (Table(subtitle=result.title), *printed, listed)

    def rows_of_all() -> Iterator[Sequence[object]]:
        yield "kind", "head", "fed", "way", "score", "baseline", "scatter"
        for each in result.feeds:
            figures = each.score, each.baseline, each.scatter
            yield each.head.kind, each.head.name, each.fed.name, each.way, *figures

    return Answer(views, maps, lambda: result, rows_of_all)


def _circuit(circuits: Circuits, site: Site) -> Circuit | None:
    """The projections of one call, if its input and output are known."""
    reads, wrote = circuits.reads[site], circuits.found.get(site)
    if site.kind == "cross" or wrote is None or reads.value is None:
        return None
    writes = reads.value.cpu(), wrote.weight.mT.cpu()
    if reads.query is None or reads.key is None:
        return Circuit(None, None, *writes)
    return Circuit(reads.query.cpu(), reads.key.cpu(), *writes)


def _require(fed: Head, found: Mapping[Site, Circuit], circuits: Circuits) -> Head:
    """The head with its kind. Raises ``SelectionError`` unless it exists and has earlier heads."""
    same = [site for site in circuits.sites if fed.kind in (None, site.kind)]
    here = [site for site in same if site.layer == fed.layer and site in found]
    here = [site for site in here if fed.head < len(found[site].value)]
    if not here:
        layers = sorted({site.layer for site in same if site in found})
        if not layers:
            raise ModelError("no layer has separable head weights: composition cannot be computed")
        most = max(len(circuit.value) for circuit in found.values())
        raise SelectionError(f"no head {fed}: layers {layers[0]}-{layers[-1]} have heads 0-{most - 1}")
    if all(site.layer >= fed.layer for site in found):
        raise SelectionError(f"no head comes before {fed}: name one of a later layer")
    return Head(fed.layer, fed.head, here[0].kind)
