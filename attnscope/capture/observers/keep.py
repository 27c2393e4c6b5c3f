"""An observer that keeps the weights of some heads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from attnscope.attention import Attention, Axis, Site


@dataclass(frozen=True, eq=False)
class Kept:
    """The weights of some heads of one attention call.

    ``allowed`` has one entry in its head axis where the mask is the same for all heads. ``attention`` names
    the call's other properties; it holds no tensors of the pass.
    """

    site: Site
    heads: tuple[int, ...]
    weights: Tensor  # [batch, head, query, key], one entry a kept head
    allowed: Tensor  # bool, [batch or 1, kept head or 1, query, key]
    queries: Axis
    keys: Axis
    offset: int | None


@dataclass(eq=False)
class Keep:
    """Keeps whole maps of the heads that ``select`` names, in ``maps``, in the order they ran.

    ``select`` is asked once a site and call; None or an empty answer keeps nothing. A kept head costs its N²
    numbers, the others cost nothing.
    """

    select: Callable[[Site], Sequence[int] | None]
    maps: list[Kept] = field(default_factory=list)

    def observe(self, attention: Attention) -> None:
        """Compute and keep the chosen heads."""
        heads = tuple(self.select(attention.site) or ())
        if not heads:
            return
        weights = attention.weights(heads)
        allowed = attention.allowed(0, len(attention.queries))
        if allowed.shape[1] > 1:
            allowed = allowed[:, list(heads)]
        shape = (*allowed.shape[:2], *weights.shape[2:])
        self.maps.append(
            Kept(
                site=attention.site,
                heads=heads,
                weights=weights.detach().clone(),
                allowed=allowed.expand(shape).clone(),
                queries=attention.queries,
                keys=attention.keys,
                offset=attention.offset,
            )
        )
