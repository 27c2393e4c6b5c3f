"""What is to be said of small models that read pictures in texts and of their processors, type by type.

``RECIPES`` says what the classes of a type do not tell, ``LEFT`` which types are not made, and why.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Reading:
    """What a type's own classes do not tell of a small model and its processor.

    ``changes`` of the config have dotted keys; ``images`` are settings of the image processor, ``options`` of
    the processor, ``parts`` the classes of what it is made of.
    """

    changes: Mapping[str, Any] = field(default_factory=dict)
    spelled: bool = False  # its signs are words as others, and its texts begin with a mark
    images: Mapping[str, Any] = field(default_factory=dict)
    videos: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    parts: Mapping[str, str] = field(default_factory=dict)
    processor: str | None = None
    signs: Sequence[str] = ()
    ids: Mapping[str, str] = field(default_factory=dict)  # of the config, by dotted keys: their tokens
    side: int | None = None  # of a picture, in pixels


HEADS = {"vision_config.num_heads": 9}
NAMED_HEADS = {"vision_config.num_attention_heads": 9}
FOURTEEN = {"vision_config.num_heads": 14}
STARTS = {"vision_start_token_id": 5, "vision_end_token_id": 6, "audio_start_token_id": 7}
MERGED = {"insert_layer_id": 0, "vision_config.insert_layer_id": 0}
SOUNDS = {"feature_extractor": "WhisperFeatureExtractor"}
QWEN = {"image_processor": "Qwen2VLImageProcessor", "video_processor": "Qwen2VLVideoProcessor"}
GEMMA4 = {
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 24,
    "pooling_kernel_size": 2,
}
POOLED = {"pooling_kernel_size": 2, "patch_size": 16}
SOFT = POOLED | {"max_soft_tokens": 70}
PIXTRAL = {"size": {"longest_edge": 112}, "patch_size": {"height": 14, "width": 14}}

PINS = [[56, 112], [112, 56], [112, 112]]
CHART = (
    "{% for m in messages %}{% for p in m.content %}{% if p.type == 'image' %}"
    "<img>{{ '<imgpad>' * 256 }}</img>{% else %}{{ p.text }}{% endif %}{% endfor %}{% endfor %}"
)

RECIPES: dict[str, Reading] = {
    "cosmos3_edge": Reading(NAMED_HEADS),
    "cosmos3_omni": Reading(
        HEADS | {"vision_config.deepstack_visual_indexes": [0]}, processor="Qwen3VLProcessor"
    ),
    "ernie4_5_vl_moe": Reading({"vision_config.num_heads": 10}, videos={"draw_on_frames": False}),
    "exaone4_5": Reading(FOURTEEN | {"vision_config.num_key_value_heads": 7}),
    "gemma4": Reading({"vision_config": GEMMA4}, images=SOFT),
    "glmga": Reading(processor="Glm46VProcessor"),
    "granite_docling": Reading(
        {"vision_config.scale_factor": 2, "vision_config.deepstack_visual_indexes": [0]},
        options={"image_seq_len": 4},
    ),
    "hyperclovax_vision_v2": Reading(FOURTEEN),
    "kimi_k25": Reading(NAMED_HEADS | {"vision_config.pos_emb_width": 64}),
    "lighton_ocr": Reading(images=PIXTRAL),
    "minicpmv4_6": Reading(MERGED),
    "minicpmv4_7": Reading(MERGED),
    "minimax_m3_vl": Reading(
        signs=[f"]<]{name}[>[" for name in ("image", "video", "start of image", "end of image")]
    ),
    "paddleocr_vl": Reading(NAMED_HEADS),
    "qianfan_ocr": Reading({"image_seq_length": 4}, options={"image_seq_length": 4}),
    "qwen3_5_moe": Reading(HEADS),
    "qwen4_exp": Reading(HEADS),
    "qwen2_5_omni_thinker": Reading(FOURTEEN | STARTS, processor="Qwen2_5OmniProcessor", parts=QWEN | SOUNDS),
    "qwen3_omni_moe_thinker": Reading(HEADS | STARTS, processor="Qwen3OmniMoeProcessor", parts=QWEN | SOUNDS),
    "aria": Reading(
        NAMED_HEADS
        | {
            "vision_config.patch_size": 14,
            "vision_config.image_size": 980,
            "projector_patch_to_query_dict": {"1225": 8, "4900": 16},
        },
        options={"size_conversion": {490: 8, 980: 16}},
    ),
    "deepseek_ocr2": Reading(
        {
            "text_config.mlp_layer_types": ["dense", "dense"],
            "vision_config.sam_config.downsample_channels": [32, 256],
            "vision_config.sam_config.image_size": 1024,
        },
        images={"size": {"height": 1024, "width": 1024}, "tile_size": 768, "max_patches": 2},
        options={"patch_size": 16},
    ),
    "unlimited_ocr": Reading(
        {"vision_config.sam_config.downsample_channels": [32, 64]},
        images={"size": {"height": 256, "width": 256}, "tile_size": 128, "max_patches": 4},
        options={"patch_size": 16},
    ),
    "deepseek_vl_hybrid": Reading(
        {"high_res_vision_config.image_size": 256, "high_res_vision_config.global_attn_indexes": [0]},
        images={"high_res_size": {"height": 256, "width": 256}},
        options={"num_image_tokens": 16},
    ),
    "dots3_note": Reading(
        {"vision_config.adapter_in_dim": 96, "audio_config.adapter_input_size": 80},
        images={"temporal_patch_size": 1},
    ),
    "diffusion_gemma": Reading(
        {"vision_config": GEMMA4},
        images=SOFT,
        parts={
            "image_processor": "Gemma4ImageProcessor",
            "video_processor": "Gemma4VideoProcessor",
            "feature_extractor": "Gemma4AudioFeatureExtractor",
        },
    ),
    "kosmos-2.5": Reading(processor="Kosmos2_5Processor"),
    "fuyu": Reading(
        images={"size": {"height": 150, "width": 150}},
        spelled=True,
        signs=["|SPEAKER|", "|NEWLINE|"],
        ids={"image_token_id": "|SPEAKER|"},
    ),
    "got_ocr2": Reading(side=1024),
    "granite4_vision": Reading(
        {
            "vision_config.hidden_size": 64,
            "vision_config.num_attention_heads": 4,
            "vision_config.patch_size": 14,
            "deepstack_layer_map": [[-1, 0]],
            "image_grid_pinpoints": PINS,
            "spatial_target_layers": [1],
            "downsample_rate": "2/4",
        },
        options={
            "patch_size": 14,
            "vision_feature_select_strategy": "default",
            "num_additional_image_tokens": 1,
            "downsample_rate": "2/4",
        },
        images={"image_grid_pinpoints": PINS},
        side=56,
    ),
    "inkling2": Reading(images={"size": {"height": 40, "width": 40}}),
    "inkling_mm_model": Reading(images={"size": {"height": 40, "width": 40}}),
    "mistral_large4": Reading(images=PIXTRAL, options={"spatial_merge_size": 2}),
    "t5gemma2": Reading(
        {
            "encoder.mm_tokens_per_image": 4,
            "encoder.vision_config.image_size": 56,
            "encoder.vision_config.patch_size": 14,
        },
        options={"image_seq_length": 4},
        ids={
            "image_token_index": "<image_token>",
            "eoi_token_index": "<eoi_token>",
            "encoder.image_token_id": "<image_token>",
        },
        side=56,
    ),
    "molmo2": Reading(
        {
            "adapter_config.vision_feature_layer": [1, 0],
            "vision_config.num_position_embeddings": 36,
            "adapter_config.text_hidden_size": 256,
        },
        images={"overlap_margins": [1, 1], "max_crops": 4},
        side=84,
        ids={
            "image_patch_id": "<im_patch>",
            "image_start_token_id": "<im_start>",
            "image_end_token_id": "<im_end>",
        },
    ),
    "gemma4_unified": Reading(
        {
            "vision_config": {
                "patch_size": 16,
                "pooling_kernel_size": 2,
                "mm_embed_dim": 144,
                "mm_posemb_size": 64,
                "output_proj_dims": 144,
            }
        },
        images=SOFT,
        videos=SOFT,
    ),
    "muse_glimmer": Reading({"vision_config.pos_emb_width": 32, "vision_config.num_attention_heads": 12}),
    "muse_spark": Reading({"vision_config.pos_emb_width": 32, "vision_config.num_attention_heads": 12}),
    "nemotron_h_omni": Reading(parts={"feature_extractor": "ParakeetFeatureExtractor"}),
    "pp_formulanet": Reading({"vision_config.output_channels": 256, "vision_config.window_size": 4}),
    "pp_chart2table": Reading(
        side=1024,
        signs=["<img>", "<imgpad>", "</img>"],
        options={"chat_template": CHART},
        ids={"image_token_index": "<imgpad>"},
    ),
    "video_llava": Reading(
        {"vision_feature_layer": -1},
        images={"size": {"shortest_edge": 56}, "crop_size": {"height": 56, "width": 56}},
    ),
    "step3p7": Reading(
        {"vision_config.num_attention_heads": 12, "vision_config.image_size": 224},
        images={"size": {"height": 224, "width": 224}, "patch_size": 112, "max_image_size": 448},
        ids={"image_token_id": "<im_patch>"},
    ),
}

LEFT = {
    "evolla": "reads proteins, no pictures",
    "mistral4": "reads text alone",
    "pi0": "moves a robot: reads its state with pictures",
    "udop": "its processor reads the words of a page by tesseract, which is not here",
}
