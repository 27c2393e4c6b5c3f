"""``attnscope logits``: what each part of a model adds to a score, and the prediction after each layer."""

from functools import cache
from typing import Annotated, Literal

from typer import Option

from attnscope.cli import options
from attnscope.cli.command import MOST_USED, Group, command, refuse, refuse_useless
from attnscope.cli.deliver import deliver
from attnscope.cli.source import list_prompts, model_progress, read_source


class ScoreOptions(Group):
    """Whose score is decomposed."""

    panel = MOST_USED
    target: Annotated[
        str | None, Option(help="The predicted word, or a token's number; default: most likely.")
    ] = None
    against: Annotated[str | None, Option(help="A word whose score is subtracted.")] = None


class LogitsOptions(ScoreOptions):
    """What it is decomposed into."""

    by: Annotated[
        Literal["head", "layer"], Option(help="head: what each adds; layer: the prediction behind it.")
    ] = "head"


class WritingHead(options.HeadOptions):
    """One head, whose kind is that of the prediction."""

    kind: str | None = None


@command
def logits(
    source: options.SourceOptions,
    asked: LogitsOptions,
    many: options.PromptsOptions,
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
    refuse(attention.layers and not attention.head, "--layer", "requires --head")
    refuse_useless(
        ("a prediction", True, "it is that of the text as it stands", "generate"),
        ("--latex", output.as_latex, "the table has every part", "head"),
    )
    by_layer = asked.by == "layer"
    refuse(by_layer and (attention.head or output.out), "--by", "layer prints a table: no --head, no --out")
    head = None if attention.head is None else options.parse_head(attention.head, attention)
    given = read_source(source, model)
    from attnscope.questions.logits import (
        Lens,
        Writes,
        direct_effects,
        lens_answer,
        logit_lens,
        logits_answer,
    )
    from attnscope.questions.prompts import mean_lens, mean_writes

    refuse(head and many.prompts, "--head", "words are those of one text: not valid with --prompts")
    prompts = list_prompts(given, many, asked.target, asked.against)
    loaded = given.load(predicting=True)
    lenses, effects = list[Lens](), list[Writes]()
    read = cache(given.reader(loaded))
    for prompt in prompts:
        prepared = read(prompt.text)
        with model_progress(loaded, prepared):
            if by_layer:
                lenses.append(logit_lens(loaded, prepared, prompt.target, prompt.against))
            else:
                effects.append(direct_effects(loaded, prepared, prompt.target, prompt.against, head))
    one = many.prompts is None
    if by_layer:
        answer = lens_answer(lenses[0] if one else mean_lens(lenses, given.text))
    else:
        answer = logits_answer(effects[0] if one else mean_writes(effects, given.text), head)
    about = loaded, given.text, many.prompts, *(read(each.text) for each in prompts)
    deliver("logits", answer, output, picture, None, about)
