"""What happened with one model type."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Result:
    """Counts of one type. ``own`` are the tensors that its eager output files under attentions.

    Of ``own``: ``own_wrong`` are no attention weights, ``sampled`` are weights of a few sampled points,
    ``matched`` equal a captured map as they are, ``laid`` hold a captured map in another layout (``layouts``
    says which), ``scores`` (of ``own_wrong``) become a captured map by a softmax.
    Of ``maps``: ``unit`` equal what torch's kernel did with unit values in another pass, ``twin`` what was
    captured from the eager model, ``unvouched`` names those for which no independent oracle exists.
    """

    name: str
    model: str = ""
    built: bool = False
    identical: bool | None = None
    maps: int = 0
    own: int = 0
    own_wrong: int = 0
    sampled: int = 0
    matched: int = 0
    laid: int = 0
    scores: int = 0
    worst: float = 0.0
    kernels: list[str] = field(default_factory=list)
    layouts: list[str] = field(default_factory=list)
    unit: int = 0
    twin: int = 0
    unvouched: list[str] = field(default_factory=list)
    unlikely: list[str] = field(default_factory=list)  # sites whose module does not say attention
    note: str = ""

    @property
    def speaking(self) -> int:
        """Own tensors that are attention over keys."""
        return self.own - self.own_wrong - self.sampled

    @property
    def exact(self) -> bool:
        """Whether every own tensor that is attention over keys equals a captured map as it is."""
        return self.speaking > 0 and self.matched == self.speaking

    @property
    def exact_laid_out(self) -> bool:
        """Whether every own tensor equals a captured map, some of them in another layout."""
        return self.speaking > 0 and self.matched + self.laid == self.speaking and self.laid > 0
