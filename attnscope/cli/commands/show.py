"""``attnscope show``: all heads of a text at a glance, one head, or one token."""

from dataclasses import replace
from typing import Annotated, Any

from typer import Option

from attnscope.cli import options
from attnscope.cli.command import Group, command, refuse, refuse_first, refuse_useless, repeat
from attnscope.cli.deliver import deliver, print_written
from attnscope.cli.source import list_prompts, model_progress, read_source, reopen


class NeuronOptions(Group):
    """One score of a head."""

    panel = options.WHERE
    neurons: Annotated[str | None, Option(help='One score by dimension, "it -> cat": query × key.')] = None


class ShowOutput(options.FileOutput):
    """Where the answer goes."""

    settable = "large"
    suffixes = (*options.PICTURES, *options.WHOLE)
    min_weight: Annotated[
        float,
        Option(
            help="Hide cells below this weight, and say their share.", rich_help_panel=options.PICTURE, min=0
        ),
    ] = 0.0
    zoom: Annotated[
        str | None,
        Option(help="Show a run of tokens alone, unpooled: 200-240.", rich_help_panel=options.PICTURE),
    ] = None
    loss: Annotated[
        bool, Option(help="Show each token's loss, in nats, under the map.", rich_help_panel=options.PICTURE)
    ] = False
    large: Annotated[
        bool, Option(help="Show every head large, over several screens.", rich_help_panel=options.PICTURE)
    ] = False
    exact_kernel: Annotated[
        bool, Option(help="Run the model's own kernel, never the fused pass.", rich_help_panel=options.MODEL)
    ] = False


@command
def show(
    source: options.SourceOptions,
    attention: options.ShownHeads,
    score: NeuronOptions,
    axes: options.MapOptions,
    many: options.PromptsOptions,
    output: ShowOutput,
    picture: options.SignedOptions,
    model: options.WeightedModelOptions,
) -> None:
    """Show what the attention heads do on a text.

    Without a head: every head as a thumbnail, and those most worth a look. With one: its heatmap and
    figures. Rows are the tokens that look, columns the tokens that are looked at.

    Examples:

    attnscope show "The cat sat on the mat because it was tired."
    attnscope show "The cat sat on the mat because it was tired." --head L2H1
    attnscope show "The cat sat on the mat." --head L2H1,L1H3 -o heads.png
    attnscope show -f sample_inputs/article.txt --truncate -o heads.html
    attnscope show "The king said that" -m own-causal --generate 12 --token king
    attnscope show --image sample_inputs/cat.png -m facebook/dinov2-base
    """
    heads, token = options.parse_heads(attention.head, attention), attention.token
    head, several = heads[0] if len(heads) == 1 else None, len(heads) > 1
    pictured = bool(heads) or token is not None
    suffix = "" if output.out is None else output.out.suffix.lower()
    whole = suffix in options.WHOLE
    mapped = (heads and not token and score.neurons is None) or suffix == ".html"
    unzoomed = token or output.loss or score.neurons or many.prompts or source.image or whole
    alone = head and not (token or output.loss or axes.words or axes.hide_special)
    unmapped = "hides cells of maps: add --head, or -o PAGE.html"
    partly = "shows a part of maps: not with --token, --loss, --image or data"
    refuse_first(
        (several and token, "--token", "only valid with one head"),
        (several and score.neurons, "--neurons", "only valid with one head"),
        (several and output.loss, "--loss", "only valid with one head"),
        (output.large and pictured, "--large", "only valid for the overview of all heads"),
        (output.loss and (token or score.neurons), "--loss", "not valid with --token or --neurons"),
        (output.min_weight and not mapped, "--min-weight", unmapped),
        (output.loss and suffix and not heads, "--loss", "a picture has it under one head: add --head"),
        (output.zoom and unzoomed, "--zoom", partly),
    )
    saved, overall = output.out is not None, "the numbers of all heads do not depend on it: add --head"
    refuse_useless(
        ("--token", token, "its bars have a scale of their own", "scale"),
        ("one head or token", pictured, "the model's own kernel runs anyway", "exact_kernel"),
        ("--out", saved, "the model's own kernel runs anyway", "exact_kernel"),
        ("--out", saved, "a picture is as large as it needs", "large"),
        ("--json", output.as_json and not (pictured or saved), overall, "words large"),
    )
    if score.neurons is not None:
        return _show_neurons(source, attention, score, axes, output, picture, model)
    given = read_source(source, model)
    if pictured:
        options.refuse_whole(output.out)
    options.PictureOptions(cmap=picture.cmap)  # refuses a map for differences: there are none
    zoom = options.parse_rows(output.zoom, "--zoom")
    selection = options.select(attention, axes, head, token=token, min_weight=output.min_weight, zoom=zoom)
    from attnscope.questions.answer import Answer

    if many.prompts is not None:
        refuse(not alone, "--prompts", "averages one head: add --head, without --token, --loss or --words")
        from attnscope.questions.prompts import mean_head

        filled, loaded = list_prompts(given, many), given.load()
        texts = [(prompt, given.with_text(prompt.text).prepare(loaded)) for prompt in filled]
        with model_progress(loaded, *(prepared for _, prepared in texts)):
            mean = mean_head(loaded, texts, given.text, selection)
        read = loaded, given.text, many.prompts, *(prepared for _, prepared in texts)
        return deliver(
            "show", Answer.from_view("head", mean.heatmap, mean), output, picture, model.metadata, read
        )
    from attnscope.questions.head import one_head, several_heads
    from attnscope.questions.layers import all_heads, whole_layers
    from attnscope.questions.stats import overview, overview_answer
    from attnscope.questions.token import one_token

    exact, saving = output.exact_kernel, output.out is not None
    kind = "kernel" if pictured or whole or exact else "fused"
    with given.open_with_progress(predicting=output.loss, kind=kind, saving=saving) as (loaded, prepared):
        held: Any = None
        if whole:
            held = (all_heads if suffix == ".html" else whole_layers)(loaded, prepared, selection)
        losses = None
        if output.loss:
            from attnscope.questions.loss import token_losses  # loads torch, which a cached pass does without

            losses = token_losses(loaded, prepared)
        if whole and not output.as_json:
            answer = Answer((), {}, dict)
        elif token is not None:
            answer = Answer.from_view("token", one_token(loaded, prepared, selection))
        elif several:
            row = several_heads(loaded, prepared, selection, heads)
            answer = Answer.from_view("heads", row.view, row)
        elif head is not None:
            one = one_head(loaded, prepared, selection, losses)
            answer = Answer.from_view("head", one.heatmap, one)
        else:
            again, anew = reopen(source, model)
            opening = repeat("show", again, axes, picture, anew)
            result = overview(loaded, prepared, selection, large=output.large, exact_kernel=exact)
            answer = overview_answer(replace(result, losses=losses), opening)
    if whole:
        answer = replace(answer, pictures={}, layers=lambda: held.data, heads=lambda: held)
    if not output.as_json and output.out is None:
        print_written(prepared)
    deliver("show", answer, output, picture, model.metadata, (loaded, prepared))


def _show_neurons(
    source: options.SourceOptions,
    attention: options.ShownHeads,
    score: NeuronOptions,
    axes: options.MapOptions,
    output: ShowOutput,
    picture: options.SignedOptions,
    model: options.WeightedModelOptions,
) -> None:
    """One score of a head, by dimension."""
    unmerged = "scores belong to tokens: no --words, no --hide-special"
    refuse_first(
        (attention.head is None, "--neurons", "name the head: --head L2H0"),
        (attention.token is not None, "--token", "not valid with --neurons"),
        (axes.words or axes.hide_special, "--neurons", unmerged),
        (
            model.weighting != "raw",
            "--weighting",
            "--neurons shows the scores before the softmax: leave it out",
        ),
    )
    if output.out is not None:
        options.check_place(output.out, options.PICTURES)
    from attnscope.questions.neurons import neurons_answer, split_score

    with read_source(source, model).open_with_progress(cached=False) as (loaded, prepared):
        selection = options.select(attention, axes, options.parse_head(attention.head or "", attention))
        answer = neurons_answer(split_score(loaded, prepared, selection, score.neurons or ""))
    deliver("show", answer, output, picture, model.metadata, (loaded, prepared))
