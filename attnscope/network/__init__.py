"""The own network: a transformer encoder on ``MultiHeadAttention``, its tokenizer and its folder."""

from attnscope.network.attention import MultiHeadAttention, RotaryAttention, Sinusoidal, sinusoids
from attnscope.network.encoder import Encoder, EncoderConfig, EncoderLayer
from attnscope.network.folder import (
    bundled,
    is_encoder_folder,
    load,
    load_config,
    load_tokenizer,
    save,
    untrained,
)

__all__ = [
    "Encoder",
    "EncoderConfig",
    "EncoderLayer",
    "MultiHeadAttention",
    "RotaryAttention",
    "Sinusoidal",
    "bundled",
    "is_encoder_folder",
    "load",
    "load_config",
    "load_tokenizer",
    "save",
    "sinusoids",
    "untrained",
]
