"""``attnscope spans``: which part of a text looks at which."""

from __future__ import annotations

import csv
import sys
from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING

from attnscope.cli.command import command
from attnscope.cli.commands.find import FindOutput, write_answers
from attnscope.cli.heads import select_heads
from attnscope.cli.looks.parts import PartOptions, check_parts, read_parts_of, show_written
from attnscope.cli.options.heads import HeadOptions
from attnscope.cli.options.model import WeighedModelOptions
from attnscope.cli.options.picture import PrintedOptions, check_picture
from attnscope.cli.options.source import SourceOptions
from attnscope.cli.plain import print_answer
from attnscope.cli.source import read_source, reading

if TYPE_CHECKING:
    from attnscope.analysis.questions.find import Answer
    from attnscope.analysis.questions.spans import SpanMaps


@command
def spans(
    source: SourceOptions,
    parts: PartOptions,
    attention: HeadOptions,
    output: FindOutput,
    picture: PrintedOptions,
    model: WeighedModelOptions,
) -> None:
    """Show how much each part of a text looks at each: sentences, lines, paragraphs, or parts with names.

    A cell is the attention that a token of the row's part gives, on average, to all tokens of the column's
    part. Without --pair the map is the mean over all heads, or over those of --layer, or one --head.

    Examples:

    attnscope spans -f sample_inputs/article.txt -m own-causal --truncate --by paragraph

    attnscope spans "[[fact: A cat sleeps.]] [[question: Who?]]" --by marks --pair "question -> fact"

    attnscope spans -f sample_inputs/article.txt -m own-causal --truncate --by paragraph --pair "3 -> *"

    attnscope spans "The king said that the queen" -m own-causal --generate 10 --written
    """
    from attnscope.analysis.questions.find import Answers
    from attnscope.analysis.questions.question import parse_questions
    from attnscope.analysis.questions.spans import span_maps

    questions = parse_questions(parts.pair) if parts.pair is not None else ()
    check_picture(output.out, picture.cmap, one=True)
    check_parts(parts, source)
    loaded, prepared, cut = read_parts_of(read_source(source, model), parts)
    if parts.written:
        show_written(loaded, prepared, cut, parts, attention, output, picture)
        return
    with reading(loaded, prepared):
        result = span_maps(loaded, prepared, cut, select_heads(attention), exact_kernel=parts.exact_kernel)
    if questions:
        asked = tuple(chain.from_iterable(result.pair(question) for question in questions))
        drawn = not (output.as_json or output.as_csv or output.out)
        if drawn and questions[0].right.everything:
            _print_ranked(asked, result)
            return
        answers = Answers(asked, result.title, (result.ran, *result.notes))
        write_answers("spans", answers, output, picture, model.said)
        return
    from attnscope.answers.questions import of_spans
    from attnscope.cli import answers as way_out

    answer = of_spans(result, one=attention.head is not None)
    if output.as_json:
        print_answer("spans", {**answer.numbers, **model.said})
    elif output.as_csv:
        _print_csv(result)
    elif output.out is not None:
        way_out.save(answer, output.out, picture)
    else:
        way_out.print_views(answer, picture)


def _print_ranked(answers: Sequence[Answer], result: SpanMaps) -> None:
    """The parts that one part looks at, the one that it looks at most first, as a table."""
    from statistics import fmean

    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from attnscope.views.heads import number

    console, count = Console(highlight=False), len(result.heads)
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("part", overflow="ellipsis", no_wrap=True)
    for name in ("share", "baseline", "most in")[: 2 + (count > 1)]:
        table.add_column(name, justify="right", no_wrap=True)
    for answer in answers:
        share, baseline = (
            fmean(getattr(head, name) for head in answer.heads) for name in ("weight", "baseline")
        )
        best = answer.heads[0]
        most = (f"{best.head.name} {number(best.weight)}",) if count > 1 else ()
        table.add_row(Text(answer.question.right.text), number(share), number(baseline), *most)
    which = result.heads[0].name if count == 1 else f"mean of {count} heads"
    console.print(Text(f"{answers[0].question.left.text} -> * · {which}"), style="bold")
    console.print(Text(result.title), style="dim")
    console.print(table)
    for note in (result.ran, *result.notes):
        console.print(Text(f"· {note}"), style="dim")


def _print_csv(result: SpanMaps) -> None:
    """A line for each two parts of each head."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(["kind", "layer", "head", "from", "to", "weight", "baseline"])
    for head, weights, baseline in zip(result.heads, result.weights, result.baseline, strict=True):
        for row, one in enumerate(result.spans):
            for key, other in enumerate(result.spans):
                figures = float(weights[row, key]), float(baseline[row, key])
                writer.writerow([head.kind, head.layer, head.head, one.name, other.name, *figures])
