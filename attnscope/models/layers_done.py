"""Tells how many layers of a model a pass has been through, while it runs."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from attnscope.attention import Attention
from attnscope.progress import tell


@dataclass(frozen=True, eq=False)
class LayersDone:
    """An observer that reads nothing. It stands behind the others: what it tells of, they have seen."""

    module: nn.Module

    def observe(self, attention: Attention) -> None:
        """Tell where in the outermost list of layers a call was; of a model without such a list, nothing."""
        parts = attention.site.name.split(".")
        place = next((place for place, part in enumerate(parts) if part.isdigit()), None)
        if place is None:
            return
        layers = len(list(self.module.get_submodule(".".join(parts[:place])).children()))
        if layers > 1:
            tell("layer", int(parts[place]) + 1, layers)
