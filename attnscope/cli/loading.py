"""Load the model that a command's options name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from attnscope.cli.waiting import waiting

if TYPE_CHECKING:
    from attnscope.models import Model

OPTIONS = ("tokenizer", "device", "device_map", "dtype", "revision", "trust_remote_code", "allow_pickle")
"""The options of every command with a model, as ``attnscope.cli.options`` declares them."""


def load_model(context: typer.Context) -> Model:
    """The model of a command, or the file of weights in its place, with a sign of life while it loads.

    Raises ``ModelError``, or ``InputError`` for a file that cannot be read.
    """
    if context.params.get("saved") is not None:
        from attnscope.models.weights_file import WeightsFile

        return WeightsFile(context.params["saved"])
    from attnscope.models import load

    name = context.params["model"]
    with waiting(f"loading {name}"):
        asked = context.params
        return load(
            name,
            **{option: asked[option] for option in OPTIONS},
            generative=asked.get("generate") is not None,
            predicting=bool(asked.get("importance") or asked.get("ablate")),
        )
