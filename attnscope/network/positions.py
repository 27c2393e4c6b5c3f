"""Where a token stands: sinusoids that are added to it, or rotations of its queries and keys."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from attnscope.network.attention import MultiHeadAttention


def sinusoids(length: int, width: int, base: float = 10000.0) -> Tensor:
    """Sinusoidal positional encoding (Vaswani et al. 2017, section 3.5).  -> [token, width]

    Even columns hold ``sin(position / base ** (column / width))``, each odd one the cosine beside it.
    """
    column = torch.arange(0, width, 2, dtype=torch.float64)
    angle = torch.arange(length, dtype=torch.float64)[:, None] / base ** (column / width)
    table = torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)  # [token, width or width + 1]
    return table[:, :width].float()


class Sinusoidal(nn.Module):
    """Adds its sinusoid to each token.  [batch, token, width] -> the same"""

    def __init__(self, length: int, width: int) -> None:
        super().__init__()
        self.table: Tensor
        self.register_buffer("table", sinusoids(length, width), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, token, width] -> the same"""
        return x + self.table[: x.shape[1]]


class RotaryAttention(MultiHeadAttention):
    """Self-attention whose scores depend on how far apart two tokens are, not on where they stand.

    Queries and keys are rotated by an angle that grows with the position (Su et al. 2021,
    "RoFormer", equation 34), the first half of a head's width against its second half, so ``q · k``
    holds the distance alone. The parameters are those of ``MultiHeadAttention``. The head width must
    be even.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        batch_first: bool = False,
        *,
        length: int,
        base: float = 10000.0,
    ) -> None:
        super().__init__(embed_dim, num_heads, dropout, bias, batch_first=batch_first)
        if self.head_dim % 2:
            raise ValueError(f"rotary positions need an even head width, not {self.head_dim}")
        column = torch.arange(0, self.head_dim, 2, dtype=torch.float64) / self.head_dim
        angle = torch.arange(length, dtype=torch.float64)[:, None] / base**column
        self.cos: Tensor
        self.sin: Tensor
        self.register_buffer("cos", angle.cos().repeat(1, 2).float(), persistent=False)
        self.register_buffer("sin", torch.cat([-angle.sin(), angle.sin()], 1).float(), persistent=False)

    def project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The plain projections, with queries and keys rotated.  -> 3 × [batch, head, token, head width]"""
        q, k, v = super().project(query, key, value)
        return self.rotate(q), self.rotate(k), v

    def rotate(self, x: Tensor) -> Tensor:
        """Turn each token by its position.  [batch, head, token, head width] -> the same"""
        tokens = x.shape[-2]
        if tokens > len(self.cos):
            raise ValueError(f"{tokens} tokens are more than the {len(self.cos)} positions")
        cos, sin = self.cos[:tokens].to(x.dtype), self.sin[:tokens].to(x.dtype)
        return x * cos + x.roll(self.head_dim // 2, -1) * sin
