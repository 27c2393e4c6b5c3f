"""The own network: a transformer encoder on ``MultiHeadAttention``, its tokenizer and its folder."""

from attnscope.network.attention import MultiHeadAttention
from attnscope.network.config import EncoderConfig
from attnscope.network.encoder import Encoder
from attnscope.network.folder import bundled, is_encoder_folder, load, load_config, save, untrained
from attnscope.network.layer import EncoderLayer
from attnscope.network.positions import RotaryAttention, Sinusoidal, sinusoids
from attnscope.network.tokenizer import load_tokenizer

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
