"""``attnscope show --writes``: what each head writes to the score of a token."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from attnscope.cli.command import command, option, repeat
from attnscope.cli.deliver import deliver, print_answer, print_written, save_data
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

if TYPE_CHECKING:
    from rich.text import Text

    from attnscope.models import Model, ModelInput
    from attnscope.questions.ablate import Ablation, Changed
    from attnscope.questions.logits import Word, Writes


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
        raise typer.BadParameter(
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
    answer = replace(of_writes(result, head), write=partial(_numbers, result))
    deliver("show", answer, output, picture)


def _numbers(result: Writes) -> dict[str, Any]:
    """All parts as plain data."""
    effects = result.effects
    return {
        "title": result.title,
        "prediction": result.said,
        "notes": list(result.notes),
        "score": result.score,
        "heads": [
            {"kind": head.kind, "layer": head.layer, "head": head.head, "effect": effect}
            for head, effect in effects.heads.items()
        ],
        "feed_forward": [
            {"layer": layer, "effect": effect} for layer, effect in sorted(effects.feed_forward.items())
        ],
        "mixers": [
            {"layer": layer, "module": module, "effect": effect}
            for (layer, module), effect in sorted(effects.mixers.items())
        ],
        "embeddings": effects.embeddings,
        "biases": effects.biases,
        "rest": result.rest,
        "words": [
            {
                "kind": head.kind,
                "layer": head.layer,
                "head": head.head,
                "raised": [_word(word) for word in favours.raised],
                "lowered": [_word(word) for word in favours.lowered],
            }
            for head, favours in result.words.items()
        ],
    }


def _word(word: Word) -> dict[str, Any]:
    return {"text": word.text, "moved": word.moved}


MOST = 8
"""Tokens whose prediction changed most that are listed."""


def show_ablation(model: Model, prepared: ModelInput, asked: ShownHeads, *, as_json: bool) -> None:
    """Take the head of --ablate away, and print what changes in the model's predictions."""
    from attnscope.questions.ablate import ablate

    assert asked.ablate is not None
    head = parse_head(asked.ablate, asked)
    with waiting(f"{model.name} predicts with and without {asked.ablate}"):
        result = ablate(model, prepared, select(asked, head=head))
    if as_json:
        print_answer("show", asdict(result))
    else:
        _print(result)


def _print(result: Ablation) -> None:
    """The change on average, and the predictions that changed most."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    console.print(Text(f"{result.head} taken away · {result.title}"), style="bold")
    was, is_ = result.losses
    console.print(
        f"the predictions change by {result.divergence:.3g} nats on average (KL divergence), "
        f"their loss goes from {was:.3f} to {is_:.3f}\n"
    )
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("token", justify="right", no_wrap=True, overflow="ellipsis")
    table.add_column("change", justify="right", no_wrap=True)
    for name in ("predicted with it", "without it"):
        table.add_column(name)
    for one in result.changed[:MOST]:
        before, after = _predictions(one, one.before), _predictions(one, one.after)
        table.add_row(_name_change(one), f"{one.divergence:.3f}", before, after)
    console.print(table)
    more = len(result.changed) - MOST
    notes = [f"and {more:,} more predictions, each changed less"] if more > 0 else []
    notes += ["[in brackets]: the token that stands in the text", *result.notes]
    for note in notes:
        console.print(Text(f"· {note}"), style="dim")


def _name_change(one: Changed) -> Text:
    from rich.text import Text

    from attnscope.axes import visible

    return Text(f"{visible(one.token)} {one.position}")


def _predictions(one: Changed, top: tuple[tuple[str, float], ...]) -> Text:
    """The likeliest tokens, each with its probability in per cent, the right one in bold and in brackets."""
    from rich.text import Text

    from attnscope.axes import visible

    line = Text()
    for token, share in top:
        right = token == one.wanted
        words = f"[{visible(token)}]" if right else visible(token)
        line.append(f"{words} ", style="bold" if right else "")
        line.append(f"{share:.0%}  ", style="dim")
    return line


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
        return show_writes(source, attention, output, picture, model)
    if attention.against is not None:
        raise typer.BadParameter("it goes with --writes", param_hint="--against")
    head = None
    if attention.head is not None:
        head = parse_head(attention.head, attention)
    if attention.ablate is not None and output.out is not None:
        raise typer.BadParameter("--ablate prints: use --json for the numbers", param_hint="--out")
    given = read_source(source, model)
    check_picture(output.out, picture.cmap, one=head is not None or attention.token is not None)
    from attnscope.questions.answer import Answer, of_head, of_overview, of_token
    from attnscope.questions.head import one_head
    from attnscope.questions.layers import all_heads, whole_layers
    from attnscope.questions.overview import overview
    from attnscope.questions.token import one_token

    selection = select(attention, axes, head, token=attention.token)
    whole = output.out is not None and output.out.suffix.lower() in WHOLE
    loaded, prepared = given.open(predicting=attention.ablate is not None, saving=output.out is not None)
    if attention.ablate is not None:
        show_ablation(loaded, prepared, attention, as_json=output.as_json)
        return
    with reading(loaded, prepared):
        if whole and output.out is not None:
            asked = loaded, prepared, selection
            answer = Answer(
                (), {}, dict, layers=lambda: whole_layers(*asked).data, heads=partial(all_heads, *asked)
            )
            return save_data(answer, output.out, picture)
        if selection.token is not None:
            answer = of_token(one_token(loaded, prepared, selection))
        elif head is not None:
            answer = of_head(one_head(loaded, prepared, selection))
        else:
            again, anew = reopen(source, model)
            opening = repeat("show", again, axes, picture, anew)
            answer = of_overview(overview(loaded, prepared, selection), opening)
    if not output.as_json and output.out is None:
        print_written(prepared)
    deliver("show", answer, output, picture, model.metadata)
