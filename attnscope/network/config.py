"""What an encoder looks like: a dataclass that is checked before anything is built from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from attnscope.errors import ModelError

POSITIONS = ("rotary", "sinusoidal", "none")
ACTIVATIONS = ("gelu", "relu")


@dataclass(frozen=True)
class EncoderConfig:
    """Sizes and kinds of one encoder; a value that makes no sense raises ``ModelError``.

    ``vocabulary`` counts token ids, ``width`` is the size of a token's vector, ``hidden`` that of the
    feed-forward layer, ``max_positions`` the longest text, ``segments`` the number of texts that can
    be told apart in one input (0: none). ``causal`` closes the future to every token. ``trained``
    says whether the weights have seen text, so that output of random weights can say so.
    """

    vocabulary: int = 8192
    width: int = 256
    layers: int = 4
    heads: int = 8
    hidden: int = 1024
    max_positions: int = 512
    positions: str = "rotary"
    rotary_base: float = 10000.0
    segments: int = 2
    causal: bool = False
    norm_first: bool = True
    activation: str = "gelu"
    dropout: float = 0.0
    trained: bool = False

    def __post_init__(self) -> None:
        for name, low, high in (
            ("vocabulary", 1, 2**31),
            ("width", 1, 2**16),
            ("layers", 1, 1024),
            ("heads", 1, 2**16),
            ("hidden", 1, 2**20),
            ("max_positions", 1, 2**20),
            ("segments", 0, 2),
        ):
            value = getattr(self, name)
            if type(value) is not int or not low <= value <= high:
                raise ModelError(f"{name} is a whole number from {low} to {high}, not {value!r}")
        for name in ("causal", "norm_first", "trained"):
            if type(getattr(self, name)) is not bool:
                raise ModelError(f"{name} is true or false, not {getattr(self, name)!r}")
        for name, choices in (("positions", POSITIONS), ("activation", ACTIVATIONS)):
            if getattr(self, name) not in choices:
                raise ModelError(f"{name} is one of {', '.join(choices)}, not {getattr(self, name)!r}")
        for name, least, most in (("dropout", 0.0, 0.9), ("rotary_base", 1.5, 1e9)):
            value = getattr(self, name)
            if type(value) not in (int, float) or not least <= value <= most:
                raise ModelError(f"{name} is a number from {least} to {most}, not {value!r}")
        if self.width % self.heads:
            raise ModelError(f"{self.heads} heads do not divide a width of {self.width}")
        if self.positions == "rotary" and self.width // self.heads % 2:
            raise ModelError(
                f"rotary positions need an even width a head, not {self.width // self.heads}: "
                "choose other heads or width, or other positions"
            )

    def as_dict(self) -> dict[str, Any]:
        """The fields as JSON can hold them."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> EncoderConfig:
        """Build from ``as_dict``'s form; unknown fields, and missing sizes, raise ``ModelError``."""
        known = {field.name for field in fields(cls)}
        unknown = sorted(set(values) - known)
        if unknown:
            raise ModelError(f"unknown field {unknown[0]!r}: there are {', '.join(sorted(known))}")
        missing = [
            name for name in ("vocabulary", "width", "layers", "heads", "hidden") if name not in values
        ]
        if missing:
            raise ModelError(f"the field {missing[0]!r} is missing")
        return cls(**values)
