"""``attnscope compare L1H2 --feeds``: which earlier heads feed a head, from the weights alone."""

from __future__ import annotations

import csv
import sys
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

import typer

from attnscope.cli.heads import parse_head
from attnscope.cli.options.compare import CompareOutput, Contrast
from attnscope.cli.options.model import WeighedModelOptions
from attnscope.cli.options.picture import PrintedOptions, check_picture
from attnscope.cli.options.source import SecondNamed
from attnscope.cli.plain import print_answer
from attnscope.cli.source import read_source, reading

if TYPE_CHECKING:
    from attnscope.analysis.comparison.feeds import Feed, Feeds
    from attnscope.views import HeadMap

ANY = "The quick brown fox jumps over the lazy dog."
"""A text that the model runs on, to see which of its weights are whose; any will do."""

MOST = 10
"""Ways that are listed; --csv has all of them."""


def show_feeds(
    source: SecondNamed,
    contrast: Contrast,
    output: CompareOutput,
    picture: PrintedOptions,
    model: WeighedModelOptions,
) -> None:
    """Compose the weights of all heads, and print or save what feeds the head that is named, or any."""
    named = list(contrast.heads or ())
    if len(named) > 1:
        raise typer.BadParameter("name one head, or none: compare L1H2 --feeds", param_hint="HEADS")
    if model.said:
        raise typer.BadParameter("the weights alone tell: nothing is weighed", param_hint="--weigh")
    fed = parse_head(named[0]) if named else None
    check_picture(output.out, picture.cmap, one=True, signed=True)
    if output.out is not None and fed is None:
        raise typer.BadParameter("name the head whose map is saved: compare L1H2 --feeds", param_hint="--out")
    given = read_source(source if source.names_one else replace(source, text=ANY), model)
    from attnscope.analysis.comparison.feeds import find_feeds

    loaded, prepared = given.open(looking=False)
    with reading(loaded, prepared):
        result = find_feeds(loaded, prepared, fed)
    if output.as_json:
        print_answer("compare", _numbers(result))
    elif output.as_csv:
        _print_csv(result)
    elif output.out is not None:
        from attnscope.answers.answer import of_maps
        from attnscope.cli import answers

        answers.save(of_maps(_maps(result)), output.out, picture)
    else:
        _print(result, picture)


def _numbers(result: Feeds) -> dict[str, object]:
    """All ways of all pairs as plain data."""
    return {
        "title": result.title,
        "notes": list(result.notes),
        "feeds": [asdict(each) for each in result.feeds],
    }


def _print_csv(result: Feeds) -> None:
    """A line for each way of each pair."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(["kind", "head", "fed", "way", "score", "baseline", "scatter"])
    for each in result.feeds:
        figures = each.score, each.baseline, each.scatter
        writer.writerow([each.head.kind, each.head.name, each.fed.name, each.way, *figures])


def _maps(result: Feeds) -> dict[str, HeadMap]:
    """Of each way, how far all earlier heads stand above the baseline; one colour scale for all."""
    from attnscope.analysis.comparison.feeds import WAYS
    from attnscope.views import head_map

    tables = {way: table for way in WAYS if (table := result.by(way))}
    top = max(abs(lift) for table in tables.values() for row in table.values() for lift in row) or 1.0
    title = "what feeds the {} of {} · {}-composition"
    return {
        way: head_map(
            table,
            "above random weights",
            limits=(-top, top),
            signed=True,
            title=title.format(WAYS[way], result.fed and result.fed.name, way),
            subtitle=result.title,
        )
        for way, table in tables.items()
    }


def _beside(feed: Feed) -> str:
    """The baseline of a score, and the standard deviation of what it is the mean of."""
    return f"{feed.baseline:.3f} ±{feed.scatter:.3f}"


def _print(result: Feeds, picture: PrintedOptions) -> None:
    """A map for each way into the head that is named, and the ways farthest above their baselines."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from attnscope.analysis.comparison.feeds import WAYS
    from attnscope.answers.answer import of_maps
    from attnscope.cli import answers

    console = Console(highlight=False)
    console.print(Text(result.title), style="dim")
    print()
    if result.fed is not None:
        maps = {way: replace(each, subtitle="") for way, each in _maps(result).items()}
        answers.print_views(of_maps(maps), picture)
        print()
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for name in ("head", "feeds the"):
        table.add_column(name, no_wrap=True)
    for name in ("score", "baseline"):
        table.add_column(name, justify="right", no_wrap=True)
    several = len({each.head.kind for each in result.feeds}) > 1
    for each in result.feeds[:MOST]:
        head, other = (str(one) if several else one.name for one in (each.head, each.fed))
        table.add_row(head, f"{WAYS[each.way]} of {other}", f"{each.score:.3f}", _beside(each))
    console.print(table)
    rest = len(result.feeds) - MOST
    notes = [f"--csv has {rest:,} more"] if rest > 0 else []
    notes += [
        "score: how much of what a head writes is what the later one reads, from the weights alone; norms "
        "and feed-forward parts between them are left out"
    ]
    notes += ["baseline: random matrices of the same shapes, ± how far their scores scatter", *result.notes]
    for note in notes:
        console.print(Text(f"· {note}"), style="dim")
