"""An atlas: every head of a model over a corpus as one page, and as files of data."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscope.errors import OutputError
from attnscope.records import plain
from attnscope.render.page import content_hash
from attnscope.storage.files import write_whole
from attnscope.storage.folder import claim_folder
from attnscope.text import clean, escape_json
from attnscope.version import __version__

if TYPE_CHECKING:
    from attnscope.attention import Head
    from attnscope.questions.examples import Examples, HeadExamples

PAGE, CONFIG, SCATTER, HEADS = "index.html", "config.json", "scatter_data.json", "heads"
SCATTERED = ("normalized_entropy", "distance", "confidence", "previous", "first", "self", "special")
"""The scores by which heads can be scattered."""


def refuse_full(folder: Path) -> None:
    """Raise ``OutputError`` for a folder that is not empty, before any work."""
    if folder.is_dir() and any(folder.iterdir()):
        raise OutputError(f"{folder} is not empty: give another folder, or --force to overwrite")


def save_atlas(result: Examples, folder: Path, about: Mapping[str, Any]) -> int:
    """Write the page, a file of each head, and two about all; returns the number of files.

    ``about`` describes the input. Raises ``OutputError``.
    """
    several = len({each.head.kind for each in result.heads}) > 1
    names = {each.head: _name(each.head, several) for each in result.heads}
    scatter = [_point(each, names) for each in result.heads]
    config = {
        "attnscope": __version__,
        "title": result.title,
        "by": result.by,
        "scores": [name for name in SCATTERED if any(name in each.scores for each in result.heads)],
        "notes": [clean(note) for note in result.notes],
        "input": about,
    }
    embedded = [_data("config", config), _data("scatter", scatter)]
    with claim_folder(folder):
        (folder / HEADS).mkdir(exist_ok=True)
        for each in result.heads:
            name, content = names[each.head], plain(each)
            _write(folder / HEADS / f"{name}.json", content)
            nearest = [[names[near.head], round(near.overlap, 3)] for near in each.nearest]
            embedded.append(_data(name, _shorten(content) | {"nearest": nearest}))
        _write(folder / CONFIG, config)
        _write(folder / SCATTER, scatter)
        write_whole(folder / PAGE, _page(result.title, embedded).encode())
    return len(names) + 3


def _name(head: Head, several: bool) -> str:
    return f"{head.kind}-{head.name}" if several else head.name


def _point(each: HeadExamples, names: Mapping[Head, str]) -> dict[str, Any]:
    """A head among all: its name, role, place, a few scores, and the tokens of its strongest rows."""
    pairs = [" → ".join(pair.tokens) for pair in each.pairs]
    return {
        "name": names[each.head],
        "layer": each.head.layer,
        "head": each.head.head,
        "role": each.role.name if each.role else "none",
        "place": plain(each.place),
        "scores": plain({name: each.scores[name] for name in SCATTERED if name in each.scores}),
        "pairs": pairs,
    }


def _write(path: Path, content: Any) -> None:
    write_whole(path, escape_json(json.dumps(content, ensure_ascii=False)).encode())


def _shorten(content: dict[str, Any]) -> dict[str, Any]:
    """A head's data as the page needs them: of the keys of a row, those in its context."""
    for row in (*content["top"], *(row for tenth in content["deciles"] for row in tenth["rows"])):
        del row["keys"]
        row["context"] = [
            (each["text"], each["position"], round(each["weight"], 3)) for each in row["context"]
        ]
    return content


def _page(title: str, embedded: Sequence[str]) -> str:
    """The page, with all data in it: it needs no other file."""
    own = files(__package__)
    style, script = ((own / f"atlas.{kind}").read_text("utf-8") for kind in ("css", "js"))
    parts = {
        "TITLE": html.escape(clean(title)),
        "POLICY": f"default-src 'none'; script-src {content_hash(script)}; style-src {content_hash(style)}",
        "STYLE": style,
        "DATA": "\n".join(embedded),
        "SCRIPT": script,
    }
    pieces = (own / "atlas.html").read_text("utf-8").split("@@")
    return "".join(parts.get(piece, piece) for piece in pieces)


def _data(name: str, content: Any) -> str:
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    return f'<script type="application/json" id="data-{name}">{text}</script>'
