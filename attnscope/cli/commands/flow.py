"""``attnscope flow``: how much each input token contributes to each position, through all layers."""

from typing import Annotated, Literal

from typer import Option

from attnscope.cli import options
from attnscope.cli.command import Group, command, refuse, refuse_combined, refuse_without
from attnscope.cli.deliver import deliver
from attnscope.cli.source import read_source


class FlowOptions(Group):
    """How attention is followed, and for which token."""

    settable = "method"
    method: Annotated[
        Literal["rollout", "flow", "relevance", "alti"],
        Option(
            help="rollout: shares through the layers; flow: the largest flow; relevance: what raises a "
            "prediction; alti: moved vectors.",
            metavar="<method>",
        ),
    ] = "rollout"
    token: Annotated[str | None, Option(help="One token: its sources, and where it goes.")] = None
    faithful: Annotated[bool, Option(help="Rank methods by how they find what a prediction needs.")] = False
    target: Annotated[
        str | None,
        Option(
            help="With --method relevance or --faithful: a word, a token's number or a class; default: "
            "most likely."
        ),
    ] = None


class FlowOutput(options.FileOutput):
    """Where the answer goes."""

    suffixes = (*options.PICTURES, *options.WHOLE)


@command
def flow(
    source: options.BatchSource,
    tracing: FlowOptions,
    attention: options.LayerOptions,
    axes: options.MapOptions,
    output: FlowOutput,
    picture: options.PrintedOptions,
    model: options.ModelOptions,
) -> None:
    """Follow attention through all layers, back to the input tokens.

    Rows are the tokens after the last layer, or after --layer, columns the tokens of the text; each row
    sums to 1.
    Several layers (--layer 0-5) are a small map each. --faithful removes and restores tokens in the order
    of each method, and in random orders, and prints what is left of the prediction.

    Examples:

    attnscope flow "The cat sat on the mat because it was tired."
    attnscope flow "The cat sat on the mat because it was tired." --token it
    attnscope flow "The cat sat on" -m own-causal --method relevance --target the
    attnscope flow "The cat sat on the" -m own-causal --faithful
    attnscope flow --image sample_inputs/cat.png -m facebook/dinov2-base
    """
    layers = options.parse_numbers(attention.layers, "--layer")
    several = layers is not None and len(layers) > 1 and tracing.token is not None
    refuse(several, "--layer", "name one layer, up to which a token is followed")
    refuse_without(("target", "method=relevance faithful"))
    refuse_combined(
        ("method token layers kind words hide_special scale", "faithful", ""),
        ("faithful", "saved", "a file has no model"),
        ("scale", "token", "its bars have a scale of their own"),
    )
    if output.out is None:
        refuse_combined(
            (options.COLOURS, "faithful", "it prints a table"),
            ("layers kind token", "as_json", "the numbers are of every layer: add -o FILE.png"),
        )
    if tracing.token is not None or tracing.faithful:
        options.refuse_whole(output.out)
    pass_source = read_source(source, model)
    if tracing.faithful:
        from attnscope.questions.faithful import compare_methods, faithfulness_answer

        with pass_source.open_with_progress(predicting=True) as (loaded, prepared):
            ranking = compare_methods(loaded, prepared, tracing.target)
        answer = faithfulness_answer(ranking, len(ranking.ranked))
        return deliver("flow", answer, output, picture, None, (loaded, prepared))
    from attnscope.questions.flow import flow_answer, follow_flow

    how = {"predicting": tracing.method == "relevance", "cached": tracing.method in ("rollout", "flow")}
    with pass_source.open_with_progress(**how) as (loaded, prepared):
        shown = options.select(options.LayerOptions(kind=attention.kind), axes)
        last = max(layers) if layers else None
        target, token = tracing.target, tracing.token
        result = follow_flow(loaded, prepared, tracing.method, shown, target=target, token=token, last=last)
    if output.suffix in options.WHOLE:
        answer = flow_answer(result)  # of every layer
    else:
        answer = flow_answer(
            result, kind=attention.kind, layers=layers, token=tracing.token, scale=axes.scale,
            pictures=prepared.pictures,
        )  # fmt: skip
    deliver("flow", answer, output, picture, None, (loaded, prepared))
