"""``attnscope compare``: heads across layers, two heads, two texts, two models."""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attnscope.cli import options
from attnscope.cli.command import LONGEST, written
from attnscope.cli.heads import parse_head
from attnscope.cli.loading import OPTIONS, load_model
from attnscope.cli.text import read_text
from attnscope.cli.waiting import waiting
from attnscope.errors import InputError, OutputError

if TYPE_CHECKING:
    from attnscope.cli.compared import Compared
    from attnscope.models import Model, ModelInput

EXAMPLES = """Examples:

attnscope compare "The cat sat on the mat because it was tired."

attnscope compare "The cat sat on the mat." L1H2 L5H3

attnscope compare "The cat sat on the mat." --with-text "The dog sat on the mat."

attnscope compare --texts sentences.txt -m my-bert --with-model my-fine-tuned-bert --csv
"""

WITH = "What to compare with"
CHANGED = ("heads", "layer", "head", "out", "as_json", "as_csv")
"""What the commands that are offered choose anew."""

SAVED = (*options.PICTURES, ".npz")


def compare(
    context: typer.Context,
    text: options.Text = None,
    heads: Annotated[
        list[str] | None,
        typer.Argument(help="Two heads, L1H2 L5H3, to be compared with each other.", show_default=False),
    ] = None,
    file: options.File = None,
    line: options.Line = None,
    second_text: Annotated[
        str | None,
        typer.Option(
            "--second",
            help="A second text: its pair, or the target of an encoder-decoder.",
            rich_help_panel=options.TEXT,
            show_default=False,
        ),
    ] = None,
    texts: Annotated[
        Path | None,
        typer.Option(
            help="Average over many texts: a text a line (.txt), .jsonl, .parquet, or a folder.",
            rich_help_panel=options.TEXT,
            show_default=False,
        ),
    ] = None,
    max_tokens: options.MaxTokens = None,
    truncate: options.Truncate = False,
    with_text: Annotated[
        str | None,
        typer.Option(
            help="The same model on another text: what changes in which head.",
            rich_help_panel=WITH,
            show_default=False,
        ),
    ] = None,
    with_model: Annotated[
        str | None,
        typer.Option(
            help="Another model on the same text: how far each head drifted, or its best match.",
            rich_help_panel=WITH,
            show_default=False,
        ),
    ] = None,
    layer: options.Layer = None,
    head: Annotated[
        str | None,
        typer.Option(
            help="3: this head number through all layers. L5H3: with --with-text, its difference map.",
            rich_help_panel=options.WHERE,
            show_default=False,
        ),
    ] = None,
    kind: options.Kind = None,
    words: options.Words = False,
    hide_special: options.HideSpecial = False,
    cmap: options.Cmap = None,
    plain: options.Plain = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="Save a picture (.png, .svg, .pdf), or the numbers as arrays (.npz).",
            rich_help_panel=options.PICTURE,
            show_default=False,
        ),
    ] = None,
    as_json: options.AsJson = False,
    as_csv: Annotated[
        bool, typer.Option("--csv", help="Print the distances as CSV.", rich_help_panel=options.PICTURE)
    ] = False,
    model: options.ModelName = "own",
    tokenizer: options.Tokenizer = "own",
    device: options.Device = "auto",
    device_map: options.DeviceMap = None,
    dtype: options.Dtype = "auto",
    revision: options.Revision = None,
    trust_remote_code: options.TrustRemoteCode = False,
    allow_pickle: options.AllowPickle = False,
    offline: options.Offline = False,
) -> None:
    """Compare attention heads: all of them, two, or all of them on two texts or in two models.

    The distance of two heads is the Jensen-Shannon divergence of their rows, averaged: 0 nats where both
    look the same way, 0.693 where they share no token.
    """
    named = list(heads or ())
    if text is not None and (file is not None or texts is not None):
        named, text = [text, *named], None  # what stands first is no text then
    layer, number = _head(head, layer)
    _check(named, texts, with_text, with_model, layer, number)
    pair = [parse_head(name, None) for name in named]
    given = _texts(texts) if texts is not None else [read_text(text, second_text, file, line)]
    if out is not None and out.suffix.lower() not in SAVED:
        raise OutputError(
            f"{out} cannot be written: a comparison is saved as {', '.join(SAVED)}; --json and --csv print it"
        )
    options.check_picture(out, cmap, one=False)
    from attnscope.analysis.selection import Selection
    from attnscope.attention import Head
    from attnscope.cli import answers

    one = None if with_text is None or layer is None or number is None else Head(layer, number)
    selection = Selection(
        head=one,
        layers=None if layer is None or one else (layer,),
        number=None if one else number,
        kind=kind,
        words=words,
        hide_special=hide_special,
    )
    loaded = load_model(context)

    def prepare(reader: Model, one: str, other: str | None) -> ModelInput:
        return reader.prepare(one, other, max_tokens=max_tokens, truncate=truncate)

    prepared = [prepare(loaded, *each) for each in given]
    size = sum(len(each.tokens) for each in prepared)
    with waiting(f"{model} reads {size:,} tokens"), loaded.threads(prepared[0]):
        command = _command(context) if texts is None else None
        if pair:
            from attnscope.analysis.comparison.two_heads import compare_heads
            from attnscope.cli.compared import of_two_heads

            both = [Head(of_layer or 0, of_head or 0) for of_layer, of_head in pair]
            found = of_two_heads(compare_heads(loaded, prepared[0], both[0], both[1], selection))
        elif with_text is not None:
            from attnscope.analysis.comparison.texts import compare_texts
            from attnscope.cli.compared_across import of_texts

            changed = prepare(loaded, *read_text(with_text, second_text, None, None))
            found = of_texts(compare_texts(loaded, prepared[0], changed, selection), command)
        elif with_model is not None:
            from attnscope.analysis.comparison.models import compare_models
            from attnscope.cli.compared_across import of_models

            rival = _load_other(context, with_model)
            texts_of_both = [
                (mine, prepare(rival, *each)) for mine, each in zip(prepared, given, strict=True)
            ]
            found = of_models(compare_models(loaded, rival, texts_of_both, selection))
        elif number is not None and texts is None:
            from attnscope.analysis.comparison.depth import through_layers
            from attnscope.cli.compared import of_depth

            found = of_depth(through_layers(loaded, prepared[0], number, selection))
        else:
            from attnscope.analysis.comparison.compare import compare as compare_all
            from attnscope.cli.compared import of_heads

            found = of_heads(compare_all(loaded, prepared, selection), command)
    if as_json:
        answers.print_json(found.answer)
    elif as_csv:
        csv.writer(sys.stdout, lineterminator="\n").writerows(found.table)
    elif out is not None:
        _save(found, out, cmap)
    else:
        answers.print_views(found.answer, cmap=cmap, plain=plain)


def _head(head: str | None, layer: int | None) -> tuple[int | None, int | None]:
    """Layer and head; a number alone is that head of every layer."""
    if head is not None and head.isascii() and head.isdigit():
        return layer, int(head)
    return parse_head(head, layer)


def _check(
    named: list[str],
    texts: Path | None,
    with_text: str | None,
    with_model: str | None,
    layer: int | None,
    number: int | None,
) -> None:
    """Wrong usage for what says nothing together."""
    asked = [bool(named), with_text is not None, with_model is not None]
    if sum(asked) > 1:
        raise typer.BadParameter("choose one of two heads, --with-text and --with-model", param_hint="HEADS")
    if named and len(named) != 2:
        raise typer.BadParameter(
            f"name two heads to compare, like L1H2 L5H3; here {'is' if len(named) == 1 else 'are'} "
            f"{', '.join(named)} (quote a text of several words)",
            param_hint="HEADS",
        )
    if named and (layer is not None or number is not None):
        raise typer.BadParameter("the two heads say their layers and numbers themselves", param_hint="--head")
    if texts is not None and (named or with_text is not None):
        raise typer.BadParameter("two heads, and --with-text, take one text", param_hint="--texts")
    if with_text is not None and number is not None and layer is None:
        raise typer.BadParameter(f"which layer? write L0H{number}, or add --layer", param_hint="--head")
    if not any(asked) and layer is not None and number is not None:
        raise typer.BadParameter(
            "one head alone has nothing to be compared with: name two, or give its number alone",
            param_hint="--head",
        )


def _texts(path: Path) -> list[tuple[str, str | None]]:
    """The texts of a corpus. Raises ``InputError`` where one cannot be read, or where there is none."""
    from attnscope.storage.corpus import read_corpus

    corpus = read_corpus(path)
    found: list[tuple[str, str | None]] = []
    for entry in corpus.entries():
        if entry.fault:
            raise InputError(f"{corpus.name}, {entry.where}: {entry.fault}")
        found.append((entry.text, None))
    if not found:
        raise InputError(f"{corpus.name} holds no text")
    return found


def _command(context: typer.Context) -> str | None:
    """The command that is running, to which heads can be added; ``None`` if it is too long to copy."""
    words = written(context, CHANGED)
    return words if len(words) <= LONGEST and words.isprintable() else None


def _load_other(context: typer.Context, name: str) -> Model:
    """The model to compare with, loaded as the first one is; a revision is the first one's alone."""
    from attnscope.models import load

    asked = {option: context.params[option] for option in OPTIONS if option != "revision"}
    with waiting(f"loading {name}"):
        return load(name, **asked)


def _save(found: Compared, out: Path, cmap: str | None) -> None:
    from attnscope.cli import answers

    if out.suffix.lower() != ".npz":
        answers.save(found.answer, out, cmap)
        return
    from attnscope.storage.arrays.write import save_arrays

    save_arrays(found.arrays, out)
    print(f"saved {out}", file=sys.stderr)
