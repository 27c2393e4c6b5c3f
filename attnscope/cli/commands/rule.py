"""``attnscope rule``: the shortest rule that says where a head looks."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from attnscope.cli import options
from attnscope.cli.command import Group, command, refuse
from attnscope.cli.corpus import CorpusOptions, corpus_run, open_corpus
from attnscope.cli.deliver import deliver
from attnscope.cli.source import load_model


class RuleHead(Group):
    """The head."""

    head: Annotated[str | None, Argument(help="A head, L5H1; without one, every head.")] = None


class RuleTexts(CorpusOptions):
    """The texts, and how they are read; a sample of their rows is not saved."""

    panel = options.MANY
    checkpoint: Path | None = None
    shard: str | None = None
    merge: str | None = None
    max_tokens: Annotated[int | None, Option(help="Cut each text after N tokens.", min=1)] = None
    truncate: Annotated[bool, Option(help="Cut texts that are too long for the model.")] = False
    chat: Annotated[bool, Option(help="Read each text by the model's chat template.")] = False


class RuleOutput(options.NumbersOptions):
    """Where the rules go."""

    as_csv: Annotated[bool, Option("--csv/--no-csv", help="Print the rules as CSV.")] = False


@command
def rule(shown: RuleHead, texts: RuleTexts, output: RuleOutput, model: options.WeightedModelOptions) -> None:
    """Find the shortest rule that says where a head looks.

    A rule names keys in the words of find: a distance (-1 is the token before, +0 the row's own), a token's
    number (0 is the first), special, punctuation, /regex/, a quoted word; or same, another occurrence of the
    row's token, and after same, what followed an earlier one. They are joined by and, or.

    It is found on random rows of every other text and scored on the others; what it leaves is listed. A claim
    of attnscope check can hold it: "L1H3.rule(-1 or special) > 0.8".

    Examples:

    attnscope rule L1H3 --texts sample_inputs/sentences.txt
    attnscope rule --texts sample_inputs/sentences.txt --csv
    """
    from attnscope.questions.rule import find_rules, rules_answer

    refuse(texts.texts is None, "--texts", "give the texts that a rule is found on")
    head = None if shown.head is None else options.parse_head(shown.head)
    corpus, loaded = open_corpus(texts, chat=texts.chat), load_model(model)
    with corpus_run(texts, texts, corpus.size) as run:
        result = find_rules(loaded, corpus, head, run=run)
    deliver("rule", rules_answer(result), output, metadata=model.metadata, read=result.read)
