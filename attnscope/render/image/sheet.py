"""The sheet of every picture: title, caption, labels, colour bar; and fonts that have its characters."""

from __future__ import annotations

import math
import textwrap
import unicodedata
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.ft2font import FT2Font
from matplotlib.transforms import AffineDeltaTransform, ScaledTranslation

from attnscope.axes import Array, Place
from attnscope.errors import SelectionError
from attnscope.render.colour import mark_colour, table
from attnscope.text import (
    balance_lines,
    clean,
    fill_lines,
    is_framed,
    isolate,
    isolate_lines,
    isolate_quotes,
    title_words,
)
from attnscope.views import Drawable, NamedScore, is_narrow

BASE_FONT = "DejaVu Sans"  # comes with matplotlib, and is the same everywhere
SHAPES_TEXT = matplotlib.__version_info__ >= (3, 11)  # joins letters, and sets them from right to left

FONTS = {
    **dict.fromkeys(("CJK", "Hiragana", "Katakana", "Ideographic", "Hangul"), "Noto Sans CJK"),
    "emoji and symbols": "Noto Emoji",
}


def families(texts: Iterable[str], font: str | None = None) -> tuple[list[str], list[str]]:
    """Font families that together cover ``texts``, ``font`` first; a warning per missing script."""
    characters = set("".join(texts)) - set("\u200c\u200d\ufe0e\ufe0f")  # which nobody sees
    chosen = [BASE_FONT]
    missing = characters - _characters(font_manager.findfont(BASE_FONT))
    if font is not None:
        if font not in _font_files():
            raise SelectionError(f"no font {font!r} is installed: name a family, such as {BASE_FONT!r}")
        chosen.insert(0, font)
        missing -= _characters(_font_files()[font])
    by_name = _font_files().items() if missing else ()
    for family, path in sorted(by_name, key=lambda entry: ("sans" not in entry[0].lower(), entry[0])):
        if missing and (covered := missing & _characters(path)):
            chosen.append(family)
            missing -= covered
    return chosen, [*_lacks(missing), *_note_unjoined_letters(characters)]


@cache
def _font_files() -> dict[str, str]:
    """The upright, regular file of each family that matplotlib can draw with."""
    manager = font_manager.fontManager
    listed = {entry.fname for entry in manager.ttflist}
    for path in sorted(set(font_manager.findSystemFonts()) - listed):
        try:
            manager.addfont(path)
        except (OSError, RuntimeError, ValueError):
            continue  # a bitmap or broken font, which matplotlib cannot load
    files: dict[str, str] = {}
    regular = [e for e in manager.ttflist if e.style == "normal" and e.weight in (400, "normal", "regular")]
    for entry in sorted(regular, key=lambda entry: str(entry.fname)):
        files.setdefault(entry.name, entry.fname)
    return files


@cache
def _characters(path: str) -> frozenset[str]:
    """The characters that a font file has outlines for; empty for bitmap fonts."""
    try:
        face = FT2Font(path)
    except (OSError, RuntimeError):
        return frozenset()
    if "lastresort" in Path(path).stem.lower():
        return frozenset()  # a font of boxes
    return frozenset(map(chr, face.get_charmap()))


def _lacks(missing: set[str]) -> list[str]:
    by_script: dict[str, str] = {}
    for character in sorted(missing):
        by_script[script(character)] = by_script.get(script(character), "") + character
    examples = {name: few if len(few) <= 5 else f"{few[:5]} and more" for name, few in by_script.items()}
    named = " and ".join(f"{name} ({examples[name]})" for name in sorted(examples))
    fonts = " and ".join(sorted({FONTS.get(name, "the Noto Sans of its script") for name in by_script}))
    sentence = (
        f"no installed font can draw {named}, which appear as boxes: install {fonts}, which is then used "
        "automatically, or choose a font with --font"
    )
    return [sentence] if missing else []


def _note_unjoined_letters(letters: set[str]) -> list[str]:
    turned = {script(c) for c in letters if not SHAPES_TEXT and unicodedata.bidirectional(c) in ("R", "AL")}
    return [
        f"{name} letters stand unjoined and from left to right: matplotlib {matplotlib.__version__} "
        "cannot set them; install matplotlib 3.11 or later"
        for name in sorted(turned)
    ]


def script(character: str) -> str:
    """The script of a character in words, as far as its Unicode name tells: Arabic, CJK, emoji, ..."""
    code = ord(character)
    if 0x1F000 <= code <= 0x1FAFF or unicodedata.category(character) in ("So", "Sk"):
        return "emoji and symbols"
    first = unicodedata.name(character, "unnamed characters").split()[0]
    return first if first == "CJK" else first.capitalize()


POINT = 1 / 72  # inches
TITLE_LINES = 3  # most lines of a title
BOLD_WIDTH = 1.15  # how much wider bold letters are
TEXT_MARGIN = 0.17  # inches around a text, a little more than the margin
CLOSING_MARKS = "”’…·.,;:!?)]。、」』） \u2069"  # combining characters


def fence(text: str) -> str:
    """A label, isolated if it runs right to left; not for a matplotlib that would draw the isolates."""
    return isolate(text) if SHAPES_TEXT else text


def em(character: str) -> float:
    """An upper estimate of a character's width, relative to the font size."""
    if unicodedata.combining(character) or unicodedata.category(character) == "Cf":
        return 0.0
    return 1.25 if is_double_width(character) else 0.64


def is_double_width(character: str) -> bool:
    """Whether a character is as wide as tall, and stands upright in vertical text."""
    return unicodedata.east_asian_width(character) in "WF"


@lru_cache(maxsize=4096)
def _advance(character: str, families: tuple[str, ...]) -> float:
    chosen = font_manager.FontProperties(family=list(families))
    glyphs = font_manager.get_font(font_manager.findfont(chosen))
    glyphs.set_size(100, 72)
    return float(glyphs.load_char(ord(character)).linearHoriAdvance / 65536 / 100)


def wrap_title(text: str, size: float, width: float, *, bold: bool = False, label: str = "") -> str:
    """A title in as few lines as fit, at most ``TITLE_LINES``; ``size`` in points, ``width`` in inches.

    The ``label`` at its start, and quotations, may run from right to left.
    """
    text = clean(text)
    if SHAPES_TEXT:
        text = isolate(text[: len(label)]) + isolate_quotes(text[len(label) :])
    lines = wrap_inches(text, size, width, bold=bold)
    if len(lines) <= TITLE_LINES:
        return "\n".join(isolate_lines(lines))
    room = _room(size, width, bold)
    shown = fill_lines(_words(text, room), room, " ", _width)[:TITLE_LINES]
    while shown[-1] and _width(f"{shown[-1]} …") > room:
        shown[-1] = shown[-1][:-1]
    return "\n".join(isolate_lines([*shown[:-1], f"{shown[-1].rstrip()} …"]))


def wrap_inches(text: str, size: float, width: float, *, bold: bool = False) -> list[str]:
    """A text in as few lines as a sheet needs, with the longest as short as possible."""
    room = _room(size, width, bold)
    return balance_lines(text, room, _width, _words(text, room))


def _room(size: float, width: float, bold: bool) -> float:
    """The width of a line inside the margins of a sheet, in font sizes."""
    return (width - 2 * TEXT_MARGIN) / (size * POINT * (BOLD_WIDTH if bold else 1))


def _width(text: str) -> float:
    font = tuple(matplotlib.rcParams["font.family"])
    # the width of others is estimated: another font may draw them
    return sum(_advance(one, font) if one < "\u0250" or one in "“”‘’…–·→×" else em(one) for one in text)


def _words(text: str, room: float) -> list[str]:
    """The words, a separating dot with the word before it; overlong ones in pieces."""
    pieces = []
    for word in title_words(text):
        ends = [0.0, *accumulate(map(_width, word))]
        last = len(word.rstrip(CLOSING_MARKS)) - 1  # closing marks do not begin a line
        start = 0
        while start < len(word) - 1 and ends[-1] - ends[start] > room:
            end = max(min(bisect_right(ends, ends[start] + room) - 1, last), start + 1)
            pieces.append(word[start:end])
            start = end
        pieces.append(word[start:])
    return pieces


SMALL, BELOW, NORMAL, LARGE = 6.5, 8.0, 9.0, 11.0  # points
GREY = "#5a5a5a"
QUIET: dict[str, Any] = {"size": SMALL, "color": GREY}
SIDES = ("left", "right", "top", "bottom")
GAP = 0.15  # inches
LEAST_SHEET = 3.2  # inches of a sheet's width, below which it is scaled down as a whole
STRIP_HEIGHT, STRIP_GAP = 0.5, 0.04  # inches of a spectrogram above a map, and between them
LINE_HEIGHT = SMALL * 1.3 * POINT  # from line to line of a caption
READING_COLUMN, READING_VALUE = 2.45, 1.1  # inches from column to column, and to the end of the values
TITLE, SUBTITLE, NOTES = "title", "subtitle", "notes"
NAME, VALUE, BASELINE = "name", "value", "baseline"  # the group ids of a sheet's own texts
SIZES = {TITLE: LARGE, SUBTITLE: BELOW, NAME: SMALL, VALUE: SMALL, NOTES: SMALL}


@dataclass(frozen=True, slots=True)
class Style:
    """How an image should look."""

    width: float | None  # in inches, or whatever is readable
    cmap: str  # empty: the default of the view
    annotate: bool = False  # the weights of a head are written into its cells

    @property
    def narrow(self) -> bool:
        """Whether it is as narrow as a paper's column, so that the map needs all the space."""
        return is_narrow(self.width)

    def room(self, words: str) -> float:
        """Inches for the colour bar and its labels: a number, or stacked words."""
        return BAR_ROOM if not self.narrow else 0.62 if any(map(str.isalpha, words)) else 0.5

    @property
    def bar(self) -> Array:
        """The colour of a bar, visible on any map."""
        return np.asarray(mark_colour(self.cmap) / 255.0)


@dataclass(frozen=True, eq=False)
class Sheet:
    """A figure with its title and caption, and a field between; positions are inches from its upper left."""

    figure: Figure
    left: float
    bottom: float
    width: float
    height: float

    def at(self, right: float, down: float) -> tuple[float, float]:
        """A position in the field, as shares of the figure."""
        wide, tall = self.figure.get_size_inches()
        return (self.left + right) / wide, (self.bottom + (self.height - down)) / tall

    def part(
        self, right: float = 0.0, down: float = 0.0, width: float | None = None, height: float | None = None
    ) -> Axes:
        """Axes on a part of the field, or on all of it."""
        width, height = width or self.width, height or self.height
        wide, tall = self.figure.get_size_inches()
        return self.figure.add_axes((*self.at(right, down + height), width / wide, height / tall))


def draw_bands(drawn: Sheet, bands: Array, below: Axes) -> Axes:
    """A spectrogram over the columns of a map, low frequencies at the bottom."""
    axes = drawn.part(0, -STRIP_HEIGHT - STRIP_GAP, None, STRIP_HEIGHT)
    extent = (*below.get_xlim(), 0, len(bands))
    axes.imshow(bands, cmap="Greys", vmin=0, vmax=1, origin="lower", aspect="auto", extent=extent)
    frame(axes)
    return axes


def sheet(
    view: Drawable,
    width: float,
    height: float,
    margins: tuple[float, float, float, float],
    *,
    title: str = "",
    notes: Sequence[str] | None = None,
    readings: Sequence[NamedScore] = (),
) -> Sheet:
    """A figure with a field of ``width`` × ``height`` inches in its margins, and the view's words around it.

    Margins are left, right, top and bottom; ``title`` and ``notes`` replace the view's own.
    """
    left, right, above, below = margins
    full = max(left + width + right, LEAST_SHEET)
    title, subtitle = wrap_title(title or view.title, LARGE, full), wrap_title(view.subtitle, BELOW, full)
    measured = -(-len(readings) // max(int((full - GAP) / READING_COLUMN), 1))  # lines of readings
    lines = note_lines(view.notes if notes is None else notes, full)
    heads = [
        (TITLE, title, LARGE, "black", 0.22 + 0.18 * title.count("\n"), 0.08),
        (SUBTITLE, subtitle, BELOW, GREY, 0.2 + 0.14 * subtitle.count("\n"), 0.0),
    ]
    top = above + sum(step + air for _, text, _, _, step, air in heads if text) + GAP
    bottom = below + (measured + len(lines)) * LINE_HEIGHT + GAP
    bottom = math.ceil(100 * bottom - 1e-6) / 100  # titles stand on whole dots wherever the sheet is placed
    tall = top + height + bottom
    figure = Figure(figsize=(full, tall), facecolor="white")
    FigureCanvasAgg(figure)
    at = 1 - GAP / tall
    for gid, text, size, colour, step, _ in heads:
        if text:
            figure.text(GAP / full, at, text, size=size, color=colour, va="top", gid=gid)
            at -= step / tall
    loose = {"linespacing": 1.25, **QUIET}
    if lines:
        figure.text(GAP / full, GAP / tall, "\n".join(lines), va="bottom", gid=NOTES, **loose)
    for number, reading in enumerate(readings):
        column, row = divmod(number, measured)
        start = GAP + column * READING_COLUMN
        y = (GAP + (measured + len(lines) - row - 0.75) * LINE_HEIGHT) / tall
        value, baseline = reading.texts
        for x, side, gid, text in (
            (start, "left", NAME, reading.name),
            (start + READING_VALUE, "right", VALUE, value),
            (start + READING_VALUE + 0.05, "left", BASELINE, f"{reading.unit} {baseline}".strip()),
        ):
            figure.text(x / full, y, text, ha=side, va="baseline", gid=gid, **loose)
    return Sheet(figure, left, bottom, width, height)


def note_lines(notes: Sequence[str], width: float) -> list[str]:
    """Notes in lines for a sheet of this width in inches."""
    return [line for note in notes for line in wrap_inches(clean(note), SMALL, width)]


def paint(axes: Axes, values: Array, cmap: str, limits: tuple[float, float], **options: Any) -> None:
    """Draw values as cells on a colour map, sharp and filling the axes; masked cells are clear."""
    if not np.isfinite(values).all():  # seen through cells without a number
        hatch(axes)
    clear = (0.0, 0.0, 0.0, 0.0)
    colours = ListedColormap(table(cmap) / 255.0, name=f"attnscope-{cmap}").with_extremes(bad=clear)
    shown: dict[str, Any] = {"interpolation": "nearest", "aspect": "auto"} | options
    axes.imshow(values, cmap=colours, vmin=limits[0], vmax=limits[1], **shown)


def hatch(axes: Axes) -> None:
    """A hatched ground below the map, visible through masked cells and unlike any weight."""
    axes.patch.set(facecolor="#f1f1f1", edgecolor="#cccccc", hatch="//////", linewidth=0)


def frame(axes: Axes, sides: Sequence[str] = SIDES, colour: str = "#888888") -> None:
    """A hairline along some sides of the axes, and no ticks."""
    axes.xaxis.set_visible(False)
    axes.yaxis.set_visible(False)
    for side, spine in axes.spines.items():
        # above the labels, whatever is drawn first
        spine.set(linewidth=0.5, color=colour, zorder=5, visible=side in sides)


ROW, LABEL_COLUMN = "row", "column"  # the group ids of labels, in an SVG and in a figure's texts
PAD = 2.5  # points between a label and the map
MOST_LABEL_COLUMNS = 18
LABEL_PITCH = 7.4  # least points from label to label at the size of small texts, before letters touch
TIGHT_PITCH = 5.7  # and of the smallest labels, of five points, which each place has if it then has one


def note_labels(figure: Figure, axis: Sequence[Place]) -> list[str]:
    """How many columns of a map have a label, if not all, and the width in inches at which all have."""
    axes, wide = figure.axes[0], figure.get_figwidth()
    shown = sum(text.get_gid() == LABEL_COLUMN for text in axes.texts)
    if shown in (0, len(axis)) or all(place.heard for place in axis):
        return []
    needed = wide * (1 - axes.get_position().width) + len(axis) * TIGHT_PITCH * POINT + LABEL_AIR
    words = len({place.word or place.start for place in axis})
    merged = f"; --words merges them into {words} words" * (words < len(axis))
    return [f"{shown} of {len(axis)} labels fit: all do with --size {needed:.1f}, or a shorter text{merged}"]


SIZE_STEP = 0.25  # points from one size of labels to the next that is tried
LABEL_AIR = 0.5  # inches by which the margins of a wider sheet may be larger
SECONDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300)
"""Seconds between labelled moments."""


def labels(axis: Sequence[Place], cell: float) -> tuple[list[int], list[str], float]:
    """Which places to label, with what, and at which font size; ``cell`` is in inches."""
    pitch = cell / POINT
    every = 1 if pitch >= TIGHT_PITCH else math.ceil(LABEL_PITCH / pitch)
    size = min(max(pitch * every * 0.8, min(pitch * every / LABEL_PITCH, 1) * SMALL), NORMAL)
    if every > 1 and axis and all(place.heard for place in axis):
        return *_round_seconds(axis, pitch), size

    def text_of(place: Place) -> str:
        if place.heard:
            return place.moment
        numbered = every > 1 and not place.pooled
        return f"{place.start} {fence(short(place.label))}" if numbered else short(place.label)

    return list(range(0, len(axis), every)), [text_of(place) for place in axis[::every]], size


def _round_seconds(axis: Sequence[Place], pitch: float) -> tuple[list[int], list[str]]:
    """The places at round seconds, as many as fit at ``pitch`` points per place."""
    times = [float(place.moment.removesuffix(" s")) for place in axis]
    places_a_second = (len(times) - 1) / max(times[-1] - times[0], 1e-3)
    # twelve points from one moment to the next
    step = next((step for step in SECONDS if step * places_a_second * pitch >= 12), SECONDS[-1])
    first, last = math.ceil(times[0] / step - 1e-6), math.floor(times[-1] / step + 1e-6)
    rounded = [number * step for number in range(first, last + 1)]
    return [bisect_right(times, time + 1e-6) - 1 for time in rounded], [f"{time:g} s" for time in rounded]


def short(text: str) -> str:
    """The text, cut at the end or in a framed token's middle if too long; wide characters count twice."""
    ends = list(accumulate(1 + is_double_width(character) for character in text))
    if not text or ends[-1] <= MOST_LABEL_COLUMNS:
        return text
    last = 2 * (MOST_LABEL_COLUMNS - 1) // 3 if is_framed(text) and ends[-1] == len(text) else 0
    return text[: bisect_right(ends, MOST_LABEL_COLUMNS - 1 - last)] + "…" + text[len(text) - last :]


def room(texts: Sequence[str], size: float) -> float:
    """Inches for the longest of the texts, estimated generously."""
    # W and m are wider than estimated, and hinting widens each by up to half a pixel
    longest = max((max(sum(map(em, text)), 1.06 * _width(text)) for text in texts), default=0.0)
    return longest * size * POINT + 0.12


def label_room(axis: Sequence[Place], cell: float, size: float | None = None) -> float:
    """Inches for the labels of an axis; ``cell`` is in inches, the font size the one of ``labels``."""
    _, texts, fitted = labels(axis, cell)
    return room(texts, size or fitted)


def fit_cell(rows: Sequence[Place], free: float, columns: int, least: float = 0.0) -> float:
    """Inches of a cell in ``free`` inches beside the labels of its rows, which shrink with the cells.

    A row has at least the ``least`` inches.
    """
    cell = free / columns
    for size in np.arange(SMALL * TIGHT_PITCH / LABEL_PITCH, NORMAL, SIZE_STEP):
        cell = max(free - label_room(rows, max(cell, least), size), 1.0) / columns
        if labels(rows, max(cell, least))[2] <= size + SIZE_STEP:
            break
    return float(cell)


def put(
    axes: Axes,
    rows: Sequence[Place],
    columns: Sequence[Place],
    cell: tuple[float, float],
    *,
    written: int | None = None,
    top: Axes | None = None,
) -> None:
    """Label the rows on the left and the columns above, or above ``top``; those ``written`` are bold."""
    upwards = partial(above, rotation=90)
    for on, places, pitch, write in ((top or axes, columns, cell[0], upwards), (axes, rows, cell[1], beside)):
        shown, texts, size = labels(places, pitch)
        write(on, shown, texts, size)
        for text, at in zip(on.texts[len(on.texts) - len(shown) :], shown, strict=True):
            if written is not None and places[at].start >= written:
                text.set_fontweight("bold")


def above(axes: Axes, at: Sequence[float], texts: Sequence[str], size: float, *, rotation: float = 0) -> None:
    """Write texts above the axes, at these columns; rotated, wide characters stand upright in stacks.

    Plain texts, because matplotlib's ticks take several times as long to create and draw.
    """
    transform = axes.get_xaxis_transform() + _shift(axes, 0, PAD)
    look: dict[str, Any] = {"size": size, "linespacing": 1.0, "ha": "center", "va": "bottom"}
    for x, text in zip(at, texts, strict=True):
        upright = rotation == 90 and bool(text) and all(map(is_double_width, text))
        text, turned = ("\n".join(text), 0) if upright else (text, rotation)
        axes.text(x, 1, text, rotation=turned, transform=transform, gid=LABEL_COLUMN, **look)


def beside(
    axes: Axes, at: Sequence[float], texts: Sequence[str], size: float, *, right: bool = False
) -> None:
    """Write texts on the left of the axes, or on the right, at these rows; ``size`` in points."""
    transform = axes.get_yaxis_transform() + _shift(axes, PAD if right else -PAD, 0)
    ha = "left" if right else "right"
    for y, text in zip(at, texts, strict=True):
        axes.text(float(right), y, text, transform=transform, size=size, ha=ha, va="center_baseline", gid=ROW)


def name_cells(
    axes: Axes,
    rows: Sequence[str],
    columns: Sequence[str],
    cell: tuple[float, float],
    at: tuple[Sequence[float], Sequence[float]] | None = None,
) -> None:
    """Name rows on the left and columns above, as many as can be read; ``cell`` is inches across and down.

    ``at`` is where rows and columns are, by default 0, 1, 2 ...
    """
    size = min(max(cell[0] / POINT * 0.3, SMALL), BELOW)
    wide = 0.04 + max(map(len, columns), default=0) * 0.64 * size * POINT  # inches of a column's name
    places = at or (range(len(rows)), range(len(columns)))
    for write, names, where, least, pitch in (
        (above, columns, places[1], wide, cell[0]),
        (beside, rows, places[0], LABEL_PITCH * POINT, cell[1]),
    ):
        every = max(1, math.ceil(least / pitch - 1e-6))
        write(axes, where[::every], names[::every], size)


def _shift(axes: Axes, x: float, y: float) -> ScaledTranslation:
    """An offset in points, as a share of the figure, so that it scales with it."""
    figure: Any = axes.figure
    wide, tall = figure.get_size_inches()
    return ScaledTranslation(x * POINT / wide, y * POINT / tall, AffineDeltaTransform(figure.transFigure))


NAME_ROOM = 0.16  # inches for the name of an axis, beyond its labels
AXIS_NAME, BAR_NAME = "axis", "bar"  # group ids


def name_axes(axes: Axes, names: tuple[str, str], left: float, above: float = 0.0) -> None:
    """Name the rows at the left edge of the labels, upright, and the columns above them; in inches."""
    figure: Any = axes.figure
    box, (wide, tall) = axes.get_position(), figure.get_size_inches()
    look: dict[str, Any] = {"gid": AXIS_NAME, **QUIET}
    low = box.height * tall < room(names[:1], SMALL)  # it reaches into the corner beside the columns' labels
    across, up = box.x0 - (left - 0.05) / wide, box.y0 if low else box.y0 + box.height / 2
    figure.text(across, up, names[0], rotation=90, ha="left", va="bottom" if low else "center", **look)
    up = box.y1 + (above - 0.02) / tall
    figure.text(box.x0 + box.width / 2, up, names[1], ha="center", va="top", **look)


BAR_ROOM = 0.75  # inches for the bar and its labels
BAR_NAME_COLUMNS = 12  # most characters of a line of its name, unless a word is longer


def stacked(words: str) -> str:
    """Words stacked, as narrow as the space beside a bar."""
    return words.replace(" ", "\n")


def _name_lines(name: str) -> list[str]:
    return textwrap.wrap(name, BAR_NAME_COLUMNS, break_long_words=False, break_on_hyphens=True)


class BarRoom(NamedTuple):
    """Inches for a colour bar beside the axes, and for its name above them unless that stands ``upright``."""

    right: float
    above: float
    upright: bool = False


def bar_room(style: Style, name: str, tick: str = "0", tall: float = 0.0) -> BarRoom:
    """The room of a bar with this largest ``tick``; ``tall`` inches have room for an upright name."""
    if style.narrow and tall >= room([name], SMALL):  # on the right of the labels
        return BarRoom(style.room(tick) + NAME_ROOM / 2, 0.0, True)
    lines = _name_lines(name)
    above = round(0.14 + len(lines) * SMALL * POINT * 1.1, 2)
    return BarRoom(max(style.room(tick), round(0.14 + room(lines, SMALL), 2)), above)


def draw_colour_bar(
    axes: Axes, style: Style, ticks: Sequence[tuple[float, str]], name: str, *, upright: bool = False
) -> None:
    """Draw the colour bar on the right of ``axes``, its name above; ``ticks`` are (0 to 1, text)."""
    figure: Any = axes.figure
    box, (wide, tall) = axes.get_position(), figure.get_size_inches()
    height = min(box.height, 2.4 / tall)  # inches
    apart, thick = (0.08, 0.08) if style.narrow else (0.14, 0.12)
    bar = figure.add_axes((box.x1 + apart / wide, box.y1 - height, thick / wide, height))
    ramp = np.linspace(0, 1, 256)[:, None]
    paint(bar, ramp, style.cmap, (0, 1), origin="lower", extent=(0, 1, 0, 1), interpolation=None)
    beside(bar, [at for at, _ in ticks], [text for _, text in ticks], SMALL, right=True)
    for text, (at, words) in zip(bar.texts, ticks, strict=True):
        if at == 1 and words.count("\n") > 1:  # beside the bar alone, since its name is above
            text.set_verticalalignment("top")
    look: dict[str, Any] = {"gid": BAR_NAME, "linespacing": 1.0, **QUIET}
    if upright:
        right = box.x1 + (style.room(ticks[-1][1]) + NAME_ROOM / 2 - 0.02) / wide
        figure.text(right, box.y1, name, ha="right", va="top", rotation=90, **look)
    else:
        figure.text(box.x1 + apart / wide, box.y1 + 0.08 / tall, "\n".join(_name_lines(name)), **look)
    frame(bar)
