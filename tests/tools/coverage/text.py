"""Recipes of the types that read token ids, or numbers in time."""

from __future__ import annotations

from typing import Any

import torch

from tests.tools.coverage.feed import LENGTH, noise, numbers, texts
from tests.tools.coverage.recipe import Recipe


def codebooks(count: int, batch: int = 2) -> Any:
    """Token ids of several codebooks at each place, [batch, place, codebook]."""
    return lambda model: {"input_ids": numbers(100, batch, LENGTH, count)}


def globally(model: Any) -> dict[str, Any]:
    """Texts whose first token sees all and is seen by all."""
    given = {"input_ids": numbers(100, 2, LENGTH), "attention_mask": torch.ones(2, LENGTH, dtype=torch.long)}
    return given | {"global_attention_mask": torch.arange(LENGTH).eq(0).long().expand(2, LENGTH)}


def series(model: Any) -> dict[str, Any]:
    """A past and a future of numbers, with their times and lags."""
    config = model.config
    past = config.context_length + max(config.lags_sequence)
    times = config.num_time_features
    return {
        "past_values": noise(2, past),
        "past_time_features": noise(2, past, times),
        "past_observed_mask": torch.ones(2, past),
        "future_values": noise(2, config.prediction_length),
        "future_time_features": noise(2, config.prediction_length, times),
    }


def trajectory(model: Any) -> dict[str, Any]:
    """States, actions and rewards of a game."""
    config = model.config
    return {
        "states": noise(2, 5, config.state_dim),
        "actions": noise(2, 5, config.act_dim),
        "rewards": noise(2, 5, 1),
        "returns_to_go": noise(2, 5, 1),
        "timesteps": torch.arange(5).expand(2, 5),
        "attention_mask": torch.ones(2, 5),
    }


def documents(model: Any) -> dict[str, Any]:
    """A question with two documents for each text."""
    return {
        "input_ids": numbers(100, 2, LENGTH),
        "context_input_ids": numbers(100, 4, LENGTH),
        "context_attention_mask": torch.ones(4, LENGTH, dtype=torch.long),
        "doc_scores": noise(2, 2),
        "decoder_input_ids": numbers(100, 2, 6),
        "n_docs": 2,
    }


SERIES = {"prediction_length": 4, "context_length": 8, "num_time_features": 2, "feature_size": 11}
ROPE = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]}
INDEXED = {
    "layer_types": ["linear_attention", "indexed_attention"],
    "indexer_n_heads": 2,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 16,
    "indexer_budget": 8,
    "indexer_compress_ratio": 4,
}
OCR = {
    "mlp_layer_types": ["dense", "sparse"],
    "num_experts_per_tok": 2,
    "n_routed_experts": 4,
    "moe_intermediate_size": 32,
}
EXPERTS = {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 32}
FORECAST = {"context_length": 64, "hidden_size": 64, "intermediate_size": 64, "head_dim": 8}

# scores in the tens make the roundings of other layers visible: the two that start out there have no gain
TEXT: dict[str, Recipe] = {
    "gemma4": Recipe(gain=1.0),
    "gemma4_text": Recipe(gain=1.0),
    "esm": Recipe(changes={"vocab_size": 99, "pad_token_id": 1, "mask_token_id": 2}),
    "bamba": Recipe(changes={"attn_layer_indices": [1]}),
    "granitemoehybrid": Recipe(changes={"layer_types": ["mamba", "attention"]}),
    "recurrent_gemma": Recipe(layers=3),
    "lfm2_moe": Recipe(changes={"layer_types": ["conv", "full_attention"]}),
    "xmod": Recipe(changes={"default_language": "en_XX"}),
    "nemotron": Recipe(changes={"num_key_value_heads": 8}),
    "deepseek_v2": Recipe(changes={"num_experts_per_tok": 2, "moe_intermediate_size": 64}),
    "dots1": Recipe(changes={"n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1}),
    "blt": Recipe(
        changes={"encoder_hash_byte_group_vocab": 200},
        inputs=lambda model: texts(model, ["input_ids"], 2) | {"use_cache": False},
    ),
    "cohere_compass_text": Recipe(changes={"rope_parameters": {"full_attention": ROPE}}),
    "csm": Recipe(model="CsmBackboneModel", inputs=codebooks(32)),
    "dbrx": Recipe(changes={"attn_config.rope_theta": 1e4, "attn_config.clip_qkv": 8.0}),
    "dia_decoder": Recipe(
        inputs=lambda model: (
            codebooks(9)(model) | {"encoder_hidden_states": noise(2, 15, model.config.cross_hidden_size)}
        )
    ),
    "ernie4_5_vl_moe_text": Recipe(changes={"rope_parameters.mrope_section": [1, 1, 2]}),
    "gemma3n_text": Recipe(changes={"num_kv_shared_layers": 0}),
    "bros": Recipe(factors=(4,), changes={"dim_bbox": 8}),
    "clvp_encoder": Recipe(changes={"num_attention_heads": 1}),
    "deepseek_ocr2_text": Recipe(changes=OCR),
    "diffusion_gemma_text": Recipe(changes=EXPERTS),
    "longformer": Recipe(changes={"attention_window": [4, 8]}, inputs=globally),
    "led": Recipe(
        changes={"attention_window": [4, 8]},
        inputs=lambda model: globally(model) | {"decoder_input_ids": numbers(100, 2, 6)},
    ),
    "pegasus_x": Recipe(changes={"block_size": 4, "num_global_tokens": 3}),
    "hrm_text": Recipe(changes={"num_layers_per_stack": 1, "num_hidden_layers": 16}),
    "kyutai_speech_to_text": Recipe(inputs=codebooks(33)),
    "moshi_depth": Recipe(
        inputs=lambda model: {
            "input_ids": numbers(100, 2, 8),
            "last_hidden_state": noise(2, 1, model.config.input_size),
        }
    ),
    "qwen3_omni_moe_talker_text": Recipe(changes={"shared_expert_intermediate_size": 32}),
    "qwen3_omni_moe_talker_code_predictor": Recipe(
        inputs=lambda model: {"inputs_embeds": noise(2, LENGTH, model.config.hidden_size)}
    ),
    "qwen4_exp_text": Recipe(changes=INDEXED),
    "step3p5": Recipe(changes={"sliding_window": 6}),
    "t5gemma2_decoder": Recipe(changes={"dropout_rate": 0.0}),
    "t5gemma2_text": Recipe(changes={"dropout_rate": 0.0}),
    "t5gemma2_encoder": Recipe(changes={"text_config.dropout_rate": 0.0}),
    "voxtral_realtime_text": Recipe(
        inputs=lambda model: texts(model, ["input_ids"], 2) | {"t_cond": noise(1, model.config.hidden_size)}
    ),
    "zamba": Recipe(layers=4, changes={"layers_block_type": ["linear_attention", "hybrid"] * 2}),
    "zamba2": Recipe(
        layers=4,
        changes={"layers_block_type": ["linear_attention", "hybrid"] * 2, "hybrid_layer_ids": [1, 3]},
    ),
    "musicgen_decoder": Recipe(inputs=lambda model: {"input_ids": numbers(100, 8, LENGTH)}),
    "musicgen_melody_decoder": Recipe(inputs=lambda model: {"input_ids": numbers(100, 8, LENGTH)}),
    "rag": Recipe(inputs=documents),
    "pix2struct_text_model": Recipe(changes={"initializer_range": 0.02}),
    "autoformer": Recipe(changes=SERIES | {"context_length": 14}, inputs=series),
    "informer": Recipe(changes=SERIES, inputs=series),
    "time_series_transformer": Recipe(changes=SERIES, inputs=series),
    "decision_transformer": Recipe(changes={"hidden_size": 32, "n_head": 2}, inputs=trajectory),
    "patchtst": Recipe(inputs=lambda model: {"past_values": noise(2, model.config.context_length, 1)}),
    "patchtsmixer": Recipe(inputs=lambda model: {"past_values": noise(2, model.config.context_length, 1)}),
    "timesfm": Recipe(
        changes=FORECAST,
        inputs=lambda model: {
            "past_values": noise(2, 64),
            "past_values_padding": torch.zeros(2, 64, dtype=torch.long),
            "freq": torch.zeros(2, 1, dtype=torch.long),
        },
    ),
    "timesfm2_5": Recipe(
        changes=FORECAST | {"num_attention_heads": 8, "num_key_value_heads": 8},
        inputs=lambda model: {"past_values": noise(2, 64)},
    ),
}
