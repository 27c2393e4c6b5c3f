"""``attnscope show``: all heads of a text at a glance, one head, or one token."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from attnscope.cli.command import PICTURE, command, flag, option, refuse, repeat
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

    attnscope show --from heads.npz --head L0H2
    """
    head = None if attention.head is None else parse_head(attention.head, attention)
    pictured = head is not None or attention.token is not None
    refuse(output.large and pictured, "--large", "only valid for the overview of all heads")
    given = read_source(source, model)
    check_picture(output.out, picture.cmap, one=head is not None or attention.token is not None)
    from attnscope.questions.answer import Answer
    from attnscope.questions.head import of_head, one_head
    from attnscope.questions.layers import all_heads, whole_layers
    from attnscope.questions.overview import of_overview, overview
    from attnscope.questions.token import of_token, one_token

    selection = select(attention, axes, head, token=attention.token)
    whole = output.out is not None and output.out.suffix.lower() in WHOLE
    loaded, prepared = given.open(saving=output.out is not None)
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
