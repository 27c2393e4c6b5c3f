"""``attnscope cut``: what a prediction loses without the attention of one part of a text to another."""

from functools import cache
from typing import Annotated, Literal

from typer import Argument, Option

from attnscope.attention import Head
from attnscope.cli import options
from attnscope.cli.command import MOST_USED, Group, command, refuse_combined, refuse_typed, refuse_without
from attnscope.cli.commands.logits import ScoreOptions
from attnscope.cli.corpus import TextsOptions, prepare_corpus
from attnscope.cli.deliver import deliver
from attnscope.cli.messages import spinner
from attnscope.cli.source import list_prompts, read_source, split_questions


class EdgeOptions(Group):
    """What is cut, of which text."""

    edges: Annotated[
        list[str] | None, Argument(help='Edges, like "it -> cat" or "* -> [SEP]", and the text.')
    ] = None
    how: Annotated[
        Literal["renormalize", "zero", "mean"],
        Option(
            help="renormalize: mask the edge before the softmax; zero: drop its weight; mean: that of "
            "--texts.",
            metavar="<how>",
        ),
    ] = "renormalize"


class CauseOptions(ScoreOptions):
    """Which prediction, and which heads."""

    panel = MOST_USED
    head: Annotated[str | None, Option(help="These heads alone: L2H1,L1H3.")] = None

    def parse_heads(self, attention: options.LayerOptions, output: options.TableOutput) -> list[Head]:
        """The named heads; refuses colours for one, whose effect is printed without a map."""
        heads = options.parse_heads(self.head, attention)
        if len(heads) == 1 and output.out is None:
            refuse_combined((options.COLOURS, "head", "the effect of one head is printed without a map"))
        return heads


@command
def cut(
    edges: EdgeOptions,
    cause: CauseOptions,
    corpus: TextsOptions,
    source: options.TextAmong,
    template: options.PromptsOptions,
    attention: options.LayerOptions,
    output: options.TableOutput,
    picture: options.SignedOptions,
    model: options.ModelOptions,
) -> None:
    """Cut attention between parts of a text; measure the prediction.

    Each head is cut alone, then all of them at once. The effect is the change of the target's
    log-probability in nats, or of the logit difference with --against; KL says how far the whole
    distribution moves.

    Examples:

    attnscope cut "mat -> cat" "The cat sat on the mat" -m own-causal
    attnscope cut "on -> cat" "The cat sat on" -m own-causal --target the
    attnscope cut "on -> cat" "The cat sat on" -m own-causal --head L1H0,L2H3
    attnscope cut "* -> special" "The cat sat on the mat." --how zero --json
    """
    from attnscope.questions.cause import intervention_answer
    from attnscope.questions.prompts import mean_cut

    questions, source = split_questions(edges.edges, source, "an edge")
    refuse_without(("how=mean", "texts"), ("texts", "how=mean"))
    refuse_typed("generate", "the prediction is that of the text as it stands: leave it out")
    heads = cause.parse_heads(attention, output)
    pass_source = read_source(source, model)
    prompts = list_prompts(pass_source, template, cause.target, cause.against)
    loaded, named = pass_source.load(predicting=True), ", ".join(map(str, questions))
    read = cache(pass_source.reader(loaded))
    texts = () if corpus.texts is None else tuple(prepare_corpus(loaded, corpus, source))
    with spinner(f"{loaded.name} predicts without “{named}”"):
        result = mean_cut(
            loaded, prompts, read, pass_source.text, questions,
            selection=options.select(attention), heads=heads, how=edges.how, texts=texts,
        )  # fmt: skip
    about = loaded, pass_source.text, template.prompts, *(read(each.text) for each in prompts)
    deliver("cut", intervention_answer(result), output, picture, None, about)
