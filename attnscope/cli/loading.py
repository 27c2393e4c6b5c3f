"""Load the model that a command's options name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from attnscope.cli.waiting import waiting

if TYPE_CHECKING:
    from attnscope.models import Model

OPTIONS = ("tokenizer", "device", "dtype", "revision", "trust_remote_code", "allow_pickle")
"""The options of every command with a model, as ``attnscope.cli.options`` declares them."""


def load_model(context: typer.Context) -> Model:
    """The model of a command, with a sign of life while it loads. Raises ``ModelError``."""
    from attnscope.models import load

    name = context.params["model"]
    with waiting(f"loading {name}"):
        options = {option: context.params[option] for option in OPTIONS}
        return load(name, **options, generative=context.params.get("generate") is not None)
