"""attnscope's own network: a transformer encoder on ``MultiHeadAttention``, its tokenizer and its folder."""

from attnscope.network.attention import MultiHeadAttention, RotaryAttention, sinusoids
from attnscope.network.encoder import Encoder, EncoderConfig, EncoderLayer
from attnscope.network.folder import (
    bundled,
    is_encoder_folder,
    load_config,
    load_encoder,
    load_tokenizer,
    save_encoder,
    untrained,
)

__all__ = [
    "Encoder",
    "EncoderConfig",
    "EncoderLayer",
    "MultiHeadAttention",
    "RotaryAttention",
    "bundled",
    "is_encoder_folder",
    "load_config",
    "load_encoder",
    "load_tokenizer",
    "save_encoder",
    "sinusoids",
    "untrained",
]
