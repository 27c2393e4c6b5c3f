"""Groups of options that several commands have, what Tab offers, and heads and numbers as they are typed."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias, get_args

import click

from attnscope.attention import Head
from attnscope.cli.command import MOST_USED, Group, argument, flag, option, refuse, tell_retired, untyped
from attnscope.errors import OutputError, SelectionError
from attnscope.figures import Weigh
from attnscope.registry import entry_points_of
from attnscope.text import LARGEST_SEED, read_number

if TYPE_CHECKING:
    from attnscope.questions.selection import Selection

TEXT, MANY, WHERE, PICTURE, MODEL = "Text", "Many texts", "Which attention", "Picture", "Model"
"""The panels of the options."""

WEAK = ("previous", "next", "self", "induction", "duplicate", "positional")
ROLES = ("positional", *(f"weak {name}" for name in WEAK), "weak", "sharp", "broad", "none")
"""Roles that are not measures."""


def map_names() -> Iterable[str]:
    """Colour maps: those of the page, and the diverging ones."""
    from attnscope.render.colour import OFFERED, TWO_SIDED

    return (*OFFERED, *TWO_SIDED)


def measure_names() -> Iterable[str]:
    """The measures, read from their source files, as torch takes long to import."""
    files = sorted((Path(__file__).parents[1] / "measures").glob("*.py"))
    source = "".join(file.read_text("utf-8") for file in files)
    declared = re.findall(r'^@measure\(\s*"(\w+)"', source, re.M)
    return (*declared, *(each.name for each in entry_points_of("measures")))


def explained_names() -> Iterable[str]:
    """Measures, roles, weighings, and prediction figures."""
    from attnscope.measures.weighing import METHODS

    return (*measure_names(), *ROLES, *get_args(Weigh)[1:], *METHODS, "importance", "ablation", "logits")


def model_names() -> Iterable[str]:
    """The bundled encoders, and cached models of the hub."""
    from huggingface_hub.constants import HF_HUB_CACHE

    names = (folder.name for folder in sorted(Path(HF_HUB_CACHE).glob("models--*")))
    return ("own", "own-causal", *(name.removeprefix("models--").replace("--", "/") for name in names))


class TextsOptions(Group):
    """A corpus, or the first texts of one."""

    panel = MANY
    texts: Path | None = option(
        "Read a corpus: .txt (one text per line), .jsonl, .parquet, or a folder of .txt files."
    )
    field: str = option("The .jsonl field or .parquet column that holds the text.", default="text")
    limit: int | None = option("Stop after N texts.", min=1)


class CorpusOptions(TextsOptions):
    """A corpus that is measured as a whole; the run can be stopped and resumed."""

    panel = MANY
    strict: bool = flag("Stop at the first text that cannot be read; by default it is skipped.")
    checkpoint: Path | None = option("Save the sums in this file; the same command resumes from it.")


class LayerOptions(Group):
    """Layers by their number and kind."""

    panel = WHERE
    layers: str | None = option(
        "Layers, counted from 0: 5, or several, like 0-3,7.", "--layer", "--layers", panel=MOST_USED
    )
    kind: str | None = option("encoder, decoder or cross.", complete=lambda: ("encoder", "decoder", "cross"))


class HeadOptions(LayerOptions):
    """Layers, or one head."""

    head: str | None = option("One head: L5H3, 5.3, 5-3, or its number with --layer.")


class ShownHeads(HeadOptions):
    """All heads, some heads, or one token of them."""

    head: str | None = option(
        "One head: L5H3, 5.3, 5-3, or its number with --layer; several side by side: L0H2,L1H5."
    )
    token: str | None = option("One token: a word, its number, or a patch as row,column.")


Metadata: TypeAlias = dict[str, Any]  # what JSON says about all its numbers


class ModelOptions(Group):
    """A model's name, and what it may do when loaded."""

    panel = MODEL
    model: str | None = option(
        "own (the default), own-causal, a folder, a Hugging Face hub id, or FILE.py:NAME (runs that file).",
        panel=MOST_USED,
        complete=model_names,
    )
    tokenizer: str = option("For FILE.py:NAME: a model whose tokenizer is used, or a folder.", default="own")
    device: str = option("auto, cpu, cuda or mps.", default="auto")
    device_map: str | None = option(
        "auto: split a model that is too large for one device across all of them, and read the rest from the "
        "disk layer by layer. Needs accelerate: pip install 'attnscope[large]'."
    )
    dtype: str = option("auto, float32, float16 or bfloat16.", default="auto")
    revision: str | None = option("Branch, tag or commit on the hub.")
    trust_remote_code: bool = flag("Run Python code from the model's repository. It can do anything you can.")
    allow_pickle: bool = flag("Load pickled weights if there are no safetensors.")
    offline: bool = flag("Use local models only, without network access.")

    def __post_init__(self) -> None:
        if self.offline:
            from attnscope.limits import close_network

            close_network()

    @property
    def name(self) -> str:
        """The model's name."""
        return "own" if self.model is None else self.model

    @property
    def metadata(self) -> Metadata:
        """What JSON says about the model besides the numbers."""
        return {}


class WeighedModelOptions(ModelOptions):
    """Which model, and how its attention is weighed."""

    panel = WHERE
    weigh: Weigh = option(
        "raw: the attention weight. As shares of a row: norm, the norm of weight × value × output projection "
        "(Kobayashi et al. 2020); norm-residual, with residual and layer norm (Kobayashi et al. 2021); "
        "zeroing, the change of the output without the value (Mohebbi et al. 2023); gradient, weight × "
        "gradient of the prediction (Chefer et al. 2021). stats --explain NAME has the formula.",
        default="raw",
    )
    target: str | None = option(
        "With --weigh gradient: the predicted word, a token's number, or a class (of one token: "
        "CLASS@TOKEN); default: most likely."
    )

    @property
    def metadata(self) -> Metadata:
        """How the numbers are weighed."""
        target = {} if self.target is None else {"target": self.target}
        return {} if self.weigh == "raw" else {"weigh": self.weigh, **target}


PICTURES: tuple[str, ...] = (".png", ".svg", ".pdf")
WHOLE = (".html", ".npz", ".safetensors", ".json", ".csv")


class AxisOptions(Group):
    """What the axes show."""

    words: bool = flag("Merge pieces into words.")
    hide_special: bool = flag("Hide special tokens; print the attention they take.", panel=MOST_USED)


class MapOptions(AxisOptions):
    """What the axes show, and what full colour stands for."""

    panel = PICTURE
    scale: Literal["auto", "fixed", "row", "head"] = option(
        "Full colour is a weight of 1 (fixed), or the largest of the row or the head; auto chooses.",
        default="auto",
        panel=MOST_USED,
    )


class PictureOptions(Group):
    """How a saved picture is drawn; a colour map that cannot draw it is refused before any work."""

    panel = PICTURE
    signed = False  # whether differences may be drawn
    cmap: str | None = option("Colour map; an unknown name lists them.", complete=map_names)
    dpi: float = option("Resolution of a PNG in dots per inch.", min=10, max=1200, default=150)
    size: float | None = option(
        "Width of a picture in inches; default: as wide as its labels need.", min=1, max=100
    )
    font: str | None = option("An installed font family.")

    def __post_init__(self) -> None:
        if self.cmap is not None:
            from attnscope.render.colour import choose_map

            choose_map(self.cmap, signed=self.signed)


class PrintedOptions(PictureOptions):
    """How a printed or saved picture is drawn, and what surrounds a saved one."""

    panel = PICTURE
    title: str | None = option("The title of a saved picture.")
    no_title: bool = flag("Save a picture without a title.")
    no_figures: bool = flag("Save a picture without figures and notes.")
    annotate: bool = flag("Write the weights into the cells of a saved head.")
    graphics: Literal["auto", "kitty", "sixel", "cells"] = option(
        "cells, or pixels by the protocol of kitty or sixel; auto asks the terminal. auto and sixel need "
        "textual-image.",
        default="cells",
    )
    plain: bool = flag("Use shades instead of colours.")


class SignedOptions(PrintedOptions):
    """The same, where differences may be drawn."""

    signed = True


class NumbersOptions(Group):
    """Numbers instead of a picture; a group with ``out`` says by which ``suffixes`` its file may be named."""

    suffixes: ClassVar[tuple[str, ...]] = ()
    as_json: bool = flag("Print the numbers as JSON.")
    as_latex: bool = flag("Print the table as LaTeX, for a paper (booktabs).", panel=PICTURE)

    def __post_init__(self) -> None:
        out = getattr(self, "out", None)
        if out is not None and self.suffixes:
            check_place(out, self.suffixes)


class TableOutput(NumbersOptions):
    """Numbers instead of a picture, also as CSV; or a picture in a file."""

    suffixes = PICTURES
    as_csv: bool = flag("Print all figures as CSV.")
    out: Path | None = option("Save a picture: .png, .svg or .pdf.")


def refuse_whole(out: Path | None) -> None:
    """Before any work, refuse a file of whole layers for one head or one token."""
    if out is not None and out.suffix.lower() in WHOLE:
        raise OutputError(
            f"a {out.suffix.lower()} file holds whole layers: leave out --head and --token, or use --json"
        )


def check_place(out: Path, suffixes: tuple[str, ...], rule: str = "") -> None:
    """Before any work, refuse a file that could not be written at its end."""
    suffix = out.suffix.lower()
    if suffix not in suffixes:
        rule = rule or tell_retired(f"its name must end in {', '.join(suffixes)}", suffix)
        raise OutputError(f"{out} cannot be written: {rule}")
    if not out.parent.is_dir():
        raise OutputError(f"{out} cannot be written: there is no folder {out.parent}")


SECOND = "A second text: its pair, or the target of an encoder-decoder."


class SourceOptions(Group):
    """One text, or another input, and how much to generate."""

    panel = TEXT
    text: str | None = argument("The text; - reads standard input.")
    second_text: str | None = argument(SECOND)
    file: Path | None = option("Read the text from a file.", panel=MOST_USED)
    line: int | None = option("Read one line of the input, counted from 1; a tab in it separates a pair.")
    saved: Path | None = option(
        "In place of a model: a .trace, weights (.npz, .npy, .safetensors, .json), or a server's queries and "
        "keys.",
        "--from",
        panel=MOST_USED,
    )
    keep: Path | None = option("Save the pass to FILE.trace; --from reads it again without the model.")
    no_cache: bool = flag("Run the model even if the pass is cached.")
    image: list[Path] | None = option(
        "An image, alone or with a text. Repeat it for several; they go where the text says <image>, or "
        "before it."
    )
    video: Path | None = option("A video with a text: GIF, APNG, WebP, or a folder of frames sorted by name.")
    audio: Path | None = option("A WAV or FLAC file; for a speech-to-text model, the text is its transcript.")
    from_second: float = option("With --audio: the first second that is read.", min=0, default=0.0)
    to_second: float | None = option("With --audio: the last second that is read.", min=0)
    inputs: Path | None = option(
        "Tensors for the model's forward instead of a text: .safetensors, .npz or .pt."
    )
    labels: Path | None = option(
        "With --inputs or --from: a file that names positions, one a line, or a table (tabs) with the "
        "columns label, group, special. find and spans --by group know the groups."
    )
    repeat_random: int | None = option(
        "Read N random tokens twice instead of a text; heads that copy stand out.", min=2
    )
    max_tokens: int | None = option("Cut the text after N tokens.", min=1)
    truncate: bool = flag("Cut a text to the number of positions of the model.")
    generate: int | None = option("Generate up to N tokens and show them too.", min=1)
    temperature: float = option(
        "With --generate: the sampling temperature; 0 takes the most likely token.", min=0, default=0.0
    )
    seed: int = option("With --temperature: the random seed.", min=0, largest=LARGEST_SEED, default=0)
    chat: bool = flag(
        "Format the text as a user message with the model's chat template; a JSON list, or a line of a log, "
        "is a whole chat."
    )
    system: str | None = option("With --chat: a system message.")

    @property
    def pictures(self) -> list[Path]:
        """The images, or the video."""
        return self.image or [] if self.video is None else [self.video]

    @property
    def names_one(self) -> bool:
        """Whether an input is named, not only how it is read."""
        plain = replace(self, max_tokens=None, truncate=False, no_cache=False, chat=False)
        shown: bool = plain != untyped(type(self))
        return shown


class PromptsOptions(Group):
    """Prompts from one template, instead of one text."""

    panel = TEXT
    prompts: Path | None = option(
        "Average over the rows of a table, whose columns fill the slots {NAME} of text, target and against."
    )


class SecondNamed(SourceOptions):
    """The same, where what follows the text is not a second text."""

    panel = TEXT
    second_text: str | None = option(SECOND, "--second")


class TextNamed(SecondNamed):
    """The same, where the arguments are not texts."""

    text: str | None = option("The text; - reads standard input.")


NUMBERS = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?", re.ASCII)
MOST_HEADS = 9999  # the largest layer or head number in a list


def parse_head(spelling: str, asked: LayerOptions | None = None) -> Head:
    """The named head; its number alone suffices if a layer is given. What contradicts is wrong usage."""
    asked = asked or LayerOptions()
    layers = parse_numbers(asked.layers, "--layer")
    number = read_number(spelling)
    if number is not None:
        one = layers or ()
        refuse(len(one) != 1, "--head", f"which layer? write L0H{spelling}, or add --layer")
        return Head(one[0], number)
    try:
        head = Head(spelling)
    except SelectionError as error:
        raise click.BadParameter(str(error), param_hint="--head") from None
    two = layers not in (None, (head.layer,))
    refuse(two, "--head", f"--layer {asked.layers} and --head {spelling} name two layers")
    two = head.kind is not None and asked.kind not in (None, head.kind)
    refuse(two, "--head", f"--kind {asked.kind} and --head {spelling} name two kinds")
    return head


def parse_heads(spelled: str | None, asked: LayerOptions | None = None) -> list[Head]:
    """The heads of a comma-separated list; none without a list."""
    return [parse_head(each.strip(), asked) for each in (spelled or "").split(",") if each.strip()]


def select_heads(asked: HeadOptions) -> Selection:
    """The heads that options name: those of some layers, or one."""
    return select(asked, head=None if asked.head is None else parse_head(asked.head, asked))


def select(
    asked: LayerOptions, axes: AxisOptions | None = None, head: Head | None = None, **more: Any
) -> Selection:
    """The selection that options name, and how it is shown; a head implies its layer."""
    from attnscope.questions.selection import Selection

    layers = None if head is not None else parse_numbers(asked.layers, "--layer")
    return Selection(head=head, layers=layers, kind=asked.kind, **vars(axes or AxisOptions()), **more)


def parse_rows(spelling: str | None, option: str = "--rows") -> range | None:
    """One run of tokens, ``30-46``, both ends included; ``None`` stays. Anything else is wrong usage."""
    if spelling is None:
        return None
    rows = _read_range(spelling)
    refuse(not rows, option, f"{spelling!r}: name one run, like 30-46")
    return rows


def _read_range(spelling: str) -> range:
    """``7`` or ``30-46``, both ends included; empty for anything else, including a descending range."""
    match = NUMBERS.fullmatch(spelling.strip())
    return range(int(match[1]), int(match[2] or match[1]) + 1) if match else range(0)


def parse_numbers(spelling: str | None, option: str) -> tuple[int, ...] | None:
    """Numbers and ranges like ``0-3,7``, each once and in order; ``None`` stays, all else is wrong usage."""
    if spelling is None:
        return None
    ranges = [_read_range(part) for part in spelling.split(",")]
    wrong = any(not each or each[-1] > MOST_HEADS for each in ranges)
    refuse(wrong, option, f"{spelling!r}: write numbers and ranges, like 0-3,7")
    return tuple(sorted(set().union(*ranges)))
