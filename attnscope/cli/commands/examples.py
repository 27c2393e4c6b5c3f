"""``attnscope examples``: the rows of a corpus where a head attends most, and what else it does there."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from attnscope.cli import options
from attnscope.cli.command import MOST_USED, Group, command, is_given, offering, refuse, refuse_combined
from attnscope.cli.corpus import CorpusOptions, corpus_run, open_corpus
from attnscope.cli.deliver import deliver
from attnscope.cli.source import load_model

if TYPE_CHECKING:
    from attnscope.questions.examples import Examples

MOST_LISTED = 100  # most rows of a head that are kept


class ReadingOptions(Group):
    """How the texts are read, and the order of the rows."""

    panel = options.MANY
    max_tokens: Annotated[int | None, Option(help="Cut each text after N tokens.", min=1)] = None
    truncate: Annotated[bool, Option(help="Cut texts that are too long for the model.")] = False
    chat: Annotated[bool, Option(help="Read each text by the model's chat template.")] = False
    by: Annotated[
        str | None,
        Option(
            help='Order rows by a measure or a question, "it -> cat", "same or +0"; default: the largest '
            "weight outside self and the first token.",
            rich_help_panel=MOST_USED,
            autocompletion=offering(options.measure_names),
        ),
    ] = None


class ExampleHead(Group):
    """The head, and how many rows are shown."""

    head: Annotated[str | None, Argument(help="A head, L5H1; without one, every head has a line.")] = None
    top: Annotated[
        int | None, Option(help="Show N rows; default: 5.", metavar="N", min=1, max=MOST_LISTED)
    ] = None
    sentences: Annotated[bool, Option(help="Show rows in whole sentences.")] = False


class ExampleOutput(options.NumbersOptions):
    """Where the rows go."""

    as_csv: Annotated[bool, Option("--csv/--no-csv", help="Print the rows as CSV.")] = False


def read_examples(
    reading: ReadingOptions,
    corpus: CorpusOptions,
    model: options.WeightedModelOptions,
    **how: Any,
) -> Examples:
    """The examples of one head, or all, as the options ask."""
    from attnscope.questions.examples import corpus_examples, parse_order

    refuse(corpus.texts is None, "--texts", "give the texts that heads are read on")
    parse_order(reading.by)  # an unknown name is refused before the model is loaded
    texts, loaded = open_corpus(corpus, chat=reading.chat), load_model(model)
    with corpus_run(reading, corpus, texts.size) as run:
        return corpus_examples(loaded, texts, by=reading.by, run=run, **how)


@command
def examples(
    shown: ExampleHead,
    corpus: CorpusOptions,
    reading: ReadingOptions,
    output: ExampleOutput,
    model: options.WeightedModelOptions,
) -> None:
    """Show where in a corpus a head attends most, in context.

    The strongest rows are those with the largest weight outside of the row's own token and the first one,
    where most heads attend by habit. Then follow a random row of each tenth of all rows, the tokens of the
    100 strongest rows beside their share in the corpus, histograms of all rows, and the nearest heads.

    Examples:

    attnscope examples L2H1 --texts sample_inputs/sentences.txt
    attnscope examples L2H1 --texts sample_inputs/sentences.txt --by "* -> -1"
    attnscope examples --texts sample_inputs/sentences.txt
    """
    from attnscope.questions.examples import examples_answer

    for name in ("top", "sentences"):
        refuse(is_given(name) and shown.head is None, f"--{name}", "requires a head: L2H1")
    refuse_combined(
        ("sentences", "as_csv", "its rows have no context"),
        ("sentences", "chat", "a chat has no plain text to cut"),
    )
    head = None if shown.head is None else options.parse_head(shown.head)
    result = read_examples(reading, corpus, model, head=head, top=shown.top or 5, sentences=shown.sentences)
    answer = examples_answer(result, one=head is not None)
    if head is not None and output.as_latex:  # the rows alone, with the notes of all
        rows, *_, last = answer.views
        answer = replace(answer, views=(replace(rows, notes=last.notes),))
    deliver("examples", answer, output, metadata=model.metadata, read=result.read)
