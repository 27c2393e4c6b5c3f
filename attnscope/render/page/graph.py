"""A graph by layers as one HTML page without scripts: the graph, its edges, and each node with its map."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from dataclasses import replace
from html import escape
from importlib.resources import files

from attnscope.render.image.draw import drawing, encode
from attnscope.render.page.page import content_hash
from attnscope.text import clean
from attnscope.views import Drawable
from attnscope.views.graph import LayerGraph

SHARP = 85  # dots per inch of a node's map


def graph_page(view: LayerGraph, cmap: str | None = None) -> str:
    """The page as text, with embedded pictures. It follows the reader's light or dark theme."""
    bare = replace(view, title="", subtitle="", notes=())
    style = (files(__package__) / "graph.css").read_text("utf-8")
    policy = f"default-src 'none'; img-src data:; style-src {content_hash(style)}"
    title, notes = escaped(view.title), "".join(f"<li>{escaped(note)}</li>" for note in view.notes)
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{title}</title><style>{style}</style></head><body>",
        f'<header><h1>{title}</h1><p class="quiet">{escaped(view.subtitle)}</p></header><main>',
        f"<section>{_image(bare, 'svg', 'the circuit by layers', cmap)}</section>",
        *_edges(view),
        *_nodes(view, cmap),
        "</main>",
        f"<footer><ul class='quiet'>{notes}</ul></footer>" if notes else "",
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"


def escaped(text: str) -> str:
    """Text escaped for a page."""
    return escape(clean(text))


def _image(view: Drawable, form: str, told: str, cmap: str | None) -> str:
    with drawing(view, cmap=cmap) as (figure, _):
        data = b64encode(encode(figure, form, SHARP)).decode()
    kind = {"svg": "svg+xml"}.get(form, form)
    return f"<img alt='{escaped(told)}' src='data:image/{kind};base64,{data}'>"


def _edges(view: LayerGraph) -> Iterator[str]:
    yield "<section class='edges'><h2>edges</h2><table><tr class='quiet'>"
    yield "".join(f"<th scope='col'>{each}</th>" for each in ("from", "to", "effect", "way")) + "</tr>"
    for edge in view.edges:
        cells = "".join(f"<td>{escaped(each)}</td>" for each in (edge.source, edge.target))
        yield f"<tr>{cells}<td class='number'>{edge.effect:+.3f}</td><td>{escaped(edge.way)}</td></tr>"
    yield "</table></section>"


def _nodes(view: LayerGraph, cmap: str | None) -> Iterator[str]:
    """Each head with its effect and its role, and its map on the first text."""
    for node in view.nodes:
        if node.effect is None:
            continue
        yield f"<section><h2>{escaped(node.name)} <small>{node.effect:+.3f} {escaped(node.role)}</small></h2>"
        if node.map is not None:
            bare = replace(node.map, title="", subtitle="", notes=(), readings=())
            yield _image(bare, "png", f"the map of {node.name}", cmap)
        yield "</section>"
