"""``attnscope find``: which heads look from here to there."""

from __future__ import annotations

import csv
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from attnscope.cli.command import command, repeat
from attnscope.cli.heads import select
from attnscope.cli.looks.gold import answer_gold, check_gold
from attnscope.cli.options.declare import argument, flag, option
from attnscope.cli.options.gold import GoldOptions
from attnscope.cli.options.heads import LayerOptions
from attnscope.cli.options.model import Said, WeighedModelOptions
from attnscope.cli.options.picture import NumbersOptions, PrintedOptions, check_picture
from attnscope.cli.options.source import SourceOptions, TextNamed
from attnscope.cli.plain import print_answer
from attnscope.cli.source import read_source, reading

if TYPE_CHECKING:
    from rich.table import Table

    from attnscope.analysis.questions.find import Answer, Answers


MOST = 500
"""Questions that are asked together: each is a table of its own, and many are a file for --gold."""


@dataclass(frozen=True, kw_only=True)
class QuestionOptions:
    """What is asked, and of which text."""

    asked: list[str] | None = argument(
        'Questions such as "it -> cat", "it <-> cat", "\'the mat\' -> [SEP]", "* -> -2", and the text.'
    )


@dataclass(frozen=True, kw_only=True)
class FindOutput(NumbersOptions):
    """How many heads are listed, and where the answer goes."""

    top: int | None = option("List so many heads of each question: 8, or 1 with --gold.", min=1)
    as_csv: bool = flag("Print all heads of all questions as CSV.", "--csv")
    out: Path | None = option("Save the map of all heads as .png, .svg or .pdf.", "--out", "-o")


@command
def find(
    asked: QuestionOptions,
    gold: GoldOptions,
    source: TextNamed,
    attention: LayerOptions,
    output: FindOutput,
    picture: PrintedOptions,
    model: WeighedModelOptions,
) -> None:
    """Find the heads that look from one part of a text to another.

    A part is a word (cat), one of several (cat#2), a token's number (5), a quoted phrase ('the mat'), a
    special token ([CLS]), special, punctuation, image, /regex/, or * for every word. One of the two may be a
    distance from the other: * -> -2 asks which heads look two tokens back, +1 -> cat what looks at cat from
    the token behind it. What has an arrow in it stands in quotes.

    Each head's figure is the share of the attention of the left part that goes to the right part. Beside it
    stand the baseline, which is the same share of even attention, and the rank of the right part among all
    words: 1 if no word gets more.

    With --gold the questions and their answers come from a file: a treebank (.conllu, each dependency
    relation is a question), JSON lines with pairs of words (.jsonl), or word alignments of translations. A
    head is right where a word's largest weight, special tokens and the word itself aside, goes to the answer.
    Beside it stand the best fixed distance, chosen on the same data, and even attention; ± is the standard
    error over texts.

    Examples:

    attnscope find "it -> cat" "The cat sat on the mat because it was tired."

    attnscope find "* -> -2" "* -> special" -f sample_inputs/article.txt --truncate --top 3

    attnscope find "it <-> cat" "The cat sat on the mat because it was tired." -m my-bert -o it-cat.png

    attnscope find --gold english.conllu --relation nsubj,obj --held-out -m my-bert

    attnscope find --gold pairs.txt --alignments links.txt -m my-translator
    """
    from attnscope.analysis.questions.question import is_question, parse_questions

    given_words = asked.asked or []
    if check_gold(gold, given_words, source, output):
        answer_gold(gold, source, attention, output, model)
        return
    texts = [each for each in given_words if not is_question(each)]
    if not (texts or source.names_one) and len(given_words) > 1:
        texts = given_words[-1:]  # a text with an arrow in it: else there is none
    if len(texts) == len(given_words):
        raise typer.BadParameter("ask something, the arrow written as ->: 'it -> cat'", param_hint="ASKED")
    if len(texts) > 1 or (texts and source.text is not None):
        raise typer.BadParameter("give one text; a question has an arrow, ->", param_hint="ASKED")
    if texts:
        source = replace(source, text=texts[0])
    questions = [question for each in given_words if each not in texts for question in parse_questions(each)]
    if len(questions) > MOST:
        raise typer.BadParameter(f"{len(questions):,} questions: ask {MOST} at a time", param_hint="ASKED")
    check_picture(output.out, picture.cmap, one=True)
    given = read_source(source, model)
    loaded, prepared = given.open(saving=output.out is not None)
    with reading(loaded, prepared):
        from attnscope.analysis.questions.find import find as find_heads

        answers = find_heads(loaded, prepared, questions, select(attention))
    meant = LayerOptions(kind=attention.kind)  # a head of one kind is opened as one of that kind
    opening = repeat("show", SourceOptions(**vars(source)), meant, picture, model)
    write_answers("find", answers, output, picture, model.said, opening)


def write_answers(
    command: str,
    answers: Answers,
    output: FindOutput,
    picture: PrintedOptions,
    said: Said,
    opening: str | None = None,
) -> None:
    """Print or save the answers; ``said`` goes into JSON, ``opening`` is a command that shows a head."""
    if output.as_json:
        from attnscope.answers.questions import found_numbers

        print_answer(command, found_numbers(answers) | said)
    elif output.as_csv:
        _print_csv(answers)
    elif output.out is not None:
        _save(answers, output.out, picture)
    else:
        _print(answers, output.top, picture, opening)


def _print_csv(answers: Answers) -> None:
    """A line for each head of each question."""
    from attnscope.answers.questions import looking_numbers

    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(["question", "kind", "layer", "head", "weight", "baseline", "rank", "rows"])
    for answer in answers.answers:
        for each in answer.heads:
            head = each.head
            writer.writerow(
                [answer.question, head.kind, head.layer, head.head, *looking_numbers(each).values()]
            )


def _save(answers: Answers, out: Path, picture: PrintedOptions) -> None:
    """The maps as picture files, several of them numbered."""
    from attnscope.answers.answer import of_maps
    from attnscope.answers.questions import maps_of
    from attnscope.cli import answers as output

    for number, answer in enumerate(answers.answers, 1):
        path = out if len(answers.answers) == 1 else out.with_stem(f"{out.stem}-{number}")
        output.save(of_maps(maps_of(answer, answers.title, (*answer.notes, *answers.notes))), path, picture)


def _print(answers: Answers, top: int | None, picture: PrintedOptions, opening: str | None) -> None:
    """For each question a map of all heads, and those that look most."""
    from rich.console import Console
    from rich.text import Text

    from attnscope.answers.answer import of_maps
    from attnscope.answers.questions import LISTED, maps_of
    from attnscope.cli import answers as output

    console = Console(highlight=False)
    console.print(Text(answers.title), style="dim")
    for answer in answers.answers:
        print()
        output.print_views(of_maps(maps_of(answer)), picture)
        if answer.heads:
            print()
            console.print(_table(answer, top or LISTED))
        else:
            console.print(Text(str(answer.question)), style="bold")
        for note in answer.notes:
            console.print(Text(f"· {note}"), style="dim")
    for note in answers.notes:
        console.print(Text(f"· {note}"), style="dim")
    if opening is not None:  # a command to be copied, so that it stays on one line
        heads = [each.head for answer in answers.answers for each in answer.heads]
        kind = f" --kind {heads[0].kind}" if len({head.kind for head in heads}) > 1 else ""
        console.print(Text(f"· {opening} --head {heads[0].name}{kind}"), style="dim", soft_wrap=True)


def _table(answer: Answer, top: int) -> Table:
    """The heads that look most, a line each."""
    from rich.table import Table

    from attnscope.views.heads import number

    several = len({each.head.kind for each in answer.heads}) > 1
    whole = all(each.rank is None or each.rank.is_integer() for each in answer.heads[:top])
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for name in ("head", *(("kind",) if several else ())):
        table.add_column(name, no_wrap=True)
    for name in ("share", "baseline", "rank"):
        table.add_column(name, justify="right", no_wrap=True)
    for each in answer.heads[:top]:
        rank = "–" if each.rank is None else f"{each.rank:.{0 if whole else 1}f}"
        kind = (each.head.kind or "",) if several else ()
        table.add_row(each.head.name, *kind, number(each.weight), number(each.baseline), rank)
    return table
