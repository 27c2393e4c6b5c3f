"""``attnscope show``: every head of a text at a glance, one head in full, or one token's view."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from attnscope.cli.command import command, repeat
from attnscope.cli.heads import parse_head, select
from attnscope.cli.looks.ablation import show_ablation
from attnscope.cli.looks.writes import show_writes
from attnscope.cli.options.declare import option
from attnscope.cli.options.heads import ShownHeads
from attnscope.cli.options.model import WeighedModelOptions
from attnscope.cli.options.picture import WHOLE, MapOptions, NumbersOptions, PrintedOptions, check_picture
from attnscope.cli.options.source import SourceOptions
from attnscope.cli.source import read_source, reading, reopen

if TYPE_CHECKING:
    from attnscope.answers.answer import Answer


@dataclass(frozen=True, kw_only=True)
class ShowOutput(NumbersOptions):
    """Where the answer goes."""

    out: Path | None = option(
        "Save instead of printing: a picture (.png, .svg, .pdf), all heads as a page to open in a "
        "browser (.html), or their weights (.npz, .safetensors, .json, .csv).",
        "--out",
        "-o",
    )


@command
def show(
    source: SourceOptions,
    attention: ShownHeads,
    axes: MapOptions,
    output: ShowOutput,
    picture: PrintedOptions,
    model: WeighedModelOptions,
) -> None:
    """Show what the attention heads do on a text.

    Without a head: every head as a thumbnail, and those most worth a look. With one: its heatmap and
    figures. Rows are the tokens that look, columns the tokens that are looked at.

    Examples:

    attnscope show "The cat sat on the mat because it was tired."

    attnscope show "The cat sat on the mat." --head L0H2 --words

    attnscope show "Once upon a time" -m own-causal --generate 20

    attnscope show --image cat.png -m facebook/dinov2-base --token CLS

    attnscope show -f paper.txt --truncate -m openai-community/gpt2 -o heads.png

    attnscope show "The cat sat on the" -m openai-community/gpt2 --writes --target mat --against floor

    attnscope show --from heads.npz --head L0H2
    """
    if attention.writes:
        return show_writes(source, attention, output.out, picture, model, as_json=output.as_json)
    if attention.against is not None:
        raise typer.BadParameter("it goes with --writes", param_hint="--against")
    head = None
    if attention.head is not None:
        head = parse_head(attention.head, attention)
    if attention.ablate is not None and output.out is not None:
        raise typer.BadParameter("--ablate prints: use --json for the numbers", param_hint="--out")
    given = read_source(source, model)
    check_picture(output.out, picture.cmap, one=head is not None or attention.token is not None)
    from attnscope.analysis.head import one_head
    from attnscope.analysis.overview import overview
    from attnscope.analysis.token import one_token
    from attnscope.answers.answer import of_head, of_overview, of_token
    from attnscope.cli import answers

    selection = select(attention, axes, head, token=attention.token)
    whole = output.out is not None and output.out.suffix.lower() in WHOLE
    loaded, prepared = given.open(predicting=attention.ablate is not None, saving=output.out is not None)
    if attention.ablate is not None:
        show_ablation(loaded, prepared, attention, as_json=output.as_json)
        return
    with reading(loaded, prepared):
        if whole and output.out is not None:
            answers.save_heads(loaded, prepared, selection, output.out, picture.cmap)
            return
        if selection.token is not None:
            answer = of_token(one_token(loaded, prepared, selection))
        elif head is not None:
            answer = of_head(one_head(loaded, prepared, selection))
        else:
            again, anew = reopen(source, model)
            opening = repeat("show", again, axes, picture, anew)
            answer = of_overview(overview(loaded, prepared, selection), opening)
    if not output.as_json and output.out is None:
        answers.print_written(prepared)
    _give(answer, output, picture, model)


def _give(answer: Answer, output: ShowOutput, picture: PrintedOptions, model: WeighedModelOptions) -> None:
    """Print an answer, its numbers, or save it."""
    from attnscope.cli import answers

    if output.as_json:
        answers.print_json("show", answer, model.said)
    elif output.out is not None:
        answers.save(answer, output.out, picture)
    else:
        answers.print_views(answer, picture)
