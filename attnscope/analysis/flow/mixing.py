"""What each layer mixes: one matrix a layer, of all its heads together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from attnscope.attention import Attention, Axis, Site
from attnscope.axes.weights import Array
from attnscope.capture.observers.shared_rows import rows_at_a_time
from attnscope.capture.residuals import Residuals
from attnscope.errors import ModelError
from attnscope.measures.vectors.contributions import Contributions
from attnscope.measures.vectors.weighing import Amounts, Values, by_gradient
from attnscope.memory import require

BLOCK = 1 << 23
"""Numbers computed at a time: 32 MB of float32."""


@dataclass(eq=False)
class Mixing:
    """An observer that keeps the mean of all heads of each call, or of what in them raises a prediction."""

    slopes: Mapping[Site, Tensor] | None
    name: str
    residuals: Residuals | None = None
    forms: dict[str, None] = field(default_factory=dict)  # where norms were found around it
    matrices: dict[Site, Array] = field(
        default_factory=dict
    )  # [query, key]; of ALTI across, the residual last
    axes: dict[Site, tuple[Axis, Axis]] = field(default_factory=dict)
    in_parts: dict[str, str] = field(default_factory=dict)  # kinds that cannot be followed, and why

    def observe(self, attention: Attention) -> None:
        """Keep one call."""
        site, size = attention.site, len(attention.queries) * len(attention.keys)
        if attention.batch > 1:
            said = f"{site.name} of {self.name} attends in {attention.batch:,} parts"
            self.in_parts.setdefault(site.kind, f"{said}: nothing can be followed through it")
        if site.kind in self.in_parts:
            return
        require(8 * size, f"the mean of {attention.heads} heads of layer {site.layer}", "cut the text")
        step = rows_at_a_time(attention, BLOCK)
        amounts = self._amounts(attention)
        blocks = []
        for start in range(0, len(attention.queries), step):
            stop = min(start + step, len(attention.queries))
            rows = attention.rows(start, stop).nan_to_num()
            rows = rows if amounts is None else amounts(rows, slice(start, stop), slice(None))
            blocks.append(rows.double().mean((0, 1)).cpu().numpy())
        self.matrices[site] = np.concatenate(blocks)
        self.axes[site] = attention.queries, attention.keys

    def leave_out(self) -> tuple[str, ...]:
        """Let kinds that attend in parts go, as the tower of a tiled picture does, and say so.

        Raises ``ModelError`` where nothing else can be followed.
        """
        reasons = tuple(self.in_parts.values())
        kinds = {site.kind for site in self.matrices} - set(self.in_parts)
        if reasons and (not kinds or "cross" in kinds):
            raise ModelError(reasons[0])
        for site in [site for site in self.matrices if site.kind not in kinds]:
            del self.matrices[site], self.axes[site]
        return reasons

    def _parts(self, attention: Attention, residuals: Residuals) -> Contributions:
        """What ALTI asks of one call. Raises ``ModelError`` where its block cannot be followed."""
        site = attention.site
        found, residual = residuals.found.get(site), residuals.of(site)
        if found is None or residual is None or attention.values is None:
            what = "its output projection" if found is None else "what its output is added to"
            raise ModelError(
                f"layer {site.layer} of the model cannot be followed by alti, as {what} was not found: "
                "rollout and relevance follow it"
            )
        self.forms[residual.form] = None
        values = Values.of(attention.values, attention.heads, None).values
        return Contributions(values, found.weight, residual, crossed=site.kind == "cross")

    def _amounts(self, attention: Attention) -> Amounts | None:
        if self.residuals is not None:
            return self._parts(attention, self.residuals)
        if self.slopes is None:
            return None
        slope = self.slopes.get(attention.site)
        if attention.values is None or slope is None:
            return lambda rows, _, heads: rows * 0  # the prediction does not hang on it
        return by_gradient(Values.of(attention.values, attention.heads, None), slope)
