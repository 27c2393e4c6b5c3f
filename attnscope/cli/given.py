"""What a command is given to look at: a text, a chat, an image, tensors; and what is written on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from attnscope.cli import options
from attnscope.cli.text import read_text
from attnscope.cli.waiting import waiting

if TYPE_CHECKING:
    from attnscope.models import Model, ModelInput


@dataclass(frozen=True)
class Given:
    """The input of a command, read and checked, before any model is loaded."""

    text: str
    second: str | None
    inputs: Path | None
    chat: bool
    system: str | None
    count: int | None
    temperature: float
    seed: int
    max_tokens: int | None
    truncate: bool
    saved: bool = False
    image: Path | None = None

    def prepare(self, model: Model) -> ModelInput:
        """The input as the model reads it, with what it writes on. Raises ``AttnscopeError``."""
        prepared = self._read(model)
        if self.count is None:
            return prepared
        with waiting(f"{model.name} writes up to {self.count:,} tokens"):
            return model.generate(prepared, self.count, temperature=self.temperature, seed=self.seed)

    def _read(self, model: Model) -> ModelInput:
        if self.saved:
            from attnscope.models.weights_file import WeightsFile

            assert isinstance(model, WeightsFile)
            return model.prepared
        if self.image is not None:
            return model.prepare_image(self.image, self.text or None)
        if self.inputs is not None:
            from attnscope.models import prepare_tensors

            return prepare_tensors(model, self.inputs)
        if self.chat:
            return model.prepare_chat(
                self.text,
                system=self.system,
                reply=self.count is not None,
                max_tokens=self.max_tokens,
                truncate=self.truncate,
            )
        return model.prepare(self.text, self.second, max_tokens=self.max_tokens, truncate=self.truncate)


def given(context: typer.Context) -> Given:
    """The input that a command's options name; what goes together badly is wrong usage.

    Raises ``InputError`` for a text that cannot be read.
    """
    said = context.params
    inputs, chat, count = said["inputs"], said["chat"], said["generate"]
    saved, image = said.get("saved") is not None, said.get("image")
    if image is not None and (chat or count is not None or inputs is not None):
        raise typer.BadParameter("it does not go with --chat, --generate or --inputs", param_hint="--image")
    if saved:
        _refuse_beside_from(context)
        text, second = "", None
    elif image is not None and said["text"] is None and said["file"] is None:
        text, second = "", None
    elif inputs is None:
        text, second = read_text(said["text"], said["second_text"], said["file"], said["line"])
    else:
        text, second = "", None
        if said["text"] is not None or said["file"] is not None:
            raise typer.BadParameter("give a text or --inputs, not both", param_hint="TEXT")
        if chat or count is not None:
            raise typer.BadParameter(
                "they go with a text, not with --inputs", param_hint="--chat, --generate"
            )
    if said["system"] is not None and not chat:
        raise typer.BadParameter("it goes with --chat", param_hint="--system")
    if chat and second is not None:
        raise typer.BadParameter(
            "a chat is one text: use --system for a message before it", param_hint="--chat"
        )
    if count is None and said["temperature"] > 0:
        raise typer.BadParameter("it goes with --generate N", param_hint="--temperature")
    return Given(
        text,
        second,
        inputs,
        chat,
        said["system"],
        count,
        said["temperature"],
        said["seed"],
        said["max_tokens"],
        said["truncate"],
        saved,
        image,
    )


def _refuse_beside_from(context: typer.Context) -> None:
    """Wrong usage, if a text or a model was given beside a file of weights."""
    for parameter in context.command.params:
        source = context.get_parameter_source(str(parameter.name))
        panel = getattr(parameter, "rich_help_panel", None)
        about_text = parameter.param_type_name == "argument" or panel in (options.TEXT, options.MODEL)
        if about_text and parameter.name != "saved" and source is not None and source.name != "DEFAULT":
            raise typer.BadParameter(
                "a file of weights has no need of a text or a model: leave them out", param_hint="--from"
            )
