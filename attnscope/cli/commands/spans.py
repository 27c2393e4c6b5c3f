"""``attnscope spans``: the parts of a text on the command line."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

from typer import Option

from attnscope.cli import options
from attnscope.cli.command import Group, Often, command, is_typed, refuse_first
from attnscope.cli.commands.find import FindOutput
from attnscope.cli.deliver import deliver
from attnscope.cli.source import model_progress, read_file, read_source

WAYS = ("sentence", "line", "paragraph", "segment", "modality", "role", "group", "marks")


class PartOptions(Group):
    """How the text is divided, and which parts are asked about."""

    panel = options.WHERE
    parts: Annotated[
        str,
        Often(
            help="sentence, line, paragraph, segment (of a pair), modality (--image, --audio), role "
            "(--chat), group (--labels), marks ([[question: Who?]]), or FILE.json."
        ),
    ] = "sentence"
    pair: Annotated[str | None, Often(help='Rank heads by one part: "question -> fact", "3 -> 1".')] = None
    written: Annotated[
        bool, Often(help="What each token of --generate or of a chat's answer looks at, by parts.")
    ] = False
    exact_kernel: Annotated[
        bool, Option(help="Run the model's own kernel, never the fused pass.", rich_help_panel=options.MODEL)
    ] = False


@command
def spans(
    source: options.SourceOptions,
    parts: PartOptions,
    attention: options.HeadOptions,
    output: FindOutput,
    picture: options.PrintedOptions,
    model: options.WeightedModelOptions,
) -> None:
    """Show the attention between parts of a text: sentences, lines, ...

    A cell is the attention that a token of the row's part gives, on average, to all tokens of the column's
    part. Without --pair the map is the mean over all heads, or over those of --layer, or one --head.

    Examples:

    attnscope spans -f sample_inputs/article.txt --truncate --parts paragraph
    attnscope spans "A cat sleeps. Where does it sleep?" --pair "2 -> 1"
    attnscope spans "[[fact: A cat sleeps.]] [[question: Who?]]" --parts marks
    attnscope spans "The king said that" -m own-causal --generate 10 --written
    """
    from attnscope.questions.find import LISTED, FindResult, find_answer, parse_questions
    from attnscope.questions.parts import cut_input, read_marks, read_parts
    from attnscope.questions.spans import span_maps, spans_answer, written_answer, written_attention

    questions = parse_questions(parts.pair) if parts.pair is not None else ()
    unknown = parts.parts not in WAYS and not parts.parts.endswith(".json")
    mixed = source.saved is None and source.chat != (parts.parts == "role")
    unwritten = parts.written and ((source.generate is None and not source.chat) or parts.pair is not None)
    sensed = source.image or source.video or source.audio
    pictured = sensed and parts.parts in ("segment", "modality") and (source.text or source.file)
    textless = not (pictured or parts.parts == "group" or not (sensed or source.inputs))
    unmarked = source.saved and parts.parts == "marks"
    plain = "give TEXT or --file; with --image or --audio, a text and --parts modality"
    refuse_first(
        (unknown, "--parts", f"{parts.parts!r}: write one of {', '.join(WAYS)}, or FILE.json"),
        (mixed, "--parts", "roles need --chat, and a chat is always cut by roles"),
        (unwritten, "--written", "only valid with --generate N or an answered --chat, and without --pair"),
        (textless or unmarked, "--parts", f"parts are cut out of a plain text: {plain}"),
        (is_typed("top") and parts.pair is None, "--top", "requires --pair"),
        (parts.written and output.as_csv, "--written", "this one is drawn, or printed with --json"),
    )
    given = read_source(source, model)
    begins: Iterable[tuple[str, int]] | None = None
    if parts.parts == "marks":
        text, begins = read_marks(given.text)
        given = given.with_text(text)
    elif parts.parts.endswith(".json"):
        begins = read_parts(read_file(Path(parts.parts)))
    asked, exact = options.select_heads(attention), parts.exact_kernel
    loaded, prepared = given.open(kind="kernel" if exact else "other")
    cut = cut_input(prepared, parts.parts, begins)
    with model_progress(loaded, prepared):
        if parts.written:
            answer = written_answer(written_attention(loaded, prepared, cut, asked, exact_kernel=exact))
        else:
            result = span_maps(loaded, prepared, cut, asked, exact_kernel=exact)
            answer = spans_answer(result)
    if questions:
        found = tuple(map(result.pair, questions))
        answer = find_answer(FindResult(found, result.title, result.notes), output.top or LISTED)
    deliver("spans", answer, output, picture, model.metadata, (loaded, prepared))
