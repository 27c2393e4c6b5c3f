"""Recipes of the types that read sound."""

from __future__ import annotations

from typing import Any

import torch

from tests.tools.coverage.feed import LENGTH, noise, numbers
from tests.tools.coverage.recipe import Recipe


def features(*shape: int, frames: int | None = None) -> Any:
    """Features of two sounds, [frame, feature] or [feature, frame], and a mask over the frames if told."""
    given = {"input_features": noise(2, *shape)}
    if frames is not None:
        given["input_features_mask"] = torch.ones(2, frames, dtype=torch.long)
    return lambda model: given


def packed(model: Any) -> dict[str, Any]:
    """Two sounds one after the other, [feature, frame], with their lengths."""
    mels = model.config.num_mel_bins
    return {"input_features": noise(mels, 80), "feature_lens": torch.tensor([48, 32])}


FRAMES = {"max_source_positions": 20}

SOUND: dict[str, Recipe] = {
    "data2vec-audio": Recipe(changes={"num_conv_pos_embedding_groups": 4}),
    "audio-spectrogram-transformer": Recipe(changes={"max_length": 64}),
    "whisper": Recipe(changes=FRAMES),
    "voxtral_encoder": Recipe(changes=FRAMES),
    "qwen2_audio_encoder": Recipe(changes=FRAMES),
    "moss_transcribe_diarize_audio": Recipe(changes=FRAMES),
    "audioflamingo3_encoder": Recipe(changes=FRAMES, inputs=features(128, 40, frames=40)),
    "qwen2_5_omni_audio_encoder": Recipe(changes={"n_window": 10}, inputs=packed),
    "qwen3_omni_moe_audio_encoder": Recipe(inputs=packed),
    "qwen3_asr_encoder": Recipe(inputs=features(128, 100, frames=100)),
    "fun_asr_nano_encoder": Recipe(inputs=features(20, 560, frames=20)),
    "granite_speech_encoder": Recipe(
        inputs=lambda model: {"hidden_states": noise(2, 20, model.config.input_dim)}
    ),
    "granite_speech_plus_encoder": Recipe(
        inputs=lambda model: {"hidden_states": noise(2, 20, model.config.input_dim)}
    ),
    "speech_to_text": Recipe(
        inputs=lambda model: {
            "input_features": noise(2, 40, model.config.input_feat_per_channel),
            "attention_mask": torch.ones(2, 40, dtype=torch.long),
            "decoder_input_ids": numbers(100, 2, 6),
        }
    ),
    "speecht5": Recipe(
        inputs=lambda model: {
            "input_values": noise(2, LENGTH, model.config.hidden_size),
            "decoder_input_values": noise(2, 6, model.config.hidden_size),
        }
    ),
    "wav2vec2-bert": Recipe(inputs=features(20, 10)),
    "clap": Recipe(
        inputs=lambda model: {
            "input_ids": numbers(100, 2, LENGTH),
            "input_features": noise(2, 1, 1001, 64),
            "is_longer": torch.tensor([[True], [False]]),
        }
    ),
    "phi4_multimodal_audio": Recipe(
        inputs=lambda model: {"hidden_states": noise(2, 64, 80), "mask": torch.ones(2, 64, dtype=torch.bool)}
    ),
    "gemma3n_audio": Recipe(
        inputs=lambda model: {
            "audio_mel": noise(2, 64, 128),
            "audio_mel_mask": torch.zeros(2, 64, dtype=torch.bool),
        }
    ),
    "gemma4_audio": Recipe(
        changes={"subsampling_conv_channels": [128, 32]},
        inputs=lambda model: {"input_features": noise(2, 64, 128)},
    ),
    "vits": Recipe(gain=1.0),
    "moonshine_streaming": Recipe(changes={"num_key_value_heads": 8}),
    "mimi": Recipe(changes={"upsample_groups": 32}),
    "mimi_decoder": Recipe(changes={"upsample_groups": 32}),
    "pocket_tts_audio_tokenizer": Recipe(changes={"upsample_groups": 32}),
}
