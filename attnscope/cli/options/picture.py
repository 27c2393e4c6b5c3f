"""What a picture shows of the tokens, how it is drawn, and where it goes."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from attnscope.cli.options.complete import complete_cmap
from attnscope.cli.options.declare import PICTURE, flag, option
from attnscope.cli.retired import tell_retired
from attnscope.errors import OutputError

PICTURES = (".png", ".svg", ".pdf")
WHOLE = (".html", ".npz", ".safetensors", ".json", ".csv")


@dataclass(frozen=True, kw_only=True)
class AxisOptions:
    """What stands on the axes."""

    words: bool = flag("Merge pieces into words.")
    hide_special: bool = flag(
        "Leave special tokens out, and say how much attention they take.", panel=PICTURE
    )


@dataclass(frozen=True, kw_only=True)
class MapOptions(AxisOptions):
    """What stands on the axes, and what full colour stands for."""

    scale: Literal["auto", "fixed", "row", "head"] = option(
        "Full colour is a weight of 1, or the largest of its row or head; auto is 1, or the head's where "
        "nearly all weights are faint, and says so.",
        panel=PICTURE,
        default="auto",
    )


@dataclass(frozen=True, kw_only=True)
class PictureOptions:
    """How a picture that is saved is drawn."""

    cmap: str | None = option("Colour map; a wrong name lists them.", panel=PICTURE, complete=complete_cmap)
    dpi: float = option("Dots per inch of a PNG.", min=10, max=1200, panel=PICTURE, default=150)
    size: float | None = option(
        "Width of a picture in inches; as large as is legible if not given.", min=1, max=100, panel=PICTURE
    )
    font: str | None = option("A font family to prefer, of those installed.", panel=PICTURE)


@dataclass(frozen=True, kw_only=True)
class PrintedOptions(PictureOptions):
    """How a picture that is printed or saved is drawn, and what stands around one that is saved."""

    title: str | None = option("A title of your own for a picture that is saved.", panel=PICTURE)
    no_title: bool = flag("Save a picture without any title.", "--no-title", panel=PICTURE)
    no_figures: bool = flag(
        "Save a picture without the figures and notes below it.", "--no-figures", panel=PICTURE
    )
    annotate: bool = flag("Write the weights into the cells of one head that is saved.", panel=PICTURE)
    graphics: Literal["auto", "kitty", "sixel", "iterm", "cells"] = option(
        "Coloured cells, or real pixels by kitty, sixel or iterm; auto asks the terminal, and draws cells "
        "where it does not answer. Never in a pipe. Auto and sixel need textual-image.",
        panel=PICTURE,
        default="cells",
    )
    plain: bool = flag("Shades instead of colours.", panel=PICTURE)


@dataclass(frozen=True, kw_only=True)
class NumbersOptions:
    """Numbers in place of a picture."""

    as_json: bool = flag("Print the numbers as JSON.", "--json")


def check_picture(out: Path | None, cmap: str | None, one: bool, signed: bool = False) -> None:
    """Refuse, before any work is done, what could not be written or drawn at its end.

    ``one`` says that one head or one token was asked for, ``signed`` that differences may be drawn.
    """
    from attnscope.render.colour import choose_map

    if cmap is not None:
        choose_map(cmap, signed=signed)
    if out is None:
        return
    suffix = out.suffix.lower()
    _check_place(out, (*PICTURES, *WHOLE))
    if one and suffix in WHOLE:
        raise OutputError(f"a {suffix} file holds whole layers: leave out --head and --token, or use --json")


def check_data(out: Path) -> None:
    """Refuse, before any work is done, a file of whole layers that could not be written at its end."""
    _check_place(out, WHOLE)


def _check_place(out: Path, suffixes: tuple[str, ...]) -> None:
    suffix = out.suffix.lower()
    if suffix not in suffixes:
        sentence = f"{out} cannot be written: its name must end in {', '.join(suffixes)}"
        raise OutputError(tell_retired(sentence, suffix))
    if not out.parent.is_dir():
        raise OutputError(f"{out} cannot be written: there is no folder {out.parent}")
