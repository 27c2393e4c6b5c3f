"""Two heads beside each other: both maps, their signed difference, and where they part most."""

from __future__ import annotations

from dataclasses import dataclass, replace

from attnscope.axes.weights import Weights
from attnscope.views.heatmap import Heatmap, Scale, heatmap, is_faint


@dataclass(frozen=True, slots=True)
class Parting:
    """One token whose rows differ: how far (nats), and where each head looks most from there."""

    label: str
    position: int
    distance: float
    keys: tuple[str, str]
    weights: tuple[float, float]


@dataclass(frozen=True, eq=False)
class HeadPair:
    """Two heads and their difference, the first minus the second, on the same rows and columns."""

    names: tuple[str, str]
    maps: tuple[Heatmap, Heatmap]
    difference: Heatmap
    partings: tuple[Parting, ...]
    title: str = ""
    subtitle: str = ""
    notes: tuple[str, ...] = ()


def head_pair(
    names: tuple[str, str],
    weights: tuple[Weights, Weights],
    partings: tuple[Parting, ...],
    *,
    scale: Scale = "fixed",
    title: str = "",
    subtitle: str = "",
    notes: tuple[str, ...] = (),
) -> HeadPair:
    """Settle two heads ``[query, key]`` of the same labels. The difference's colours end at its largest."""
    one, other = weights
    if scale == "auto":  # one scale for both
        scale = "head" if is_faint(one) and is_faint(other) else "fixed"
    apart = replace(one, values=one.values - other.values, allowed=one.allowed | other.allowed)
    maps = heatmap(one, title=names[0], scale=scale), heatmap(other, title=names[1], scale=scale)
    difference = heatmap(apart, title=f"{names[0]} − {names[1]}", scale="head", signed=True)
    return HeadPair(names, maps, difference, partings, title, subtitle, notes)
