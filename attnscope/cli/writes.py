"""``attnscope show --writes``: what each head writes to the score of a token."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from attnscope.cli.options.heads import ShownHeads
from attnscope.cli.options.model import WeighedModelOptions
from attnscope.cli.options.picture import PrintedOptions, check_picture
from attnscope.cli.options.source import SourceOptions
from attnscope.cli.plain import print_answer
from attnscope.cli.source import read_source, reading

if TYPE_CHECKING:
    from attnscope.analysis.writes import Writes
    from attnscope.views import HeadMap

MOST = 10
"""Parts that are listed; --json has all of them."""


def show_writes(
    source: SourceOptions,
    asked: ShownHeads,
    out: Path | None,
    picture: PrintedOptions,
    model: WeighedModelOptions,
    *,
    as_json: bool,
) -> None:
    """Print or save the direct effects of all parts of a model on one score."""
    if asked.head or asked.token or asked.ablate or asked.layers or asked.kind or model.weigh != "raw":
        raise typer.BadParameter("it is of all heads, and of what they write alone", param_hint="--writes")
    check_picture(out, picture.cmap, one=True, signed=True)
    given = read_source(source, replace(model, target=None))
    from attnscope.analysis.writes import direct_effects
    from attnscope.answers.answer import of_maps
    from attnscope.cli import answers

    loaded, prepared = given.open(predicting=True)
    with reading(loaded, prepared):
        seen = direct_effects(loaded, prepared, model.target, asked.over)
    if as_json:
        print_answer("show", _numbers(seen))
    elif out is not None:
        answers.save(of_maps({"writes": _map(seen, seen.notes)}), out, picture)
    else:
        answers.print_views(of_maps({"writes": _map(seen)}), picture)
        _print(seen)


def _numbers(seen: Writes) -> dict[str, Any]:
    """All parts as plain data."""
    return {
        "title": seen.title,
        "notes": list(seen.notes),
        "score": seen.score,
        "heads": [
            {"layer": head.layer, "head": head.head, "effect": effect} for head, effect in seen.heads.items()
        ],
        "feed_forward": [{"layer": layer, "effect": effect} for layer, effect in seen.feed_forward.items()],
        "embeddings": seen.embeddings,
        "biases": seen.biases,
        "output_bias": seen.rest,
    }


def _map(seen: Writes, notes: tuple[str, ...] = ()) -> HeadMap:
    """The effect of every head."""
    from attnscope.views import head_map

    layers: dict[int, dict[int, float]] = {}
    for head, effect in seen.heads.items():
        layers.setdefault(head.layer, {})[head.head] = effect
    return head_map(
        {layer: [heads[head] for head in sorted(heads)] for layer, heads in layers.items()},
        "written to the score",
        unit="logits",
        signed=True,
        title=f"what the heads write · {seen.title}",
        subtitle=seen.notes[0],
        notes=notes,
    )


def _print(seen: Writes) -> None:
    """The parts that write most, and what all of them sum to."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    parts = {head.name: effect for head, effect in seen.heads.items()}
    parts |= {f"feed-forward {layer}": effect for layer, effect in seen.feed_forward.items()}
    parts |= {"embeddings": seen.embeddings, "biases": seen.biases + seen.rest}
    largest = sorted(parts, key=lambda name: -abs(parts[name]))
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("part", no_wrap=True)
    table.add_column("writes", justify="right", no_wrap=True)
    for name in largest[:MOST]:
        table.add_row(name, f"{parts[name]:+.3f}")
    if rest := largest[MOST:]:
        table.add_row(f"{len(rest):,} others", f"{sum(parts[name] for name in rest):+.3f}", style="dim")
    table.add_row("the score", f"{seen.score:+.3f}", style="bold")
    print()
    console.print(table)
    notes = ["in logits; the spread of the final norm is held, so that the parts sum to the score"]
    for note in (*notes, *seen.notes[1:]):
        console.print(Text(f"· {note}"), style="dim")
