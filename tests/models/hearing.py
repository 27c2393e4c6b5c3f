"""Tiny language models that hear, each with a processor that was made on the spot."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as t

from attnscope.models import Model
from tests.models.vision_language import make_tokenizer

TEXT = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 2048,
    "pad_token_id": 1,
}
SOUND = {
    "d_model": 32,
    "encoder_layers": 2,
    "encoder_attention_heads": 2,
    "encoder_ffn_dim": 32,
    "num_mel_bins": 16,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}
POSITIONS = {"max_source_positions": 200}
"""Four seconds."""


def _extractor() -> Any:
    return t.WhisperFeatureExtractor(feature_size=16, chunk_length=4)


def qwen2_audio() -> tuple[Any, Any]:
    """One vector for two frames of Whisper's encoder."""
    names = {
        "audio_token": "<|AUDIO|>",
        "audio_bos_token": "<|audio_bos|>",
        "audio_eos_token": "<|audio_eos|>",
    }
    words = make_tokenizer(*names.values(), **names)
    config = t.Qwen2AudioConfig(
        audio_config=t.Qwen2AudioEncoderConfig(**SOUND, **POSITIONS),
        text_config=t.Qwen2Config(**TEXT, vocab_size=len(words)),
        audio_token_index=words.convert_tokens_to_ids("<|AUDIO|>"),
    )
    return config, t.Qwen2AudioProcessor(_extractor(), words)


def audioflamingo3() -> tuple[Any, Any]:
    """The same, with no tokens around the sound."""
    words = make_tokenizer("<sound>")
    config = t.AudioFlamingo3Config(
        audio_config=t.AudioFlamingo3EncoderConfig(**SOUND, **POSITIONS),
        text_config=t.Qwen2Config(**TEXT, vocab_size=len(words)),
        audio_token_id=words.convert_tokens_to_ids("<sound>"),
    )
    return config, t.AudioFlamingo3Processor(_extractor(), words)


def glmasr() -> tuple[Any, Any]:
    """One vector for four frames."""
    words = make_tokenizer("<|pad|>")
    config = t.GlmAsrConfig(
        audio_config=t.GlmAsrEncoderConfig(
            **SOUND, head_dim=16, num_key_value_heads=2, intermediate_size=128
        ),
        text_config=t.LlamaConfig(**TEXT, vocab_size=len(words)),
        audio_token_id=words.convert_tokens_to_ids("<|pad|>"),
    )
    return config, t.GlmAsrProcessor(_extractor(), words, audio_token="<|pad|>")


def moss() -> tuple[Any, Any]:
    """Four frames again, and numbers that say the time between them."""
    signs = "<|audio_pad|>", "<|audio_start|>", "<|audio_end|>"
    words = make_tokenizer(*signs, words=[str(number) for number in range(10)] + ["the", "cat"])
    config = t.MossTranscribeDiarizeConfig(
        audio_config=dict(SOUND, max_source_positions=1500, intermediate_size=32),
        text_config=t.Qwen3Config(**TEXT, head_dim=16, vocab_size=len(words)),
        audio_token_id=words.convert_tokens_to_ids(signs[0]),
    )
    named = dict(zip(("audio_token", "audio_bos_token", "audio_eos_token"), signs, strict=True))
    return config, t.MossTranscribeDiarizeProcessor(
        t.MossTranscribeDiarizeFeatureExtractor(feature_size=16), words, **named
    )


def qwen3_asr() -> tuple[Any, Any]:
    """Thirteen vectors for each second, the last of which is shorter."""
    signs = "<|audio_pad|>", "<|audio_start|>", "<|audio_end|>"
    named = dict(zip(("audio_token", "audio_bos_token", "audio_eos_token"), signs, strict=True))
    words = make_tokenizer(*signs, **named)
    config = t.Qwen3ASRConfig(
        audio_config=t.Qwen3ASREncoderConfig(
            **SOUND, intermediate_size=32, output_dim=32, downsample_hidden_size=16
        ),
        text_config=t.Qwen3Config(**TEXT, head_dim=16, vocab_size=len(words)),
        audio_token_id=words.convert_tokens_to_ids(signs[0]),
    )
    return config, t.Qwen3ASRProcessor(t.Qwen3ASRFeatureExtractor(feature_size=16), words)


def voxtral() -> tuple[Any, Any]:
    """A processor that takes a sound in a chat alone, which needs a tokenizer of another library."""
    words = make_tokenizer("[AUDIO]")
    sound = {name: value for name, value in SOUND.items() if name != "encoder_ffn_dim"}
    config = t.VoxtralConfig(
        audio_config=t.VoxtralEncoderConfig(**sound, **POSITIONS, intermediate_size=128),
        text_config=t.LlamaConfig(**TEXT, vocab_size=len(words)),
        audio_token_id=words.convert_tokens_to_ids("[AUDIO]"),
    )
    return config, t.VoxtralProcessor(_extractor(), words)


SECONDS = {qwen2_audio: 0.04, audioflamingo3: 0.04, glmasr: 0.08, moss: 0.08, qwen3_asr: 0.08}
"""How long a token of each is, as its authors have it."""


def save(folder: Path, made: Callable[[], tuple[Any, Any]]) -> str:
    """A folder with a random model of a kind."""
    torch.manual_seed(0)
    config, processor = made()
    try:
        model = t.AutoModelForMultimodalLM.from_config(config)
    except ValueError:  # the library has it without a head alone
        model = t.AutoModel.from_config(config)
    for weights in model.parameters():
        if weights.ndim > 1:
            torch.nn.init.normal_(weights, std=0.1)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return str(folder)


def require_weights(model: Model) -> None:
    """Skip where transformers reads such a folder without its language model, which is then random anew."""
    if any("stay random" in note for note in model.notes):
        pytest.skip("this release of transformers does not find the weights of the language model")
