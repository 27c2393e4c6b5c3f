"""A file in a model's place: the commands that look at a model's pass look at it alike."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

from attnscope.attention import Head
from attnscope.axes.weights import Array
from attnscope.errors import InputError, ModelError
from attnscope.models.inputs import ModelInput, Objective
from attnscope.models.model import Model

if TYPE_CHECKING:
    from torch import nn


class FileModel(Model):
    """One pass that a file holds. ``prepared`` is its text; it reads no other, and predicts nothing."""

    what: ClassVar[str]

    def __init__(self, name: str, notes: Sequence[str] = ()) -> None:
        self.name, self.positions, self.notes = name, None, tuple(notes)

    def __getattr__(self, name: str) -> Any:
        """A module without weights, made for those who ask for one: a look at a file needs no torch."""
        if name != "module":
            raise AttributeError(f"{self.what} has no {name}")
        from torch import nn

        self.module: nn.Module = nn.Module()
        return self.module

    @contextmanager
    def threads(self, prepared: ModelInput) -> Iterator[None]:
        """As many threads as there are: no small passes follow each other."""
        yield

    @abstractmethod
    def weights(self, head: Head) -> Array:
        """All rows of one head, the mean over a batch.  -> [query, key]"""

    @property
    @abstractmethod
    def prepared(self) -> ModelInput:
        """The text that was read, as far as the file tells."""

    def prepare(
        self, text: str, second: str | None = None, *, max_tokens: int | None = None, truncate: bool = False
    ) -> ModelInput:
        """Raises ``InputError``: a file reads no text; ask for ``prepared``."""
        raise InputError(f"{self.name} is {self.what} and reads no text")

    @property
    def objective(self) -> Objective:
        """Raises ``ModelError``: nothing is predicted without a model."""
        raise ModelError(f"{self.name} is {self.what} and predicts nothing: give the model itself")
