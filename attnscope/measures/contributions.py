"""How far each key's vector moves what a whole block gives: ALTI, one layer of it.

Ferrando et al. 2022, Measuring the Mixing of Contextual Information in the Transformer: what the block gives
is a sum of one vector a token, ``T_i(x_j) = Σ_h A[i, j] v_j W_O,h``, the residual added to its own, and all
of it behind the norm where there is one. A token's share is how much nearer its vector brings the sum:
``max(0, ‖y_i‖₁ - ‖y_i - T_i(x_j)‖₁)``. Biases belong to no token.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from attnscope.capture.residuals import Residual


@dataclass(frozen=True, eq=False)
class Contributions:
    """One call of one text: its values, its output projection, and the states around it."""

    values: Tensor  # [1, head, key, size]
    weight: Tensor  # [head, size, width]
    residual: Residual
    crossed: bool = False  # whether the residual is of no key: then it is a last one

    @property
    def width(self) -> int:
        """How many numbers each key's vector has."""
        return self.weight.shape[-1]

    @cached_property
    def _moved(self) -> Tensor:
        """The values behind projection and norm, but for each row's spread.  -> [key, head, width]"""
        moved = self._normed(self.values[0] @ self.weight.to(self.values))
        return moved.transpose(0, 1).contiguous()

    def _normed(self, vectors: Tensor) -> Tensor:
        """Vectors behind the norm, at the spread of the first row.  [..., width] -> [..., width]"""
        scale = self.residual.scale
        if scale is None:
            return vectors
        return (vectors - vectors.mean(-1, keepdim=True)) * scale[0, 0].to(vectors)

    def _spread(self, which: slice) -> Tensor | None:
        """How much larger the norm makes each row's vectors than those of the first.  -> [row, 1]"""
        scale = self.residual.scale
        if scale is None:
            return None
        sizes: Tensor = torch.linalg.vector_norm(scale[0], dim=-1, keepdim=True)
        return (sizes[which] / sizes[0]).to(self.values)

    def __call__(self, rows: Tensor, which: slice, heads: object) -> Tensor:
        """What each key brings to each row.  [1, head, row, key] -> [1, 1, row, key (+ 1 if crossed)]"""
        with torch.no_grad():
            weights = rows[0].to(self._moved)
            before = self._normed(self.residual.before[0, which].to(self._moved))  # [row, width]
            spread = self._spread(which)
            if spread is not None:
                weights, before = weights * spread, before * spread
            parts = torch.bmm(weights.permute(2, 1, 0), self._moved)  # [key, row, width]
            if self.crossed:
                parts = torch.cat([parts, before[None]])
            else:
                own = torch.arange(which.start, which.stop, device=parts.device)
                parts[own, own - which.start] += before
            whole = self.residual.result[0, which].to(parts)  # [row, width]
            left = parts.sub_(whole).abs_().sum(-1)  # [key, row]
            brought = whole.abs().sum(-1) - left
            return brought.clamp(min=0).mT[None, None]
