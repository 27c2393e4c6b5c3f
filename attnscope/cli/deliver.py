"""Numbers for other programs: one line of JSON on standard output."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscope.cli.options import PrintedOptions, Said
from attnscope.questions.answer import Answer, name_schema
from attnscope.questions.selection import Selection
from attnscope.render.terminal import print_view
from attnscope.text import escape_json

if TYPE_CHECKING:
    from attnscope.models import Model, ModelInput
    from attnscope.views import Drawable


def print_plain(numbers: Any) -> None:
    """Print dictionaries, lists, texts and numbers as JSON; what is no finite number is ``null`` there."""
    print(escape_json(json.dumps(_finite(numbers), ensure_ascii=False, allow_nan=False)))


def print_answer(command: str, numbers: Mapping[str, Any]) -> None:
    """Print what a command found, behind the name of the schema that says what is in it."""
    print_plain({"schema": name_schema(command), **numbers})


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def print_views(answer: Answer, picture: PrintedOptions) -> None:
    """Draw every view on standard output, with a line of air between them."""
    from rich.console import Console

    from attnscope.render import pixels

    console = Console(highlight=False)
    way = "cells" if picture.plain else pixels.choose_way(picture.graphics, console)
    for number, view in enumerate(answer.views):
        if number:
            print()
        if way != "cells" and pixels.has_pixels(view):
            pixels.print_pixels(view, console, way, picture.cmap)
        else:
            print_view(view, console, cmap=picture.cmap, plain=picture.plain)


def print_written(prepared: ModelInput) -> None:
    """Print what the model read and, behind a bar and in bold, what it wrote."""
    from rich.console import Console
    from rich.text import Text

    from attnscope.models.text.generation import spell_tokens

    axes = prepared.axes.get("decoder")
    if prepared.written is None or axes is None or isinstance(axes[0], range):
        return
    read, wrote = axes[0][: prepared.written], axes[0][prepared.written :]
    line = Text.assemble((spell_tokens(read), "dim"), " │ ", (spell_tokens(wrote), "bold"))
    Console(highlight=False).print(line, end="\n\n")


def print_json(command: str, answer: Answer, said: Said) -> None:
    """Write the numbers of a command to standard output, and what is ``said`` of them all."""
    print_answer(command, {**answer.numbers, **said})


def save(answer: Answer, out: Path, picture: PrintedOptions) -> None:
    """Draw the answer into ``out``; several kinds of attention make several files, named after them."""
    from attnscope.render.image import save as save_picture

    for name, view in answer.pictures.items():
        path = out if len(answer.pictures) == 1 else out.with_stem(f"{out.stem}-{name}")
        drawn = save_picture(
            dress(view, picture),
            path,
            dpi=picture.dpi,
            cmap=picture.cmap,
            width=picture.size,
            font=picture.font,
            annotate=picture.annotate,
        )
        for warning in drawn:
            print(f"attnscope: {warning}", file=sys.stderr)
        print(f"saved {path}", file=sys.stderr)


def dress(view: Drawable, picture: PrintedOptions) -> Drawable:
    """A view with the title that was asked for, or without title, figures or notes."""
    from attnscope.views import Heatmap
    from attnscope.views.distances import HeadDistances

    changed: dict[str, Any] = {} if picture.title is None else {"title": picture.title}
    if picture.no_title:
        changed |= {"title": "", "subtitle": ""}
    if picture.no_figures:
        changed |= {"notes": ()}
    if isinstance(view, HeadDistances):
        plane = replace(view.plane, notes=()) if picture.no_figures else view.plane
        return replace(view, table=replace(view.table, **changed), plane=plane)
    if isinstance(view, Heatmap) and picture.no_figures:
        changed |= {"readings": (), "subtitle": ""}
    dressed: Drawable = replace(view, **changed)
    return dressed


def save_heads(model: Model, prepared: ModelInput, selection: Selection, out: Path, cmap: str | None) -> None:
    """Write all heads that are meant as a page or as data, as the suffix says."""
    from attnscope.questions.layers import all_heads, whole_layers
    from attnscope.render.layers import PAGE, save_layers, save_page

    if out.suffix.lower() == PAGE:
        save_page(all_heads(model, prepared, selection), out, cmap)
    else:
        save_layers(whole_layers(model, prepared, selection), out)
    print(f"saved {out}", file=sys.stderr)
