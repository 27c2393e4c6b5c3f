"""``attnscope spans``: which part of a text looks at which."""

from __future__ import annotations

import csv
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer

from attnscope.cli.command import command
from attnscope.cli.find import FindOutput, write_answers
from attnscope.cli.heads import select
from attnscope.cli.options.declare import MODEL, WHERE, flag, option
from attnscope.cli.options.heads import HeadOptions
from attnscope.cli.options.model import WeighedModelOptions
from attnscope.cli.options.picture import PrintedOptions, check_picture
from attnscope.cli.options.source import SourceOptions
from attnscope.cli.plain import print_plain
from attnscope.cli.source import Source, read_source, reading
from attnscope.errors import InputError

if TYPE_CHECKING:
    from attnscope.analysis.questions.cut import Span
    from attnscope.analysis.questions.spans import SpanMaps
    from attnscope.models import Model, ModelInput
    from attnscope.views import Heatmap


@dataclass(frozen=True, kw_only=True)
class PartOptions:
    """How the text is cut, and which parts are asked about."""

    by: Literal["sentence", "line", "paragraph", "segment", "marks"] = option(
        "How the text is cut; marks are parts that it names: [[question: Who slept?]].",
        default="sentence",
    )
    pair: str | None = option(
        'Rank the heads by how much one part looks at another: "question -> fact", "3 -> 1".',
        panel=WHERE,
    )
    exact_kernel: bool = flag("Never let the fused pass take the place of the model's kernel.", panel=MODEL)


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
    """
    from attnscope.analysis.questions.find import Answers
    from attnscope.analysis.questions.parts import parse_questions
    from attnscope.analysis.questions.spans import span_maps

    questions = parse_questions(parts.pair) if parts.pair is not None else ()
    check_picture(output.out, picture.cmap, one=True)
    if source.image or source.inputs or source.chat or (source.saved and parts.by == "marks"):
        raise typer.BadParameter("parts are cut out of a plain text: give TEXT or --file", param_hint="--by")
    loaded, prepared, cut = _read(read_source(source, model), parts)
    with reading(loaded, prepared):
        seen = span_maps(loaded, prepared, cut, select(attention), exact_kernel=parts.exact_kernel)
    if questions:
        asked = tuple(seen.pair(question) for question in questions)
        write_answers(Answers(asked, seen.title, (seen.ran, *seen.notes)), output, picture, model.said)
    elif output.as_json:
        print_plain(_numbers(seen) | model.said)
    elif output.as_csv:
        _print_csv(seen)
    else:
        _show(seen, attention, output.out, picture)


def _read(given: Source, parts: PartOptions) -> tuple[Model, ModelInput, tuple[Span, ...]]:
    """The model, the text as it reads it, and its parts."""
    from attnscope.analysis.questions.cut import Span, cut_text, read_marks, segments, spans_of
    from attnscope.models.trace import TracedModel

    begins: tuple[tuple[str, int], ...] = ()
    if given.asked.saved is not None:
        kept, prepared = given.open()
        if parts.by == "segment":
            return kept, prepared, segments(prepared.tokens)
        known = kept.trace.description.text if isinstance(kept, TracedModel) else None
        if known is None or parts.by == "marks":
            raise InputError(f"{given.asked.saved} holds no plain text that could be cut: give the text")
        return kept, prepared, spans_of(prepared.tokens, known, cut_text(known, parts.by))
    text = given.text
    if parts.by == "marks":
        text, begins = read_marks(text)
        given = replace(given, text=text)
    whole = text if given.second is None else f"{text}\n{given.second}"
    if parts.by in ("sentence", "line", "paragraph"):
        begins = cut_text(whole, parts.by)
    model = given.load()
    prepared = prompt = given.prepare(model)
    if given.asked.generate is not None:
        prompt = replace(given, asked=replace(given.asked, generate=None)).prepare(model)
    same = [one == other for one, other in zip(prompt.tokens, prepared.tokens, strict=False)]
    count = same.index(False) if False in same else len(same)  # a prompt may end with a token that is no more
    tokens = prepared.tokens[:count]
    cut = segments(tokens) if parts.by == "segment" else spans_of(tokens, whole, begins)
    rest = [Span("written", count, len(prepared.tokens))] if count < len(prepared.tokens) else []
    return model, prepared, (*cut, *rest)


def _show(seen: SpanMaps, attention: HeadOptions, out: Path | None, picture: PrintedOptions) -> None:
    """The parts as a map for each kind of attention: the mean of the heads that are meant, drawn or saved."""
    from attnscope.analysis.sentences import kind_title
    from attnscope.answers.answer import Answer
    from attnscope.cli import answers
    from attnscope.views import heatmap

    views: dict[str, Heatmap] = {}
    notes = (seen.ran, *seen.notes)
    for kind in dict.fromkeys(head.kind for head in seen.heads):
        count = sum(head.kind == kind for head in seen.heads)
        which = attention.head or f"mean of {count} heads"
        title = f"{which} · {kind_title(kind or '')} · {len(seen.spans)} parts"
        views[kind or ""] = heatmap(seen.mean(kind), title=title, subtitle=seen.title, notes=notes)
    answer = Answer(tuple(views.values()), views, {})
    if out is not None:
        answers.save(answer, out, picture)
    else:
        answers.print_views(answer, cmap=picture.cmap, plain=picture.plain)


def _numbers(seen: SpanMaps) -> dict[str, Any]:
    """Every head, part by part, as plain data."""
    return {
        "notes": [seen.ran, *seen.notes],
        "parts": [asdict(span) for span in seen.spans],
        "heads": [
            asdict(head) | {"weights": weights.tolist(), "baseline": baseline.tolist()}
            for head, weights, baseline in zip(seen.heads, seen.weights, seen.baseline, strict=True)
        ],
    }


def _print_csv(seen: SpanMaps) -> None:
    """A line for each two parts of each head."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(["kind", "layer", "head", "from", "to", "weight", "baseline"])
    for head, weights, baseline in zip(seen.heads, seen.weights, seen.baseline, strict=True):
        for row, one in enumerate(seen.spans):
            for key, other in enumerate(seen.spans):
                figures = float(weights[row, key]), float(baseline[row, key])
                writer.writerow([head.kind, head.layer, head.head, one.name, other.name, *figures])
