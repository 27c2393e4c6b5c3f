"""Recipes of the types that read a text beside something else, or images together with places."""

from __future__ import annotations

from typing import Any

import torch

from tests.tools.coverage.feed import LENGTH, image, noise, numbers, texts
from tests.tools.coverage.recipe import Recipe
from tests.tools.coverage.text import EXPERTS, INDEXED, ROPE
from tests.tools.coverage.vision import FOUR_STAGES, THIN, flat_patches, pixels, shaped_patches


def regions(model: Any) -> dict[str, Any]:
    """Features and places of five regions of an image."""
    return {"visual_feats": noise(2, 5, model.config.visual_feat_dim), "visual_pos": noise(2, 5, 4)}


def both(model: Any) -> dict[str, Any]:
    """A text and an image, for each of two."""
    return texts(model, ["input_ids"], 2) | image(model, [], 2)


def marked(model: Any) -> dict[str, Any]:
    """A text with a place for each query of an image's former, and the image."""
    config = model.config
    places = torch.full((2, config.num_query_tokens), config.image_token_id)
    given = {"input_ids": torch.cat([places, numbers(100, 2, 6)], 1), "pixel_values": noise(2, 3, 56, 56)}
    return given | {"attention_mask": torch.ones_like(given["input_ids"])}


def pages(model: Any) -> dict[str, Any]:
    """A page's words with their boxes, its picture and a target."""
    return {
        "input_ids": numbers(100, 2, LENGTH),
        "bbox": torch.rand(2, LENGTH, 4, generator=torch.Generator().manual_seed(1)),
        "decoder_input_ids": numbers(100, 2, 6),
    }


TEXT_AS_IS = {"text_config": "sdpa", "": "eager"}
SAM3 = {
    "backbone_config.image_size": 112,
    "backbone_config.pretrain_image_size": 112,
    "backbone_config.hidden_size": 64,
    "backbone_config.intermediate_size": 128,
    "backbone_config.num_hidden_layers": 2,
    "backbone_config.num_attention_heads": 4,
    "backbone_config.global_attn_indexes": [1],
    "backbone_config.window_size": 4,
    "backbone_feature_sizes": [[32, 32], [16, 16], [8, 8]],
}
SAM3_WITH_TEXT = Recipe(
    changes={f"vision_config.{key}": value for key, value in SAM3.items()},
    inputs=lambda model: (
        texts(model, ["input_ids", "attention_mask"], 2) | {"pixel_values": noise(2, 3, 112, 112)}
    ),
)
SMALL_IMAGE = {"vision_config.image_size": 56}
QUERIES = SMALL_IMAGE | {
    "vision_config.num_attention_heads": 8,
    "num_query_tokens": 4,
    "image_token_index": 3,
}

MIXED: dict[str, Recipe] = {
    "lxmert": Recipe(inputs=lambda model: texts(model, ["input_ids", "attention_mask"], 2) | regions(model)),
    "bridgetower": Recipe(factors=(4,), inputs=both),
    "vilt": Recipe(inputs=both),
    "aya_vision": Recipe(changes={"vision_config.num_attention_heads": 16}),
    "align": Recipe(
        factors=(1,),
        changes={f"vision_config.{key}": value for key, value in THIN.items()}
        | {"text_config.hidden_size": 48, "text_config.intermediate_size": 96, "projection_dim": 160},
        inputs=both,
    ),
    "clvp": Recipe(
        changes={f"{part}_config.num_attention_heads": 1 for part in ("text", "speech")},
        inputs=lambda model: {"input_ids": numbers(100, 2, LENGTH), "input_features": noise(2, 80, 32)},
    ),
    "diffusion_gemma": Recipe(changes={f"text_config.{key}": value for key, value in EXPERTS.items()}),
    "grounding-dino": Recipe(changes={"num_queries": 20}, eager=TEXT_AS_IS),
    "mm-grounding-dino": Recipe(changes={"num_queries": 20}, eager=TEXT_AS_IS),
    "sam3": SAM3_WITH_TEXT,
    "sam3_lite_text": SAM3_WITH_TEXT,
    "sam3_vision_model": Recipe(changes=SAM3, inputs=pixels(3, 112, 112)),
    "sam3_lite_text_text_model": Recipe(layers=4),
    "sam3_tracker": Recipe(
        changes={f"vision_config.{key}": value for key, value in SAM3.items()}
        | {"prompt_encoder_config.image_size": 112, "prompt_encoder_config.patch_size": 14},
        inputs=lambda model: {
            "pixel_values": noise(2, 3, 112, 112),
            "input_points": torch.full((2, 1, 1, 2), 60.0),
            "input_labels": torch.ones(2, 1, 1, dtype=torch.long),
        },
    ),
    "tipsv2": Recipe(changes=SMALL_IMAGE, inputs=both),
    "vision-text-dual-encoder": Recipe(changes={"vision_config.pooler_output_size": 48}, inputs=both),
    "videoprism": Recipe(
        changes={"vision_config.image_size": 36, "vision_config.num_frames": 4},
        inputs=lambda model: texts(model, ["input_ids"], 2) | {"pixel_values_videos": noise(2, 4, 3, 36, 36)},
    ),
    "xclip": Recipe(
        changes={"vision_config.image_size": 64},
        inputs=lambda model: texts(model, ["input_ids"], 2) | {"pixel_values": noise(2, 8, 3, 64, 64)},
    ),
    "siglip2": Recipe(inputs=lambda model: texts(model, ["input_ids"], 2) | shaped_patches(model)),
    "blip-2": Recipe(changes=QUERIES, inputs=marked),
    "instructblip": Recipe(
        changes=QUERIES, inputs=lambda model: marked(model) | {"qformer_input_ids": numbers(100, 2, 5)}
    ),
    "instructblipvideo": Recipe(
        changes=QUERIES | {"video_token_index": 3},
        inputs=lambda model: {
            "input_ids": torch.cat([torch.full((2, 8), 3), numbers(100, 2, 6)], 1),
            "pixel_values": noise(2, 2, 3, 56, 56),
            "qformer_input_ids": numbers(100, 2, 5),
        },
    ),
    "kosmos-2": Recipe(
        changes=SMALL_IMAGE | {"text_config.layers": 2, "latent_query_num": 4},
        inputs=lambda model: {
            "input_ids": numbers(100, 2, LENGTH),
            "pixel_values": noise(2, 3, 56, 56),
            "image_embeds_position_mask": torch.arange(LENGTH).expand(2, LENGTH).lt(4),
        },
    ),
    "idefics": Recipe(
        changes=SMALL_IMAGE,
        inputs=lambda model: (
            texts(model, ["input_ids", "attention_mask"], 2)
            | {
                "pixel_values": noise(2, 1, 3, 56, 56),
                "image_attention_mask": torch.ones(2, LENGTH, 1, dtype=torch.long),
            }
        ),
    ),
    "layoutlmv3": Recipe(
        changes={"coordinate_size": 8, "shape_size": 8, "input_size": 32},
        inputs=lambda model: texts(model, ["input_ids", "bbox"], 2) | {"pixel_values": noise(2, 3, 32, 32)},
    ),
    "udop": Recipe(inputs=pages),
    "pix2struct": Recipe(
        changes={"text_config.initializer_range": 0.02},
        inputs=lambda model: flat_patches(768)(model) | {"decoder_input_ids": numbers(100, 2, 6)},
    ),
    "nougat": Recipe(changes={"encoder.model_type": "donut-swin"}),
    "oneformer": Recipe(
        changes={"backbone_config": FOUR_STAGES, "conv_dim": 32},
        inputs=lambda model: {"pixel_values": noise(2, 3, 64, 64), "task_inputs": numbers(100, 2, 77)},
    ),
    "pi0": Recipe(
        changes={
            "vlm_config.vision_config.num_attention_heads": 9,
            "vlm_config.vision_config.image_size": 28,
        },
        inputs=lambda model: {
            "action_embeds": noise(2, 5, model.config.dit_config.hidden_size),
            "input_ids": torch.cat(
                [torch.full((2, 4), model.config.vlm_config.image_token_id), numbers(100, 2, 6)], 1
            ),
            "pixel_values": noise(2, 1, 3, 28, 28),
            "pixel_attention_mask": torch.ones(2, 1, dtype=torch.bool),
            "attention_mask": torch.ones(2, 10, dtype=torch.long),
        },
    ),
    "pe_audio": Recipe(
        inputs=lambda model: {"input_ids": numbers(100, 2, LENGTH), "input_values": noise(2, 1, 1920 * 4)}
    ),
    "voxtral_realtime": Recipe(
        inputs=lambda model: {"input_ids": numbers(100, 2, LENGTH), "input_features": noise(2, 128, 96)}
    ),
    "step3p7": Recipe(changes={"text_config.sliding_window": 6}),
    "cohere_compass": Recipe(
        changes={"vision_config.num_heads": 9, "text_config.rope_parameters": {"full_attention": ROPE}}
    ),
    "qwen4_exp": Recipe(changes={f"text_config.{key}": value for key, value in INDEXED.items()}),
    "ernie4_5_vl_moe": Recipe(changes={"text_config.rope_parameters.mrope_section": [1, 1, 2]}),
    "granite4_vision": Recipe(changes={"image_grid_pinpoints": [[56, 56]], "vision_config.image_size": 56}),
    "emu3": Recipe(
        changes={"vq_config.base_channels": 32, "vocabulary_map": {"<image>": 3, "<|extra_200|>": 4}}
    ),
    "chameleon": Recipe(changes={"vocabulary_map": {"<image>": 3, "IMGIMGAA": 4}}),
    "musicgen": Recipe(model="MusicgenForConditionalGeneration"),
    "musicgen_melody": Recipe(model="MusicgenMelodyForConditionalGeneration"),
    "shieldgemma2": Recipe(changes={"yes_token_index": 5, "no_token_index": 6}),
    "tvp": Recipe(
        changes={
            "backbone_config.depths": [1, 1, 1, 1],
            "max_img_size": 64,
            "visual_prompt_size": 8,
            "num_frames": 2,
        },
        inputs=lambda model: (
            texts(model, ["input_ids", "attention_mask"], 1) | {"pixel_values": noise(1, 2, 3, 64, 64)}
        ),
    ),
}
