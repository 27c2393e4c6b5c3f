"""``attnscope info``: what can be seen of a model."""

from __future__ import annotations

from typing import Annotated

import typer

from attnscope.cli import options
from attnscope.cli.loading import load_model
from attnscope.cli.plain import print_plain

EXAMPLES = """Examples:

attnscope info own

attnscope info openai-community/gpt2 --json

attnscope info facebook/dinov2-base --image cat.png
"""

TEXT = "The cat sat on the mat because it was tired."


def info(
    context: typer.Context,
    model: Annotated[
        str,
        typer.Argument(help="own, own-causal, a folder, a Hugging Face hub id, or FILE.py:NAME (runs it)."),
    ],
    text: Annotated[str, typer.Argument(help="The text that goes through it.")] = TEXT,
    image: options.Image = None,
    as_json: options.AsJson = False,
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
    """List every attention call of a model's forward pass, and the layers that have none.

    A short text goes through once as the model is, and once with its own output_attentions, so that the
    table can say where the model itself would report other weights than those that it used.
    """
    from attnscope.analysis.survey import survey
    from attnscope.cli.table import print_survey, survey_numbers
    from attnscope.models import prepare_tensors

    loaded = load_model(context)
    if image is not None and inputs is not None:
        raise typer.BadParameter("it does not go with --inputs", param_hint="--image")
    if image is not None:
        prepared = loaded.prepare_image(image, None if text == TEXT else text)
    else:
        prepared = loaded.prepare(text) if inputs is None else prepare_tensors(loaded, inputs)
    seen = survey(loaded, prepared)
    if as_json:
        print_plain(survey_numbers(seen))
    else:
        print_survey(seen)
