"""Multi-head attention with weights per head: a drop-in for ``torch.nn.MultiheadAttention``.

Formula and names after Vaswani et al. 2017, "Attention Is All You Need", section 3.2.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class MultiHeadAttention(nn.MultiheadAttention):
    """Attention of several heads, each over its own slice of the width.

    Takes the arguments of ``torch.nn.MultiheadAttention``, holds its parameters and returns what it returns.
    Two additions: ``is_causal=True`` needs no mask beside it, and a subclass may override ``scores``, for
    example for relative attention. Raises ``ValueError`` if sizes or a mask's shape do not fit.
    """

    use_kernel = True  # false: plain products, whose backward pass is faster on a CPU

    def __init__(self, embed_dim: int, num_heads: int, *args: Any, **options: Any) -> None:
        if embed_dim < 1 or num_heads < 1 or embed_dim % num_heads:
            raise ValueError(f"{num_heads} heads do not divide a width of {embed_dim}")
        super().__init__(embed_dim, num_heads, *args, **options)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend from queries to keys.  [query, batch, width] (batch first or unbatched too) -> the same

        Masks and weights are as in torch: True masks a key, a float is added to the scores; ``is_causal``
        is a promise that ``attn_mask`` is the causal mask, which the kernel may use in its place. A fully
        masked row is NaN where weights are asked for and 0 in the kernel.
        """
        batched = query.dim() == 3
        if not batched:
            query, key, value = query.unsqueeze(0), key.unsqueeze(0), value.unsqueeze(0)
            if key_padding_mask is not None:
                key_padding_mask = key_padding_mask.unsqueeze(0)
        elif not self.batch_first:
            query, key, value = query.transpose(0, 1), key.transpose(0, 1), value.transpose(0, 1)
        self._check(query, key, value, key_padding_mask, attn_mask)

        kernel = self.use_kernel and not need_weights and type(self).scores is MultiHeadAttention.scores
        causal_kernel = is_causal and kernel and key_padding_mask is None
        if causal_kernel:
            attn_mask = None
        elif is_causal and attn_mask is None:
            shape = (query.shape[1], key.shape[1])
            attn_mask = torch.ones(shape, dtype=torch.bool, device=query.device).triu(1)
        mask = self._mask(key_padding_mask, attn_mask, query)

        q, k, v = self.project(query, key, value)  # [batch, head, token, head width]
        k, v, mask = self._extend(k, v, mask)
        weights: Tensor | None = None
        if kernel:
            dropout = self.dropout if self.training else 0.0
            mixed = F.scaled_dot_product_attention(q, k, v, mask, dropout, causal_kernel)
        else:
            scores = self.scores(q, k)  # [batch, head, query, key]
            weights = torch.softmax(scores if mask is None else scores + mask, dim=-1)
            weights = F.dropout(weights, self.dropout, self.training)
            mixed = weights @ v
        out = self.out_proj(mixed.transpose(1, 2).flatten(2))  # [batch, query, width]

        if not need_weights:
            weights = None
        elif weights is not None and average_attn_weights:
            weights = weights.mean(1)
        if not batched:
            return out.squeeze(0), None if weights is None else weights.squeeze(0)
        return out if self.batch_first else out.transpose(0, 1), weights

    def project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys, values by head.  [batch, token, width] -> 3 × [batch, head, token, head width]"""
        if self.in_proj_weight is not None:
            if query is key and key is value:
                packed = F.linear(query, self.in_proj_weight, self.in_proj_bias)
                q, k, v = (self._split(x) for x in packed.chunk(3, -1))
                return q, k, v
            weights = self.in_proj_weight.chunk(3)
        else:
            weights = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        biases = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        q, k, v = (
            self._split(F.linear(x, weight, bias))
            for x, weight, bias in zip((query, key, value), weights, biases, strict=True)
        )
        return q, k, v

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        """Scores before masks and softmax; override for relative attention.  -> [batch, head, query, key]"""
        return (q * math.sqrt(1 / self.head_dim)) @ k.mT

    def _split(self, x: Tensor) -> Tensor:
        """[batch, token, width] -> [batch, head, token, head width]"""
        batch, tokens, _ = x.shape
        return x.view(batch, tokens, self.num_heads, self.head_dim).transpose(1, 2)

    def _extend(self, k: Tensor, v: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        """Append the learned key and the zero key, if any, open to every query."""
        tails: list[tuple[Tensor, Tensor]] = []
        if self.bias_k is not None and self.bias_v is not None:
            tails.append((self._split(self.bias_k), self._split(self.bias_v)))
        if self.add_zero_attn:
            tails.append((k.new_zeros(1, self.num_heads, 1, self.head_dim),) * 2)
        for k_tail, v_tail in tails:
            k = torch.cat([k, k_tail.to(k.dtype).expand(len(k), -1, -1, -1)], dim=2)
            v = torch.cat([v, v_tail.to(v.dtype).expand(len(v), -1, -1, -1)], dim=2)
            mask = None if mask is None else F.pad(mask, (0, 1))
        return k, v, mask

    def _mask(self, padding: Tensor | None, attn: Tensor | None, query: Tensor) -> Tensor | None:
        """Both masks as one additive mask.  -> [batch or 1, head or 1, query or 1, key]"""

        def additive(mask: Tensor) -> Tensor:
            if mask.dtype == torch.bool:
                zeros = torch.zeros(mask.shape, dtype=query.dtype, device=mask.device)
                return zeros.masked_fill_(mask, -math.inf)
            return mask

        total: Tensor | None = None
        if attn is not None:
            attn = additive(attn)
            total = attn[None, None] if attn.dim() == 2 else attn.view(-1, self.num_heads, *attn.shape[1:])
        if padding is not None:
            padding = additive(padding)[:, None, None]  # [batch, 1, 1, key]
            total = padding if total is None else total + padding
        return total

    def _check(
        self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None, attn: Tensor | None
    ) -> None:
        """Raise ``ValueError`` where shapes do not fit, or only fit by accidental broadcasting."""
        (batch, queries), keys = query.shape[:2], key.shape[1]
        sizes = ((query, self.embed_dim, "query"), (key, self.kdim, "key"), (value, self.vdim, "value"))
        for x, width, name in sizes:
            if x.dim() != 3 or len(x) != batch or x.shape[-1] != width:
                said = f"does not fit batch {batch}, width {width}"
                raise ValueError(f"{name} of shape {tuple(x.shape)} {said}")
        if value.shape[1] != keys:
            raise ValueError(f"{keys} keys do not fit {value.shape[1]} values")
        if padding is not None and padding.shape != (batch, keys):
            raise ValueError(f"key_padding_mask is {tuple(padding.shape)}, not {(batch, keys)}")
        shapes = ((queries, keys), (batch * self.num_heads, queries, keys))
        if attn is not None and attn.shape not in shapes:
            raise ValueError(f"attn_mask is {tuple(attn.shape)}, neither {shapes[0]} nor {shapes[1]}")
        for mask in (padding, attn):
            if mask is not None and not (mask.dtype == torch.bool or mask.is_floating_point()):
                raise ValueError(f"a mask is bool or float, not {mask.dtype}")


def sinusoids(length: int, width: int, base: float = 10000.0) -> Tensor:
    """Sinusoidal positions (Vaswani et al. 2017, 3.5): sines, each beside its cosine.  -> [token, width]"""
    column = torch.arange(0, width, 2, dtype=torch.float64)
    angle = torch.arange(length, dtype=torch.float64)[:, None] / base ** (column / width)
    table = torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)  # [token, width or width + 1]
    return table[:, :width].float()


class Sinusoidal(nn.Module):
    """Adds the sinusoid of its position to each token.  [batch, token, width] -> the same"""

    def __init__(self, length: int, width: int) -> None:
        super().__init__()
        self.table: Tensor
        self.register_buffer("table", sinusoids(length, width), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, token, width] -> the same"""
        return x + self.table[: x.shape[1]]


class RotaryAttention(MultiHeadAttention):
    """Self-attention whose scores depend on the distance between two tokens (Su et al. 2021, equation 34).

    Queries and keys are rotated by an angle that grows with the position, the first half of a head's
    width against its second half; the parameters are those of ``MultiHeadAttention``.
    """

    def __init__(
        self, embed_dim: int, num_heads: int, *args: Any, length: int, base: float = 10000.0, **options: Any
    ) -> None:
        super().__init__(embed_dim, num_heads, *args, **options)
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
        """Rotate each token by its position.  [batch, head, token, head width] -> the same"""
        tokens = x.shape[-2]
        if tokens > len(self.cos):
            raise ValueError(f"{tokens} tokens are more than the {len(self.cos)} positions")
        cos, sin = self.cos[:tokens].to(x.dtype), self.sin[:tokens].to(x.dtype)
        return x * cos + x.roll(self.head_dim // 2, -1) * sin
