"""``attnscope flow``: how much each input token contributes to each position, through all layers."""

from typing import Annotated, Literal

from typer import Option

from attnscope.cli import options
from attnscope.cli.command import Group, command, refuse, refuse_first, refuse_useless
from attnscope.cli.deliver import deliver
from attnscope.cli.source import read_source

FAITHFUL_ALONE = "only valid with one text and a model, without --token, --layer, --from or --csv"


class FlowOptions(Group):
    """How attention is followed, and for which token."""

    settable = "method"
    method: Annotated[
        Literal["rollout", "flow", "relevance", "alti"],
        Option(
            help="rollout: shares through the layers; flow: the largest flow; relevance: what raises a "
            "prediction; alti: moved vectors.",
            metavar="<way>",
        ),
    ] = "rollout"
    token: Annotated[str | None, Option(help="One token: its sources, and where it goes.")] = None
    faithful: Annotated[bool, Option(help="Instead: which method ranks tokens as the prediction does?")] = (
        False
    )
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
    source: options.SourceOptions,
    asked: FlowOptions,
    attention: options.LayerOptions,
    axes: options.MapOptions,
    output: FlowOutput,
    picture: options.PrintedOptions,
    model: options.ModelOptions,
) -> None:
    """Follow attention through all layers, back to the input tokens.

    Rows are the tokens of the last layer, or of --layer, columns the tokens of the text; a row sums to 1.
    Of several layers (--layer 0-5), each is a small map. --faithful removes and restores the tokens
    that a prediction needs in each way's order, and in random orders.

    Examples:

    attnscope flow "The cat sat on the mat because it was tired."
    attnscope flow "The cat sat on the mat because it was tired." --token it
    attnscope flow "The cat sat on" -m own-causal --method relevance --target the
    attnscope flow "The cat sat on the" -m own-causal --faithful
    attnscope flow --image sample_inputs/cat.png -m facebook/dinov2-base
    """
    layers = options.parse_numbers(attention.layers, "--layer")
    several = layers is not None and len(layers) > 1 and asked.token is not None
    unasked = asked.target is not None and asked.method != "relevance" and not asked.faithful
    refuse_first(
        (several, "--layer", "name one layer, up to which a token is followed"),
        (unasked, "--target", "only valid with --method relevance or --faithful"),
    )
    printed = output.as_json and output.out is None
    unread = "method token layers kind words hide_special scale"
    refuse_useless(
        ("--faithful", asked.faithful, FAITHFUL_ALONE, unread),
        ("--faithful", asked.faithful and output.out is None, "it prints a table", options.COLOURS),
        ("--json", printed, "the numbers are of every layer: add -o FILE.png", "layers kind token"),
        ("--token", asked.token, "its bars have a scale of their own", "scale"),
    )
    if asked.token is not None or asked.faithful:
        options.refuse_whole(output.out)
    given = read_source(source, model)
    if asked.faithful:
        refuse(source.saved, "--faithful", FAITHFUL_ALONE)
        from attnscope.questions.faithful import compare_methods, faithfulness_answer

        with given.open_with_progress(predicting=True) as (loaded, prepared):
            found = compare_methods(loaded, prepared, asked.target)
        answer = faithfulness_answer(found, len(found.ranked))
        return deliver("flow", answer, output, picture, None, (loaded, prepared))
    from attnscope.questions.flow import flow_answer, follow_flow

    how = {"predicting": asked.method == "relevance", "cached": asked.method in ("rollout", "flow")}
    with given.open_with_progress(saving=output.out is not None, **how) as (loaded, prepared):
        shown = options.select(options.LayerOptions(kind=attention.kind), axes)
        last = max(layers) if layers else None
        result = follow_flow(
            loaded, prepared, asked.method, shown, target=asked.target, token=asked.token, last=last
        )
    if output.out is not None and output.out.suffix.lower() in options.WHOLE:
        answer = flow_answer(result)  # of every layer
    else:
        answer = flow_answer(
            result, kind=attention.kind, layers=layers, token=asked.token, scale=axes.scale,
            pictures=prepared.pictures,
        )  # fmt: skip
    deliver("flow", answer, output, picture, None, (loaded, prepared))
