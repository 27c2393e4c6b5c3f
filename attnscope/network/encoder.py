"""The encoder and its config, a dataclass that is checked before anything is built from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attnscope.errors import InputError, ModelError
from attnscope.network.attention import MultiHeadAttention, RotaryAttention, Sinusoidal

POSITIONS = ("rotary", "sinusoidal", "none")
ACTIVATIONS = ("gelu", "relu")
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "gelu": F.gelu}

SIZES = {
    "vocabulary": (1, 2**31), "width": (1, 2**16), "layers": (1, 1024), "heads": (1, 2**16),
    "hidden": (1, 2**20), "max_positions": (1, 2**20), "segments": (0, 2),
}  # fmt: skip
"""The least and the most that each whole number may be."""


@dataclass(frozen=True)
class EncoderConfig:
    """Sizes and kinds of one encoder; an invalid value raises ``ModelError``.

    ``hidden`` is the width of the feed-forward layer, ``segments`` the number of distinguishable texts in
    one input (0: none). ``causal`` masks the future of every token; ``trained`` is False for random
    weights.
    """

    vocabulary: int = 8192
    width: int = 256
    layers: int = 4
    heads: int = 8
    hidden: int = 1024
    max_positions: int = 512
    positions: str = "rotary"
    rotary_base: float = 10000.0
    segments: int = 2
    causal: bool = False
    norm_first: bool = True
    activation: str = "gelu"
    dropout: float = 0.0
    trained: bool = False

    def __post_init__(self) -> None:
        for name, (low, high) in SIZES.items():
            value = getattr(self, name)
            if type(value) is not int or not low <= value <= high:
                raise ModelError(f"{name} is a whole number from {low} to {high}, not {value!r}")
        for name in ("causal", "norm_first", "trained"):
            if type(getattr(self, name)) is not bool:
                raise ModelError(f"{name} is true or false, not {getattr(self, name)!r}")
        for name, choices in (("positions", POSITIONS), ("activation", ACTIVATIONS)):
            if getattr(self, name) not in choices:
                raise ModelError(f"{name} is one of {', '.join(choices)}, not {getattr(self, name)!r}")
        for name, least, most in (("dropout", 0.0, 0.9), ("rotary_base", 1.5, 1e9)):
            value = getattr(self, name)
            if type(value) not in (int, float) or not least <= value <= most:
                raise ModelError(f"{name} is a number from {least} to {most}, not {value!r}")
        if self.width % self.heads:
            raise ModelError(f"{self.heads} heads do not divide a width of {self.width}")
        if self.positions == "rotary" and self.width // self.heads % 2:
            raise ModelError(
                f"rotary positions need an even width a head, not {self.width // self.heads}: "
                "choose other heads or width, or other positions"
            )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> EncoderConfig:
        """Build from ``asdict``'s form; unknown fields, and missing sizes, raise ``ModelError``."""
        known = {field.name for field in fields(cls)}
        unknown = sorted(set(values) - known)
        if unknown:
            raise ModelError(f"unknown field {unknown[0]!r}: there are {', '.join(sorted(known))}")
        for name in ("vocabulary", "width", "layers", "heads", "hidden"):
            if name not in values:
                raise ModelError(f"the field {name!r} is missing")
        return cls(**values)


class EncoderLayer(nn.TransformerEncoderLayer):
    """Torch's layer with our attention; ``attention`` replaces it."""

    activation_relu_or_gelu = 0  # never torch's fused kernel, which would do without our attention

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str = "relu",
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        attention: MultiHeadAttention | None = None,
    ) -> None:
        nn.Module.__init__(self)  # torch's own would draw the weights of its attention first
        if activation not in FUNCTIONS:
            raise ValueError(f"no activation {activation!r}: there are {', '.join(FUNCTIONS)}")
        self.self_attn = attention or MultiHeadAttention(
            d_model, nhead, dropout, bias=bias, batch_first=batch_first
        )
        self.linear1 = nn.Linear(d_model, dim_feedforward, bias=bias)
        self.dropout = nn.Dropout(dropout)
        self.linear2 = nn.Linear(dim_feedforward, d_model, bias=bias)
        self.norm_first = norm_first
        self.norm1 = nn.LayerNorm(d_model, layer_norm_eps, bias=bias)
        self.norm2 = nn.LayerNorm(d_model, layer_norm_eps, bias=bias)
        self.dropout1 = nn.Dropout(dropout)
        self.dropout2 = nn.Dropout(dropout)
        self.activation = FUNCTIONS[activation]


class Encoder(nn.Module):
    """A stack of ``EncoderLayer``, bidirectional or causal, whose head ends in the token embedding.

    ``forward`` gives hidden states; ``logits`` turns any of them into scores over the vocabulary: of the
    token there in a masked model, of the next one in a causal model.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocabulary, config.width)
        self.segment = nn.Embedding(config.segments, config.width) if config.segments else None
        shape, length, base = (config.width, config.heads), config.max_positions, config.rotary_base
        self.position = Sinusoidal(length, config.width) if config.positions == "sinusoidal" else None
        self.layers = nn.ModuleList()
        sizes, how = (*shape, config.hidden), {"batch_first": True, "norm_first": config.norm_first}
        turning: MultiHeadAttention | None = None
        for _ in range(config.layers):
            if config.positions == "rotary":
                turning = RotaryAttention(*shape, config.dropout, batch_first=True, length=length, base=base)
            layer = EncoderLayer(*sizes, config.dropout, config.activation, attention=turning, **how)
            self.layers.append(layer)
        self.norm = nn.LayerNorm(config.width) if config.norm_first else nn.Identity()
        width = config.width
        self.head = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width))
        self.head_bias = nn.Parameter(torch.zeros(config.vocabulary))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Small normal weights; those that write to the residual stream shrink with the stack's depth."""
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                residual = name.endswith(("out_proj.weight", "linear2.weight"))
                std = 0.02 / (2 * self.config.layers) ** 0.5 if residual else 0.02
                nn.init.normal_(parameter, std=std)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(
        self,
        ids: Tensor,
        segments: Tensor | None = None,
        attention_mask: Tensor | None = None,
        causal: bool | None = None,
    ) -> Tensor:
        """Hidden states of the last layer.  [batch, token] -> [batch, token, width]

        ``segments`` holds 0 or 1 for each token (all 0 if absent), ``attention_mask`` 1 for each real
        token and 0 for padding, ``causal`` overrules the config.
        """
        tokens = ids.shape[1]
        if tokens > (most := self.config.max_positions):
            raise InputError(f"the text has {tokens} tokens, but the model has {most} positions")
        x = self.embedding(ids)  # [batch, token, width]
        if self.segment is not None:
            x = x + self.segment(torch.zeros_like(ids) if segments is None else segments)
        if self.position is not None:
            x = self.position(x)
        padding = None if attention_mask is None else ~attention_mask.bool()
        causal = self.config.causal if causal is None else causal
        for layer in self.layers:
            x = layer(x, src_key_padding_mask=padding, is_causal=causal)
        hidden: Tensor = self.norm(x)
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores over the vocabulary, before softmax.  [..., width] -> [..., vocabulary]"""
        return F.linear(self.head(hidden), self.embedding.weight, self.head_bias)
