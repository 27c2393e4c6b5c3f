"""The parts of a text on the command line: how it is cut, and what was written on."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from attnscope.cli.command import MODEL, WHERE, command, flag, option
from attnscope.cli.commands.find import FindOutput, write_answers
from attnscope.cli.deliver import print_answer
from attnscope.cli.heads import select_heads
from attnscope.cli.options import (
    HeadOptions,
    PrintedOptions,
    SourceOptions,
    WeighedModelOptions,
    check_picture,
)
from attnscope.cli.source import SourceInput, read_file, read_source, reading

if TYPE_CHECKING:
    from attnscope.models import Model, ModelInput
    from attnscope.questions.find import Answer
    from attnscope.questions.parts import Span
    from attnscope.questions.spans import SpanMaps


WAYS = ("sentence", "line", "paragraph", "segment", "modality", "role", "marks")


@dataclass(frozen=True, kw_only=True)
class PartOptions:
    """How the text is cut, and which parts are asked about."""

    by: str = option(
        "How the text is cut: sentence, line, paragraph, segment (both texts of a pair), modality (--image "
        "or --audio and its text), role (with --chat), marks, which are parts that it names, "
        "[[question: Who slept?]], or a .json FILE of parts.",
        default="sentence",
    )
    pair: str | None = option(
        'Rank the heads by how much one part looks at another: "question -> fact", "3 -> 1"; or the '
        'parts by how much it looks at each: "question -> *".',
        panel=WHERE,
    )
    written: bool = flag(
        "With --generate: what each written token looks at, by parts, and each head's lookback ratio.",
        panel=WHERE,
    )
    exact_kernel: bool = flag("Never let the fused pass take the place of the model's kernel.", panel=MODEL)


def check_parts(parts: PartOptions, source: SourceOptions) -> None:
    """Refuse a way to cut that does not exist, or that does not go with what is read."""
    file = parts.by.endswith(".json")
    if parts.by not in WAYS and not file:
        ways = ", ".join(WAYS)
        raise typer.BadParameter(f"{parts.by!r}: write one of {ways}, or FILE.json", param_hint="--by")
    if source.saved is None and source.chat != (parts.by == "role"):
        raise typer.BadParameter("roles go with --chat, and a chat is cut by roles", param_hint="--by")
    if parts.written and (source.generate is None or parts.pair is not None):
        raise typer.BadParameter("it goes with --generate N, and not with --pair", param_hint="--written")
    plain = not (source.image or source.video or source.inputs or source.audio)
    sensed = source.image or source.video or source.audio
    pictured = sensed and parts.by in ("segment", "modality") and (source.text or source.file)
    if not (plain or pictured) or (source.saved and parts.by == "marks"):
        raise typer.BadParameter(
            "parts are cut out of a plain text: give TEXT or --file; with --image or --audio, a text and "
            "--by modality",
            param_hint="--by",
        )


def read_parts_of(given: SourceInput, parts: PartOptions) -> tuple[Model, ModelInput, tuple[Span, ...]]:
    """The model, the text as it reads it, and its parts."""
    from attnscope.questions.parts import cut_input, read_marks, read_parts

    begins: Iterable[tuple[str, int]] | None = None
    if parts.by == "marks":
        text, begins = read_marks(given.text)
        given = replace(given, text=text)
    elif parts.by.endswith(".json"):
        begins = read_parts(read_file(Path(parts.by)))
    model, prepared = given.open(kind="kernel" if parts.exact_kernel else "other")
    return model, prepared, cut_input(prepared, parts.by, begins)


def show_written(
    model: Model,
    prepared: ModelInput,
    cut: tuple[Span, ...],
    parts: PartOptions,
    attention: HeadOptions,
    output: FindOutput,
    picture: PrintedOptions,
) -> None:
    """What each written token looks at, drawn or as plain data."""
    from attnscope.cli import deliver as answers
    from attnscope.questions.answer import Answer
    from attnscope.questions.spans import written_looks

    if output.as_csv:
        raise typer.BadParameter("it is drawn here, or printed with --json", param_hint="--written")
    with reading(model, prepared):
        result = written_looks(model, prepared, cut, select_heads(attention), exact_kernel=parts.exact_kernel)
    if not output.as_json:
        which = result.heads[0].name if attention.head else f"mean of {len(result.heads)} heads"
        drawn = result.stack(which)
        if output.out is not None:
            answers.save_pictures(Answer((drawn,), {"": drawn}, dict), output.out, picture)
        else:
            answers.print_views(Answer((drawn,), {}, dict), picture)
        return
    heads = [
        asdict(head) | {"lookback": result.lookback[head], "shares": shares.tolist()}
        for head, shares in zip(result.heads, result.shares, strict=True)
    ]
    print_answer(
        "spans", {"notes": result.notes, "parts": result.parts, "tokens": result.tokens, "heads": heads}
    )


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
    from attnscope.questions.find import Answers, parse_questions
    from attnscope.questions.spans import span_maps

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
        write_answers("spans", answers, output, picture, model.metadata)
        return
    from attnscope.cli import deliver as way_out
    from attnscope.questions.asked import of_spans

    answer = of_spans(result, one=attention.head is not None)
    if output.as_json:
        print_answer("spans", {**answer.numbers, **model.metadata})
    elif output.as_csv:
        _print_csv(result)
    elif output.out is not None:
        way_out.save_pictures(answer, output.out, picture)
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
