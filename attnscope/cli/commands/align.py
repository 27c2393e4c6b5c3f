"""``attnscope align``: when each word of a sound is said."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Argument, Option

from attnscope.attention import Head
from attnscope.cli import options
from attnscope.cli.command import Group, Often, command, refuse, refuse_combined, refuse_without
from attnscope.cli.deliver import deliver
from attnscope.cli.messages import spinner
from attnscope.cli.source import load_model, model_progress, read_file, read_text
from attnscope.errors import InputError, OutputError

if TYPE_CHECKING:
    from attnscope.models import Model, ModelInput
    from attnscope.models.inputs import SoundPart
    from attnscope.questions.align import AlignedHeads, SpokenText, SpokenWord

MAX_WORD_LETTERS = 24  # most letters of a word in its column; longer words shift their bar
MIN_BAR_COLUMNS = 16  # least columns for bars


class SoundOptions(Group):
    """A sound, and its transcript."""

    panel = options.TEXT
    sound: Annotated[Path, Argument(help="A WAV or FLAC file.")]
    text: Annotated[str | None, Argument(help="Its transcript; default: what the model transcribes.")] = None
    file: Annotated[Path | None, Often("--file", "-f", help="Read the transcript from a file.")] = None
    head: Annotated[
        str | None,
        Option(
            help="The heads to align by; default: those of the config, or the upper half.",
            rich_help_panel=options.WHERE,
        ),
    ] = None
    rank: Annotated[bool, Often(help="Rank heads by how they attend to where words are said.")] = False
    times: Annotated[
        Path | None, Option(help="With --rank: when each word is said: lines of begin, end, word; or JSON.")
    ] = None
    from_second: Annotated[float, Option(help="The first second that is read.", min=0)] = 0.0
    to_second: Annotated[float | None, Option(help="The last second that is read.", min=0)] = None
    generate: Annotated[int | None, Option(help="Generate up to N tokens.", min=1)] = None
    truncate: Annotated[bool, Option(help="Read only the beginning of a sound that is too long.")] = False


class AlignOutput(options.FileOutput):
    """How the words are printed; a saved picture has the map that is followed, its path and the words."""

    format: Annotated[
        Literal["table", "srt", "textgrid"], Option(help="A table, subtitles, or a file of Praat.")
    ] = "table"
    as_latex: bool = False


@command
def align(
    sound: SoundOptions, output: AlignOutput, picture: options.SavedOptions, model: options.ModelOptions
) -> None:
    """Print when each word of a recording is said, by cross attention.

    The attention of heads that follow the sound is smoothed, averaged and followed by dynamic time warping,
    as transformers does for Whisper; pauses of a tenth of a second belong to no word. A model with a CTC
    head locates words by the letters of its frames; a given text is placed where its letters are most
    probable. The percentage is the mean probability of a word's tokens, or of its letters' frames.
    --rank lists heads by how often they attend to the moment at which a word is said: as --times says (such
    as the JSON of a CTC model), or as the words are aligned. Needs soundfile: pip install 'attnscope[audio]'.

    Examples:

    attnscope align sample_inputs/speech.wav -m openai/whisper-tiny
    attnscope align sample_inputs/speech.wav -m openai/whisper-tiny -o words.png
    attnscope align sample_inputs/speech.wav -m openai/whisper-tiny --format srt
    attnscope align sample_inputs/speech.wav -m openai/whisper-tiny --rank
    attnscope align sample_inputs/speech.wav -m facebook/wav2vec2-base-960h
    """
    from attnscope.models.inputs import SoundPart
    from attnscope.questions.align import AlignedHeads, align_windows, is_long, read_times
    from attnscope.questions.answer import Answer

    refuse_without(("times", "rank"))
    refuse_combined(
        ("rank", "head format=srt format=textgrid out", "it ranks all heads, as a table or JSON"),
        ("as_json out", "format=srt format=textgrid", ""),
        ("generate", "text file", "the transcript is given"),
    )
    heads = _parse_heads(sound.head)
    times = None if sound.times is None else read_times(read_file(sound.times))
    text = None
    if sound.text is not None or sound.file is not None:
        text = read_text(options.SourceOptions(text=sound.text, file=sound.file))[0]
    loaded = load_model(model, generative=True)
    read: tuple[Any, ...] = loaded, sound.sound, text
    part = SoundPart(sound.from_second, sound.to_second, sound.truncate)
    if sound.truncate or not is_long(loaded, sound.sound, part):
        prepared = _prepare_sound(loaded, sound, text, part)
        read = *read, prepared
        with model_progress(loaded, prepared):
            result = _align_part(loaded, prepared, heads, text, sound.rank, times)
    elif sound.rank or text is not None:  # which words belong to which window is unknown
        windows = "" if sound.rank else "; without the text the model writes it, window after window"
        raise InputError(
            f"{sound.sound} is longer than {loaded.name} hears at once: choose a part with --from-second "
            f"and --to-second, or pass --truncate to hear its beginning{windows}"
        )
    else:
        result = align_windows(loaded, sound.sound, partial(_write, loaded, sound), heads, part)
    if isinstance(result, AlignedHeads):
        deliver("align", Answer((result.table,), {}, lambda: result), output, read=read)
    else:
        _deliver_words(result, output, picture, read)


def _parse_heads(spelled: str | None) -> tuple[Head, ...]:
    """The heads of cross attention that a list names, each once."""
    named = options.parse_heads(spelled)
    for head in named:
        refuse(head.kind not in (None, "cross"), "--head", f"{head} is not a head of cross attention")
    return tuple(dict.fromkeys(Head(head.layer, head.head) for head in named))


def _prepare_sound(model: Model, sound: SoundOptions, text: str | None, part: SoundPart) -> ModelInput:
    """A sound with its text, or with what the model transcribes."""
    from attnscope.questions.align import reads_letters

    # a CTC head reads no text, but can look for one
    decoded = text if getattr(model, "encoder_decoder", True) else None
    prepared = model.prepare_audio(sound.sound, decoded, part)
    if text is not None and decoded is None and not reads_letters(prepared):
        raise InputError(f"{model.name} has neither a decoder that reads the text nor a CTC head")
    return _write(model, sound, prepared) if text is None else prepared


def _align_part(
    model: Model,
    prepared: ModelInput,
    heads: tuple[Head, ...],
    text: str | None,
    rank: bool,
    times: tuple[SpokenWord, ...] | None,
) -> SpokenText | AlignedHeads:
    """The words of one part of a sound, or its heads by how they follow it."""
    from attnscope.questions.align import align_letters, align_words, rank_heads, reads_letters

    if rank:
        return rank_heads(model, prepared, times)
    if reads_letters(prepared) and not heads:
        return align_letters(model, prepared, text)
    return align_words(model, prepared, heads)


def _deliver_words(
    result: SpokenText, output: AlignOutput, picture: options.SavedOptions, read: tuple[Any, ...]
) -> None:
    """Words as a table, in a format of subtitles, as JSON, or as a picture."""
    from attnscope.questions.align import WRITERS
    from attnscope.questions.answer import Answer

    if output.as_json or output.out is not None:
        pictures = {} if result.picture is None else {"align": result.picture}
        if output.out is not None and not pictures:
            raise OutputError(
                "there is no map to draw: letters of a CTC head have none, and of a long sound one part has "
                "one; choose it with --from-second and --to-second"
            )
        deliver("align", Answer((), pictures, lambda: result), output, picture, None, read)
    elif output.format == "table":
        _print_words(result)
    else:
        sys.stdout.write(WRITERS[output.format](result))


def _write(model: Model, sound: SoundOptions, prepared: ModelInput) -> ModelInput:
    """The sound with the generated transcript, if the model generates."""
    if "decoder" not in prepared.axes:
        return prepared
    room = (model.positions or 448) - len(prepared.axes["decoder"][0])
    count = min(room - 1, sound.generate or room)
    begin = f" from {prepared.sound.begin:.0f} s on" if prepared.sound and prepared.sound.begin else ""
    with spinner(f"{model.title} writes up to {count:,} tokens{begin}"):
        return model.generate(prepared, count)


def _print_words(result: SpokenText) -> None:
    """One line per word, with its place in the sound."""
    from rich.console import Console
    from rich.text import Text

    from attnscope.render.terminal import print_view
    from attnscope.text import visible
    from attnscope.views import Table

    console = Console(highlight=False)
    longest = min(MAX_WORD_LETTERS, max((len(word.text) for word in result.words), default=0))
    names = ", ".join(head.name for head in result.heads)
    span = f"in {result.seconds:.2f} seconds"
    if result.begin:
        span = f"from {result.begin:.2f} to {result.seconds:.2f} seconds"
    title = f"{result.title} · {len(result.words)} words {span}"
    print_view(Table(title=title, subtitle=f"by {result.way}{names and ': '}{names}"), console)
    print()
    for word in result.words:
        confidence = "   –  " if word.confidence is None else f"{word.confidence:5.0%} "
        text = f"{word.begin:7.2f} {word.end:7.2f} {confidence} {visible(word.text):<{longest}}  "
        width, length = console.width - len(text), result.seconds - result.begin
        first, last = (round((edge - result.begin) * width / length) for edge in (word.begin, word.end))
        bar = "━" * max(1, last - first) if width >= MIN_BAR_COLUMNS else ""
        console.print(Text(text).append(" " * first + bar if bar else "", style="cyan"), soft_wrap=True)
    print_view(Table(notes=result.notes), console)
