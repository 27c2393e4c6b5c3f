"""What was seen, as plain data for JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from attnscope.attention import Head
from attnscope.axes import Array
from attnscope.capture import SiteRecord
from attnscope.measures import HeadFigures, worth_a_look
from attnscope.questions.head import OneHead
from attnscope.questions.overview import Overview
from attnscope.records import Meaning, plain
from attnscope.views import Bars, HeadMap, Heatmap, Ranked, Ranking, TokenView, View

if TYPE_CHECKING:
    from attnscope.questions.layers import AllHeads
    from attnscope.storage.arrays import Kinds
    from attnscope.views import Drawable


def site_numbers(site: SiteRecord) -> dict[str, Any]:
    """An attention call as plain data."""
    return {
        "name": site.site.name,
        "call": site.site.call,
        "kind": site.site.kind,
        "layer": site.site.layer,
        "heads": site.heads,
        "key_heads": site.key_heads,
        "queries": site.queries,
        "keys": site.keys,
        "kernel": site.kernel,
        "source": site.source,
        "dtype": site.dtype,
        "window": site.window,
        "difference": site.difference,
        "unproved": site.unproved,
    }


Notes: TypeAlias = Annotated[
    tuple[str, ...], Meaning("what to know about the model, the text and the answer")
]

VERSION = 1
"""A release that takes a field away from any answer, or changes what one means, raises it."""


def name_schema(command: str) -> str:
    """The name of what a command prints with ``--json``, and its version behind it."""
    return f"urn:attnscope:{command}:{VERSION}"


@dataclass(frozen=True, eq=False)
class Answer:
    """The views of an answer, those of them that make a picture file, and what writes the numbers behind.

    ``write`` makes a record, or a mapping; ``table`` the rows of a CSV file, the names of its columns first;
    ``arrays`` what an ``.npz`` file holds; ``layers`` the weights of whole layers, with title and
    notes, for any file of data; ``heads`` all heads, for a page. They are functions, as most answers are
    drawn and nothing else.
    """

    views: tuple[View, ...]
    pictures: Mapping[str, Drawable]
    write: Callable[[], Any]
    table: Callable[[], Iterable[Sequence[object]]] | None = None
    arrays: Callable[[], Mapping[str, Array]] | None = None
    layers: Callable[[], tuple[Kinds, str, tuple[str, ...]]] | None = None
    heads: Callable[[], AllHeads] | None = None

    @cached_property
    def numbers(self) -> Mapping[str, Any]:
        """The numbers behind the views, as plain data."""
        numbers: Mapping[str, Any] = plain(self.write())
        return numbers

    def files(self, path: Path) -> Iterator[tuple[Path, Drawable]]:
        """Each picture with its file; several kinds of attention make several files, named after them."""
        for name, view in self.pictures.items():
            yield path if len(self.pictures) == 1 else path.with_stem(f"{path.stem}-{name}"), view


def of_overview(
    result: Overview, command: str | None, opening: Callable[[Head], str] | None = None
) -> Answer:
    """Every head as a thumbnail, and the heads most worth a look with the words that open each.

    Those are the ``command`` with the head's address, or what ``opening`` makes of the address.
    """
    several = len(result.grids) > 1
    ranked = []
    for head in worth_a_look(result.heads):
        extra = f" --kind {head.site.kind}" if several else ""
        words = f"{command or '...'} --head {head.name}{extra}"
        if opening is not None:
            words = opening(head.address if several else Head(head.name))
        where = f" {head.site.kind}" if several else ""
        reason = head.role.sentence if head.role else ""
        ranked.append(Ranked(head.name + where, reason, words))
    notes = result.notes
    if not ranked:
        notes = ("no pattern stands out in any head", *notes)
    elif not command and not opening:
        notes = (*notes, "... stands for the command that you gave")
    ranking = Ranking(tuple(ranked), "Worth a look", notes)
    pictures = {kind: replace(grid, notes=result.notes) for kind, grid in result.grids.items()}
    return Answer((*result.grids.values(), ranking), pictures, partial(_overview_numbers, result))


def _overview_numbers(result: Overview) -> dict[str, Any]:
    return {
        "notes": list(result.notes),
        "sites": [site_numbers(site) for site in result.record.sites],
        "heads": [head_numbers(head) for head in result.heads],
    }


def of_head(result: OneHead) -> Answer:
    """One head's heatmap."""
    return Answer((result.heatmap,), {"head": result.heatmap}, partial(_matrix_numbers, result))


def _matrix_numbers(result: OneHead) -> dict[str, Any]:
    picture = result.heatmap
    return {
        "notes": list(picture.notes),
        "site": site_numbers(result.site),
        "head": head_numbers(result.figures),
        "queries": [place.text for place in picture.weights.queries],
        "keys": [place.text for place in picture.weights.keys],
        "weights": _rows(picture),
    }


def of_token(result: TokenView) -> Answer:
    """What one token looks at, and who looks at it."""
    return Answer((result,), {"token": result}, partial(_focus_numbers, result))


def _focus_numbers(result: TokenView) -> dict[str, Any]:
    numbers: dict[str, Any] = {
        "notes": list(result.notes),
        "which": result.title,
        "token": {"text": result.label, "position": result.position},
        "looks_at": _bars(result.looks_at),
        "looked_at_by": _bars(result.looked_at_by),
    }
    if result.overlays:
        numbers["patches"] = [
            {
                "picture": shown.name,
                "looks_at": _cells(shown.looks_at),
                "looked_at_by": _cells(shown.looked_at_by),
            }
            for shown in result.overlays
        ]
    return numbers


def of_maps(maps: Mapping[str, HeadMap]) -> Answer:
    """One measure of all heads, a map a kind of attention."""
    return Answer(tuple(maps.values()), maps, dict)


def _rows(picture: Heatmap) -> list[list[float | None]]:
    """The weights, with nothing where the mask closed the cell."""
    return [
        [None if closed else round(float(value), 7) for value, closed in zip(row, mask, strict=True)]
        for row, mask in zip(picture.values, picture.masked, strict=True)
    ]


def head_numbers(head: HeadFigures) -> dict[str, Any]:
    """A head's role and figures as plain data."""
    role = head.role
    return {
        "kind": head.site.kind,
        "layer": head.site.layer,
        "head": head.head,
        "role": None
        if role is None
        else {"name": role.name, "score": role.score, "baseline": role.baseline, "sentence": role.sentence},
        "figures": {
            name: {"value": figure.value, "baseline": figure.baseline, "rows": figure.rows}
            | ({} if figure.error is None else {"error": figure.error, "texts": figure.texts})
            for name, figure in head.figures.items()
        },
        "absent": dict(head.absent),
    }


def _bars(bars: Bars | None) -> list[dict[str, Any]] | None:
    if bars is None:
        return None
    return [
        {"text": bar.label, "position": bar.position, "weight": bar.weight}
        | ({} if bar.box is None else {"box": [round(edge, 1) for edge in bar.box]})
        for bar in bars.bars
    ]


def _cells(weights: Array | None) -> list[list[float]] | None:
    return None if weights is None else weights.tolist()
