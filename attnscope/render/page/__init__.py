"""All heads of a text as one HTML page that needs nothing else: no network, no server, no other file.

    save(kinds, "page.html", title="bert-base-uncased")

where ``kinds`` maps a kind of attention to pairs of a layer's number and its weights. The page shows an
overview of all heads, a head's heatmap with the value under the pointer, lines between two columns of
tokens, and the focus of a token. Weights are stored in eight bits and decoded when a head is opened.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Iterable, Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from attnscope.axes.places import Place
from attnscope.axes.weights import Weights, shrink
from attnscope.errors import OutputError
from attnscope.render.colour import OFFERED, choose_map, table
from attnscope.render.page.encode import POWER, Code, pack
from attnscope.storage.whole import write_whole
from attnscope.text import clean

SCRIPTS = ("data.js", "canvas.js", "overview.js", "heatmap.js", "lines.js", "focus.js", "app.js")
THUMBNAIL = 32
"""Rows and columns of a thumbnail in the overview."""

Layers = Iterable[tuple[int, Weights]]
Axes = dict[tuple[tuple[Place, ...], tuple[Place, ...]], int]
"""The labels of queries and keys that occur in a page, and the number of each pair."""


def save(
    kinds: Mapping[str, Layers],
    path: str | Path,
    *,
    title: str,
    subtitle: str = "",
    notes: tuple[str, ...] = (),
    cmap: str | None = None,
    top: float = 1.0,
) -> None:
    """Write the page. Raises ``OutputError`` for a place that cannot be written to."""
    if Path(path).suffix.lower() not in (".html", ".htm"):
        raise OutputError(f"cannot write {path}: the name of a page ends in .html")
    write_whole(path, page(kinds, title=title, subtitle=subtitle, notes=notes, cmap=cmap, top=top).encode())


def page(
    kinds: Mapping[str, Layers],
    *,
    title: str,
    subtitle: str = "",
    notes: tuple[str, ...] = (),
    cmap: str | None = None,
    top: float = 1.0,
    proofs: Mapping[tuple[str, int], str] | None = None,
) -> str:
    """The page as text. ``kinds`` maps "encoder", "decoder" or "cross" to its layers, ``[head, query, key]``.

    Layers may come from a generator; each is encoded and let go before the next one is asked for.
    ``top`` is the largest weight that occurs, 1 for weights that sum to 1; ``proofs`` are sentences on the
    weights of a kind and layer, which stand under its heads. Raises ``ValueError`` for
    weights that are negative or beyond it.
    """
    chosen = choose_map(cmap, signed=False)
    code = Code(max(top, 1.0))
    axes: Axes = {}
    heads: list[str] = []
    described = [
        {
            "kind": kind,
            "layers": [
                layer | {"proof": clean((proofs or {}).get((kind, layer["layer"]), ""))}
                for layer in _layers(layers, number, axes, heads, code)
            ],
        }
        for number, (kind, layers) in enumerate(kinds.items())
    ]
    content = {
        "title": clean(title),
        "subtitle": clean(subtitle),
        "notes": [*map(clean, notes), _exactness(code)],
        "top": code.top,
        "power": POWER,
        "axes": [_axes(queries, keys) for queries, keys in axes],
        "kinds": described,
        "cmap": chosen,
        "cmaps": {name: table(name).tobytes().hex() for name in dict.fromkeys((*OFFERED, chosen))},
    }
    return _assemble(title, content, heads)


def _exactness(code: Code) -> str:
    largest, small = code.error(code.top), code.error(0.01 * code.top)
    return (
        f"weights are stored in 8 bits: off by at most {largest:.2g}, by {small:.1g} near {0.01 * code.top:g}"
    )


def _layers(layers: Layers, kind: int, axes: Axes, heads: list[str], code: Code) -> Iterator[dict[str, Any]]:
    """Describe each layer, and file its heads as elements of the page."""
    for number, weights in layers:
        if weights.values.ndim != 3:
            raise ValueError(f"a page shows heads [head, query, key], not {weights.values.shape}")
        codes = code.bytes_of(weights.values, np.broadcast_to(weights.allowed, weights.values.shape))
        for head, one in enumerate(codes):
            heads.append(f'<script type="text/plain" id="w{kind}-{number}-{head}">{pack(one)}</script>')
        values = np.where(np.isfinite(weights.values), weights.values, 0)
        small, allowed = shrink(values, weights.allowed, THUMBNAIL, THUMBNAIL)
        small = np.clip(small, 0, code.top)  # groups of keys may sum to more than the largest weight
        thumbnails = code.bytes_of(small, np.broadcast_to(allowed, small.shape))
        yield {
            "layer": number,
            "heads": len(codes),
            "axes": axes.setdefault((weights.queries, weights.keys), len(axes)),
            "small": [*small.shape[1:], base64.b64encode(thumbnails.tobytes()).decode()],
        }


def _axes(queries: tuple[Place, ...], keys: tuple[Place, ...]) -> dict[str, Any]:
    return {
        "queries": [_place(place) for place in queries],
        "keys": [_place(place) for place in keys],
        "square": queries == keys,
    }


def _place(place: Place) -> list[Any]:
    return [place.label, place.start]


def _assemble(title: str, content: dict[str, Any], heads: list[str]) -> str:
    """The template with style, script and data put in; nothing else may run or be loaded."""
    own = files(__package__)
    style = (own / "page.css").read_text("utf-8")
    script = "\n".join((own / name).read_text("utf-8") for name in SCRIPTS)
    data = json.dumps(content, ensure_ascii=False).replace("<", "\\u003c")
    parts = {
        "TITLE": html.escape(clean(title)),
        "POLICY": f"default-src 'none'; script-src {_digest(script)}; style-src {_digest(style)}",
        "STYLE": style,
        "DATA": data,
        "FIRST": heads[0] if heads else "",  # before the script, which can draw it at once
        "OTHERS": "\n".join(heads[1:]),
        "SCRIPT": script,
    }
    whole = ""
    for piece in (own / "page.html").read_text("utf-8").split("@@"):
        whole += parts.get(piece, piece)
    return whole


def _digest(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"
