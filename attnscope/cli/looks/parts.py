"""The parts of a text on the command line: how it is cut, and what was written on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from attnscope.cli.commands.find import FindOutput
from attnscope.cli.heads import select_heads
from attnscope.cli.options.declare import MODEL, WHERE, flag, option
from attnscope.cli.options.heads import HeadOptions
from attnscope.cli.options.picture import PrintedOptions
from attnscope.cli.options.source import SourceOptions
from attnscope.cli.plain import print_answer
from attnscope.cli.source import Source, reading
from attnscope.cli.text import read_file

if TYPE_CHECKING:
    from attnscope.analysis.questions.cut import Span
    from attnscope.models import Model, ModelInput

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


def read_parts_of(given: Source, parts: PartOptions) -> tuple[Model, ModelInput, tuple[Span, ...]]:
    """The model, the text as it reads it, and its parts."""
    from attnscope.analysis.questions.cut import cut_input, read_marks, read_parts

    begins: Iterable[tuple[str, int]] | None = None
    if parts.by == "marks":
        text, begins = read_marks(given.text)
        given = replace(given, text=text)
    elif parts.by.endswith(".json"):
        begins = read_parts(read_file(Path(parts.by)))
    model, prepared = given.open(way="kernel" if parts.exact_kernel else "other")
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
    from attnscope.analysis.questions.written import written_looks
    from attnscope.answers.answer import Answer
    from attnscope.cli import answers

    if output.as_csv:
        raise typer.BadParameter("it is drawn here, or printed with --json", param_hint="--written")
    with reading(model, prepared):
        result = written_looks(model, prepared, cut, select_heads(attention), exact_kernel=parts.exact_kernel)
    if not output.as_json:
        which = result.heads[0].name if attention.head else f"mean of {len(result.heads)} heads"
        drawn = result.stack(which)
        if output.out is not None:
            answers.save(Answer((drawn,), {"": drawn}, dict), output.out, picture)
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
