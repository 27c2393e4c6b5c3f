"""Tiny language models that hear, each with a processor that was made on the spot."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as t

from attnscope.models import Model
from tests.models.vision_language import LAYERS, WORDS, make_tokenizer

TEXT = LAYERS | {"num_key_value_heads": 2, "max_position_embeddings": 2048, "pad_token_id": 1}
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
FOUR_SECONDS = {"max_source_positions": 200}
PAD = ("<|audio_pad|>", "<|audio_start|>", "<|audio_end|>")


def _name(signs: Sequence[str]) -> dict[str, str]:
    """What the signs of a sound are for."""
    return dict(zip(("audio_token", "audio_bos_token", "audio_eos_token"), signs, strict=True))


def _make(
    kind: str,
    signs: Sequence[str],
    sound: dict[str, Any],
    text: dict[str, Any],
    *,
    field: str = "audio_token_id",
    extractor: Any = None,
    words: Sequence[str] = WORDS,
    named: Mapping[str, str] | None = None,
    **options: str,
) -> tuple[Any, Any]:
    """The config and the processor of a kind; the first of its signs stands for a sound."""
    tokenizer = make_tokenizer(*signs, words=words, **(named or {}))
    config = getattr(t, f"{kind}Config")(
        audio_config=SOUND | sound,
        text_config=TEXT | {"vocab_size": len(tokenizer)} | text,
        **{field: tokenizer.convert_tokens_to_ids(signs[0])},
    )
    extractor = extractor or t.WhisperFeatureExtractor(feature_size=16, chunk_length=4)
    return config, getattr(t, f"{kind}Processor")(extractor, tokenizer, **options)


def qwen2_audio() -> tuple[Any, Any]:
    """One vector for two frames of Whisper's encoder."""
    signs = ("<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>")
    text = {"model_type": "qwen2"}
    return _make("Qwen2Audio", signs, FOUR_SECONDS, text, field="audio_token_index", named=_name(signs))


def audioflamingo3() -> tuple[Any, Any]:
    """The same, with no tokens around the sound."""
    return _make("AudioFlamingo3", ["<sound>"], FOUR_SECONDS, {"model_type": "qwen2"})


def glmasr() -> tuple[Any, Any]:
    """One vector for four frames."""
    sound = {"head_dim": 16, "num_key_value_heads": 2, "intermediate_size": 128}
    return _make("GlmAsr", ["<|pad|>"], sound, {"model_type": "llama"}, audio_token="<|pad|>")


def moss() -> tuple[Any, Any]:
    """Four frames again, and numbers that say the time between them."""
    return _make(
        "MossTranscribeDiarize",
        PAD,
        {"max_source_positions": 1500, "intermediate_size": 32},
        {"model_type": "qwen3", "head_dim": 16},
        extractor=t.MossTranscribeDiarizeFeatureExtractor(feature_size=16),
        words=[*map(str, range(10)), "the", "cat"],
        **_name(PAD),
    )


def qwen3_asr() -> tuple[Any, Any]:
    """Thirteen vectors for each second, the last of which is shorter."""
    return _make(
        "Qwen3ASR",
        PAD,
        {"intermediate_size": 32, "output_dim": 32, "downsample_hidden_size": 16},
        {"model_type": "qwen3", "head_dim": 16},
        extractor=t.Qwen3ASRFeatureExtractor(feature_size=16),
        named=_name(PAD),
    )


def voxtral() -> tuple[Any, Any]:
    """A processor that takes a sound in a chat alone, which needs a tokenizer of another library."""
    sound = FOUR_SECONDS | {"intermediate_size": 128, "encoder_ffn_dim": 128}
    return _make("Voxtral", ["[AUDIO]"], sound, {"model_type": "llama"})


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
