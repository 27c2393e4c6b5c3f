"""The encoder: tokens in, one vector a token out, and a head that guesses tokens from vectors."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attnscope.errors import InputError
from attnscope.network.attention import MultiHeadAttention
from attnscope.network.config import EncoderConfig
from attnscope.network.layer import EncoderLayer
from attnscope.network.positions import RotaryAttention, Sinusoidal


class Encoder(nn.Module):
    """A stack of ``EncoderLayer``, bidirectional or causal, with a language-model head.

    ``forward`` gives hidden states; ``logits`` turns any of them into scores over the vocabulary
    (of the token that stands there in a masked model, of the next one in a causal model). The head's
    last matrix is the token embedding itself (Press & Wolf 2017).
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocabulary, config.width)
        self.segment = nn.Embedding(config.segments, config.width) if config.segments else None
        self.position = (
            Sinusoidal(config.max_positions, config.width) if config.positions == "sinusoidal" else None
        )
        self.layers = nn.ModuleList(_layer(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width) if config.norm_first else nn.Identity()
        self.head = nn.Sequential(
            nn.Linear(config.width, config.width), nn.GELU(), nn.LayerNorm(config.width)
        )
        self.head_bias = nn.Parameter(torch.zeros(config.vocabulary))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Small normal weights; what writes into the residual stream is smaller the deeper the stack is."""
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

        ``segments`` holds 0 or 1 for each token (all 0 if absent), ``attention_mask`` True or 1 for
        each real token and False or 0 for padding, ``causal`` overrules the config. Raises ``InputError``
        for an input that is longer than the model's positions.
        """
        tokens = ids.shape[1]
        if tokens > self.config.max_positions:
            raise InputError(
                f"the text has {tokens} tokens, but the model has {self.config.max_positions} positions"
            )
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


def _layer(config: EncoderConfig) -> EncoderLayer:
    attention: MultiHeadAttention | None = None
    if config.positions == "rotary":
        attention = RotaryAttention(
            config.width,
            config.heads,
            config.dropout,
            batch_first=True,
            length=config.max_positions,
            base=config.rotary_base,
        )
    return EncoderLayer(
        config.width,
        config.heads,
        config.hidden,
        config.dropout,
        config.activation,
        batch_first=True,
        norm_first=config.norm_first,
        attention=attention,
    )
