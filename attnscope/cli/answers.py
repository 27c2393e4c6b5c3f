"""An answer on its way out: to the terminal, to a picture file, or as JSON."""

from __future__ import annotations

import sys
from pathlib import Path

from attnscope.analysis.layers import WholeLayers
from attnscope.answers.answer import Answer
from attnscope.cli.options.picture import PictureOptions
from attnscope.cli.plain import print_plain
from attnscope.render.terminal import print_view


def print_views(answer: Answer, *, cmap: str | None, plain: bool) -> None:
    """Draw every view on standard output, with a line of air between them."""
    for number, view in enumerate(answer.views):
        if number:
            print()
        print_view(view, cmap=cmap, plain=plain)


def print_json(answer: Answer) -> None:
    """Write the numbers to standard output."""
    print_plain(answer.numbers)


def save(answer: Answer, out: Path, picture: PictureOptions) -> None:
    """Draw the answer into ``out``; several kinds of attention make several files, named after them."""
    from attnscope.render.image import save as save_picture

    for name, view in answer.pictures.items():
        path = out if len(answer.pictures) == 1 else out.with_stem(f"{out.stem}-{name}")
        drawn = save_picture(
            view, path, dpi=picture.dpi, cmap=picture.cmap, width=picture.size, font=picture.font
        )
        for warning in drawn:
            print(f"attnscope: {warning}", file=sys.stderr)
        print(f"saved {path}", file=sys.stderr)


def save_layers(layers: WholeLayers, out: Path, cmap: str | None) -> None:
    """Write all heads as a page or as data, as the suffix says."""
    from attnscope.render.layers import save_layers as save

    save(layers, out, cmap)
    print(f"saved {out}", file=sys.stderr)
