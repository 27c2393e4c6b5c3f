"""Terms of a sum as one HTML page without any script: bars, every head, and the words that heads move.

It needs nothing else, as the page of all heads does, and follows the reader's light or dark theme.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from importlib.resources import files

import numpy as np

from attnscope.render.colour import STEPS, choose_map, steps, table
from attnscope.render.page.page import content_hash
from attnscope.text import clean
from attnscope.views import HeadMap
from attnscope.views.charts import MovedWords, Term, Terms
from attnscope.views.table import Titled

CELL = 26  # pixels of one head


def terms_page(view: Terms, maps: Sequence[HeadMap], cmap: str | None = None) -> str:
    """The page as text; ``maps`` are those of all heads, one a kind of attention."""
    name = choose_map(cmap, signed=True)
    body = (*_bars(view, name), *(line for each in maps for line in _heads(each, name)), *_words(view.moved))
    return plain_page(view, body)


def plain_page(view: Titled, body: Iterable[str], policy: str = "") -> str:
    """A page without scripts: title and subtitle of a view, a body, and the notes; ``policy`` allows more."""
    style = (files(__package__) / "terms.css").read_text("utf-8")
    policy = f"default-src 'none'; {policy}style-src {content_hash(style)}"
    title, notes = escaped(view.title), "".join(f"<li>{escaped(note)}</li>" for note in view.notes)
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{title}</title><style>{style}</style></head><body>",
        f'<header><h1>{title}</h1><p class="quiet">{escaped(view.subtitle)}</p></header><main>',
        *body,
        "</main>",
        f"<footer><ul class='quiet'>{notes}</ul></footer>" if notes else "",
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"


def escaped(text: str) -> str:
    """Text as a page may hold it."""
    return escape(clean(text))


def _colour(name: str, entry: int) -> str:
    return "#" + bytes(table(name)[entry].tolist()).hex()


def _bars(view: Terms, name: str) -> Iterator[str]:
    """The groups with their sum, and the largest parts, to both sides of zero on one scale."""
    groups, largest = view.blocks
    yield "<section><table class='bars'>"
    for title, terms in (("in groups", groups), ("one by one", largest)):
        yield f"<tbody><tr><th colspan='3' scope='rowgroup' class='quiet'>{title}</th></tr>"
        for term in terms:
            marked = term is view.total or term.label == view.marked
            row = " class='marked'" if marked else " class='quiet'" if term is view.rest else ""
            yield f"<tr{row}><th scope='row'><bdi>{escaped(term.label)}</bdi></th>"
            yield f"<td>{_bar(term, view, name)}</td><td class='number'>{term.value:+.3f}</td></tr>"
        yield "</tbody>"
    yield "</table></section>"


def _bar(term: Term, view: Terms, name: str) -> str:
    """A bar that begins at zero, in thousandths of the whole span."""
    low, high = view.span
    zero, end = (1000 * (low + at) / (low + high) for at in (0.0, term.value))
    colour = _colour(name, -1 - STEPS // 6 if term.value >= 0 else STEPS // 6)
    return (
        "<svg viewBox='0 0 1000 16' preserveAspectRatio='none' aria-hidden='true'>"
        f"<rect x='{min(zero, end):.1f}' y='1' width='{abs(end - zero):.1f}' height='14' fill='{colour}'/>"
        f"<line x1='{zero:.1f}' x2='{zero:.1f}' y1='0' y2='16'/></svg>"
    )


def _heads(heads: HeadMap, name: str) -> Iterator[str]:
    """Every head in a cell, with its number in a tooltip and for readers of the screen."""
    if not heads.values.size:
        return
    rows, columns = heads.values.shape
    entries = steps(np.nan_to_num(heads.levels(), nan=0.5))
    yield f"<section><h2>{escaped(heads.title)}</h2>"
    yield f"<p class='quiet'>{escaped(', '.join(filter(None, (heads.name, heads.unit))))}</p>"
    wide, tall = 34 + CELL * columns, 20 + CELL * rows
    yield f"<div class='wide'><svg class='heads' role='list' width='{wide}' height='{tall}'>"
    for head, column in enumerate(heads.columns):
        yield f"<text x='{34 + CELL * (head + 0.5)}' y='14' text-anchor='middle'>{column}</text>"
    for row, layer in enumerate(heads.rows):
        yield f"<text x='28' y='{20 + CELL * (row + 0.65):.1f}' text-anchor='end'>{layer}</text>"
        for head in range(columns):
            value = float(heads.values[row, head])
            if np.isnan(value):
                continue
            said = f"{layer}{heads.columns[head]} {value:+.3f}"
            place = f"x='{34 + CELL * head}' y='{20 + CELL * row}' width='{CELL - 1}' height='{CELL - 1}'"
            colour = _colour(name, entries[row, head])
            yield f"<rect role='listitem' aria-label='{said}' {place} fill='{colour}'>"
            yield f"<title>{said}</title></rect>"
    yield "</svg></div></section>"


def _words(moved: Sequence[MovedWords]) -> Iterator[str]:
    """The words whose scores some heads move."""
    if not moved:
        return
    yield "<section class='words'><h2>words whose scores a head's output moves most</h2><table>"
    columns = "".join(f"<th scope='col'>{each}</th>" for each in ("head", "raises", "lowers"))
    yield f"<tr class='quiet'>{columns}</tr>"
    for each in moved:
        raised, lowered = (
            " ".join(
                f"<span><bdi>{escaped(word.label) or '␣'}</bdi> <small>{word.value:+.2f}</small></span>"
                for word in words
            )
            for words in (each.raised, each.lowered)
        )
        yield f"<tr><th scope='row'>{escaped(each.label)}</th><td>{raised}</td><td>{lowered}</td></tr>"
    yield "</table></section>"
