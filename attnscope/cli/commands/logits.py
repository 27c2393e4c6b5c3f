"""``attnscope logits``: what each part of a model adds to a score, and the prediction after each layer."""

from functools import cache
from typing import Annotated, Literal

from typer import Option

from attnscope.cli import options
from attnscope.cli.command import MOST_USED, Group, command, refuse_combined, refuse_typed, refuse_without
from attnscope.cli.deliver import deliver
from attnscope.cli.source import list_prompts, model_progress, read_source


class ScoreOptions(Group):
    """Whose score is decomposed."""

    panel = MOST_USED
    target: Annotated[
        str | None,
        Option(
            help="The predicted word, a token's number, or both: cat@5; default: most likely, at the end."
        ),
    ] = None
    against: Annotated[str | None, Option(help="A word whose score is subtracted.")] = None


class LogitsOptions(ScoreOptions):
    """What it is decomposed into."""

    by: Annotated[
        Literal["head", "layer"], Option(help="head: what each adds; layer: the prediction after it.")
    ] = "head"


class WritingHead(options.OneHeadOptions):
    """One head, whose kind is that of the prediction."""

    kind: str | None = None


@command
def logits(
    source: options.SourceOptions,
    score: LogitsOptions,
    template: options.PromptsOptions,
    attention: WritingHead,
    output: options.FileOutput,
    picture: options.SavedOptions,
    model: options.ModelOptions,
) -> None:
    """Direct logit attribution: what each head adds to a token's logit.

    Heads, feed-forward layers, embeddings and biases sum to the score. With --head: the words whose logits
    that head raises and lowers most. With --by layer: the final norm and the output head on the residual
    stream after each layer (logit lens).

    Examples:

    attnscope logits "The cat sat on the" -m openai-community/gpt2 --target mat
    attnscope logits "The cat sat on" -m own-causal --target the --against his
    attnscope logits "The king said that he would" -m own-causal --head L2H3
    attnscope logits "The king said that he would" -m own-causal --by layer
    """
    refuse_without(("layers", "head"))
    refuse_combined(
        ("head", "as_latex", "the table has every part"),
        ("by=layer", "head out", "it prints a table"),
        ("head", "prompts", "its words are those of one text"),
    )
    refuse_typed("generate", "the prediction is that of the text as it stands: leave it out")
    head = None if attention.head is None else options.parse_head(attention.head, attention)
    pass_source = read_source(source, model)
    from attnscope.questions.logits import (
        Lens,
        Writes,
        direct_effects,
        lens_answer,
        logit_lens,
        logits_answer,
    )
    from attnscope.questions.prompts import mean_lens, mean_writes

    prompts = list_prompts(pass_source, template, score.target, score.against)
    loaded = pass_source.load(predicting=True)
    lenses, effects = list[Lens](), list[Writes]()
    read = cache(pass_source.reader(loaded))
    for prompt in prompts:
        prepared = read(prompt.text)
        with model_progress(loaded, prepared):
            if score.by == "layer":
                lenses.append(logit_lens(loaded, prepared, prompt.target, prompt.against))
            else:
                effects.append(direct_effects(loaded, prepared, prompt.target, prompt.against, head))
    one = template.prompts is None
    if score.by == "layer":
        answer = lens_answer(lenses[0] if one else mean_lens(lenses, pass_source.text))
    else:
        answer = logits_answer(effects[0] if one else mean_writes(effects, pass_source.text), head)
    about = loaded, pass_source.text, template.prompts, *(read(each.text) for each in prompts)
    deliver("logits", answer, output, picture, None, about)
