"""What a command is given to look at: a text, a chat, an image, tensors, or weights from a file."""

from dataclasses import dataclass, replace
from pathlib import Path

from attnscope.cli.options.declare import TEXT, argument, flag, option
from attnscope.text import LARGEST_SEED

SECOND = "A second text: its pair, or the target of an encoder-decoder."


@dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """One text, or what stands in its place, and what a model writes on."""

    text: str | None = argument("The text; - reads standard input.")
    second_text: str | None = argument(SECOND)
    file: Path | None = option("Read the text from a file.", "--file", "-f")
    line: int | None = option(
        "Take one line of the input, counted from 1; a tab in it parts a pair.", panel=TEXT
    )
    saved: Path | None = option(
        "Look at a file, without a model: a .trace that --keep made, or weights (.npz, .npy, .safetensors, "
        ".json) saved by attnscope or another tool.",
        "--from",
        panel=TEXT,
    )
    keep: Path | None = option(
        "Keep the pass in FILE.trace: every command looks at it again with --from, without the model.",
        panel=TEXT,
    )
    fresh: bool = flag("Run the model again, though the same pass is kept (see attnscope cache).", panel=TEXT)
    image: list[Path] | None = option(
        "An image for a model that reads them; with a text, for one that reads both. Several: --image A "
        "--image B; they stand where the text says <image>, or before it.",
        panel=TEXT,
    )
    video: Path | None = option(
        "With a text: a GIF, APNG or WebP, or a folder of frames in order of names, for a model of videos.",
        panel=TEXT,
    )
    audio: Path | None = option(
        "A WAV or FLAC file for a model that hears; the text is what is said in it, for one that writes.",
        panel=TEXT,
    )
    from_second: float = option(
        "With --audio: hear the sound from that second on.", min=0, panel=TEXT, default=0.0
    )
    to_second: float | None = option("With --audio: hear it up to that second.", min=0, panel=TEXT)
    inputs: Path | None = option(
        "Tensors for the model's forward instead of a text, .safetensors, .npz or .pt.", panel=TEXT
    )
    max_tokens: int | None = option("Cut the text at that many tokens.", min=1, panel=TEXT)
    truncate: bool = flag("Cut a text that is longer than the model's positions.", panel=TEXT)
    generate: int | None = option(
        "Let the model write up to that many tokens, and show them too.", min=1, panel=TEXT
    )
    temperature: float = option(
        "With --generate: 0 takes the likeliest token, above 0 tokens are drawn.",
        min=0,
        panel=TEXT,
        default=0.0,
    )
    seed: int = option(
        "With --temperature: what to draw.", min=0, largest=LARGEST_SEED, panel=TEXT, default=0
    )
    chat: bool = flag(
        "Give the text as a user's message, in the model's chat format; or all messages as JSON.", panel=TEXT
    )
    system: str | None = option("With --chat: a system message.", panel=TEXT)

    @property
    def pictures(self) -> list[Path]:
        """The images, or the video, that are read."""
        return self.image or [] if self.video is None else [self.video]

    @property
    def names_one(self) -> bool:
        """Whether one text, or what stands in its place, is named: more than how long it may be."""
        return replace(self, max_tokens=None, truncate=False, fresh=False) != type(self)()


@dataclass(frozen=True, kw_only=True)
class SecondNamed(SourceOptions):
    """The same, where what follows the text is no second text."""

    second_text: str | None = option(SECOND, "--second", panel=TEXT)


@dataclass(frozen=True, kw_only=True)
class TextNamed(SecondNamed):
    """The same, where the arguments are no texts at all."""

    text: str | None = option("The text; - reads standard input.")
