"""Models that read images alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from attnscope.attention import Axis, Kind
from attnscope.errors import InputError
from attnscope.models.images import Picture, read_image
from attnscope.models.inputs import ModelInput
from attnscope.models.model import Model, accepts


class VisionModel(Model):
    """A transformers model of images; ``load`` brings what prepares them when the first one is read."""

    def __init__(
        self, name: str, module: nn.Module, load: Callable[[], Any], notes: Sequence[str] = ()
    ) -> None:
        super().__init__(name, module, None, notes)
        self._load = load

    @cached_property
    def processor(self) -> Any:
        """What prepares images. Raises ``ModelError``."""
        return self._load()

    def prepare(
        self, text: str, second: str | None = None, *, max_tokens: int | None = None, truncate: bool = False
    ) -> ModelInput:
        """Refuse the text: raises ``InputError`` that says what to give instead."""
        raise InputError(f"{self.name} reads images, not text: give it one with --image FILE")

    def prepare_image(self, path: Path, text: str | None = None) -> ModelInput:
        """An image file, with its patches as tokens."""
        if text is not None:
            raise InputError(f"{self.name} reads images alone: leave out the text beside --image")
        fields, picture = read_image(path, self.processor, self.module)
        inputs = {
            name: tensor.to(self.device) for name, tensor in fields.items() if accepts(self.module, name)
        }
        return ModelInput(fitting(inputs, self.module), patch_axes(picture), picture.tokens, picture=picture)


def patch_axes(picture: Picture) -> dict[Kind, tuple[Axis, Axis]]:
    """The axes of attention among patches, and of a pooling head that looks at them all."""
    if not picture.tokens:
        return {}
    patches: Axis = picture.tokens
    return {"encoder": (patches, patches), "cross": (range(1), patches)}


def fitting(inputs: dict[str, Tensor], module: nn.Module) -> dict[str, Tensor]:
    """Numbers of the type that the module computes in; masks and indices stay as they are."""
    kind = next((weights.dtype for weights in module.parameters() if weights.is_floating_point()), None)
    return {
        name: tensor.to(kind) if tensor.is_floating_point() and kind is not None else tensor
        for name, tensor in inputs.items()
    }
