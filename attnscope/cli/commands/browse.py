"""``attnscope browse``: all heads of a text, with the keyboard."""

import sys
from pathlib import Path
from typing import Annotated

from typer import Option

from attnscope.cli import options
from attnscope.cli.command import Group, command
from attnscope.cli.source import read_source
from attnscope.errors import AttnscopeError, OutputError


class BrowseOutput(Group):
    """Where pictures go."""

    out: Annotated[Path, Option("--out", "-o", help="The folder that s saves to.")] = Path(".")


def has_terminal() -> bool:
    """Whether standard input and output are a terminal."""
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout))


@command
def browse(
    source: options.SourceOptions,
    attention: options.LayerOptions,
    axes: options.MapOptions,
    output: BrowseOutput,
    picture: options.PictureOptions,
    model: options.WeightedModelOptions,
) -> None:
    """Browse all heads of a text in the terminal.

    Arrow keys move over layers and heads, n goes to the next head worth a look, Enter opens a head, j and k
    pin a token, s saves what is in view, ? lists the keys. Needs Textual: pip install 'attnscope[browse]'.

    Examples:

    attnscope browse "The cat sat on the mat because it was tired."
    attnscope browse -f sample_inputs/article.txt --truncate -m own-causal
    attnscope browse --image sample_inputs/cat.png -m facebook/dinov2-base
    """
    if not has_terminal():
        raise AttnscopeError("browse needs a terminal; attnscope show prints, -o saves a page of all heads")
    if not output.out.is_dir():
        raise OutputError(f"pictures cannot be saved to {output.out}: there is no such folder")
    try:
        from attnscope.browser import Browser
    except ModuleNotFoundError as error:
        if error.name != "textual":
            raise
        raise AttnscopeError(
            "browsing needs Textual, which is not installed: pip install 'attnscope[browse]'"
        ) from None
    from attnscope.questions.layers import all_heads

    with read_source(source, model).open_with_progress() as (loaded, prepared):
        heads = all_heads(loaded, prepared, options.select(attention, axes))
    Browser(heads, output.out, picture.cmap).run()
