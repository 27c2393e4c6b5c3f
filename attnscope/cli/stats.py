"""``attnscope stats``: the figures of every head."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attnscope.cli import options
from attnscope.cli.loading import load_model
from attnscope.cli.text import read_text
from attnscope.cli.waiting import waiting

if TYPE_CHECKING:
    from attnscope.look import Stats
    from attnscope.measures import HeadFigures
    from attnscope.views import HeadMap

EXAMPLES = """Examples:

attnscope stats "The cat sat on the mat because it was tired." --sort previous --top 5

attnscope stats -f book.txt -m openai-community/gpt2 --truncate --where "entropy<1 and role!=first"

attnscope stats --explain induction
"""

COLUMNS = ("entropy", "confidence", "distance", "previous", "next", "first")
"""The measures in the table; --json and --csv have all of them."""


def stats(
    context: typer.Context,
    text: options.Text = None,
    second_text: options.SecondText = None,
    file: options.File = None,
    line: options.Line = None,
    max_tokens: options.MaxTokens = None,
    truncate: options.Truncate = False,
    layer: options.Layer = None,
    kind: options.Kind = None,
    where: Annotated[
        str | None,
        typer.Option(
            help='Only heads that meet "entropy<1 and role=previous".',
            rich_help_panel=options.WHERE,
            show_default=False,
        ),
    ] = None,
    sort: Annotated[
        str | None,
        typer.Option(
            help="The largest of a measure first; layer by layer if not given.",
            rich_help_panel=options.PICTURE,
            show_default=False,
        ),
    ] = None,
    top: Annotated[
        int | None,
        typer.Option(min=1, help="Only so many heads.", rich_help_panel=options.PICTURE, show_default=False),
    ] = None,
    head_map: Annotated[
        str | None,
        typer.Option(
            "--map",
            help="Draw one measure of all heads, layers down and heads across.",
            rich_help_panel=options.PICTURE,
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="Save the map as .png, .svg or .pdf.",
            rich_help_panel=options.PICTURE,
            show_default=False,
        ),
    ] = None,
    as_json: options.AsJson = False,
    as_csv: Annotated[
        bool, typer.Option("--csv", help="Print all figures as CSV.", rich_help_panel=options.PICTURE)
    ] = False,
    exact_kernel: Annotated[
        bool,
        typer.Option(
            "--exact-kernel",
            help="Never let a measuring pass stand in for the model's kernel.",
            rich_help_panel=options.MODEL,
        ),
    ] = False,
    model: options.ModelName = "own",
    tokenizer: options.Tokenizer = "own",
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    revision: options.Revision = None,
    trust_remote_code: options.TrustRemoteCode = False,
    allow_pickle: options.AllowPickle = False,
    explain: Annotated[
        str | None, typer.Option(help="Say what a measure or a role means, and stop.", show_default=False)
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="List all measures, and stop.")] = False,
) -> None:
    """Measure every head on a text, at any length that the model reads.

    Each figure is an average over the rows that count; --explain says which those are. In parentheses
    stands what even attention would give.
    """
    if list_ or explain is not None:
        _tell(explain)
        return
    first, second = read_text(text, second_text, file, line)
    from attnscope.cli import answers
    from attnscope.look import Choice, conditions
    from attnscope.look import stats as measure
    from attnscope.measures import DEFAULT, MEASURES

    met = conditions(where) if where is not None else ()
    asked = [name for name in (sort, head_map, *(c.name for c in met)) if name is not None and name != "role"]
    for name in asked:
        MEASURES[name]
    if out is not None and head_map is None:
        raise typer.BadParameter("--out saves a map: add --map MEASURE", param_hint="--out")
    options.check_picture(out, None, one=True)
    loaded = load_model(context)
    prepared = loaded.prepare(first, second, max_tokens=max_tokens, truncate=truncate)
    names = tuple(dict.fromkeys((*DEFAULT, *asked)))
    with waiting(f"{model} reads {len(prepared.tokens):,} tokens"), loaded.threads(prepared):
        seen = measure(
            loaded, prepared, Choice(layer=layer, kind=kind), names=names, exact_kernel=exact_kernel
        )
    if head_map is not None:
        maps = answers.of_maps(_maps(seen, head_map))
        if out is not None:
            answers.save(maps, out, None)
        else:
            answers.print_views(maps, cmap=None, plain=False)
        return
    heads = [head for head in seen.heads if all(condition.meets(head) for condition in met)]
    if sort is not None:
        heads = sorted((h for h in heads if sort in h.figures), key=lambda h: -h.figures[sort].value)
    heads = heads[:top]
    if as_json:
        numbers = {
            "ran": seen.ran,
            "notes": list(seen.notes),
            "heads": [answers.head_numbers(h) for h in heads],
        }
        print(json.dumps(numbers, ensure_ascii=False))
    elif as_csv:
        _print_csv(heads, names)
    else:
        _print_table(seen, heads, sort)


def _tell(explain: str | None) -> None:
    """Print what one measure or role means, or a line for each."""
    from attnscope.measures import MEASURES
    from attnscope.measures import explain as explanation

    if explain is not None:
        print(explanation(explain))
        return
    width = max(len(name) for name in MEASURES)
    for name, measure in MEASURES.items():
        print(f"{name:{width}}  {measure.unit:6}  {measure.formula}")


def _maps(seen: Stats, name: str) -> dict[str, HeadMap]:
    """One measure of all heads, a map for each kind of attention that has it."""
    from attnscope.errors import SelectionError
    from attnscope.measures import MEASURES
    from attnscope.views import head_map

    tables: dict[str, dict[int, list[float]]] = {}
    for head in seen.heads:
        figure = head.figures.get(name)
        row = tables.setdefault(head.site.kind, {}).setdefault(head.site.layer, [])
        row.append(float("nan") if figure is None else figure.value)
    known = {kind: rows for kind, rows in tables.items() if any(x == x for row in rows.values() for x in row)}
    if not known:
        raise SelectionError(f"{name} cannot be drawn: {seen.heads[0].absent[name]}")
    unit = MEASURES[name].unit
    return {
        kind: head_map(
            rows,
            name,
            unit=unit,
            limits=(0.0, 1.0) if unit == "share" else None,
            signed=name == "offset",
            title=f"{name} · {kind}",
            notes=(seen.ran, *seen.notes),
        )
        for kind, rows in known.items()
    }


def _print_csv(heads: list[HeadFigures], names: tuple[str, ...]) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    header = ["kind", "layer", "head", "role", "score", "chance"]
    writer.writerow([*header, *(column for name in names for column in (name, f"{name}_uniform"))])
    for head in heads:
        role = ["", "", ""] if head.role is None else [head.role.name, head.role.score, head.role.baseline]
        figures = [head.figures.get(name) for name in names]
        cells = [
            cell
            for figure in figures
            for cell in (("", "") if figure is None else (figure.value, figure.baseline))
        ]
        writer.writerow([head.site.kind, head.site.layer, head.head, *role, *cells])


def _print_table(seen: Stats, heads: list[HeadFigures], sort: str | None) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    columns = tuple(dict.fromkeys((*((sort,) if sort else ()), *COLUMNS)))[: len(COLUMNS)]
    console = Console(highlight=False)
    console.print(Text(seen.title), style="bold")
    several = len({head.site.kind for head in seen.heads}) > 1
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold")
    for name in ("head", *(("kind",) if several else ()), "role", ""):
        table.add_column(name, no_wrap=True)
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    for head in heads:
        role = head.role
        told = ("", "") if role is None else (role.name, f"{role.score:.2f} ({role.baseline:.2f})")
        figures = (head.figures.get(name) for name in columns)
        cells = ("–" if figure is None else f"{figure.value:.2f}" for figure in figures)
        table.add_row(head.name, *((head.site.kind,) if several else ()), *told, *cells)
    console.print(table)
    for note in (f"{len(heads)} of {len(seen.heads)} heads; {seen.ran}", *seen.notes):
        console.print(Text(f"· {note}"), style="dim")
