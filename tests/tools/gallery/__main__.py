"""Pictures of every kind, to be looked at: ``python -m tests.tools.gallery FOLDER``.

Some 70: what a terminal shows, as SVG and as the text that it was sent (``cat`` shows it), at 80, 100 and 160
columns, in true colour, 256 colours and none; pictures as PNG at 3.3 and 7 inches; and, where there is a
Chromium, the page at three widths in both themes. All of it is what commands print and save: of the bundled
models, the trained MiniLM where it is installed, a decoder of 12 × 12 heads and models that see and hear, on
short and long texts, Japanese, Arabic and emoji.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from unittest.mock import patch

import numpy as np
from rich.console import Console
from rich.text import Text

from attnscope.attention import Token
from attnscope.axes import Weights, weights
from attnscope.cli import main as attnscope
from attnscope.models import load
from attnscope.questions.layers import all_heads
from attnscope.questions.selection import Selection
from attnscope.render.page import Page, save_page
from tests.render.page.browser import CHROMIUM, browser
from tests.tools.gallery.plates import TEXTS, Plate, plates

COLOURS: Mapping[str, Mapping[str, str]] = {
    "true": {"FORCE_COLOR": "1", "TERM": "xterm-256color", "COLORTERM": "truecolor"},
    "256": {"FORCE_COLOR": "1", "TERM": "xterm-256color", "COLORTERM": ""},
    "none": {"FORCE_COLOR": "1", "TERM": "xterm-256color", "NO_COLOR": "1"},
}
PAGES_OF = {
    "page-13": ((1400, False), (1024, True), (400, False)),
    "page-144-heads": ((1400, True), (1024, False)),
    "page-japanese": ((400, True),),
    "page-arabic": ((1024, False),),
    "page-picture": ((1400, True),),
    "page-sound": ((1400, False),),
}
"""Pixels across, and whether the theme is dark."""
COMPARED = ("tickLayer()", "pin(3)", "changeMode('lines')", "element('head').scrollIntoView()")
"""What compares the heads of a layer in a page."""


def run(arguments: Sequence[str], columns: int, colour: str) -> str:
    """What a command prints on a terminal of so many columns, with its colours; errors end everything."""
    told, errors = io.StringIO(), io.StringIO()
    kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR")}
    environment = {**kept, **COLOURS[colour], "COLUMNS": str(columns)}
    with (
        patch.dict(os.environ, environment, clear=True),
        patch.object(sys, "argv", ["attnscope", *arguments]),
        redirect_stdout(told),
        redirect_stderr(errors),
    ):
        try:
            attnscope()
        except SystemExit as ended:
            if ended.code not in (None, 0) and arguments[0] != "check":
                raise RuntimeError(f"{arguments}: {errors.getvalue()}") from None
    for line in errors.getvalue().splitlines():
        if not line.startswith("saved "):
            print(f"{' '.join(arguments)[:60]}: {line}")
    return told.getvalue()


def draw(folder: Path, plate: Plate) -> None:
    """What a command prints on each terminal, and the pictures that it saves."""
    for width, colour in plate.terminals:
        target = Console(
            file=io.StringIO(), record=True, width=width, force_terminal=True, color_system="truecolor"
        )
        printed = run(plate.arguments, width, colour)
        name = f"{plate.name}-{width}-{colour}"
        (folder / f"{name}.ansi").write_text(printed, "utf-8")
        target.print(Text.from_ansi(printed), crop=False)
        target.save_svg(str(folder / f"{name}.svg"), title=name)
    for inches in plate.inches:
        file = folder / f"{plate.name}-{inches}in.png"
        run((*plate.arguments, "-o", str(file), "--size", str(inches)), 80, "none")


def pages(folder: Path, place: Path) -> None:
    """Pages of texts, of many heads, and of models that see and hear."""
    model = load("own")
    for name in ("13", "japanese", "arabic"):
        save_page(all_heads(model, model.prepare(TEXTS[name]), Selection()), folder / f"page-{name}.html")
    large = Page({"decoder": enumerate(twelve_layers(60))}, title="12 layers of 12 heads").text()
    (folder / "page-144-heads.html").write_text(large, "utf-8")
    tone = ("show", "--audio", str(place / "tone.wav"), "-m", str(place / "hubert"))
    run((*tone, "-o", str(folder / "page-sound.html")), 80, "none")
    asked = ("show", "what is on the mat ?", "--image", str(place / "corner.png"), "-m", str(place / "llava"))
    run((*asked, "-o", str(folder / "page-picture.html")), 80, "none")


def twelve_layers(tokens: int) -> list[Weights]:
    """Layers of 12 heads whose rows sum to 1 and are mostly on a few keys."""
    axis = tuple(Token(word, at, word=at) for at, word in enumerate((TEXTS["60"].split() * tokens)[:tokens]))
    drawn = np.random.default_rng(0).standard_gamma(0.1, (12, 12, tokens, tokens)).astype(np.float32)
    return [weights(layer, axis, axis) for layer in drawn / drawn.sum(-1, keepdims=True)]


def photograph(folder: Path) -> None:
    """Pages in a browser as they open, and with a layer compared."""
    with tempfile.TemporaryDirectory() as profile, browser(Path(profile)) as shown:
        for path in sorted(folder.glob("page-*.html")):
            for width, dark in PAGES_OF[path.stem]:
                shown.size(width, 900)
                shown.dark(dark)
                shown.open(path)
                name = f"{path.stem}-{width}-{'dark' if dark else 'light'}"
                shown.photograph(folder / f"{name}.png")
                if name == "page-13-1400-light":
                    for step in COMPARED:
                        shown.run(step)
                    shown.photograph(folder / f"{name}-compared.png")


def main() -> None:
    """Draw everything, and say how much there is to be looked at."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="plates whose names begin so")
    asked = parser.parse_args()
    folder: Path = asked.folder
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        for plate in plates(Path(place)):
            if plate.name.startswith(asked.only):
                draw(folder, plate)
        if "page".startswith(asked.only[:4]):
            pages(folder, Path(place))
    if CHROMIUM is not None:
        try:
            photograph(folder)
        except OSError as error:
            print(f"no photographs: the browser went away ({error})")
    count = sum(path.suffix in (".svg", ".png") for path in folder.iterdir())
    print(f"{count} pictures in {folder}")


if __name__ == "__main__":
    main()
