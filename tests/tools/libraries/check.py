"""One model of a library: every kind of map that was captured against the oracle, the others by name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from attnscope.attention import Attention
from attnscope.capture import Keep, Kept, Record, SiteRecord, recording
from tests.tools.coverage.compare import same
from tests.tools.coverage.layouts import same_rows
from tests.tools.libraries.placed import is_placed
from tests.tools.libraries.units import EACH, Units

CLOSE = 1e-5
ORDERED_OTHERWISE = frozenset({"timm hiera_tiny_224", "timm nest_tiny"})
"""Models whose blocks have tokens in a fixed order, where the maps have them as the picture does.

By hand: of Hiera's first block, a change of a patch moves just those rows, put in the block's order. Behind
its poolings, NesT's maps are open in squares of the picture, as its blocks are.
"""
GAIN = 1.5
"""Of the size of what goes into a linear layer, in what comes out of it."""
TEXTS = 2
"""Texts, or pictures, that each model is given."""


@dataclass
class Checked:
    """What became of one model, by kinds of maps (heads, queries, keys).

    ``exact``: the map is what torch's function weighed with, as it is. ``laid``: its rows are those, put at
    their true places, which the module's answer to a change of a token shows, or cannot (``unplaced``).
    ``proved``: no function of torch shows its weights, and weights @ values are the output. ``named``: layers
    without a map, with the reason. ``parts``: maps of windows, frames or heads, said to be parts. ``wrong``.
    """

    name: str
    identical: bool | None = None
    sites: int = 0
    exact: int = 0
    laid: int = 0
    unplaced: int = 0
    proved: int = 0
    parts: int = 0
    named: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)
    note: str = ""


class Some:
    """Keeps the maps of a few layers of each kind, whole."""

    def __init__(self) -> None:
        self.kept: dict[int, Kept] = {}
        self._seen = 0
        self._counts: Counter[Any] = Counter()

    def observe(self, attention: Attention) -> None:
        """Keep all heads of one layer, unless enough of its kind are kept."""
        kind = attention.batch, attention.heads, len(attention.queries), len(attention.keys), attention.kernel
        self._counts[kind] += 1
        if self._counts[kind] <= EACH:
            keep = Keep(lambda site: range(attention.heads))
            keep.observe(attention)
            self.kept[self._seen] = keep.maps[0]
        self._seen += 1


def check(name: str, model: nn.Module, arguments: Sequence[Any], inputs: dict[str, Any]) -> Checked:
    """Run a model plainly, observed, and under the oracle, and compare."""
    checked, some, units = Checked(name), Some(), Units()
    sharpen(model)
    with torch.inference_mode():
        torch.manual_seed(3)
        plain = model(*arguments, **inputs)
        torch.manual_seed(3)
        with recording(model, [some], warn=False) as record:
            output = model(*arguments, **inputs)
        torch.manual_seed(3)
        with units.watch(model):
            model(*arguments, **inputs)
    checked.identical, checked.sites = same(plain, output), len(record.sites)
    checked.named = list(dict.fromkeys(layer.reason for layer in record.without_attention))
    parts = any("a map is of one part" in note for note in record.notes)
    for number, kept in some.kept.items():
        site = record.sites[number]
        verdict = judge(kept, site, units, parts)
        if verdict == "laid":
            square = site.queries == site.keys
            placed = is_placed(model, arguments, inputs, kept) if square else None
            untold = placed is None or name in ORDERED_OTHERWISE
            verdict = "laid" if placed else "unplaced" if untold else "misplaced"
        if hasattr(checked, verdict):
            setattr(checked, verdict, getattr(checked, verdict) + 1)
        else:
            shape = f"{site.batch} × {site.heads} × {site.queries} × {site.keys}"
            checked.wrong.append(
                f"{site.site.name} ({site.kernel}, {shape}, offset {site.offset}): {verdict}"
            )
    checked.missed = missing(units, record)
    return checked


@torch.no_grad()
def sharpen(model: nn.Module) -> None:
    """Make the layers of a random model wider than libraries do, whose weights are almost even at first."""
    for module in model.modules():
        if isinstance(module, nn.LayerNorm) and module.elementwise_affine and not bool(module.weight.any()):
            nn.init.ones_(module.weight)  # it would hide what stands before it
        if "LayerScale" in type(module).__name__:  # it would hide what attention did
            for scale in module.parameters():
                nn.init.ones_(scale)
        if isinstance(module, nn.Linear) and type(module.weight) is nn.Parameter:
            spread = float(module.weight.std())
            if 0 < spread < (wanted := GAIN / module.in_features**0.5):
                module.weight *= wanted / spread


def judge(kept: Kept, site: SiteRecord, units: Units, parts: bool) -> str:
    """What one map is."""
    if site.differs:
        return f"weights @ values differ from the output by {site.difference:.2g}"
    causal = bool(kept.allowed.any(-1).all()) and not bool(kept.allowed[..., 0, -1].any())
    if site.offset and not causal and site.queries > 1:
        return "its queries stand at places that nothing shows"
    apart = site.batch != TEXTS
    if apart and not parts:
        return f"{site.batch} texts where {TEXTS} were given"
    several = [*units.kernels, *units.softmaxes]
    if any(is_same(unit, kept.weights) for unit in several):
        return "parts" if apart else "exact"
    if any(same_rows(unit, kept.weights, CLOSE) for unit in several):
        return "laid"
    if site.difference is not None:
        return "proved"
    return "no function of torch weighed with it"


def is_same(unit: Tensor, weights: Tensor) -> bool:
    """Whether a tensor of the oracle is a map, its texts and heads in one axis or two, its keys anywhere."""
    for each in (unit, unit.mT):
        if each.numel() != weights.numel() or each.shape[-2:] != weights.shape[-2:]:
            continue
        if float((each.reshape(weights.shape) - weights).abs().max()) <= CLOSE:
            return True
    return False


def missing(units: Units, record: Record) -> list[str]:
    """The modules that called a kernel, and have neither a map nor a name; a softmax may be no attention."""
    said = {site.site.name for site in record.sites} | {layer.name for layer in record.without_attention}
    return sorted(
        owner
        for owner in units.owners
        if not any(f"{owner}.".startswith(f"{name}.") or f"{name}.".startswith(f"{owner}.") for name in said)
    )
