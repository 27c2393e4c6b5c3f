"""Everything about a text as files in a folder: pictures, data, and a manifest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from attnscope.attention import Head
from attnscope.axes import Weights
from attnscope.errors import OutputError, SelectionError
from attnscope.models import Model, ModelInput
from attnscope.progress import report
from attnscope.questions.layers import AllHeads, ExportedFile, WholeLayers, all_heads, describe_export
from attnscope.questions.selection import Selection
from attnscope.questions.token import SeenToken, see_token
from attnscope.questions.why import open_cells
from attnscope.records import plain
from attnscope.render.image import DPI, Album
from attnscope.render.image.sheet import families
from attnscope.render.page import PAGE, save_page
from attnscope.storage import folder as folders
from attnscope.storage.checkpoint import fingerprint
from attnscope.text import number_ranges
from attnscope.version import __version__
from attnscope.views import Drawable

Job: TypeAlias = "tuple[dict[str, Any], Callable[[], Drawable]]"
"""What a picture is of (its kind, layer and head), and what builds it."""


def save_export(
    model: Model,
    prepared: ModelInput,
    selection: Selection,
    folder: str | Path,
    *,
    formats: tuple[str, ...] = ("png",),
    heads: Collection[int] | None = None,
    dpi: float = DPI,
    size: float | None = None,
    font: str | None = None,
    cmap: str | None = None,
    force: bool = False,
    command: str | None = None,
    mass: float | None = None,
    explain: str = "",
) -> dict[str, Any]:
    """Run the model once, and write pictures and data of the selected heads into a folder: its manifest.

    Pictures are one file per head (``L05H03.png``), one of each layer and one of all (``overview.png``), led
    by the kind of attention if there are several; data formats and pages are one file of all heads. A token
    in the selection gives its picture in each head; ``mass`` keeps the fewest keys that hold so much of its
    weight. In a page, each cell gives the command that explains it, which ends in ``explain``, and those of
    ``heads`` open their terms. The same call writes the same bytes, and completes a killed export. Raises
    ``OutputError`` for a file to overwrite without ``force``, ``SelectionError`` for what does not exist.
    """
    folder = Path(folder)
    contents = folders.ExportPlan(formats, selection.layers, heads)
    if selection.token is not None and contents.wholes:
        raise OutputError(f"a token has pictures alone: --format {','.join(folders.PICTURES)}")
    with folders.claim_folder(folder):
        tokens = [[str(place) for place in axis] for axes in prepared.axes.values() for axis in axes]
        options = (selection, formats, sorted(heads or ()), dpi, size, font, cmap, command, mass)
        facts = [__version__, model.name, fingerprint(model.module), tokens, *map(repr, options)]
        identity = hashlib.sha256(json.dumps(facts).encode()).hexdigest()
        if not force:
            folders.refuse_existing(folder, contents, identity)
        source = _run(model, prepared, selection, mass)
        if missing := sorted(head for head in heads or () if head >= source.heads):
            there = f"these layers have heads 0-{source.heads - 1}"
            raise SelectionError(f"no head {number_ranges(missing)}: {there}")
        if source.all_heads is not None:
            page = replace(source.all_heads, command=explain)
            named = _softmax_heads(page, heads or ()) if contents.wholes else ()
            source = source._replace(all_heads=open_cells(page, model, prepared, list(named)))
        pictures = source.pictures if contents.pictures else ()
        jobs = [each for each in pictures if heads is None or each[0].get("head") in (None, *heads)]
        album, warnings = Album(dpi, cmap=cmap, width=size, font=font), dict[str, None]()
        families((), font)  # refuses one that is not there before anything is written
        folders.begin_manifest(folder, contents, identity)
        total, files = len(jobs) * len(contents.pictures) + len(contents.wholes), list[ExportedFile]()
        written = _save_pictures(
            jobs, contents.pictures, folder, album, warnings, len(source.layers.kinds) > 1
        )
        for file in chain(written, _save_wholes(source, contents.wholes, folder, cmap)):
            files.append(file)
            report("file", len(files), total)
        described = describe_export(model, prepared, source.layers, command, tuple(warnings), tuple(files))
        manifest: dict[str, Any] = plain(described)
        folders.write_manifest(folder, manifest)
    return manifest


def _softmax_heads(page: AllHeads, numbers: Collection[int]) -> Iterator[Head]:
    """The heads of a page with these numbers in their layers, whose cells have terms."""
    for kind, layers in page.layers.kinds.items():
        for layer, weights in layers if kind != "mixer" else ():
            for head in sorted(numbers):
                if head < len(weights.values):
                    yield Head(layer, head, kind)  # type: ignore[arg-type]  # kinds are those of its layers


class _Source(NamedTuple):
    """What an export shows: its layers, what its pictures are of, and all heads unless it is of one token."""

    layers: WholeLayers
    pictures: Iterator[Job]
    heads: int  # of the layer with most
    all_heads: AllHeads | None = None


def _run(model: Model, prepared: ModelInput, selection: Selection, mass: float | None) -> _Source:
    if selection.token is None:
        result = all_heads(model, prepared, selection)
        heads = max(len(weights.values) for weights in result.weights.values())
        return _Source(result.layers, _pictures(result), heads, result)
    token = see_token(model, prepared, selection)
    kinds: dict[str, list[tuple[int, Weights]]] = {site.site.kind: [] for site in token.sites}
    layers = WholeLayers(kinds, model.title, "", token.notes, token.record)
    return _Source(layers, _token_pictures(token, mass), max(site.heads for site in token.sites))


def _save_pictures(
    jobs: Sequence[Job],
    formats: Sequence[str],
    folder: Path,
    album: Album,
    warnings: dict[str, None],
    several: bool,
) -> Iterator[ExportedFile]:
    """Draw each picture once and write it in all formats; names have the kind if there are several."""
    for named, view in jobs:
        name = named if several else {**named, "kind": None}
        drawn = view()
        for form in formats:
            path = folder / str(folders.Name(form, **name))
            warnings |= dict.fromkeys(album.save(drawn, path))
            yield ExportedFile(**folders.describe_file(path), **name)


def _save_wholes(
    source: _Source, formats: Sequence[str], folder: Path, cmap: str | None
) -> Iterator[ExportedFile]:
    """Write all heads as a page, or as data."""
    for form in formats:
        path = folder / f"{folders.ALL}.{form}"
        if path.suffix != PAGE:
            source.layers.save(path)
        elif source.all_heads is not None:
            save_page(source.all_heads, path, cmap)
        yield ExportedFile(**folders.describe_file(path))


def _pictures(result: AllHeads) -> Iterator[Job]:
    for kind, layers in result.layers.kinds.items():
        yield {"kind": kind}, partial(result.overview, kind)
        for layer, weights in layers:
            yield {"kind": kind, "layer": layer}, partial(result.layer, kind, layer)
            for head in range(len(weights.values)):
                yield {"kind": kind, "layer": layer, "head": head}, partial(result.head, kind, layer, head)


def _token_pictures(token: SeenToken, mass: float | None) -> Iterator[Job]:
    for site, heads in ((record.site, record.heads) for record in token.sites):
        for head in range(heads):
            name = {"kind": site.kind, "layer": site.layer, "head": head}
            yield name, partial(token.head, site, head, mass)
