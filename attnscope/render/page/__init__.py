"""Pages in one file: of all heads, with weights in eight bits and the scripts that draw them; of a graph."""

from __future__ import annotations

import base64
import hashlib
import html
import io
import json
import math
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from attnscope.attention import Head
from attnscope.axes import Array, Place, Weights, continue_text, shrink
from attnscope.render.colour import (
    DARKEST_SHARE,
    DIVERGING,
    GLOW,
    OFFERED,
    ROLE_COLOURS,
    choose_map,
    is_light,
    role_colour,
    table,
)
from attnscope.scores import WEAK
from attnscope.storage.files import write_whole
from attnscope.text import clean, isolate_quotes, round_short
from attnscope.version import __version__
from attnscope.views import (
    ATTENTION,
    BRIGHT,
    BRIGHT_POOLED,
    ROLE_LETTERS,
    SHARP_ROWS,
    WEIGHT,
    Drawable,
    HeadDescription,
    Heatmap,
    LayerGraph,
    RoleMap,
    Scene,
    Table,
    letter_of,
)

if TYPE_CHECKING:
    from attnscope.questions.layers import AllHeads

PAGE = ".html"  # the suffix of a page
SIGNED_MAPS = (DIVERGING, "RdBu", "PuOr", "PiYG")  # offered in a page of signed weights

LARGEST_BYTE, MASKED_BYTE = 254, 255  # the byte of the largest weight, and that of a masked cell

POWER = 1.5
"""Bytes stand for weights ** (1 / POWER): small weights keep more digits, and still compress well."""

PLAIN, UP = b"\0", b"\1"
"""How a head's rows are stored: as they are, or as differences from the row above (mod 256)."""


@dataclass(frozen=True, slots=True)
class Code:
    """The byte ``b`` is the weight ``top * (b / 254) ** POWER``; 255 is a masked cell.

    Signed weights are as many steps of 127 above or below the byte 127, which is 0.
    """

    top: float = 1.0  # or the largest weight if that is larger
    min_weight: float = 0.0  # lower weights are fewer than ``shown`` steps from 0
    signed: bool = False

    @property
    def steps(self) -> int:
        """How many steps the largest weight is from 0."""
        return LARGEST_BYTE // 2 if self.signed else LARGEST_BYTE

    @property
    def shown(self) -> int:
        """The first step that is not hidden."""
        return math.ceil(self.steps * math.pow(min(self.min_weight / self.top, 1.0), 1 / POWER))

    def bytes_of(self, values: Array, allowed: Array) -> Array:
        """The nearest bytes, NaNs masked; ``ValueError`` for weights beyond 0 to ``top``, or ± ``top``."""
        valid = np.isfinite(values) & allowed
        shares = np.where(valid, values, 0) / self.top
        if shares.min(initial=0) < -1e-6 - self.signed or shares.max(initial=0) > 1 + 1e-6:
            raise ValueError(
                f"weights of a page lie between {-self.top if self.signed else 0:g} and {self.top:g}"
            )
        sizes = np.abs(shares) if self.signed else np.clip(shares, 0, 1)
        steps = np.round(self.steps * np.minimum(sizes, 1) ** (1 / POWER)).astype(np.int16)
        if self.min_weight:  # rounding neither hides nor shows a weight
            faint = (np.abs(values) if self.signed else values) < self.min_weight
            steps = np.where(faint, np.minimum(steps, self.shown - 1), np.maximum(steps, self.shown))
        codes = LARGEST_BYTE - self.steps + np.where(shares < 0, -steps, steps)
        return np.where(valid, codes, MASKED_BYTE).astype(np.uint8)

    def error(self, weight: float) -> float:
        """The largest rounding error: half a step of a byte, or a full step if some are hidden."""
        step = (1.0 if self.min_weight else 0.5) / self.steps
        root = (weight / self.top) ** (1 / POWER)
        return float(self.top * ((root + step) ** POWER - root**POWER))


def pack(codes: Array) -> str:
    """One head's bytes as base64 of a raw deflate stream, in the form with the lower entropy.  [query, key]

    Looking for runs of one byte only (Z_RLE) is many times faster here, and smaller: other repetitions among
    weights are coincidence.
    """
    rises = np.diff(codes, axis=0, prepend=np.uint8(0))

    def bits(option: tuple[bytes, Array]) -> float:  # the entropy of single bytes, times their number
        counts = np.bincount(option[1].ravel(), minlength=256)
        present = counts[counts > 0]
        return float((present * np.log2(codes.size / present)).sum())

    form, chosen = min(((PLAIN, codes), (UP, rises)), key=bits)
    deflate = zlib.compressobj(6, zlib.DEFLATED, -15, 9, zlib.Z_RLE)
    raw = deflate.compress(form + np.ascontiguousarray(chosen).tobytes()) + deflate.flush()
    return base64.b64encode(raw).decode()


def unpack(text: str, rows: int, columns: int) -> Array:
    """The bytes of a head.  -> [query, key]"""
    raw = zlib.decompress(base64.b64decode(text), wbits=-15)
    codes = np.frombuffer(raw, np.uint8, offset=1).reshape(rows, columns)
    return codes if raw[:1] == PLAIN else np.cumsum(codes, axis=0, dtype=np.uint8)


SIDE = 640  # most pixels of a picture's longer side
MOST_PNG_BYTES = 1 << 18  # most bytes of a PNG; larger ones become JPEG


def data_uri(scene: Scene) -> tuple[str, int, int]:
    """The pixels re-encoded, so that nothing else of the file gets into the page; and their size."""
    from PIL import Image

    image = Image.fromarray(scene.pixels)
    if scene.heard:
        size = min(image.width, 1024), min(image.height, 128)  # frames and bands
        image = image.resize(size, Image.Resampling.BOX)
    else:
        image.thumbnail((SIDE, SIDE))
    for kind, options in (("png", {"optimize": True}), ("jpeg", {"quality": 90})):
        target = io.BytesIO()
        image.save(target, kind, **options)
        if target.tell() <= MOST_PNG_BYTES:
            break
    return f"data:image/{kind};base64,{base64.b64encode(target.getvalue()).decode()}", *image.size


THUMBNAIL_CELLS = 32  # rows and columns of a thumbnail in the overview

Layers = Iterable[tuple[int, Weights]]
Words = Mapping[tuple[str, int], Sequence[HeadDescription]]  # the text about each head, by kind and layer


@dataclass(eq=False)
class Page:
    """A page of all heads. Layers may come from a generator; one is in memory at a time."""

    kinds: Mapping[str, Layers]  # "encoder", "decoder" or "cross", and its layers [head, query, key]
    title: str
    subtitle: str = ""
    notes: tuple[str, ...] = ()
    cmap: str | None = None
    top: float = 1.0  # the largest weight: 1 for weights that sum to 1
    signed: bool = False  # whether weights may be negative
    proofs: Mapping[tuple[str, int], str] = field(default_factory=dict)  # by kind and layer, on the weights
    described: Words = field(default_factory=dict)
    worth: Sequence[Head] = ()  # the page opens at the first of these, or else of all
    terms: Mapping[Head, Mapping[tuple[int, int], Table]] = field(default_factory=dict)  # by row and key
    command: str = ""  # what follows the head and the cell in a command that explains it, if one can
    written: int | None = None  # the number of the first generated token
    scene: Scene | None = None  # the picture or sound behind tokens
    min_weight: float = 0.0  # cells of a head's map below it are hidden
    by: str | None = (
        None  # what colours the overview: ``role`` or a score; else maps if these are large enough
    )
    bars: Mapping[str, str] = field(default_factory=dict)  # by kind, what weights are other than ``WEIGHT``
    _heads: dict[str, tuple[str, int]] = field(default_factory=dict, init=False)  # packed, and its keys
    _axes: dict[tuple[tuple[Place, ...], tuple[Place, ...]], int] = field(default_factory=dict, init=False)

    def text(self) -> str:
        """The page as text. Raises ``ValueError`` for weights above ``top``, or negative ones if unsigned."""
        chosen, top = choose_map(self.cmap, signed=self.signed), max(self.top, 1.0)
        code, offered = Code(top, self.min_weight, self.signed), SIGNED_MAPS if self.signed else OFFERED
        kinds = [
            {
                "kind": kind,
                "bar": self.bars.get(kind, WEIGHT),
                "layers": list(self._layers(kind, number, layers, code)),
                "roles": self._roles(kind),
            }
            for number, (kind, layers) in enumerate(self.kinds.items())
        ]
        names = list(self.kinds)

        def place(head: Head) -> tuple[int, int, int]:
            return names.index(head.kind or names[0]), head.layer, head.head

        worth_a_look = [at for at in map(place, self.worth) if "w{}-{}-{}".format(*at) in self._heads]
        read = (reading for heads in self.described.values() for head in heads for reading in head.readings)
        content = {
            "title": isolate_quotes(clean(self.title)),
            "subtitle": isolate_quotes(clean(self.subtitle)),
            "notes": [
                *map(clean, self.notes),
                f"weights are stored in 8 bits: errors are at most {code.error(top):.2g}, and "
                f"{code.error(0.01 * top):.1g} near {0.01 * top:g}",
            ],
            "top": top,
            "signed": self.signed,
            "power": POWER,
            "bright": BRIGHT,
            "bright_pooled": BRIGHT_POOLED,
            "sharp": SHARP_ROWS,
            "sentence": ATTENTION.sentence,
            "hidden": [self.min_weight, code.shown],
            "axes": list(self._label_axes()),
            "scene": self._picture(),
            "kinds": kinds,
            "worth": worth_a_look,
            "terms": {
                "w{}-{}-{}".format(*place(head)): {
                    f"{row}-{key}": [[clean(str(cell)) for cell in line] for line in table.rows]
                    for (row, key), table in cells.items()
                }
                for head, cells in self.terms.items()
            },
            "command": self.command,
            "written": self.written,
            "by": self.by or "auto",
            "letters": _letters(),
            "meanings": {each.name: clean(each.meaning) for each in read},
            "cmap": chosen,
            "cmaps": {name: table(name).tobytes().hex() for name in dict.fromkeys((*offered, chosen))},
        }
        stored = {name: _stored("plain", name, packed) for name, (packed, _) in self._heads.items()}
        opened = "w{}-{}-{}".format(*worth_a_look[0]) if worth_a_look else next(iter(stored), "")
        first = stored.pop(opened, "")
        if opened:  # unpacked if small, so that it can be drawn at once
            packed, columns = self._heads[opened]
            codes = unpack(packed, -1, columns)
            if codes.size <= MOST_UNPACKED:
                first = _stored("bytes", opened, base64.b64encode(codes.tobytes()).decode())
        return _assemble(self.title, content, first, "\n".join(stored.values()))

    def _label_axes(self) -> Iterator[dict[str, Any]]:
        for queries, keys in self._axes:
            second = (i for i, place in enumerate(queries) if place.word is not None and place.word[0] == 1)
            yield {
                "queries": self._labels(queries),
                "keys": self._labels(keys),
                "square": queries == keys,
                "single": all(place.stop - place.start == 1 for place in (*queries, *keys)),
                "second": next(second, None) if queries == keys else None,  # the second text of a pair
                "words": self.scene is not None  # those beside the parts of a picture
                and any(not place.special and not self.scene.ids_of(place) for place in keys),
            }

    def _labels(self, places: Sequence[Place]) -> list[list[Any]]:
        """Text, number, whether it joins the text before (2: as one more part of a character); its parts of
        the scene.
        """
        numbers = {id_: number for number, id_ in enumerate(self.scene.parts)} if self.scene else {}
        labels: list[list[Any]] = []
        for before, place in zip((None, *places), places, strict=False):
            follows = "" if before is None else continue_text(before, place)
            joins = 0 if before is None or follows[:1].isspace() else 1 if follows else 2
            labels.append([place.label, place.start, joins])
            if self.scene:
                ids = self.scene.ids_of(place)
                has_part = ids or not place.heard  # padding of a sound has no part
                labels[-1].append([numbers[each] for each in ids] if has_part else None)
        return labels

    def _roles(self, kind: str) -> dict[str, str]:
        """What the letters of a kind's roles mean, in words."""
        rows = [[head.role for head in heads] for (own, _), heads in self.described.items() if own == kind]
        return RoleMap((), tuple(map(tuple, rows))).legend

    def _picture(self) -> dict[str, Any] | None:
        """The scene as plain data: left, top, right and bottom of each part, and whether it is fine."""
        if self.scene is None:
            return None
        uri, *size = data_uri(self.scene)
        regions = self.scene.parts.values()
        parts = [[*(round(edge, 4) for edge in part[:4]), int(part.fine)] for part in regions]
        light = {"dimmed": DARKEST_SHARE, "glow": GLOW}
        return {"image": uri, "size": size, "heard": self.scene.heard, "parts": parts, **light}

    def _layers(self, kind: str, place: int, layers: Layers, code: Code) -> Iterator[dict[str, Any]]:
        """The layers as plain data, one in memory at a time; their weights go to the heads."""
        for number, weights in layers:
            codes = code.bytes_of(weights.values, np.broadcast_to(weights.allowed, weights.values.shape))
            for head, one in enumerate(codes):
                self._heads[f"w{place}-{number}-{head}"] = pack(one), int(codes.shape[-1])
            values = np.where(np.isfinite(weights.values), weights.values, 0)
            pooled, allowed = shrink(values, weights.allowed, THUMBNAIL_CELLS, THUMBNAIL_CELLS)
            least = -code.top if code.signed else 0.0
            pooled = np.clip(pooled, least, code.top)  # summed groups of keys may exceed the largest weight
            small = code.bytes_of(pooled, np.broadcast_to(allowed, pooled.shape))
            yield {
                "layer": number,
                "heads": len(codes),
                "axes": self._axes.setdefault((weights.queries, weights.keys), len(self._axes)),
                "small": [*small.shape[1:], base64.b64encode(small.tobytes()).decode()],
                "about": [_describe(head) for head in self.described.get((kind, number), ())],
                "proof": clean(self.proofs.get((kind, number), "")),
            }


def _letters() -> dict[str, list[str | None]]:
    """The letter, the ground and the ink of each role and weak role."""
    roles = (role for pattern in ROLE_LETTERS for role in (pattern, WEAK + pattern))
    return {role: [letter_of(role), *_colours_of(role)] for role in roles}


def _colours_of(role: str) -> list[str | None]:
    """The ground and the ink of a role's letter; nothing without a pattern."""
    ground = role_colour(role)
    if ground is None:
        return [None, None]
    return [
        ROLE_COLOURS[role.removeprefix(WEAK)],
        "#000000" if is_light(np.array(ground) / 255) else "#ffffff",
    ]


def _describe(head: HeadDescription) -> list[Any]:
    readings = []
    for each in head.readings:
        baseline = "" if each.baseline is None else round_short(each.baseline)
        readings.append([each.name, each.texts[0], baseline, "" if each.unit == "share" else each.unit])
    return [clean(head.role), clean(head.sentence), readings]


SCRIPTS = (
    "data.js", "canvas.js", "overview.js", "roles.js", "heatmap.js", "compared.js", "lines.js", "side.js",
    "columns.js", "scene.js", "vector.js", "save.js", "app.js", "listen.js",
)  # fmt: skip

MOST_UNPACKED = 512 * 512  # up to this many weights are stored unpacked, a third of a megabyte


def save_page(heads: AllHeads, path: Path, cmap: str | None = None) -> None:
    """Write all heads as a page. Raises ``OutputError`` for a path that cannot be written to."""
    write_whole(path, page_of(heads, cmap).encode())


def page_of(heads: AllHeads, cmap: str | None = None) -> str:
    """All heads as a page."""
    layers = heads.layers
    least, top = layers.ends
    page = Page(
        layers.kinds, heads.name, layers.subtitle, layers.notes, cmap, max(top, -least), least < 0,
        layers.proofs, heads.described, heads.worth, heads.terms, heads.command, layers.written, heads.scene,
        heads.selection.min_weight, heads.by,
        {kind: heads.bar_of(kind) for kind in layers.kinds},
    )  # fmt: skip
    return page.text()


def _stored(form: str, name: str, text: str) -> str:
    return f'<script type="text/{form}" id="{name}">{text}</script>'


def _assemble(title: str, content: dict[str, Any], first: str, others: str) -> str:
    """The template filled with style, script and data; nothing else may run or be loaded."""
    own = files(__package__)
    style = (own / "page.css").read_text("utf-8")
    script = "\n".join((own / name).read_text("utf-8") for name in SCRIPTS)
    pictures = "img-src data:; " if content["scene"] else ""
    data = json.dumps(content, ensure_ascii=False).replace("<", "\\u003c")
    allowed = f"script-src {content_hash(script)}; style-src {content_hash(style)}"
    parts = {
        "TITLE": html.escape(isolate_quotes(clean(title))),
        "POLICY": f"default-src 'none'; {pictures}{allowed}",
        "STYLE": style,
        "DATA": data,
        "FIRST": first,  # before the script, which can draw it at once
        "OTHERS": others,
        "SCRIPT": script,
    }
    pieces = (own / "page.html").read_text("utf-8").split("@@")
    return "".join(parts.get(piece, piece) for piece in pieces)


def content_hash(text: str) -> str:
    """The SHA-256 by which a page's policy allows a script or a style."""
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def graph_page(view: LayerGraph, cmap: str | None = None) -> str:
    """The page as text, with embedded pictures. It follows the reader's light or dark theme."""
    bare = replace(view, title="", subtitle="", notes=())
    style = (files(__package__) / "graph.css").read_text("utf-8")
    policy = f"default-src 'none'; img-src data:; style-src {content_hash(style)}"
    title, notes = _escape(view.title), "".join(f"<li>{_escape(note)}</li>" for note in view.notes)
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{title}</title><style>{style}</style></head><body>",
        f'<header><h1>{title}</h1><p class="quiet">{_escape(view.subtitle)}</p></header><main>',
        f"<section>{_image(bare, 'svg', 'the graph by layers', cmap)}</section>",
        *_edges(view),
        *_nodes(view, cmap),
        "</main>",
        f"<footer><ul class='quiet'>{notes}</ul></footer>" if notes else "",
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"


def graph_json(view: LayerGraph, scan: str, tokens: Sequence[str], prompt: str) -> dict[str, Any]:
    """The graph as a public attribution graph: Neuronpedia's ``graph-schema.json``, version 1.0.0.

    ``scan`` is the name of the model. A node of all tokens stands at the last one, as ``info`` says; what
    has no counterpart here and is optional, like ``influence`` and ``activation``, is left out.
    """
    last, nodes = len(tokens) - 1, []
    for node in view.nodes:
        label = f"{node.name}: {node.role}" if node.role else node.name
        nodes.append(
            {
                "node_id": clean(node.name),
                "feature": None,
                "layer": "E" if node.layer is None else str(node.layer),
                "ctx_idx": last if node.token is None else node.token,
                "feature_type": node.kind,
                "jsNodeId": clean(node.name),
                "clerp": clean(label),
            }
        )
    links = [
        {"source": clean(edge.source), "target": clean(edge.target), "weight": edge.effect}
        for edge in view.edges
    ]
    about = [f"weight: {view.bar}", *view.notes]
    if any(node.token is None for node in view.nodes):
        about.append("a node of all tokens has the ctx_idx of the last one")
    generator = {"name": "attnscope", "version": __version__}
    metadata = {
        "slug": re.sub(r"\W+", "-", view.title.lower()).strip("-"),
        "scan": scan,
        "prompt_tokens": list(tokens),
        "prompt": prompt,
        "info": {"description": clean("; ".join(about)), "generator": generator},
    }
    state = {"pinnedIds": [], "supernodes": [], "linkType": "both", "clickedId": "", "sg_pos": ""}
    return {"metadata": metadata, "qParams": state, "nodes": nodes, "links": links}


def _escape(text: str) -> str:
    return html.escape(clean(text))


def _image(view: Drawable, form: str, alt: str, cmap: str | None) -> str:
    from attnscope.render.image import drawing, encode

    with drawing(view, cmap=cmap) as (figure, _):
        data = base64.b64encode(encode(figure, form, 85)).decode()
    return f"<img alt='{_escape(alt)}' src='data:image/{form.replace('svg', 'svg+xml')};base64,{data}'>"


INPUTS = {"q": "queries", "k": "keys", "v": "values"}
"""What an edge goes to in the later head."""


def _edges(view: LayerGraph) -> Iterator[str]:
    yield "<section class='edges'><h2>edges</h2><table><tr class='quiet'>"
    names = "from", "to", view.value, "feeds the"
    yield "".join(f"<th scope='col'>{each}</th>" for each in names) + "</tr>"
    for edge in view.edges:
        cells = "".join(f"<td>{_escape(each)}</td>" for each in (edge.source, edge.target))
        fed = _escape(INPUTS.get(edge.way.lower(), edge.way))
        yield f"<tr>{cells}<td class='number'>{edge.effect:+.3f}</td><td>{fed}</td></tr>"
    yield "</table></section>"


def _nodes(view: LayerGraph, cmap: str | None) -> Iterator[str]:
    """Each head with its effect and its role, and its map, whose title says of which text."""
    for node in view.nodes:
        if node.effect is None and node.map is None:
            continue
        effect = "" if node.effect is None else f"{node.effect:+.3f} "
        yield f"<section><h2>{_escape(node.name)} <small>{effect}{_escape(node.role)}</small></h2>"
        if node.map is not None and node.opened:
            yield from _links(node.map, node.opened)
        elif node.map is not None:
            bare = replace(node.map, title="", subtitle="", notes=(), readings=())
            yield f"<p class='quiet'>{_escape(node.map.title)}</p>"
            yield _image(bare, "png", f"the map of {node.name}", cmap)
        yield "</section>"


CELL = 22  # pixels of a cell with a link
LABEL = 96  # pixels of a label


def _links(map_: Heatmap, opened: Mapping[tuple[int, int], Table]) -> Iterator[str]:
    """A map whose cells are links to tables below it, of which the chosen one shows: no script is needed.

    What a link leads to has a fixed place, so that the page does not scroll; a table has a mark on its cell.
    """
    axes = map_.weights.queries, map_.weights.keys
    rows, columns = ([_escape(place.label) for place in axis] for axis in axes)
    width, height = 3 * LABEL // 2 + CELL * len(columns), LABEL + CELL * len(rows)
    yield "<p class='quiet'>rows attend to columns; a click on a cell opens its terms</p>"
    size = f"width='{width}' height='{height}' viewBox='0 0 {width} {height}'"
    yield f"<div class='map'><svg class='links' {size}>"
    for number, label in enumerate(rows):
        y = LABEL + CELL * (number + 0.7)
        yield f"<text x='{LABEL - 6}' y='{y:.0f}' text-anchor='end'>{label}</text>"
    for number, label in enumerate(columns):
        x, y = LABEL + CELL * (number + 0.6), LABEL - 6
        yield f"<text transform='translate({x:.0f} {y}) rotate(-60)'>{label}</text>"
    for (row, column), terms in opened.items():
        title = _escape(terms.title)
        yield f"<a href='#cell-{row}-{column}'><rect {_box(row, column)}"
        yield f" fill-opacity='{float(map_.values[row, column]):.3f}'><title>{title}</title></rect></a>"
    yield "</svg>"
    for (row, column), terms in opened.items():
        yield f"<i class='spot' id='cell-{row}-{column}'></i><div class='opened'>"
        yield f"<svg class='mark' {size}><rect {_box(row, column)}/></svg><h2>{_escape(terms.title)}</h2>"
        names = "".join(f"<th scope='col'>{_escape(each.name)}</th>" for each in terms.columns)
        yield f"<table><tr class='quiet'>{names}</tr>"
        for cells in terms.rows:
            pairs = zip(terms.columns, cells, strict=True)
            tags = (f"<td{' class=number' * each.right}>{_escape(str(cell))}</td>" for each, cell in pairs)
            yield f"<tr>{''.join(tags)}</tr>"
        yield "</table></div>"
    yield "</div>"


def _box(row: int, column: int) -> str:
    """Where a cell is."""
    return f"x='{LABEL + CELL * column}' y='{LABEL + CELL * row}' width='{CELL - 1}' height='{CELL - 1}'"
