"""Every kind of picture, to be looked at: ``python -m tests.tools.gallery FOLDER``.

What a terminal shows as SVG, at 80, 100 and 160 columns, in true colour, 256 colours and none; pictures as
PNG at 3.3 and 7 inches; and, where there is a Chromium, the page at three widths in both themes. All of it is
what commands print and save: of the bundled models, the trained MiniLM where it is installed, a decoder of
12 × 12 heads and a model of images, on short and long texts, Japanese, Arabic and emoji.
"""

from __future__ import annotations

import argparse
import io
import itertools
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from unittest.mock import patch

from rich.console import Console
from rich.text import Text

from attnscope.analysis.all_heads import all_heads
from attnscope.analysis.selection import Selection
from attnscope.cli import main as attnscope
from attnscope.models import load
from attnscope.render import page
from attnscope.render.layers import save_page
from tests.benchmarks.pictures import made
from tests.models import folders, images
from tests.render.page.browser import CHROMIUM, browser

CAT = "The cat sat on the mat because it was tired."
DOG = "The dog lay on the mat because it was old."
LONG = " ".join(f"{CAT} The dog that came in at {hour} slept by the fire." for hour in range(240))
TEXTS = {
    "13": CAT,
    "60": " ".join([CAT.rstrip("."), "and the dog that came in late slept by the fire"] * 3),
    "512": LONG,
    "japanese": "猫は疲れていたのでマットの上に座った。",
    "arabic": "جلست القطة على السجادة لأنها كانت متعبة",
    "emoji": "The 🐈 sat on the 🧶 because it was 😴.",
}
WIDTHS = (80, 100, 160)
COLOURS: Mapping[str, Mapping[str, str]] = {
    "true": {"FORCE_COLOR": "1", "TERM": "xterm-256color", "COLORTERM": "truecolor"},
    "256": {"FORCE_COLOR": "1", "TERM": "xterm-256color", "COLORTERM": ""},
    "none": {"FORCE_COLOR": "1", "TERM": "xterm-256color", "NO_COLOR": "1"},
}
INCHES = (3.3, 7.0)
PAGES = (1400, 1024, 400)


def commands(place: Path) -> Iterator[tuple[str, Sequence[str], bool]]:
    """Every command by a name for its files, and whether it saves pictures; models are made in a folder."""
    for name, text in TEXTS.items():
        yield f"overview-own-{name}", ("show", text, "--truncate"), True
        yield f"overview-causal-{name}", ("show", text, "--truncate", "-m", "own-causal"), True
        yield f"head-{name}", ("show", text, "--truncate", "--head", "L2H1"), True
        yield f"token-{name}", ("show", text, "--truncate", "--token", "3"), True
    yield "written", ("show", "The king said that he would", "-m", "own-causal", "--generate", "9"), True
    written = ("show", "The king said that he would", "-m", "own-causal", "--generate", "9", "--head", "L1H1")
    yield "written-head", written, True
    yield "words", ("show", "An unbelievably catlike mat.", "--words", "--head", "L0H7"), True
    yield "one-scale", ("show", CAT, "--head", "L0H7", "--token", "cat", "--scale", "head"), True
    decoder = folders.gpt2(place / "decoder", n_layer=12, n_head=12, n_embd=48, n_positions=3072)
    for tokens in (13, 60, 512, 3000):
        many = ("show", LONG, "-m", decoder, "--max-tokens", str(tokens))
        yield f"overview-144-heads-{tokens}", many, True
    yield "stats", ("stats", CAT), False
    yield "map", ("stats", CAT, "--map", "entropy"), True
    yield "compare", ("compare", CAT), True
    yield "compare-all", ("compare", CAT, "--all"), False
    yield "two-heads", ("compare", CAT, "L1H2", "L2H1"), True
    yield "depth", ("compare", CAT, "--head", "3"), True
    yield "texts", ("compare", CAT, "--with-text", DOG), True
    yield "texts-head", ("compare", CAT, "--with-text", DOG, "--head", "L2H1"), True
    yield "find", ("find", "it -> cat", "* -> -2", CAT), True
    yield "spans", ("spans", TEXTS["60"]), True
    yield "curves", ("stats", TEXTS["60"], "-m", "own-causal", "--by-position", "previous"), True
    written = ("spans", "The king said that he would", "-m", "own-causal", "--generate", "9", "--written")
    yield "shares", written, True
    yield "ablation", ("show", CAT, "--ablate", "L2H1"), False
    yield "check", ("check", "L2H1.previous > 0.8", "count(first > 0.5) = 35", "--text", CAT), False
    yield "info", ("info",), False
    vit = images.vision(place / "vit", "vit")
    image = str(images.picture(place / "corner.png"))
    yield "image", ("show", "--image", image, "-m", vit), True
    yield "image-head", ("show", "--image", image, "-m", vit, "--head", "L0H1"), True
    yield "image-token", ("show", "--image", image, "-m", vit, "--token", "CLS"), True
    try:
        minilm = folders.minilm()
    except ImportError:
        return
    for name in ("13", "512"):
        yield f"overview-minilm-{name}", ("show", TEXTS[name], "-m", minilm, "--truncate"), True
    yield "compare-minilm", ("compare", CAT, "-m", minilm), True
    yield "models", ("compare", CAT, "--with-model", minilm), True


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
            failed = ended.code not in (None, 0) and arguments[0] != "check"
            if failed:
                raise RuntimeError(f"{arguments}: {errors.getvalue()}") from None
    for line in errors.getvalue().splitlines():
        if not line.startswith("saved "):
            print(f"{' '.join(arguments)[:60]}: {line}")
    return told.getvalue()


def draw_terminal(folder: Path, name: str, arguments: Sequence[str]) -> None:
    """What a command prints at every width in true colour, and in the other colours at 80 columns."""
    for width, colour in [*((width, "true") for width in WIDTHS), (80, "256"), (80, "none")]:
        target = Console(
            file=io.StringIO(), record=True, width=width, force_terminal=True, color_system="truecolor"
        )
        target.print(Text.from_ansi(run(arguments, width, colour)), crop=False)
        target.save_svg(str(folder / f"{name}-{width}-{colour}.svg"), title=name)


def photograph_pages(folder: Path) -> None:
    """Pages in a browser, at every width in both themes, as they open and with a layer compared."""
    model = load("own")
    for name, text in TEXTS.items():
        save_page(
            all_heads(model, model.prepare(text, truncate=True), Selection()), folder / f"page-{name}.html"
        )
    large = page.page({"decoder": enumerate(made(60))}, title="12 layers of 12 heads")
    (folder / "page-144-heads.html").write_text(large, "utf-8")
    with tempfile.TemporaryDirectory() as profile, browser(Path(profile)) as seen:
        for path in sorted(folder.glob("page-*.html")):
            for width, dark in itertools.product(PAGES, (False, True)):
                seen.size(width, 900, mobile=width < 500)
                seen.dark(dark)
                seen.open(path)
                name = f"{path.stem}-{width}-{'dark' if dark else 'light'}"
                seen.photograph(folder / f"{name}.png")
                for step in (
                    "tickLayer()",
                    "pin(3)",
                    "changeMode('lines')",
                    "element('head').scrollIntoView()",
                ):
                    seen.run(step)
                seen.photograph(folder / f"{name}-compared.png")


def main() -> None:
    """Draw everything, and say how much there is to be looked at."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        for name, arguments, saves in commands(Path(place)):
            draw_terminal(folder, name, arguments)
            for inches in INCHES if saves else ():
                file = folder / f"{name}-{inches}in.png"
                run((*arguments, "-o", str(file), "--size", str(inches)), 80, "none")
    if CHROMIUM is not None:
        try:
            photograph_pages(folder)
        except OSError as error:
            print(f"no photographs of the page: the browser went away ({error})")
    print(f"{sum(path.suffix != '.html' for path in folder.iterdir())} pictures in {folder}")


if __name__ == "__main__":
    main()
