"""``attnscope align``: when each word of a sound is said."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Argument, Option

from attnscope.cli import options
from attnscope.cli.command import Group, Often, command, refuse_first
from attnscope.cli.deliver import deliver
from attnscope.cli.messages import spinner
from attnscope.cli.source import load_model, model_progress, read_file, read_text
from attnscope.errors import InputError, OutputError

if TYPE_CHECKING:
    from attnscope.models import Model, ModelInput
    from attnscope.questions.align import SpokenText

LONGEST = 24  # most letters of a word in its column; longer words shift their bar
NARROWEST = 16  # least columns for bars


class SoundOptions(Group):
    """A sound, and its transcript."""

    panel = options.TEXT
    sound: Annotated[Path, Argument(help="A WAV or FLAC file.")]
    text: Annotated[str | None, Argument(help="Its transcript; default: what the model transcribes.")] = None
    file: Annotated[Path | None, Often("--file", "-f", help="Read the transcript from a file.")] = None
    head: Annotated[
        str | None,
        Option(
            help="The heads to align by; default: those that the config names, or the upper half.",
            rich_help_panel=options.WHERE,
        ),
    ] = None
    rank: Annotated[bool, Often(help="Rank heads by how they look where words are said.")] = False
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
    asked: SoundOptions, output: AlignOutput, picture: options.SavedOptions, model: options.ModelOptions
) -> None:
    """Print when each word of a recording is said, by cross attention.

    The attention of heads that follow the sound is smoothed, averaged, and followed by dynamic time warping,
    as transformers does it for Whisper; pauses of a tenth of a second are no part of words. A model with a
    CTC head says it itself, by the letters of its frames; a given text lies where that head finds its letters
    likeliest. The percentage is the mean probability of a word's tokens, or of its letters' frames.
    --rank lists heads by how often they look where a word is said: as --times says (such as the JSON of a CTC
    model), or as the words are aligned. Needs soundfile: pip install 'attnscope[audio]'.

    Examples:

    attnscope align sample_inputs/speech.wav -m openai/whisper-tiny
    attnscope align sample_inputs/speech.wav -m openai/whisper-tiny -o words.png
    attnscope align sample_inputs/speech.wav -m openai/whisper-tiny --format srt
    attnscope align sample_inputs/speech.wav -m openai/whisper-tiny --rank
    attnscope align sample_inputs/speech.wav -m facebook/wav2vec2-base-960h
    """
    from attnscope.attention import Head

    named = options.parse_heads(asked.head)
    heads = tuple(dict.fromkeys(Head(head.layer, head.head) for head in named))
    others = [head for head in named if head.kind not in (None, "cross")]
    table = output.format == "table"
    drawn, given = output.out is not None, asked.text is not None or asked.file is not None
    refuse_first(
        *((True, "--head", f"{head} is not a head of cross attention") for head in others),
        (asked.rank and (heads or not table), "--rank", "it ranks all heads, as a table or JSON"),
        (asked.times is not None and not asked.rank, "--times", "requires --rank"),
        (output.as_json and not table, "--json", "it is a format of its own: leave out --format"),
        (drawn and (asked.rank or not table), "--out", "saves a picture: no --rank, no other format"),
        (given and asked.generate is not None, "--generate", "the transcript is given: leave it out"),
    )
    from attnscope.models.inputs import SoundPart
    from attnscope.questions import align as study
    from attnscope.questions.answer import Answer

    result: study.SpokenText | study.AlignedHeads
    times = None if asked.times is None else study.read_times(read_file(asked.times))
    text = read_text(options.SourceOptions(text=asked.text, file=asked.file))[0] if given else None
    loaded = load_model(model, generative=True)
    about: tuple[Any, ...] = loaded, asked.sound, text
    part = SoundPart(asked.from_second, asked.to_second, asked.truncate)
    if not asked.truncate and study.is_long(loaded, asked.sound, part):
        if asked.rank or text is not None:  # which words belong to which window is unknown
            windows = "" if asked.rank else "; without the text the model writes it, window after window"
            raise InputError(
                f"{asked.sound} is longer than {loaded.name} hears at once: choose a part with --from-second "
                f"and --to-second, or pass --truncate to hear its beginning{windows}"
            )
        write = partial(_write, loaded, asked)
        result = study.align_windows(loaded, asked.sound, write, heads, part)
    else:
        # a CTC head reads no text, but can look for one
        written = text if getattr(loaded, "encoder_decoder", True) else None
        prepared = loaded.prepare_audio(asked.sound, written, part)
        if text is not None and written is None and not study.reads_letters(prepared):
            raise InputError(f"{loaded.name} has neither a decoder that reads the text nor a CTC head")
        prepared = prepared if given else _write(loaded, asked, prepared)
        about = *about, prepared
        with model_progress(loaded, prepared):
            if asked.rank:
                result = study.rank_heads(loaded, prepared, times)
            elif study.reads_letters(prepared) and not heads:
                result = study.align_letters(loaded, prepared, text)
            else:
                result = study.align_words(loaded, prepared, heads)
    if isinstance(result, study.AlignedHeads):
        deliver("align", Answer((result.table,), {}, lambda: result), output, read=about)
    elif output.as_json or output.out is not None:
        pictures = {} if result.picture is None else {"align": result.picture}
        if output.out is not None and not pictures:
            raise OutputError(
                "there is no map to draw: letters of a CTC head have none, and of a long sound one part has "
                "one; choose it with --from-second and --to-second"
            )
        deliver("align", Answer((), pictures, lambda: result), output, picture, None, about)
    elif table:
        _print_words(result)
    else:
        sys.stdout.write(study.WRITERS[output.format](result))


def _write(model: Model, asked: SoundOptions, prepared: ModelInput) -> ModelInput:
    """The sound with the generated transcript, if the model generates."""
    if "decoder" not in prepared.axes:
        return prepared
    room = (model.positions or 448) - len(prepared.axes["decoder"][0])
    count = min(room - 1, asked.generate or room)
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
    longest = min(LONGEST, max((len(word.text) for word in result.words), default=0))
    names = ", ".join(head.name for head in result.heads)
    heard = f"in {result.seconds:.2f} seconds"
    if result.begin:
        heard = f"from {result.begin:.2f} to {result.seconds:.2f} seconds"
    title = f"{result.title} · {len(result.words)} words {heard}"
    print_view(Table(title=title, subtitle=f"by {result.way}{names and ': '}{names}"), console)
    print()
    for word in result.words:
        sure = "   –  " if word.confidence is None else f"{word.confidence:5.0%} "
        text = f"{word.begin:7.2f} {word.end:7.2f} {sure} {visible(word.text):<{longest}}  "
        width, length = console.width - len(text), result.seconds - result.begin
        first, last = (round((edge - result.begin) * width / length) for edge in (word.begin, word.end))
        bar = "━" * max(1, last - first) if width >= NARROWEST else ""
        console.print(Text(text).append(" " * first + bar if bar else "", style="cyan"), soft_wrap=True)
    print_view(Table(notes=result.notes), console)
