"""Groups of options that several commands have, what Tab offers, and heads and numbers as they are typed."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias, get_args

from typer import Argument, BadParameter, Option

from attnscope.attention import Head
from attnscope.cli.command import (
    Group,
    Often,
    is_typed,
    offering,
    option_of,
    refuse,
    refuse_combined,
    refuse_first,
    refuse_without,
    up_to,
    value_of,
    without_typed_options,
)
from attnscope.errors import OutputError, SelectionError
from attnscope.registry import entry_points_of
from attnscope.scores import Weighting
from attnscope.text import LARGEST_SEED, raw_csv, read_number

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
    """Measures, roles, weightings, and prediction scores."""
    from attnscope.measures.weighting import METHODS

    return (*measure_names(), *ROLES, *get_args(Weighting)[1:], *METHODS, "importance", "ablation", "logits")


def model_names() -> Iterable[str]:
    """The bundled encoders, and cached models of the hub."""
    from huggingface_hub.constants import HF_HUB_CACHE

    names = (folder.name for folder in sorted(Path(HF_HUB_CACHE).glob("models--*")))
    return ("own", "own-causal", *(name.removeprefix("models--").replace("--", "/") for name in names))


class LayerOptions(Group):
    """Layers by their number and kind."""

    panel = WHERE
    settable = "layers kind"
    layers: Annotated[
        str | None, Often("--layer", "--layers", help="Layers, from 0: 5, or several: 0-3,7.")
    ] = None
    kind: Annotated[
        str | None,
        Option(
            help="encoder, decoder, cross or mixer.",
            autocompletion=offering(lambda: ("encoder", "decoder", "cross", "mixer")),
        ),
    ] = None


class OneHeadOptions(LayerOptions):
    """Layers, or one head."""

    head: Annotated[str | None, Option(help="One head, L2H1, or its number with --layer.")] = None


class HeadOptions(LayerOptions):
    """Layers, or some heads."""

    head: Annotated[
        str | None,
        Option(help="L2H1, or its number with --layer; several: L2H1,L1H3; a page opens their cells."),
    ] = None


class ShownHeads(HeadOptions):
    """All heads, some heads, or one token of them."""

    token: Annotated[str | None, Option(help="One token: a word, its number, or a patch as row,column.")] = (
        None
    )


Metadata: TypeAlias = dict[str, Any]  # what JSON says about all its numbers


class ModelOptions(Group):
    """A model's name, and what it may do when loaded."""

    panel = MODEL
    settable = "model device dtype"
    model: Annotated[
        str | None,
        Often(
            "--model",
            "-m",
            help="own (the default), own-causal, a folder, a hub id, or FILE.py:NAME, which runs it.",
            autocompletion=offering(model_names),
        ),
    ] = None
    tokenizer: Annotated[str, Option(help="For FILE.py:NAME: whose tokenizer is used, or a folder.")] = "own"
    device: Annotated[str, Option(help="auto, cpu, cuda or mps.")] = "auto"
    device_map: Annotated[
        str | None,
        Option(
            help="auto: spread a model that is too large over all devices and the disk; needs "
            "attnscope[large]. tp:N: split its heads over N processes of torchrun."
        ),
    ] = None
    dtype: Annotated[str, Option(help="auto, float32, float16 or bfloat16.")] = "auto"
    revision: Annotated[str | None, Option(help="Branch, tag or commit on the hub.")] = None
    trust_remote_code: Annotated[
        bool, Option(help="Run the code in the model's repository: it can do anything.")
    ] = False
    allow_pickle: Annotated[bool, Option(help="Load pickled weights if there are no safetensors.")] = False
    offline: Annotated[bool, Option(help="Use local models only, without network access.")] = False

    def __post_init__(self) -> None:
        name = value_of("model") or "own"
        local = name in ("own", "own-causal") or ":" in name or Path(name).is_dir()
        refuse_first(
            (is_typed("revision") and local, "--revision", "requires a model of the hub: -m OWNER/NAME"),
            (is_typed("tokenizer") and ":" not in name, "--tokenizer", "requires -m FILE.py:NAME"),
        )
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


class WeightedModelOptions(ModelOptions):
    """Which model, and how its attention is weighted."""

    panel = WHERE
    settable = "weighting"
    weighting: Annotated[
        Weighting,
        Option(
            help="raw: the attention weight; norm, norm-residual (Kobayashi et al. 2020, 2021), zeroing "
            "(Mohebbi et al. 2023) and gradient (Chefer et al. 2021): shares of a row. attnscope "
            "explain NAME has the formula."
        ),
    ] = "raw"
    target: Annotated[
        str | None,
        Option(
            help="With --weighting gradient: a word, a token's number or a class (CLASS@TOKEN); "
            "default: most likely."
        ),
    ] = None

    @property
    def metadata(self) -> Metadata:
        """How the numbers are weighted."""
        target = {} if self.target is None else {"target": self.target}
        return {} if self.weighting == "raw" else {"weigh": self.weighting, **target}


class MixedModelOptions(WeightedModelOptions):
    """The same, and whether layers without a softmax are shown as well."""

    panel = WHERE

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_without(("channel", "mixers"))

    mixers: Annotated[
        bool, Option(help="Show linear and state-space layers too, as exact signed matrices.")
    ] = False
    channel: Annotated[
        int | None,
        Option(help="With --mixers: one of a layer's channels, not their mean.", metavar="N", min=0),
    ] = None


PICTURES: tuple[str, ...] = (".png", ".svg", ".pdf", ".jpg")
PIXELS = (".png", ".jpg")  # pictures that have a resolution
PARQUET, LATEX = ".parquet", ".tex"
TABLES = (PARQUET, LATEX)  # the suffixes of tables
WHOLE = (".html", ".npz", ".safetensors", ".json", ".csv")


class AxisOptions(Group):
    """What the axes show."""

    settable = "words hide_special"
    words: Annotated[bool, Option(help="Merge pieces into words.")] = False
    hide_special: Annotated[bool, Often(help="Hide special tokens; print their share.")] = False


class MapOptions(AxisOptions):
    """What the axes show, and what full colour stands for."""

    def __post_init__(self) -> None:
        if value_of("out") is None:
            refuse_combined(("scale", "as_json", "numbers have no colours: add -o FILE.png"))

    panel = PICTURE
    settable = "scale"
    scale: Annotated[
        Literal["auto", "fixed", "row", "head"],
        Option(help="Brightest colour: 1 (fixed), the row's or head's largest, or what shows most (auto)."),
    ] = "auto"


class PictureOptions(Group):
    """How a picture is drawn; a colour map that cannot draw it is refused before any work."""

    panel = PICTURE
    settable = "cmap dpi size font"
    signed = False  # whether differences may be drawn
    cmap: Annotated[
        str | None, Option(help="Colour map; an unknown name lists them.", autocompletion=offering(map_names))
    ] = None
    dpi: Annotated[float, Option(help="Dots per inch of a PNG or JPEG.", min=10, max=1200)] = 150
    size: Annotated[
        float | None, Option(help="Width of a picture in inches; default: by its labels.", min=1, max=100)
    ] = None
    font: Annotated[str | None, Option(help="An installed font family.")] = None

    def __post_init__(self) -> None:
        if self.cmap is not None:
            from attnscope.render.colour import choose_map

            choose_map(self.cmap, signed=self.signed)


class SavedOptions(PictureOptions):
    """How a saved picture is drawn, of a command that prints a table, and what surrounds it."""

    panel = PICTURE
    settable = "no_caption"
    title: Annotated[str | None, Option(help='The title of a saved picture; "" for none.')] = None
    no_caption: Annotated[
        bool, Option("--no-caption/--caption", help="Leave out the numbers and notes below a saved picture.")
    ] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        out = value_of("out")
        suffix = "" if out is None else Path(out).suffix.lower() or PICTURES[0]
        drawn, numbers = suffix in PICTURES, any(value_of(name) for name in FORMATS)
        printed = isinstance(self, PrintedOptions) and not (suffix or numbers)
        colourless = suffix in TABLES or not (printed or suffix)
        for name in ("title", "no_caption", "annotate", "size", "font"):
            refuse(is_typed(name) and not drawn, option_of(name), "requires a saved picture: add -o FILE.png")
        refuse_first(
            (is_typed("dpi") and suffix not in PIXELS, "--dpi", "requires pixels: add -o FILE.png"),
            (is_typed("cmap") and colourless, "--cmap", "requires a picture: add -o FILE.png"),
            (is_typed("graphics") and not printed, "--graphics", PRINTED),
            (is_typed("plain") and not printed, "--plain", PRINTED),
        )
        refuse_combined(("cmap", "plain", "shades have no colours"))


class PrintedOptions(SavedOptions):
    """How a printed or saved picture is drawn."""

    panel = PICTURE
    settable = "annotate graphics plain"
    annotate: Annotated[
        bool | None,
        Option(
            "--annotate/--no-annotate",
            help="Write the weights into a saved head; default: up to 16 tokens, from 4.5 inches.",
        ),
    ] = None
    graphics: Annotated[
        Literal["auto", "kitty", "sixel", "cells"],
        Option(help="cells, or pixels as kitty or sixel; auto asks the terminal; needs textual-image."),
    ] = "cells"
    plain: Annotated[bool, Option(help="Use shades instead of colours.")] = False


COLOURS = "cmap plain graphics"
"""What a table has not."""

PRINTED = "requires the terminal: leave out -o, --json, --csv and --latex"
FORMATS = {"as_json": "--json", "as_csv": "--csv", "as_latex": "--latex", "jsonl": "--jsonl"}
"""What prints numbers in place of a picture."""


class SignedOptions(PrintedOptions):
    """The same, where differences may be drawn."""

    signed = True


class NumbersOptions(Group):
    """Numbers instead of a picture."""

    as_json: Annotated[bool, Option("--json/--no-json", help="Print the numbers as JSON.")] = False
    as_latex: Annotated[
        bool,
        Option("--latex/--no-latex", help="Print the table as LaTeX (booktabs).", rich_help_panel=PICTURE),
    ] = False

    def __post_init__(self) -> None:
        formats = [option for name, option in FORMATS.items() if getattr(self, name, False)]
        refuse(len(formats) > 1, formats[-1] if formats else "", f"print one of {' and '.join(formats)}")


class FileOutput(NumbersOptions):
    """The same, and a file in place of what is printed, by whose suffix it is written."""

    suffixes: ClassVar[tuple[str, ...]] = PICTURES
    out: Annotated[
        Path | None, Option("--out", "-o", help="Save to a file: {suffixes}; - is standard output.")
    ] = None
    open_file: Annotated[
        bool, Option("--open/--no-open", help="Open what -o saved.", rich_help_panel=PICTURE)
    ] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        unsaved = self.out is None or self.piped
        refuse(self.open_file and unsaved, "--open", "requires a saved file: add -o FILE.png")
        if self.out is None:
            return
        if not self.out.suffix and self.piped:
            object.__setattr__(self, "out", Path(f"-{self.suffixes[0]}"))
        check_place(self.out, self.suffixes)
        twice = self.piped and any(getattr(self, name, False) for name in FORMATS)
        refuse(twice, "--out", "standard output takes one answer: name a file, or print no numbers")
        refuse(self.piped and sys.stdout.isatty(), "--out", "a terminal shows no file: > FILE.png writes it")

    @property
    def suffix(self) -> str:
        """The suffix of the file in small letters; empty without a file."""
        return "" if self.out is None else self.out.suffix.lower()

    @property
    def piped(self) -> bool:
        """Whether the file goes to standard output, ``-`` or, in another format, ``-.svg``."""
        return self.out is not None and self.out.parent == Path() and self.out.stem == "-"


class TableOutput(FileOutput):
    """The same, where the numbers are a table."""

    as_csv: Annotated[bool, Option("--csv/--no-csv", help="Print all scores as CSV.")] = False
    raw_csv: Annotated[
        bool, Option(help="With --csv: do not escape cells that look like formulas.", rich_help_panel=PICTURE)
    ] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_without(("raw_csv", "as_csv"))
        raw_csv.set(self.raw_csv)


def refuse_whole(out: Path | None) -> None:
    """Before any work, refuse a file of whole layers for one head or one token."""
    if out is not None and out.suffix.lower() in WHOLE:
        raise OutputError(
            f"a {out.suffix.lower()} file holds maps of all tokens and heads: save a picture, or use --json"
        )


def check_place(out: Path, suffixes: tuple[str, ...], rule: str = "") -> None:
    """Before any work, refuse a file that could not be written at its end."""
    suffix = out.suffix.lower()
    if suffix not in suffixes:
        rule = rule or f"its name must end in {', '.join(suffixes)}"
        raise OutputError(f"cannot write {out}: {rule}")
    if not out.parent.is_dir():
        raise OutputError(f"cannot write {out}: there is no folder {out.parent}")


class SourceOptions(Group):
    """One text, or another input, and how much to generate."""

    settable = "max_tokens truncate"

    def __post_init__(self) -> None:
        refuse_without(("seed", "temperature repeat_random"))

    panel = TEXT
    text: Annotated[str | None, Argument(help="The text; - reads standard input.")] = None
    second_text: Annotated[str | None, Option(help="Its pair, or the target of an encoder-decoder.")] = None
    file: Annotated[Path | None, Often("--file", "-f", help="Read the text from a file.")] = None
    line: Annotated[int | None, Option(help="Read one line, from 1; a tab separates a pair.")] = None
    saved: Annotated[
        Path | None,
        Often("--from", help="Read saved attention, not a model: .trace, weights, server's file."),
    ] = None
    save_trace: Annotated[Path | None, Option(help="Save the pass to FILE.trace, for --from.")] = None
    no_cache: Annotated[
        bool, Option("--no-cache/--cache", help="Run the model even if the pass is cached.")
    ] = False
    image: Annotated[
        list[Path] | None, Often(help="An image; several go where the text says <image>.", metavar="<path>")
    ] = None
    video: Annotated[Path | None, Option(help="With a text: GIF, APNG, WebP or a folder of frames.")] = None
    audio: Annotated[Path | None, Option(help="A WAV or FLAC file; the text is its transcript.")] = None
    from_second: Annotated[float, Option(help="With --audio: the first second that is read.", min=0)] = 0.0
    to_second: Annotated[float | None, Option(help="With --audio: the last second that is read.", min=0)] = (
        None
    )
    inputs: Annotated[
        Path | None, Option(help="Tensors for the model's forward: .safetensors, .npz, .pt.")
    ] = None
    labels: Annotated[
        Path | None,
        Option(
            help="With --inputs or --from: names of positions, one a line, or a table with label, group "
            "and special."
        ),
    ] = None
    repeat_random: Annotated[
        int | None, Often(help="Read N random tokens twice instead of a text.", metavar="N", min=2)
    ] = None
    max_tokens: Annotated[int | None, Option(help="Cut the text after N tokens.", min=1)] = None
    truncate: Annotated[bool, Often(help="Cut a text that is too long for the model.")] = False
    generate: Annotated[int | None, Often(help="Also generate up to N tokens.", metavar="N", min=1)] = None
    temperature: Annotated[float, Option(help="With --generate: 0 takes the most likely token.", min=0)] = 0.0
    seed: Annotated[
        int,
        Option(help="Random seed of --temperature and --repeat-random.", min=0, callback=up_to(LARGEST_SEED)),
    ] = 0
    chat: Annotated[
        bool,
        Option(
            help="Read the text by the model's chat template; a JSON list, or a line of a log, is a chat."
        ),
    ] = False
    system: Annotated[str | None, Option(help="With --chat: a system message.")] = None

    @property
    def pictures(self) -> list[Path]:
        """The images, or the video."""
        return self.image or [] if self.video is None else [self.video]

    @property
    def names_one(self) -> bool:
        """Whether an input is named, not only how it is read."""
        plain = replace(self, max_tokens=None, truncate=False, no_cache=False, chat=False)
        shown: bool = plain != without_typed_options(type(self))
        return shown


class KernelOptions(Group):
    """Whose attention kernel runs."""

    panel = MODEL
    exact_kernel: Annotated[bool, Option(help="Run the model's own kernel, never the fused pass.")] = False


class BatchSource(SourceOptions):
    """The same, of which one part of a batch, or one step of a loop, may be chosen."""

    panel = TEXT
    part: Annotated[
        int | None,
        Option(
            help="With --inputs, --image or --from: one text, window or channel, from 0.", metavar="N", min=0
        ),
    ] = None
    steps: Annotated[
        str | None,
        Option(help="Of a model that loops over its layers: mean, or one step, from 0.", metavar="mean|N"),
    ] = None


class PromptsOptions(Group):
    """Prompts from one template, instead of one text."""

    panel = TEXT
    prompts: Annotated[
        Path | None,
        Option(help="Average over a table whose columns fill the slots {NAME} of text, target and against."),
    ] = None


class TextAmong(SourceOptions):
    """The same, where the text stands among other arguments."""

    text: str | None = None


NUMBERS = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?", re.ASCII)
MOST_HEADS = 9999  # the largest layer or head number in a list


def parse_head(spelling: str, attention: LayerOptions | None = None) -> Head:
    """The named head; its number alone suffices if a layer is given. What contradicts is wrong usage."""
    refuse("," in spelling, "--head", f"takes one head here, and {spelling} are several")
    attention = attention or LayerOptions()
    layers = parse_numbers(attention.layers, "--layer")
    number = read_number(spelling)
    if number is not None:
        one = layers or ()
        refuse(len(one) != 1, "--head", f"which layer? write L0H{spelling}, or add --layer")
        return Head(one[0], number)
    try:
        head = Head(spelling)
    except SelectionError as error:
        raise BadParameter(str(error), param_hint="--head") from None
    refuse(layers is not None, "--layer", f"--head {spelling} names its layer: leave it out")
    twice = head.kind is not None and attention.kind is not None
    refuse(twice, "--kind", f"--head {spelling} names its kind: leave it out")
    return head


def parse_heads(spelled: str | None, attention: LayerOptions | None = None) -> list[Head]:
    """The heads of a comma-separated list; none without a list."""
    return [parse_head(each.strip(), attention) for each in (spelled or "").split(",") if each.strip()]


def select_heads(attention: HeadOptions) -> Selection:
    """The heads that options name: those of some layers, or some of them."""
    return select(attention, among=tuple(parse_heads(attention.head, attention)))


def select(
    attention: LayerOptions, axes: AxisOptions | None = None, head: Head | None = None, **more: Any
) -> Selection:
    """The selection that options name, and how it is shown; a head implies its layer."""
    from attnscope.questions.selection import Selection

    layers = None if head or more.get("among") else parse_numbers(attention.layers, "--layer")
    return Selection(head=head, layers=layers, kind=attention.kind, **vars(axes or AxisOptions()), **more)


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
