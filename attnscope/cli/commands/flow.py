"""``attnscope flow``: what the tokens of a layer are made of, through all layers and heads."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from attnscope.cli.command import command, flag, option
from attnscope.cli.deliver import print_answer
from attnscope.cli.faithful import check_alone, show_methods
from attnscope.cli.heads import parse_numbers, select
from attnscope.cli.options import (
    WHOLE,
    LayerOptions,
    MapOptions,
    ModelOptions,
    NumbersOptions,
    PrintedOptions,
    SourceOptions,
    check_picture,
)
from attnscope.cli.source import read_source, reading
from attnscope.errors import OutputError

if TYPE_CHECKING:
    from attnscope.questions.flow import Flow


@dataclass(frozen=True, kw_only=True)
class FlowOptions:
    """How attention is followed, and for which token."""

    method: Literal["rollout", "flow", "relevance", "alti"] = option(
        "rollout: shares multiplied through the layers; flow: the largest flow; relevance: what raises a "
        "prediction; alti: how far each token's vector moves the sum.",
        default="rollout",
    )
    token: str | None = option(
        "A word, a token's number, or a patch as row,column: what it is made of, and what it goes into."
    )
    faithful: bool = flag(
        "Instead: which way of weighing or following attention ranks first the tokens that a prediction "
        "really needs: they are taken away and given back, in each way's order and in random ones."
    )
    target: str | None = option(
        "With --method relevance or --faithful: the prediction, a word at the end of the text, the number of "
        "a token, or a classifier's class (of a token: CLASS@TOKEN); the likeliest if not given."
    )


@dataclass(frozen=True, kw_only=True)
class FlowOutput(NumbersOptions):
    """Where the answer goes."""

    out: Path | None = option(
        "Save a picture (.png, .svg, .pdf), or the maps of all layers (.npz, .safetensors, .json, .csv).",
        "--out",
        "-o",
    )


@command
def flow(
    source: SourceOptions,
    asked: FlowOptions,
    attention: LayerOptions,
    axes: MapOptions,
    output: FlowOutput,
    picture: PrintedOptions,
    model: ModelOptions,
) -> None:
    """Follow attention through all layers: what the tokens of a layer are made of, of the text's own.

    Rows are the tokens of the last layer, or of --layer, columns the tokens of the text; a row sums to 1.
    Of several layers (--layer 0-5), each is a small map.

    Examples:

    attnscope flow "The cat sat on the mat because it was tired."

    attnscope flow "The cat sat on the mat because it was tired." --token it --method flow

    attnscope flow "The cat sat on the" -m own-causal --method relevance --target mat

    attnscope flow "The cat sat on the" -m own-causal --faithful

    attnscope flow --image cat.png -m google/vit-base-patch16-224 --token CLS -o cat-flow.png
    """
    layers = parse_numbers(attention.layers, "--layer")
    if layers is not None and len(layers) > 1 and asked.token is not None:
        raise typer.BadParameter("name one layer, up to which a token is followed", param_hint="--layer")
    if asked.target is not None and asked.method != "relevance" and not asked.faithful:
        raise typer.BadParameter("it goes with --method relevance or --faithful", param_hint="--target")
    check_picture(output.out, picture.cmap, one=asked.token is not None or asked.faithful)
    given = read_source(source, model)
    if asked.faithful:
        check_alone(asked.token is None and not attention.layers and source.saved is None)
        return show_methods(given, asked.target, output.out, picture, as_json=output.as_json)
    from attnscope.cli import deliver as answers
    from attnscope.questions.asked import flow_numbers, of_flow
    from attnscope.questions.flow import follow_flow

    loaded, prepared = given.open(
        predicting=asked.method == "relevance",
        looking=asked.method in ("rollout", "flow"),
        saving=output.out is not None,
    )
    with reading(loaded, prepared):
        shown = select(LayerOptions(kind=attention.kind), axes)
        result = follow_flow(loaded, prepared, asked.method, shown, target=asked.target, token=asked.token)
    if output.as_json:
        return print_answer("flow", flow_numbers(result))
    if output.out is not None and output.out.suffix.lower() in WHOLE:
        return _save(result, output.out)
    answer = of_flow(
        result,
        kind=attention.kind,
        layers=layers,
        token=asked.token,
        scale=axes.scale,
        pictures=prepared.pictures,
    )
    if output.out is not None:
        answers.save(answer, output.out, picture)
    else:
        answers.print_views(answer, picture)


def _save(result: Flow, out: Path) -> None:
    """The maps of all layers as arrays, each as a layer of one head."""
    from attnscope.storage.arrays import save

    if out.suffix.lower() == ".html":
        raise OutputError("a page is of heads: save a picture, or .npz, .safetensors, .json, .csv")
    kinds = {
        kind: [(layer, replace(weights, values=weights.values[None])) for layer, weights in layers]
        for kind, layers in result.maps.items()
    }
    save(kinds, out, title=f"{result.method} · {result.title}", notes=result.notes)
    print(f"saved {out}", file=sys.stderr)
