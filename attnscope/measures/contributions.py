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
        """The values behind the projection.  -> [head, key, width]"""
        return self.values[0] @ self.weight.to(self.values)

    def __call__(self, rows: Tensor, which: slice, heads: object) -> Tensor:
        """What each key brings to each row.  [1, head, row, key] -> [1, 1, row, key (+ 1 if crossed)]"""
        with torch.no_grad():
            parts = torch.einsum("hrk,hkw->rkw", rows[0].to(self._moved), self._moved)
            before = self.residual.before[0, which].to(parts)  # [row, width]
            if self.crossed:
                parts = torch.cat([parts, before[:, None]], 1)
            else:
                own = torch.arange(which.start, which.stop, device=parts.device)
                parts[own - which.start, own] += before
            if self.residual.scale is not None:
                scale = self.residual.scale[0, which].to(parts)  # [row, width]
                parts = (parts - parts.mean(-1, keepdim=True)) * scale[:, None]
            whole = self.residual.result[0, which].to(parts)  # [row, width]
            left = whole[:, None] - parts  # [row, key, width]
            brought = whole.abs().sum(-1, keepdim=True) - left.abs().sum(-1)
            return brought.clamp(min=0)[None, None]
