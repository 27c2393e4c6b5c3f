"""``attnscope browse``: all heads of a text, with the keyboard."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from attnscope.cli import options
from attnscope.cli.given import given
from attnscope.cli.loading import load_model
from attnscope.cli.waiting import waiting
from attnscope.errors import AttnscopeError, OutputError

EXAMPLES = """Examples:

attnscope browse "The cat sat on the mat because it was tired."

attnscope browse -f paper.txt --truncate -m openai-community/gpt2

attnscope browse --from heads.npz
"""


def browse(
    context: typer.Context,
    text: options.Text = None,
    second_text: options.SecondText = None,
    file: options.File = None,
    line: options.Line = None,
    saved: options.From = None,
    image: options.Image = None,
    max_tokens: options.MaxTokens = None,
    truncate: options.Truncate = False,
    generate: options.Generate = None,
    temperature: options.Temperature = 0.0,
    seed: options.Seed = 0,
    chat: options.Chat = False,
    system: options.System = None,
    words: options.Words = False,
    hide_special: options.HideSpecial = False,
    scale: options.ScaleName = options.Scale.fixed,
    cmap: options.Cmap = None,
    out: Annotated[
        Path,
        typer.Option("--out", "-o", help="The folder that s saves to.", rich_help_panel=options.PICTURE),
    ] = Path("."),
    model: options.ModelName = "own",
    tokenizer: options.Tokenizer = "own",
    inputs: options.Inputs = None,
    device: options.Device = "auto",
    device_map: options.DeviceMap = None,
    dtype: options.Dtype = "auto",
    revision: options.Revision = None,
    trust_remote_code: options.TrustRemoteCode = False,
    allow_pickle: options.AllowPickle = False,
    offline: options.Offline = False,
) -> None:
    """Browse all heads of a text in the terminal.

    Arrow keys move over layers and heads, Enter opens a head, j and k pin a token, s saves what is in view,
    ? lists the keys. Needs Textual: pip install 'attnscope[browse]'.
    """
    asked = given(context)
    options.check_picture(None, cmap, one=False)
    if not out.is_dir():
        raise OutputError(f"pictures cannot be saved to {out}: there is no such folder")
    try:
        from attnscope.browser import Browser
    except ModuleNotFoundError as error:
        if error.name != "textual":
            raise
        raise AttnscopeError(
            "browsing needs Textual, which is not installed: pip install 'attnscope[browse]'"
        ) from None
    from attnscope.analysis.all_heads import all_heads
    from attnscope.analysis.selection import Selection

    loaded = load_model(context)
    prepared = asked.prepare(loaded)
    with waiting(f"{loaded.name} reads {len(prepared.tokens):,} tokens"):
        selection = Selection(words=words, hide_special=hide_special, scale=scale.value)
        heads = all_heads(loaded, prepared, selection)
    Browser(heads, out, cmap).run()
