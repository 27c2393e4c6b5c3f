"""Options that several commands share, each with its help."""

from __future__ import annotations

import os
import sys
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from attnscope.errors import OutputError

PICTURES = (".png", ".svg", ".pdf")
WHOLE = (".html", ".npz", ".safetensors", ".json", ".csv")
TEXT, WHERE, PICTURE, MODEL = "Text", "Which attention", "Picture", "Model"

Text = Annotated[str | None, typer.Argument(help="The text; - reads standard input.", show_default=False)]
SecondText = Annotated[
    str | None,
    typer.Argument(help="A second text: its pair, or the target of an encoder-decoder.", show_default=False),
]
File = Annotated[
    Path | None,
    typer.Option("--file", "-f", help="Read the text from a file.", rich_help_panel=TEXT, show_default=False),
]
Line = Annotated[
    int | None,
    typer.Option(
        help="Take one line of the input, counted from 1; a tab in it parts a pair.",
        rich_help_panel=TEXT,
        show_default=False,
    ),
]
From = Annotated[
    Path | None,
    typer.Option(
        "--from",
        help="Show weights from a file, without a model: .npz, .npy, .safetensors or .json, saved by "
        "attnscope or another tool.",
        rich_help_panel=TEXT,
        show_default=False,
    ),
]
MaxTokens = Annotated[
    int | None,
    typer.Option(min=1, help="Cut the text at that many tokens.", rich_help_panel=TEXT, show_default=False),
]
Truncate = Annotated[
    bool,
    typer.Option(
        "--truncate", help="Cut a text that is longer than the model's positions.", rich_help_panel=TEXT
    ),
]
Generate = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Let the model write up to that many tokens, and show them too.",
        rich_help_panel=TEXT,
        show_default=False,
    ),
]
Temperature = Annotated[
    float,
    typer.Option(
        min=0,
        help="With --generate: 0 takes the likeliest token, above 0 tokens are drawn.",
        rich_help_panel=TEXT,
    ),
]
Seed = Annotated[int, typer.Option(min=0, help="With --temperature: what to draw.", rich_help_panel=TEXT)]
Chat = Annotated[
    bool,
    typer.Option(
        "--chat", help="Give the text as a user's message, in the model's chat format.", rich_help_panel=TEXT
    ),
]
System = Annotated[
    str | None,
    typer.Option(help="With --chat: a system message.", rich_help_panel=TEXT, show_default=False),
]
Image = Annotated[
    Path | None,
    typer.Option(
        help="An image for a model that reads them; with a text, for one that reads both.",
        rich_help_panel=TEXT,
        show_default=False,
    ),
]
Layer = Annotated[
    int | None,
    typer.Option(min=0, help="One layer, from 0.", rich_help_panel=WHERE, show_default=False),
]
Head = Annotated[
    str | None,
    typer.Option(
        help="One head: L5H3, 5.3, 5-3, or its number with --layer.",
        rich_help_panel=WHERE,
        show_default=False,
    ),
]
Ablate = Annotated[
    str | None,
    typer.Option(
        help="Set one head's output to zero, and print what changes in the model's guesses.",
        rich_help_panel=WHERE,
        show_default=False,
    ),
]
Kind = Annotated[
    str | None,
    typer.Option(help="encoder, decoder or cross.", rich_help_panel=WHERE, show_default=False),
]
ModelName = Annotated[
    str,
    typer.Option(
        "--model",
        "-m",
        help="own, own-causal, a folder, a Hugging Face hub id, or FILE.py:NAME (runs that file).",
        rich_help_panel=MODEL,
    ),
]
Tokenizer = Annotated[
    str,
    typer.Option(help="For FILE.py:NAME: the model whose tokenizer to use.", rich_help_panel=MODEL),
]
Inputs = Annotated[
    Path | None,
    typer.Option(
        help="For FILE.py:NAME: tensors instead of a text, .safetensors, .npz or .pt.",
        rich_help_panel=MODEL,
        show_default=False,
    ),
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or mps.", rich_help_panel=MODEL)]
DeviceMap = Annotated[
    str | None,
    typer.Option(
        help="auto: spread a model too large for one device over all there are; needs accelerate.",
        rich_help_panel=MODEL,
        show_default=False,
    ),
]
Dtype = Annotated[str, typer.Option(help="auto, float32, float16 or bfloat16.", rich_help_panel=MODEL)]
Revision = Annotated[
    str | None,
    typer.Option(help="Branch, tag or commit on the hub.", rich_help_panel=MODEL, show_default=False),
]
TrustRemoteCode = Annotated[
    bool,
    typer.Option(
        "--trust-remote-code",
        help="Run Python code that comes with the model. It can do anything you can.",
        rich_help_panel=MODEL,
    ),
]
AllowPickle = Annotated[
    bool,
    typer.Option(
        "--allow-pickle",
        help="Load pickled weights where there are no safetensors.",
        rich_help_panel=MODEL,
    ),
]


def _stay_offline(asked: bool) -> bool:
    """Keep the hub's library, which every download goes through, off the network from here on."""
    if asked:
        os.environ["HF_HUB_OFFLINE"] = "1"  # it reads this when it is imported
        hub = sys.modules.get("huggingface_hub.constants")
        if hub is not None:
            vars(hub)["HF_HUB_OFFLINE"] = True
    return asked


Offline = Annotated[
    bool,
    typer.Option(
        "--offline",
        help="Use models that are already here; nothing goes to the network.",
        rich_help_panel=MODEL,
        callback=_stay_offline,
    ),
]

Words = Annotated[bool, typer.Option("--words", help="Merge pieces into words.", rich_help_panel=PICTURE)]
HideSpecial = Annotated[
    bool,
    typer.Option(
        "--hide-special",
        help="Leave special tokens out, and say how much attention they take.",
        rich_help_panel=PICTURE,
    ),
]


class Scale(str, Enum):
    """What full colour stands for."""

    fixed = "fixed"
    row = "row"
    head = "head"


class Cell(str, Enum):
    """What a cell of a pooled map holds."""

    share = "share"
    mean = "mean"
    max = "max"


ScaleName = Annotated[
    Scale,
    typer.Option(
        "--scale",
        help="Full colour is a weight of 1, or the largest of its row or head.",
        rich_help_panel=PICTURE,
    ),
]
Cmap = Annotated[
    str | None,
    typer.Option(help="Colour map; a wrong name lists them.", rich_help_panel=PICTURE, show_default=False),
]
Plain = Annotated[bool, typer.Option("--plain", help="Shades instead of colours.", rich_help_panel=PICTURE)]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        "-o",
        help="Save instead of printing: a picture (.png, .svg, .pdf), all heads as a page to open in a "
        "browser (.html), or their weights (.npz, .safetensors, .json, .csv).",
        rich_help_panel=PICTURE,
        show_default=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.", rich_help_panel=PICTURE)]


def check_picture(out: Path | None, cmap: str | None, one: bool) -> None:
    """Refuse, before any work is done, what could not be written or drawn at its end.

    ``one`` says that one head or one token was asked for.
    """
    from attnscope.render.colour import cmaps

    if cmap is not None:
        cmaps[cmap]
    if out is None:
        return
    suffix = out.suffix.lower()
    _check_place(out, (*PICTURES, *WHOLE))
    if one and suffix in WHOLE:
        raise OutputError(f"a {suffix} file holds whole layers: leave out --head and --token, or use --json")


def check_data(out: Path) -> None:
    """Refuse, before any work is done, a file of whole layers that could not be written at its end."""
    _check_place(out, WHOLE)


def _check_place(out: Path, suffixes: tuple[str, ...]) -> None:
    if out.suffix.lower() not in suffixes:
        raise OutputError(f"{out} cannot be written: its name must end in {', '.join(suffixes)}")
    if not out.parent.is_dir():
        raise OutputError(f"{out} cannot be written: there is no folder {out.parent}")
