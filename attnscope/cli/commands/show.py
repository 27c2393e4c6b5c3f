"""``attnscope show --writes``: what each head writes to the score of a token."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import click

from attnscope.cli.command import PICTURE, command, flag, option, repeat
from attnscope.cli.deliver import deliver, print_written, save_data
from attnscope.cli.heads import parse_head, select
from attnscope.cli.options import (
    WHOLE,
    MapOptions,
    NumbersOptions,
    PrintedOptions,
    ShownHeads,
    SourceOptions,
    WeighedModelOptions,
    check_picture,
)
from attnscope.cli.source import read_source, reading, reopen
from attnscope.cli.waiting import waiting
from attnscope.errors import OutputError

PAGE = ".html"


def show_writes(
    source: SourceOptions,
    asked: ShownHeads,
    output: ShowOutput,
    picture: PrintedOptions,
    model: WeighedModelOptions,
) -> None:
    """Print or save the direct effects of all parts of a model on one score."""
    if asked.token or asked.ablate or model.weigh != "raw" or (asked.layers and not asked.head):
        raise click.BadParameter(
            "it is of all parts of the model: with --head, --target and --against alone",
            param_hint="--writes",
        )
    out = output.out
    paged = out is not None and out.suffix.lower() == PAGE
    if out is not None and out.suffix.lower() in WHOLE and not paged:
        raise OutputError(
            "save a picture (.png, .svg, .pdf) or a page (.html), or take the numbers with --json"
        )
    head = None if asked.head is None else parse_head(asked.head, asked)
    check_picture(out, picture.cmap, one=not paged, signed=True)
    given = read_source(source, replace(model, target=None))
    from attnscope.questions.logits import direct_effects, of_writes

    loaded, prepared = given.open(predicting=True)
    with reading(loaded, prepared):
        result = direct_effects(loaded, prepared, model.target, asked.against, head)
    deliver("show", of_writes(result, head), output, picture)


@dataclass(frozen=True, kw_only=True)
class ShowOutput(NumbersOptions):
    """Where the answer goes."""

    out: Path | None = option(
        "Save instead of printing: a picture (.png, .svg, .pdf), all heads as a page to open in a "
        "browser (.html), or their weights (.npz, .safetensors, .json, .csv).",
        "--out",
        "-o",
    )
    large: bool = flag("Show every head large, over several screens.", "--large", panel=PICTURE)


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
        return show_writes(source, attention, output, picture, model)
    if attention.against is not None:
        raise click.BadParameter("it goes with --writes", param_hint="--against")
    head = None
    if attention.head is not None:
        head = parse_head(attention.head, attention)
    if attention.ablate is not None and output.out is not None:
        raise click.BadParameter("--ablate prints: use --json for the numbers", param_hint="--out")
    if output.large and (head is not None or attention.token or attention.ablate):
        raise click.BadParameter(
            "only valid for the overview of all heads", param_hint="--large", panel="Picture file"
        )
    given = read_source(source, model)
    check_picture(output.out, picture.cmap, one=head is not None or attention.token is not None)
    from attnscope.questions.answer import Answer
    from attnscope.questions.head import of_head, one_head
    from attnscope.questions.layers import all_heads, whole_layers
    from attnscope.questions.overview import of_overview, overview
    from attnscope.questions.token import of_token, one_token

    selection = select(attention, axes, head, token=attention.token)
    whole = output.out is not None and output.out.suffix.lower() in WHOLE
    loaded, prepared = given.open(predicting=attention.ablate is not None, saving=output.out is not None)
    if attention.ablate is not None:
        from attnscope.questions.ablate import ablate, of_ablation

        asked = select(attention, head=parse_head(attention.ablate, attention))
        with waiting(f"{loaded.name} predicts with and without {attention.ablate}"):
            answer = of_ablation(ablate(loaded, prepared, asked))
        return deliver("show", answer, output, picture)
    with reading(loaded, prepared):
        if whole and output.out is not None:
            given_ = loaded, prepared, selection
            answer = Answer(
                (), {}, dict, layers=lambda: whole_layers(*given_).data, heads=partial(all_heads, *given_)
            )
            return save_data(answer, output.out, picture)
        if selection.token is not None:
            answer = of_token(one_token(loaded, prepared, selection))
        elif head is not None:
            answer = of_head(one_head(loaded, prepared, selection))
        else:
            again, anew = reopen(source, model)
            opening = repeat("show", again, axes, picture, anew)
            answer = of_overview(overview(loaded, prepared, selection, large=output.large), opening)
    if not output.as_json and output.out is None:
        print_written(prepared)
    deliver("show", answer, output, picture, model.metadata)
