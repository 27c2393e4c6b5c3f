"""``attnscope spans``: which part of a text looks at which."""

from __future__ import annotations

import csv
import sys
from collections.abc import Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
    from attnscope.views import Heatmap


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
    from attnscope.analysis.questions.parts import parse_questions
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
    elif output.as_json:
        print_answer("spans", _numbers(result) | model.said)
    elif output.as_csv:
        _print_csv(result)
    else:
        _show(result, attention, output.out, picture)


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


def _show(result: SpanMaps, attention: HeadOptions, out: Path | None, picture: PrintedOptions) -> None:
    """The parts as a map for each kind of attention: the mean of the heads that are meant, drawn or saved."""
    from attnscope.analysis.sentences import kind_title
    from attnscope.answers.answer import Answer
    from attnscope.cli import answers
    from attnscope.views import heatmap

    views: dict[str, Heatmap] = {}
    notes = (result.ran, *result.notes)
    for kind in dict.fromkeys(head.kind for head in result.heads):
        count = sum(head.kind == kind for head in result.heads)
        which = result.heads[0].name if attention.head else f"mean of {count} heads"
        title = f"{which} · {kind_title(kind or '')} · {len(result.spans)} parts"
        views[kind or ""] = heatmap(result.mean(kind), title=title, subtitle=result.title, notes=notes)
    answer = Answer(tuple(views.values()), views, {})
    if out is not None:
        answers.save(answer, out, picture)
    else:
        answers.print_views(answer, picture)


def _numbers(result: SpanMaps) -> dict[str, Any]:
    """Every head, part by part, as plain data."""
    return {
        "notes": [result.ran, *result.notes],
        "parts": [asdict(span) for span in result.spans],
        "heads": [
            asdict(head) | {"weights": weights.tolist(), "baseline": baseline.tolist()}
            for head, weights, baseline in zip(result.heads, result.weights, result.baseline, strict=True)
        ],
    }


def _print_csv(result: SpanMaps) -> None:
    """A line for each two parts of each head."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(["kind", "layer", "head", "from", "to", "weight", "baseline"])
    for head, weights, baseline in zip(result.heads, result.weights, result.baseline, strict=True):
        for row, one in enumerate(result.spans):
            for key, other in enumerate(result.spans):
                figures = float(weights[row, key]), float(baseline[row, key])
                writer.writerow([head.kind, head.layer, head.head, one.name, other.name, *figures])
