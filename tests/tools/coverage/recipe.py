"""How one type is built and fed where one factor for all and the names of its forward do not do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Recipe:
    """Factors to try in turn, layers, changed settings (dotted keys), class and inputs.

    ``eager`` is the attention of the model that is compared with, of all its parts or by part.
    """

    factors: tuple[int, ...] = (16, 8, 4)
    layers: int = 2
    changes: dict[str, Any] = field(default_factory=dict)
    model: str | None = None
    eager: str | dict[str, str] = "eager"
    gain: float = 3.0  # what random matrices are multiplied with, so that rows are not all but even
    inputs: Callable[[Any], dict[str, Any]] | None = None
