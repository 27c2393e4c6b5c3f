"""Sample views, consoles to print them on, and pixels read back from the output."""

import io

import numpy as np
from rich.cells import cell_len
from rich.console import Console

from attnscope.attention import Token
from attnscope.axes import Place, Weights, weights
from attnscope.render.colour import STEPS, table
from attnscope.render.terminal import PrintedView, View, lines
from attnscope.render.terminal.surface import TONES, Surface, clusters
from attnscope.views import HeadPair, RowGap, head_pair
from attnscope.views.heads import AlignedTexts, DistanceMap, HeadDistances, distance_map


def printed(view: View, *, width=80, colour: str | None = None, no_color=False, **options) -> str:
    """What a console writes; ``colour`` None is a pipe."""
    colours = {"force_terminal": colour is not None, "color_system": colour, "no_color": no_color}
    console = Console(file=io.StringIO(), width=width, highlight=False, **colours)
    console.print(PrintedView(view, **options), crop=False)
    return console.file.getvalue()


def widths(text: str) -> list[int]:
    return [cell_len(line) for line in text.splitlines()]


def pixels(view: View, *, width: int = 80) -> list[list[tuple]]:
    """Every column of every line as (upper, lower) colour; ``None`` is the terminal's own."""
    found = []
    for line in lines(view, Surface(width, True, cmap="ember")):
        row = []
        for text, style, _ in line:
            front, back = (style.color, style.bgcolor) if style else (None, None)
            for character in clusters(text):
                upper = front if character == "▀" else back
                lower = front if character == "▄" else back
                halves = tuple(half and tuple(half.triplet) for half in (upper, lower))
                row += [halves] * cell_len(character)
        found.append(row)
    return found


def coloured(view: View, *, width: int = 80) -> list[list[tuple]]:
    """The lines of pixels in which there is any."""
    return [line for line in pixels(view, width=width) if set(line) - {(None, None)}]


def expected_colours(levels: np.ndarray) -> np.ndarray:
    tones = np.round(levels * (TONES - 1))
    return table("ember")[np.round(tones * (STEPS - 1) / (TONES - 1)).astype(int)]


def tokens(*texts: str) -> tuple[Token, ...]:
    return tuple(Token(text, i, word=i) for i, text in enumerate(texts))


def bare(values: np.ndarray, allowed: np.ndarray | None = None) -> Weights:
    """Weights between positions without a text."""
    return weights(values, *map(range, np.shape(values)[-2:]), allowed)


def random_head(queries: int, keys: int | None = None, seed: int = 0, causal: bool = False) -> Weights:
    """One head of numbers that all differ, labelled with words of different lengths."""
    columns = keys or queries
    values = np.random.default_rng(seed).random((queries, columns)) ** 3
    allowed = np.tril(np.ones((queries, columns), bool)) if causal else None
    values = values if allowed is None else values * allowed
    values /= values.sum(-1, keepdims=True)
    labels = tokens(*(f"word{'s' * (i % 9)}" for i in range(max(queries, columns))))
    return weights(values, labels[:queries], labels[:columns], allowed)


def distance_table(count: int, groups=(), **said) -> DistanceMap:
    above = np.triu(np.random.default_rng(0).random((count, count)) * 0.6, 1)
    names = tuple(f"L{number // 12}H{number % 12}" for number in range(count))
    return distance_map(above + above.T, names, names, groups=groups, **said)


def all_heads(count: int) -> HeadDistances:
    cut = max(count // 3, 1)
    groups = [range(cut), range(cut, count)] if count > 1 else [range(count)]
    points = np.random.default_rng(0).normal(size=(count, 2))
    layers = tuple(number // 12 for number in range(count))
    said = {"title": "heads compared", "notes": ("two groups",)}
    table = distance_table(count, groups, **said)
    return HeadDistances(table, points, table.rows, layers, **said)


def pair(count: int = 5, label: str = "cat") -> HeadPair:
    one, other = random_head(count, seed=1), random_head(count, seed=2)
    parting = RowGap(label, 2, 0.51, (f"{label} 0", "it 8"), (0.95, 0.11))
    return head_pair(("L0H1", "L2H3"), (one, other), (parting,), title="L0H1 and L2H3", notes=("a note",))


def aligned(*steps: tuple[str | None, str | None]) -> AlignedTexts:
    made = (
        tuple(text and Place(text, number, number + 1) for text in step) for number, step in enumerate(steps)
    )
    return AlignedTexts(tuple(made), title="two texts")
