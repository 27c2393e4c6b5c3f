"""An atlas: every head of a model over a corpus as one page, and as files of data.

The files have the names and fields that HeadVis reads (github.com/anthropics/headvis, of May 2026), as far as
a public program that writes them describes them: Neuronpedia's ``headvis/README.md`` of August 2026. What is
asked of us beyond them is under ``attnscope``.
"""

from __future__ import annotations

import html
import json
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscope.errors import OutputError
from attnscope.measures import MEASURES
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
SIDES, MOST_TOKENS = ("query", "key"), 50
DISTANCES = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 1 << 20)
SEQUENCE = (
    *("sequence_id", "interval", "tokens", "attention_indices", "attention_values"),
    *("seq_len", "max_activation"),
)
"""What HeadVis names the parts of a ``TextMap``."""

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
        "notes": [clean(note) for note in result.notes],
        "input": about,
        "scores": [name for name in SCATTERED if any(name in each.scores for each in result.heads)],
    }
    embedded = [_data("config", config), _data("scatter", scatter)]
    with claim_folder(folder):
        (folder / HEADS).mkdir(exist_ok=True)
        for each in result.heads:
            name, content = names[each.head], plain(each)
            _write(folder / HEADS / f"{name}.json", _head_file(each) | {"attnscope": content})
            nearest = [[names[near.head], round(near.overlap, 3)] for near in each.nearest]
            embedded.append(_data(name, _shorten(content) | {"nearest": nearest}))
        for place, whole in _site_files(result).items():
            (folder / place).parent.mkdir(exist_ok=True)
            _write(folder / place, whole | {"attnscope": config} if place == CONFIG else whole)
        write_whole(folder / PAGE, _page(result.title, embedded).encode())
    return len(names) + 5


def _site_files(result: Examples) -> dict[str, Any]:
    """The files about all heads, as HeadVis reads them; of an encoder-decoder those of the decoder."""
    kinds = {each.head.kind for each in result.heads}
    heads = [each for each in result.heads if len(kinds) == 1 or each.head.kind == "decoder"]
    scores = list(dict.fromkeys(name for each in heads for name in each.scores))
    model, path, _ = result.read
    config = {
        "model_name": model.name,
        "dataset_name": "" if path is None else path.name,
        "heads": [[each.head.layer, each.head.head] for each in heads],
        "n_layers": 1 + max(each.head.layer for each in heads),
        "n_heads": 1 + max(each.head.head for each in heads),
        "n_intervals": max(len(each.deciles) for each in heads),
        "metrics": scores,
        "metric_descriptions": {name: MEASURES[name].summary for name in scores},
        "head_data_pattern": f"{'decoder-' * (len(kinds) > 1)}L{{layer}}H{{head}}.json",
        "has_umap": False,
        "umap_heads": [],
        "custom_plots": [
            {"key": "qk_distance_histogram", "label": "distance of query and key"},
            {"key": "histogram", "label": "rows by their largest weight outside self and first token"},
        ],
        "custom_tables": [
            {"key": f"top_{side}_tokens", "label": f"{side} tokens by attention"} for side in SIDES
        ],
        "statistics_display": {"n_samples": {"label": "texts shown", "format": "default"}},
    }
    points = [
        {"layer": each.head.layer, "head": each.head.head} | plain({**dict.fromkeys(scores), **each.scores})
        for each in heads
    ]
    return {CONFIG: config, SCATTER: points, "server_config.json": {}, "attributions/manifest.json": {}}


def _head_file(each: HeadExamples) -> dict[str, Any]:
    """A head's file as HeadVis reads it: maps of texts by tenths of its rows, and sums over their weights."""
    sequences, distances = [], [0.0] * (len(DISTANCES) - 1)
    tokens: dict[str, Counter[str]] = {side: Counter() for side in SIDES}
    for text in sorted(each.maps, key=lambda one: (-one.tenth, one.number)):
        size, cells, weights = len(text.tokens), text.cells.tolist(), text.weights.tolist()
        for cell, weight in zip(cells, weights, strict=True):
            ends = divmod(cell, size)
            distances[bisect_right(DISTANCES, abs(ends[0] - ends[1])) - 1] += weight
            for side, end in zip(SIDES, ends, strict=True):
                tokens[side][text.tokens[end]] += weight
        fields = text.number, text.tenth, text.tokens, cells, weights, size, text.most
        sequences.append(dict(zip(SEQUENCE, fields, strict=True)))
    edges = [number / (1 + len(each.weights.edges)) for number in range(2 + len(each.weights.edges))]
    lists = {
        f"top_{side}_tokens": [
            {"token": token, "weight": weight} for token, weight in tokens[side].most_common(MOST_TOKENS)
        ]
        for side in SIDES
    }
    content: dict[str, Any] = plain(
        {
            "sequences": sequences,
            "qk_distance_histogram": {"bin_edges": DISTANCES, "bin_values": distances},
            **lists,
            "histogram": {"bin_edges": edges, "bin_values": each.weights.shares},
            "statistics": {"n_samples": len(sequences)},
        }
    )
    return content


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
