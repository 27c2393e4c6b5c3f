"""``attnscope show``: all heads of a text at a glance, one head, or one token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Option

from attnscope.cli import options
from attnscope.cli.command import (
    Group,
    Often,
    command,
    is_given,
    offering,
    refuse,
    refuse_combined,
    refuse_first,
    refuse_without,
    repeat,
)
from attnscope.cli.deliver import deliver, print_written
from attnscope.cli.source import PassSource, explain_again, list_prompts, model_progress, read_source, reopen

if TYPE_CHECKING:
    from attnscope.attention import Head
    from attnscope.models import ModelInput
    from attnscope.questions.answer import Answer
    from attnscope.questions.layers import AllHeads, WholeLayers
    from attnscope.questions.selection import Selection


class NeuronOptions(Group):
    """One score of a head."""

    panel = options.WHERE
    neurons: Annotated[str | None, Option(help='One score by dimension, "it -> cat": query × key.')] = None


class RelativeOptions(Group):
    """Neutral texts to divide by."""

    panel = options.WHERE
    relative: Annotated[
        str | None, Option(help="Divide by the weights of a neutral text, or of a file of them.")
    ] = None

    def prepare(self, source: PassSource) -> Callable[[Any], list[ModelInput]]:
        """Reads the neutral text, or every line of a file, with a model."""
        path = Path(self.relative or "")
        texts = path.read_text("utf-8").splitlines() if path.is_file() else [self.relative or ""]
        return lambda model: [source.with_text(text).prepare(model) for text in texts if text.strip()]


class ShowOutput(options.FileOutput):
    """Where the answer goes."""

    settable = "large"
    suffixes = (*options.PICTURES, *options.WHOLE)
    min_weight: Annotated[
        float,
        Option(
            help="Hide cells below this weight; print their share.", rich_help_panel=options.PICTURE, min=0
        ),
    ] = 0.0
    zoom: Annotated[
        str | None,
        Option(help="Show a run of tokens alone, unpooled: 200-240.", rich_help_panel=options.PICTURE),
    ] = None
    mark: Annotated[
        list[str] | None,
        Often(help='Outline cells, "it -> cat", written as for attnscope find.', metavar="<str>"),
    ] = None
    loss: Annotated[
        bool, Option(help="Show each token's loss, in nats, below the map.", rich_help_panel=options.PICTURE)
    ] = False
    by: Annotated[
        str | None,
        Option(
            help="Show each head as one cell, coloured by role or by a measure.",
            autocompletion=offering(lambda: ("role", *options.measure_names())),
        ),
    ] = None
    large: Annotated[
        bool, Option(help="Show every head large, over several screens.", rich_help_panel=options.PICTURE)
    ] = False


@command
def show(
    source: options.BatchSource,
    attention: options.ShownHeads,
    score: NeuronOptions,
    contrast: RelativeOptions,
    axes: options.MapOptions,
    template: options.PromptsOptions,
    output: ShowOutput,
    picture: options.SignedOptions,
    model: options.MixedModelOptions,
    kernel: options.KernelOptions,
) -> None:
    """Show what the attention heads do on a text.

    Without a head: a thumbnail of every head, or one cell where there are many, and the heads most worth a
    look. With --head: its heatmap and scores. Rows are the tokens that attend, columns the tokens they attend
    to.

    Examples:

    attnscope show "The cat sat on the mat because it was tired."
    attnscope show "The cat sat on the mat because it was tired." --head L2H1
    attnscope show "The cat sat on the mat." --head L2H1,L1H3 -o heads.png
    attnscope show -f sample_inputs/article.txt --truncate --by role -o heads.html
    attnscope show "The king said that" -m own-causal --generate 12 --token king
    attnscope show --image sample_inputs/cat.png -m facebook/dinov2-base
    """
    heads, saves_layers = options.parse_heads(attention.head, attention), output.suffix in options.WHOLE
    _refuse_conflicts(heads, output)
    if score.neurons is None:
        options.PictureOptions(cmap=picture.cmap)  # refuses a map for differences: there are none
    elif output.out is not None:
        options.check_place(output.out, options.PICTURES)
    source_of_pass = read_source(source, model)
    _refuse_whole(heads, output)
    zoom, head = options.parse_rows(output.zoom, "--zoom"), heads[0] if len(heads) == 1 else None
    shown = {"token": attention.token, "min_weight": output.min_weight, "zoom": zoom, "mark": output.mark}
    selection = options.select(attention, axes, head, **shown)
    for given, ask in (
        (score.neurons, partial(_split_score, pair=score.neurons)),
        (template.prompts, partial(_average_head, template=template)),
        (contrast.relative, partial(_divide, contrast=contrast)),
    ):
        if given is not None:
            answer, read = ask(source_of_pass, selection)
            return deliver("show", answer, output, picture, model.metadata, read)
    from attnscope.questions.answer import Answer
    from attnscope.questions.head import head_answer, heads_answer, one_head, several_heads
    from attnscope.questions.layers import all_heads, whole_layers
    from attnscope.questions.stats import overview, overview_answer
    from attnscope.questions.token import one_token

    exact = kernel.exact_kernel
    kind = _pass_kind(output.by, saves_layers, kernel=bool(heads or attention.token or saves_layers or exact))
    how: dict[str, Any] = {"kind": kind, "cached": not (heads and saves_layers)}
    opened = source_of_pass.open_with_progress(predicting=output.loss, **how)
    with opened as text:
        losses: Any = None
        if output.loss:
            from attnscope.questions.loss import token_losses  # loads torch, which a cached pass does without

            losses = token_losses(*text)

        def every_head() -> Answer:
            again, same_model = reopen(source, model)
            opening = repeat("show", again, axes, picture, same_model)
            result = overview(*text, selection, large=output.large, exact_kernel=exact, by=output.by)
            return overview_answer(replace(result, losses=losses), opening)

        modes: tuple[tuple[object, Callable[[], Answer]], ...] = (
            (saves_layers and not output.as_json, lambda: Answer((), {}, dict)),
            (attention.token, lambda: Answer.from_view("token", one_token(*text, selection))),
            (len(heads) > 1, lambda: heads_answer(several_heads(*text, selection, heads))),
            (heads, lambda: head_answer(one_head(*text, selection, losses))),
            (True, every_head),
        )
        layers: Any = None
        if saves_layers:
            keep = partial(all_heads, by=output.by) if output.suffix == ".html" else whole_layers
            named = () if output.suffix == ".html" else tuple(heads)
            layers = keep(*text, replace(selection, head=None, among=named))
            layers = _explain_cells(layers, text, heads, source, model)
        answer = next(answer_of() for applies, answer_of in modes if applies)
    if saves_layers:
        answer = replace(answer, pictures={}, layers=lambda: layers.data, heads=lambda: layers)
    if not (output.as_json or output.out is not None):
        print_written(text[1])
    deliver("show", answer, output, picture, model.metadata, text)


def _explain_cells(
    page: AllHeads | WholeLayers,
    text: tuple[Any, Any],
    heads: list[Head],
    source: options.BatchSource,
    model: options.MixedModelOptions,
) -> AllHeads | WholeLayers:
    """A page whose cells give the command that explains them, if one reads this input; heads' cells open."""
    from attnscope.questions.layers import AllHeads

    if not isinstance(page, AllHeads):
        return page
    page = replace(page, command=explain_again(source, model))
    if not heads:
        return page
    from attnscope.questions.why import open_cells

    return open_cells(page, *text, heads)


def _divide(source: PassSource, selection: Selection, contrast: RelativeOptions) -> tuple[Answer, Any]:
    """A head, a token or a page, each weight over that of a neutral text, and what was read."""
    from attnscope.questions.answer import Answer
    from attnscope.questions.head import head_answer
    from attnscope.questions.layers import all_heads
    from attnscope.questions.relative import relative_head, relative_heads, relative_token

    with source.open_with_progress(cached=False) as text:
        neutral = contrast.prepare(source)(text[0])
        if selection.token is not None:
            answer = Answer.from_view("token", relative_token(*text, neutral, selection))
        elif selection.head is not None:
            answer = head_answer(relative_head(*text, neutral, selection))
        else:
            others = [all_heads(text[0], each, selection) for each in neutral]
            page = relative_heads(all_heads(*text, selection), others, neutral)
            answer = Answer((), {}, dict, heads=lambda: page)
    return answer, text


def _pass_kind(by: str | None, paged: bool, *, kernel: bool) -> Literal["kernel", "fused", "other"]:
    """The pass that measures what colours the heads; refuses what is unknown, or not on a page.

    ``kernel``: the model's own kernel runs anyway.
    """
    from attnscope.measures import DEFAULT, MEASURES
    from attnscope.questions.head import SHOWN_MEASURES

    if by is None or by == "role":
        return "kernel" if kernel else "fused"
    listed = ", ".join(("role", *SHOWN_MEASURES))
    refuse(paged and by not in SHOWN_MEASURES, "--by", f"a page has {listed}")
    if kernel:
        return "kernel"
    return "fused" if MEASURES[by].name in DEFAULT else "other"


def _refuse_conflicts(heads: list[Head], output: ShowOutput) -> None:
    """Wrong usage for options that exclude each other, or would do nothing."""
    for name in ("token", "neurons", "loss"):
        refuse(len(heads) > 1 and is_given(name), f"--{name}", "requires one head, not several")
    refuse(is_given("neurons") and not heads, "--neurons", "name the head: --head L2H0")
    refuse_without(("mark", "head"))
    one = len(heads) == 1 or is_given("token") or output.suffix == ".html"
    refuse(is_given("relative") and not one, "--relative", "divides one head, --token, or a page: -o P.html")
    refuse(is_given("prompts") and len(heads) != 1, "--prompts", "averages one head: add --head")
    refuse_combined(
        ("prompts", "token loss words hide_special", "it averages one head"),
        ("neurons", "token words hide_special", "a score belongs to two tokens of one head"),
        ("neurons", "weighting mixers", "it shows the scores before the softmax"),
        ("relative", "mixers neurons prompts loss zoom min_weight large by", "it shows quotients of weights"),
        ("relative", "saved save_trace generate", "it runs the model on other texts"),
        ("loss", "token", ""),
        ("loss", "neurons", ""),
        ("zoom", "token loss neurons prompts image", "it shows a part of a map"),
        ("mark", "token neurons prompts relative as_json as_latex", "it outlines cells of a head's map"),
        ("scale", "token", "its bars have a scale of their own"),
        ("large", "head token", "it shows all heads"),
        ("large", "out", "a picture is as large as it needs to be"),
        ("by", "head token large words hide_special zoom scale", "a cell stands for all of a head"),
        ("by=role", "cmap", "a role has a colour of its own"),
        ("exact_kernel", "head token out", "the model's own kernel runs anyway"),
    )
    if not (heads or output.out or is_given("token")):
        refuse_combined(("words large by", "as_json", "the numbers of all heads do not depend on it"))
    has_map = output.suffix == ".html" or (heads and not (is_given("token") or is_given("neurons")))
    refuse_first(
        (is_given("min_weight") and not has_map, "--min-weight", "requires a map: --head, or -o PAGE.html"),
        (output.loss and output.suffix and not heads, "--loss", "requires --head in a saved picture"),
        (output.by and output.suffix in options.WHOLE[1:], "--by", f"cannot be saved to {output.suffix}"),
        (output.zoom and output.suffix in options.WHOLE, "--zoom", f"cannot be saved to {output.suffix}"),
    )


def _refuse_whole(heads: list[Head], output: ShowOutput) -> None:
    """Refuse a file of whole maps for one token or marks, and for what is of one head alone."""
    if is_given("token") or is_given("mark") or (heads and (is_given("relative") or is_given("prompts"))):
        options.refuse_whole(output.out)


def _average_head(
    source: PassSource, selection: Selection, template: options.PromptsOptions
) -> tuple[Answer, Any]:
    """One head, averaged over the prompts of a template, and what was read."""
    from attnscope.questions.head import head_answer
    from attnscope.questions.prompts import mean_head

    prompts, loaded = list_prompts(source, template), source.load()
    texts = [(prompt, source.with_text(prompt.text).prepare(loaded)) for prompt in prompts]
    inputs = [prepared for _, prepared in texts]
    with model_progress(loaded, *inputs):
        answer = head_answer(mean_head(loaded, texts, source.text, selection))
    return answer, (loaded, source.text, template.prompts, *inputs)


def _split_score(source: PassSource, selection: Selection, pair: str | None) -> tuple[Answer, Any]:
    """One score of a head, by dimension, and what was read."""
    from attnscope.questions.neurons import neurons_answer, split_score

    with source.open_with_progress(cached=False) as text:
        return neurons_answer(split_score(*text, selection, pair or "")), text
