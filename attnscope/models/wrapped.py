"""A module that somebody has already, as a model: with a tokenizer of its own, or with none."""

from __future__ import annotations

from typing import Any

from torch import nn

from attnscope.errors import InputError
from attnscope.models.inputs import ModelInput
from attnscope.models.model import Model


class BareModule(Model):
    """A module that reads tensors alone."""

    def prepare(
        self, text: str, second: str | None = None, *, max_tokens: int | None = None, truncate: bool = False
    ) -> ModelInput:
        """Raises ``InputError``: there is no tokenizer."""
        raise InputError(f"{self.name} has no tokenizer: wrap it with one, or read tensors by name")


def wrap_module(module: nn.Module, tokenizer: Any, processor: Any, name: str | None) -> Model:
    """The module as a model; it is told by its tokenizer and its config what it is."""
    config: Any = getattr(module, "config", None)
    name = name or getattr(config, "_name_or_path", None) or type(module).__name__
    if tokenizer is None and processor is None:
        return BareModule(name, module, None)
    if hasattr(tokenizer, "encode_batch") and not callable(tokenizer):  # a tokenizers.Tokenizer
        from attnscope.models.module import ModuleModel
        from attnscope.models.text.reader import Reader

        return ModuleModel(name, module, Reader(tokenizer, name))
    if config is None:
        raise InputError(f"{name} has no config, as models of transformers have: give a tokenizers.Tokenizer")
    from attnscope.models.huggingface.load import find_positions
    from attnscope.models.huggingface.model import HuggingFaceModel
    from attnscope.models.huggingface.sounds.speech import SpeechModel
    from attnscope.models.inspection import hears

    def load_processor(with_text: bool = False) -> Any:
        if processor is None:
            raise InputError(f"{name} was wrapped without what prepares images: give wrap a processor")
        return processor

    writes = getattr(module, "can_generate", None)
    named: dict[str, Any] = {"preferred": getattr(module, "generation_config", None)} if hears(module) else {}
    return (SpeechModel if hears(module) else HuggingFaceModel)(
        name,
        module,
        tokenizer,
        positions=find_positions(module),
        writer=module if writes is not None and writes() else None,
        load_processor=load_processor,
        **named,
    )
