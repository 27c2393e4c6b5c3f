"""How long pictures take: ``python -m tests.benchmarks.pictures [--repeats N]``.

144 heads of 12 layers on 32 tokens, in processor time of one process, in turns within one run, best of the
repeats, as ratios to what a user would write: for heads as PNG a loop over ``imshow`` and ``savefig`` on a
new figure each, with the same size, cells, labels, colour bar, title and caption; for the overview a 12 × 12
grid of axes with a tight layout. Then the segments of a terminal frame, what is printed of one, and, where
bertviz is installed, its page of all heads on 128 tokens beside ours.
"""

import argparse
import io
import tempfile
from collections.abc import Callable
from pathlib import Path

import matplotlib

matplotlib.use("agg")

import matplotlib.pyplot as plt
import numpy as np
from rich.console import Console

from attnscope.attention import Token
from attnscope.axes import Weights, weights
from attnscope.questions.head import pick_head
from attnscope.render.image import DPI, Album, drawing, save_image
from attnscope.render.page.page import page
from attnscope.render.terminal import lines, print_view
from attnscope.render.terminal.surface import Surface
from attnscope.views import Grid, Heatmap, Measured, grid, heatmap
from tests.benchmarks.turns import take_turns

LAYERS = HEADS = 12
WORDS = "The cat sat on the mat because it was tired and the dog that came in late slept by the fire ."
NAMES = (
    "entropy",
    "effective_keys",
    "confidence",
    "distance",
    "previous",
    "self",
    "next",
    "first",
    "special",
)


def made(tokens: int) -> list[Weights]:
    """The layers of a model, rows that sum to 1 and are mostly on a few keys.  -> [head, query, key] each"""
    words = (WORDS.split() * tokens)[:tokens]
    axis = tuple(Token(word, i, word=i) for i, word in enumerate(words))
    drawn = np.random.default_rng(0).standard_gamma(0.1, (LAYERS, HEADS, tokens, tokens)).astype(np.float32)
    drawn /= drawn.sum(-1, keepdims=True)
    return [weights(layer, axis, axis) for layer in drawn]


def pictures(layers: list[Weights]) -> list[Heatmap]:
    """Every head with a title and a caption of its own."""
    return [
        heatmap(
            pick_head(layer, head),
            title=f"L{number}H{head} · a model · encoder attention",
            subtitle=f"looks at the previous token (0.{number}{head}, baseline 0.03)",
            readings=tuple(Measured(name, number + head / 7, 0.5) for name in NAMES),
        )
        for number, layer in enumerate(layers)
        for head in range(HEADS)
    ]


def ours(heads: list[Heatmap], folder: Path) -> None:
    """What ``export`` does."""
    album = Album()
    for number, view in enumerate(heads):
        album.save(view, folder / f"{number}.png")


def loop(heads: list[Heatmap], folder: Path) -> None:
    """What a user would write: a new figure a head."""
    with drawing(heads[0]) as (figure, _):
        size = figure.get_size_inches()
    for number, view in enumerate(heads):
        labels = [place.label for place in view.weights.keys]
        figure, axes = plt.subplots(figsize=size)
        image = axes.imshow(view.values, vmin=0, vmax=1, cmap="magma")
        axes.set_xticks(range(len(labels)), labels, rotation=90)
        axes.set_yticks(range(len(labels)), labels)
        axes.set_title(f"{view.title}\n{view.subtitle}")
        figure.colorbar(image)
        told = "\n".join(f"{r.name} {r.value:.2f} (baseline {r.baseline:.2f})" for r in view.readings)
        figure.text(0.02, 0.02, told, size=6.5)
        figure.savefig(folder / f"{number}.png", dpi=DPI)
        plt.close(figure)


def axes_of_all(layers: list[Weights], folder: Path) -> None:
    """A grid of axes, with a tight layout."""
    figure, axes = plt.subplots(LAYERS, HEADS, figsize=(12, 12))
    for layer, row in zip(layers, axes, strict=True):
        for values, one in zip(layer.values, row, strict=True):
            one.imshow(values, vmin=0, vmax=1, cmap="magma")
            one.set_xticks([])
            one.set_yticks([])
    figure.tight_layout()
    figure.savefig(folder / "all.png", dpi=DPI)
    plt.close(figure)


def seconds(*work: Callable[[], object], repeats: int) -> list[float]:
    """Processor time of each piece of work, in turns; the best of the repeats, after one unmeasured."""
    return [
        min(taken)
        for taken in take_turns({f"{number}": piece for number, piece in enumerate(work)}, repeats).values()
    ]


def bertviz_page(layers: list[Weights], path: Path) -> None:
    """bertviz's page of all heads."""
    import torch
    from bertviz import model_view

    maps = [torch.from_numpy(layer.values)[None] for layer in layers]
    tokens = [place.text for place in layers[0].keys]
    path.write_text(model_view(maps, tokens, html_action="return").data, "utf-8")


def terminal() -> Console:
    """A terminal of 160 columns in true colour, whose output is thrown away."""
    return Console(
        file=io.StringIO(), force_terminal=True, color_system="truecolor", width=160, highlight=False
    )


def row(name: str, mine: float, theirs: float, unit: str = "s") -> None:
    """Print one line of the table."""
    print(f"{name:52}{mine:10.3f}{theirs:10.3f} {unit:3}{theirs / mine:8.1f}")


def main() -> None:
    """Time everything and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    repeats = parser.parse_args().repeats
    layers = made(32)
    heads = pictures(layers)
    view: Grid = grid(enumerate(layers), title="a model")
    surface = Surface(160, True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        print(f"{'':52}{'attnscope':>10}{'theirs':>10}{'':4}{'ratio':>8}")
        row(
            "144 heads as PNG, a loop over imshow and savefig",
            *seconds(lambda: ours(heads, folder), lambda: loop(heads, folder), repeats=repeats),
        )
        row(
            "144 heads in one PNG, 12 × 12 axes, tight layout",
            *seconds(
                lambda: save_image(view, folder / "all.png"),
                lambda: axes_of_all(layers, folder),
                repeats=repeats,
            ),
        )
        single = heatmap(pick_head(made(64)[0], 0))
        marked = ((view, (0, 0)), (single, 0))  # as the browser draws them
        frames = seconds(*(lambda v=v, m=m: list(lines(v, surface, m)) for v, m in marked), repeats=20)
        for said, taken in zip(("12 × 12 thumbnails", "64 × 64 cells"), frames, strict=True):
            print(f"{f'a terminal frame of {said}, 160 columns':52}{1000 * taken:10.1f}{'':10} ms")
        for tokens in (13, 32, 60, 512):
            printed = grid(enumerate(made(tokens)), title="a model")
            (taken,) = seconds(lambda view=printed: print_view(view, terminal()), repeats=20)
            said = f"12 × 12 thumbnails printed, {tokens} tokens"
            print(f"{said:52}{1000 * taken:10.1f}{'':10} ms")
        compare_pages(folder)


def compare_pages(folder: Path) -> None:
    """Our page of all heads beside bertviz's, on 128 tokens; at 512 its page takes 1 GB."""
    try:
        import bertviz  # noqa: F401
    except ImportError:
        print("bertviz is not installed: no page to compare with")
        return
    layers = made(128)
    mine, theirs = folder / "ours.html", folder / "bertviz.html"
    row(
        "144 heads × 128 tokens as a page, bertviz model_view",
        *seconds(
            lambda: mine.write_text(page({"encoder": enumerate(layers)}, title="a model"), "utf-8"),
            lambda: bertviz_page(layers, theirs),
            repeats=1,
        ),
    )
    row("its size", mine.stat().st_size / 1e6, theirs.stat().st_size / 1e6, "MB")


if __name__ == "__main__":
    main()
