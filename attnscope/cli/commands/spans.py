"""``attnscope spans``: the parts of a text on the command line."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

from attnscope.cli import options
from attnscope.cli.command import Group, Often, command, refuse_combined, refuse_first, refuse_without
from attnscope.cli.commands.find import FindOutput
from attnscope.cli.deliver import deliver
from attnscope.cli.source import model_progress, read_file, read_source

PARTS = ("sentence", "line", "paragraph", "segment", "modality", "role", "group", "marks")


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
        bool, Often(help="What each token of --generate or of a chat's answer attends to.")
    ] = False


@command
def spans(
    source: options.SourceOptions,
    division: PartOptions,
    attention: options.HeadOptions,
    output: FindOutput,
    picture: options.PrintedOptions,
    model: options.WeightedModelOptions,
    kernel: options.KernelOptions,
) -> None:
    """Show the attention between parts of a text: sentences, lines, ...

    A cell is the attention that a token of the row's part gives, on average, to all tokens of the column's
    part. Without --pair the map is the average over all heads, over those of --layer, or one --head.

    Examples:

    attnscope spans -f sample_inputs/article.txt --truncate --parts paragraph
    attnscope spans "A cat sleeps. Where does it sleep?" --pair "2 -> 1"
    attnscope spans "[[fact: A cat sleeps.]] [[question: Who?]]" --parts marks
    attnscope spans "The king said that" -m own-causal --generate 10 --written
    """
    from attnscope.questions.find import LISTED_HEADS, FindResult, find_answer
    from attnscope.questions.parts import cut_input, read_marks, read_parts
    from attnscope.questions.rules import parse_questions
    from attnscope.questions.spans import span_maps, spans_answer, written_answer, written_attention

    refuse_without(("written", "generate chat"), ("top", "pair"))
    refuse_combined(("written", "pair as_csv", ""))
    _check_parts(division.parts, source)
    questions = parse_questions(division.pair) if division.pair is not None else ()
    pass_source = read_source(source, model)
    begins: Iterable[tuple[str, int]] | None = None
    if division.parts == "marks":
        text, begins = read_marks(pass_source.text)
        pass_source = pass_source.with_text(text)
    elif division.parts.endswith(".json"):
        begins = read_parts(read_file(Path(division.parts)))
    selection, exact = options.select_heads(attention), kernel.exact_kernel
    loaded, prepared = pass_source.open(kind="kernel" if exact else "other")
    parts = cut_input(prepared, division.parts, begins)
    with model_progress(loaded, prepared):
        if division.written:
            answer = written_answer(written_attention(loaded, prepared, parts, selection, exact_kernel=exact))
        else:
            result = span_maps(loaded, prepared, parts, selection, exact_kernel=exact)
            answer = spans_answer(result)
    if questions:
        pairs = tuple(map(result.pair, questions))
        answer = find_answer(FindResult(pairs, result.title, result.notes), output.top or LISTED_HEADS)
    deliver("spans", answer, output, picture, model.metadata, (loaded, prepared))


def _check_parts(name: str, source: options.SourceOptions) -> None:
    """Wrong usage for parts that this input does not have."""
    plain = "give TEXT or --file; with --image or --audio, a text and --parts modality"
    senses = source.image or source.video or source.audio
    paired = senses and name in ("segment", "modality") and (source.text or source.file)
    divided = paired or name == "group" or not (senses or source.inputs)
    refuse_first(
        (
            name not in PARTS and not name.endswith(".json"),
            "--parts",
            f"{name!r}: write one of {', '.join(PARTS)}, or FILE.json",
        ),
        (
            source.saved is None and source.chat != (name == "role"),
            "--parts",
            "roles need --chat, and a chat is always cut by roles",
        ),
        (
            not divided or (source.saved and name == "marks"),
            "--parts",
            f"parts are cut out of a plain text: {plain}",
        ),
    )
