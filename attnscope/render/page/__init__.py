"""All heads of a text as one HTML page that needs nothing else: no network, no server, no other file.

    save(kinds, "page.html", title="bert-base-uncased")

where ``kinds`` maps a kind of attention to pairs of a layer's number and its weights. The page opens at the
head most worth a look, and shows beside an overview of all heads its map, several heads on one token in
colours of their own, the text, roles and figures. Weights are stored in eight bits and decoded when a head
is opened.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from attnscope.attention import Head
from attnscope.errors import OutputError
from attnscope.render.colour import OFFERED, choose_map, table
from attnscope.render.page.content import Contents, Layers, Words, list_worth
from attnscope.render.page.encode import POWER, Code, unpack
from attnscope.storage.whole import write_whole
from attnscope.text import clean, isolate_quotes
from attnscope.views.heatmap import FAINT, FEW
from attnscope.views.scene import Scene

SCRIPTS = (
    "data.js", "canvas.js", "overview.js", "heatmap.js", "compared.js", "lines.js", "legend.js", "side.js",
    "scene.js", "vector.js", "save.js", "app.js", "listen.js",
)  # fmt: skip

AT_ONCE = 512 * 512
"""The most weights that are kept as they are, for a third of a megabyte."""


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
    described: Words | None = None,
    worth: Sequence[Head] = (),
    written: int | None = None,
    scene: Scene | None = None,
) -> str:
    """The page as text. ``kinds`` maps "encoder", "decoder" or "cross" to its layers, ``[head, query, key]``.

    Layers may come from a generator; each is encoded and let go before the next one is asked for.
    ``top`` is the largest weight that occurs, 1 for weights that sum to 1. By kind and layer, ``proofs`` are
    sentences on the weights and ``described`` what is said of each head. The page opens at the first
    head of ``worth``, or else at the first of all. ``written`` is the number of the first token that a
    decoder wrote itself, ``scene`` a picture or a sound that tokens stand for. Raises ``ValueError`` for
    weights that are negative or beyond ``top``.
    """
    chosen = choose_map(cmap, signed=False)
    code = Code(max(top, 1.0))
    contents = Contents(code, described or {}, proofs or {}, scene)
    layers = contents.add(kinds)
    worth_a_look = list_worth(worth, contents, list(kinds))
    content = {
        "title": isolate_quotes(clean(title)),
        "subtitle": isolate_quotes(clean(subtitle)),
        "notes": [*map(clean, notes), _exactness(code)],
        "top": code.top,
        "power": POWER,
        "faint": [FAINT, FEW],
        "axes": contents.labels(),
        "scene": contents.picture(),
        "kinds": layers,
        "worth": worth_a_look,
        "written": written,
        "meanings": contents.meanings,
        "cmap": chosen,
        "cmaps": {name: table(name).tobytes().hex() for name in dict.fromkeys((*OFFERED, chosen))},
    }
    heads = dict(contents.heads)
    opened = "w{}-{}-{}".format(*worth_a_look[0]) if worth_a_look else next(iter(heads), "")
    first = _element(opened, heads.pop(opened), contents.columns[opened]) if opened else ""
    others = (f'<script type="text/plain" id="{name}">{text}</script>' for name, text in heads.items())
    return _assemble(title, content, first, "\n".join(others))


def _exactness(code: Code) -> str:
    largest, small = code.error(code.top), code.error(0.01 * code.top)
    return (
        f"weights are stored in 8 bits: off by at most {largest:.2g}, by {small:.1g} near {0.01 * code.top:g}"
    )


def _element(name: str, packed: str, columns: int) -> str:
    """The head that the page opens at: not packed, unless it is large, so that it can be drawn at once."""
    codes = unpack(packed, -1, columns)
    if codes.size > AT_ONCE:
        return f'<script type="text/plain" id="{name}">{packed}</script>'
    text = base64.b64encode(codes.tobytes()).decode()
    return f'<script type="text/bytes" id="{name}">{text}</script>'


def _assemble(title: str, content: dict[str, Any], first: str, others: str) -> str:
    """The template with style, script and data put in; nothing else may run or be loaded."""
    own = files(__package__)
    style = (own / "page.css").read_text("utf-8")
    script = "\n".join((own / name).read_text("utf-8") for name in SCRIPTS)
    pictures = "img-src data:; " if content["scene"] else ""
    data = json.dumps(content, ensure_ascii=False).replace("<", "\\u003c")
    parts = {
        "TITLE": html.escape(isolate_quotes(clean(title))),
        "POLICY": f"default-src 'none'; {pictures}script-src {digest(script)}; style-src {digest(style)}",
        "STYLE": style,
        "DATA": data,
        "FIRST": first,  # before the script, which can draw it at once
        "OTHERS": others,
        "SCRIPT": script,
    }
    whole = ""
    for piece in (own / "page.html").read_text("utf-8").split("@@"):
        whole += parts.get(piece, piece)
    return whole


def digest(text: str) -> str:
    """How a page's policy names a script or a style that it allows: by its SHA-256."""
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"
