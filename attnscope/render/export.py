"""Everything about a text as files in a folder: pictures, data, and a manifest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from attnscope.axes import Weights
from attnscope.errors import OutputError, SelectionError
from attnscope.models import Model, ModelInput
from attnscope.progress import tell
from attnscope.questions.layers import AllHeads, ExportedFile, WholeLayers, all_heads, describe_export
from attnscope.questions.selection import Selection
from attnscope.questions.token import SeenToken, see_token
from attnscope.records import plain
from attnscope.render.image import DPI, Album
from attnscope.render.image.sheet import families
from attnscope.render.page import PAGE, save_page
from attnscope.storage import folder as kept
from attnscope.storage.files import fingerprint
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
) -> dict[str, Any]:
    """Run the model once, and write pictures and data of the selected heads into a folder: its manifest.

    Pictures are one file per head (``L05H03.png``), one of each layer and one of all (``overview.png``), led
    by the kind of attention if there are several; data formats and pages are one file of all heads. A token
    in the selection gives its picture in each head; ``mass`` keeps the fewest keys that hold so much of its
    weight. The same call writes the same bytes, and completes a killed export. Raises ``OutputError`` if a
    file would be overwritten without ``force``, ``SelectionError`` for what does not exist.
    """
    folder = Path(folder)
    contents = kept.ExportPlan(formats, selection.layers, heads)
    if selection.token is not None and contents.wholes:
        raise OutputError(f"a token has pictures alone: --format {','.join(kept.PICTURES)}")
    with kept.claim_folder(folder):
        tokens = [[str(place) for place in axis] for axes in prepared.axes.values() for axis in axes]
        options = (selection, formats, sorted(heads or ()), dpi, size, font, cmap, command, mass)
        asked = [__version__, model.name, fingerprint(model.module), tokens, *map(repr, options)]
        identity = hashlib.sha256(json.dumps(asked).encode()).hexdigest()
        if not force:
            kept.refuse_existing(folder, contents, identity)
        result = None if selection.token is not None else all_heads(model, prepared, selection)
        if result is not None:
            layers, most = result.layers, max(len(weights.values) for weights in result.weights.values())
            pictures = _pictures(result) if contents.pictures else iter(())
        else:
            seen = see_token(model, prepared, selection)
            kinds: dict[str, list[tuple[int, Weights]]] = {site.site.kind: [] for site in seen.sites}
            layers = WholeLayers(kinds, model.title, "", seen.notes, seen.record)
            pictures, most = _token_pictures(seen, mass), max(site.heads for site in seen.sites)
        if missing := sorted(head for head in heads or () if head >= most):
            raise SelectionError(f"no head {number_ranges(missing)}: these layers have heads 0-{most - 1}")
        jobs = [each for each in pictures if heads is None or each[0].get("head") in (None, *heads)]
        album, warnings = Album(dpi, cmap=cmap, width=size, font=font), dict[str, None]()
        families((), font)  # refuses one that is not there before anything is written
        kept.begin_manifest(folder, contents, identity)
        total, files = len(jobs) * len(contents.pictures) + len(contents.wholes), []
        for named, view in jobs:
            name = named if len(layers.kinds) > 1 else {**named, "kind": None}
            drawn = view()
            for form in contents.pictures:
                path = folder / str(kept.Name(form, **name))
                warnings |= dict.fromkeys(album.save(drawn, path))
                files.append(ExportedFile(**kept.describe_file(path), **name))
                tell("file", len(files), total)
        for form in contents.wholes:
            assert result is not None
            path = folder / f"{kept.ALL}.{form}"
            if path.suffix == PAGE:
                save_page(result, path, cmap)
            else:
                layers.save(path)
            files.append(ExportedFile(**kept.describe_file(path)))
            tell("file", len(files), total)
        told = describe_export(model, prepared, layers, command, tuple(warnings), tuple(files))
        manifest: dict[str, Any] = plain(told)
        kept.write_manifest(folder, manifest)
    return manifest


def _pictures(result: AllHeads) -> Iterator[Job]:
    for kind, layers in result.layers.kinds.items():
        yield {"kind": kind}, partial(result.overview, kind)
        for layer, weights in layers:
            yield {"kind": kind, "layer": layer}, partial(result.layer, kind, layer)
            for head in range(len(weights.values)):
                yield {"kind": kind, "layer": layer, "head": head}, partial(result.head, kind, layer, head)


def _token_pictures(seen: SeenToken, mass: float | None) -> Iterator[Job]:
    for site, heads in ((record.site, record.heads) for record in seen.sites):
        for head in range(heads):
            name = {"kind": site.kind, "layer": site.layer, "head": head}
            yield name, partial(seen.head, site, head, mass)
