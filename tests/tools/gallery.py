"""Every kind of picture, to be looked at: ``python -m tests.tools.gallery FOLDER``.

What a terminal shows as SVG, at 80, 100 and 160 columns, in true colour, 256 colours and none; pictures as
PNG at 3.3 and 7 inches; and, where there is a Chromium, the page at three widths in both themes. Of the
bundled models and of a made-up one of 12 × 12 heads, on short and long texts, Japanese, Arabic and emoji.
"""

from __future__ import annotations

import argparse
import io
import itertools
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from rich.console import Console

from attnscope.analysis.all_heads import all_heads
from attnscope.analysis.comparison.compare import compare
from attnscope.analysis.comparison.depth import through_layers
from attnscope.analysis.comparison.two_heads import compare_heads
from attnscope.analysis.head import one_head
from attnscope.analysis.overview import overview
from attnscope.analysis.selection import Selection
from attnscope.analysis.stats import stats
from attnscope.analysis.token import one_token
from attnscope.answers.figure_table import print_table
from attnscope.attention import Head
from attnscope.models import load
from attnscope.render import page
from attnscope.render.image import save
from attnscope.render.layers import save_page
from attnscope.render.terminal import Picture
from attnscope.views import grid
from tests.benchmarks.pictures import made
from tests.render.page.browser import CHROMIUM, browser

CAT = "The cat sat on the mat because it was tired."
TEXTS = {
    "13": CAT,
    "60": " ".join([CAT.rstrip("."), "and the dog that came in late slept by the fire"] * 3),
    "512": " ".join(f"{CAT} The dog that came in at {hour} slept by the fire." for hour in range(40)),
    "japanese": "猫は疲れていたのでマットの上に座った。",
    "arabic": "جلست القطة على السجادة لأنها كانت متعبة",
    "emoji": "The 🐈 sat on the 🧶 because it was 😴.",
}
WIDTHS = (80, 100, 160)
COLOURS: Mapping[str, Mapping[str, object]] = {
    "true": {"color_system": "truecolor"},
    "256": {"color_system": "256"},
    "none": {"color_system": "truecolor", "no_color": True},
}
INCHES = (3.3, 7.0)
PAGES = (1400, 1024, 400)


def views() -> Iterator[tuple[str, object]]:
    """Every view, by a name for its files."""
    own, causal = load("own"), load("own-causal")
    for name, text in TEXTS.items():
        for model in (own, causal):
            prepared = model.prepare(text, truncate=True)
            yield (
                f"overview-{model.name}-{name}",
                next(iter(overview(model, prepared, Selection()).grids.values())),
            )
        prepared = own.prepare(text, truncate=True)
        yield f"head-{name}", one_head(own, prepared, Selection().of("L2H1")).heatmap
        yield f"token-{name}", one_token(own, prepared, Selection(token="3"))
    for tokens in (13, 128):
        yield f"overview-144-heads-{tokens}", grid(enumerate(made(tokens)), title="12 layers of 12 heads")
    prepared = own.prepare(CAT)
    yield "compared", compare(own, [prepared], Selection()).view
    yield "depth", through_layers(own, prepared, 3).view
    yield "two-heads", compare_heads(own, prepared, Head("L1H2"), Head("L2H1"), Selection()).view


def console(width: int, colour: str) -> Console:
    """A console that writes nowhere and remembers all."""
    return Console(
        file=io.StringIO(), record=True, width=width, force_terminal=True, highlight=False, **COLOURS[colour]
    )


def draw_terminal(folder: Path, name: str, view: object) -> None:
    """A view at every width in true colour, and in the other colours at 80 columns."""
    shown = getattr(view, "table", view)  # of all heads compared the table
    for width, colour in [*((width, "true") for width in WIDTHS), (80, "256"), (80, "none")]:
        target = console(width, colour)
        target.print(Picture(shown), crop=False)
        target.save_svg(str(folder / f"{name}-{width}-{colour}.svg"), title=name)


def draw_tables(folder: Path) -> None:
    """The figures of all heads, as ``stats`` prints them."""
    model = load("own")
    seen = stats(model, model.prepare(CAT), Selection())
    for width in WIDTHS:
        target = console(width, "true")
        print_table(seen, seen.heads, None, target)
        target.save_svg(str(folder / f"stats-{width}-true.svg"), title="stats")


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
    for name, view in views():
        draw_terminal(folder, name, view)
        for inches in INCHES:
            for warning in save(view, folder / f"{name}-{inches}in.png", width=inches):
                print(f"{name}: {warning}")
    draw_tables(folder)
    if CHROMIUM is not None:
        try:
            photograph_pages(folder)
        except OSError as error:
            print(f"no photographs of the page: the browser went away ({error})")
    print(f"{sum(path.suffix != '.html' for path in folder.iterdir())} pictures in {folder}")


if __name__ == "__main__":
    main()
