"""``attnscope export``: everything about a text as files in a folder."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from attnscope.cli import options
from attnscope.cli.command import written
from attnscope.cli.given import given
from attnscope.cli.heads import parse_numbers
from attnscope.cli.loading import load_model

EXAMPLES = """Examples:

attnscope export "The cat sat on the mat." -o pictures

attnscope export "The cat sat on the mat." -o paper --layers 0-3,7 --heads 2 --format pdf,svg --size 3.3

attnscope export -f paper.txt --truncate -m openai-community/gpt2 -o data --format npz,html
"""


def export(
    context: typer.Context,
    text: options.Text = None,
    second_text: options.SecondText = None,
    *,
    out: Annotated[
        Path,
        typer.Option("--out", "-o", help="The folder; it is made if there is none.", show_default=False),
    ],
    file: options.File = None,
    line: options.Line = None,
    saved: options.From = None,
    image: options.Image = None,
    max_tokens: options.MaxTokens = None,
    truncate: options.Truncate = False,
    generate: options.Generate = None,
    temperature: options.Temperature = 0.0,
    seed: options.Seed = 0,
    chat: options.Chat = False,
    system: options.System = None,
    layers: Annotated[
        str | None,
        typer.Option(
            help="Only these layers, like 0-3,7.", rich_help_panel=options.WHERE, show_default=False
        ),
    ] = None,
    heads: Annotated[
        str | None,
        typer.Option(
            help="Pictures of these heads of each layer only, like 0-3,7.",
            rich_help_panel=options.WHERE,
            show_default=False,
        ),
    ] = None,
    kind: options.Kind = None,
    formats: Annotated[
        str,
        typer.Option(
            "--format",
            help="Any of png, svg, pdf (a picture a head, a layer, and of all), html (a page of all), "
            "npz, safetensors, json, csv (the weights of all), with commas between them.",
            rich_help_panel=options.PICTURE,
        ),
    ] = "png",
    words: options.Words = False,
    hide_special: options.HideSpecial = False,
    scale: options.ScaleName = options.Scale.fixed,
    cmap: options.Cmap = None,
    dpi: Annotated[
        float,
        typer.Option(min=10, max=1200, help="Dots per inch of a PNG.", rich_help_panel=options.PICTURE),
    ] = 150,
    size: Annotated[
        float | None,
        typer.Option(
            min=1,
            max=100,
            help="Width of each picture in inches; as large as is legible if not given.",
            rich_help_panel=options.PICTURE,
            show_default=False,
        ),
    ] = None,
    font: Annotated[
        str | None,
        typer.Option(
            help="A font family to prefer, of those installed.",
            rich_help_panel=options.PICTURE,
            show_default=False,
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite files that are there.")] = False,
    model: options.ModelName = "own",
    tokenizer: options.Tokenizer = "own",
    inputs: options.Inputs = None,
    device: options.Device = "auto",
    device_map: options.DeviceMap = None,
    dtype: options.Dtype = "auto",
    revision: options.Revision = None,
    trust_remote_code: options.TrustRemoteCode = False,
    allow_pickle: options.AllowPickle = False,
    offline: options.Offline = False,
) -> None:
    """Write every head as a file: for a paper, a web page, or the next program.

    A picture of each head (L05H03.png), of each layer (L05.png) and of all heads (overview.png), or all heads
    in one file of data (heads.npz); and manifest.json, which says what they came from, with a checksum of
    each file. The same command writes the same bytes.
    """
    chosen = parse_numbers(layers, "--layers")
    given_input = given(context)
    options.check_picture(None, cmap, one=False)
    asked = tuple(dict.fromkeys(part.strip().lower() for part in formats.split(",")))
    from attnscope.storage.folder import Contents, refuse_existing

    contents = Contents(asked, chosen, parse_numbers(heads, "--heads"))
    if not force:
        refuse_existing(out, contents)
    from attnscope.analysis.selection import Selection
    from attnscope.render.export import export as write

    loaded = load_model(context)
    prepared = given_input.prepare(loaded)
    with _progress() as progress:
        done = write(
            loaded,
            prepared,
            Selection(kind=kind, words=words, hide_special=hide_special, scale=scale.value, layers=chosen),
            out,
            formats=asked,
            heads=contents.heads,
            dpi=dpi,
            size=size,
            font=font,
            cmap=cmap,
            force=force,
            command=written(context, ("force",)),
            progress=progress,
        )
    for warning in done.warnings:
        print(f"attnscope: {warning}", file=sys.stderr)
    print(f"saved {len(done.manifest['files']):,} files and manifest.json in {out}", file=sys.stderr)


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None] | None]:
    """A bar on standard error, where somebody is looking."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    bar = Progress(BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), console=Console(stderr=True))
    with bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
