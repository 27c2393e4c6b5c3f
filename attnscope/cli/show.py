"""``attnscope show``: every head of a text at a glance, one head in full, or one token's view."""

from __future__ import annotations

from typing import Annotated

import typer

from attnscope.cli import options
from attnscope.cli.ablation import show_ablation
from attnscope.cli.command import repeated
from attnscope.cli.given import given
from attnscope.cli.heads import parse_head
from attnscope.cli.loading import load_model
from attnscope.cli.waiting import waiting

EXAMPLES = """Examples:

attnscope show "The cat sat on the mat because it was tired."

attnscope show "The cat sat on the mat." --head L0H2 --words

attnscope show "Once upon a time" -m own-causal --generate 20

attnscope show --image cat.png -m facebook/dinov2-base --token CLS

attnscope show -f paper.txt --truncate -m openai-community/gpt2 -o heads.png

attnscope show --from heads.npz --head L0H2
"""


def show(
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
    layer: options.Layer = None,
    head: options.Head = None,
    kind: options.Kind = None,
    token: Annotated[
        str | None,
        typer.Option(
            help="A word, a token's number, or a patch as row,column: what it looks at, and who looks at it.",
            rich_help_panel=options.WHERE,
            show_default=False,
        ),
    ] = None,
    ablate: options.Ablate = None,
    words: options.Words = False,
    hide_special: options.HideSpecial = False,
    scale: options.ScaleName = options.Scale.fixed,
    cmap: options.Cmap = None,
    plain: options.Plain = False,
    out: options.Out = None,
    as_json: options.AsJson = False,
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
    """Show what the attention heads do on a text.

    Without a head: every head as a thumbnail, and those most worth a look. With one: its heatmap and
    figures. Rows are the tokens that look, columns the tokens that are looked at.
    """
    layer, number = parse_head(head, layer)
    asked = given(context)
    options.check_picture(out, cmap, one=number is not None or token is not None)
    from attnscope.analysis.head import one_head
    from attnscope.analysis.layers import whole_layers
    from attnscope.analysis.overview import overview
    from attnscope.analysis.selection import Selection
    from attnscope.analysis.token import one_token
    from attnscope.attention import Head
    from attnscope.cli import answers

    selection = Selection(
        head=None if layer is None or number is None else Head(layer, number),
        layers=None if layer is None or number is not None else (layer,),
        kind=kind,
        token=token,
        words=words,
        hide_special=hide_special,
        scale=scale.value,
    )
    loaded = load_model(context)
    prepared = asked.prepare(loaded)
    if ablate is not None:
        show_ablation(context, loaded, prepared)
        return
    with waiting(f"{loaded.name} reads {len(prepared.tokens):,} tokens"), loaded.threads(prepared):
        if out is not None and out.suffix.lower() in options.WHOLE:
            answers.save_layers(whole_layers(loaded, prepared, selection), out, cmap)
            return
        if token is not None:
            answer = answers.of_token(one_token(loaded, prepared, selection))
        elif number is not None:
            answer = answers.of_head(one_head(loaded, prepared, selection))
        else:
            answer = answers.of_overview(overview(loaded, prepared, selection), repeated(context))
    if as_json:
        answers.print_json(answer)
    elif out is not None:
        answers.save(answer, out, cmap)
    else:
        answers.print_views(answer, cmap=cmap, plain=plain)
