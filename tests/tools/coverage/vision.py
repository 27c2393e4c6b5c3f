"""Recipes of the types that read images or films."""

from __future__ import annotations

from typing import Any

import torch

from tests.tools.coverage.feed import noise
from tests.tools.coverage.recipe import Recipe
from tests.tools.coverage.shrink import RESNET


def pixels(*shape: int, name: str = "pixel_values") -> Any:
    """Two images, or two films, of this shape."""
    return lambda model: {name: noise(2, *shape)}


def flat_patches(size: int, name: str = "flattened_patches") -> Any:
    """Sixteen patches of an image, each with its row and column in front."""

    def given(model: Any) -> dict[str, Any]:
        places = torch.cartesian_prod(torch.arange(1.0, 5), torch.arange(1.0, 5)).expand(2, 16, 2)
        return {name: torch.cat([places, noise(2, 16, size)], -1), "attention_mask": torch.ones(2, 16)}

    return given


def shaped_patches(model: Any) -> dict[str, Any]:
    """Sixteen patches of an image with the shape of their grid."""
    return {
        "pixel_values": noise(2, 16, 768),
        "pixel_attention_mask": torch.ones(2, 16, dtype=torch.long),
        "spatial_shapes": torch.tensor([[4, 4], [2, 8]]),
    }


def placed_patches(model: Any) -> dict[str, Any]:
    """Patches with their columns and rows, in a grid that the pooling divides."""
    places = torch.cartesian_prod(torch.arange(6), torch.arange(6)).expand(2, 36, 2)
    return {"pixel_values": noise(2, 36, 768), "pixel_position_ids": places}


def tiles(model: Any) -> dict[str, Any]:
    """One image in two tiles of four, for each text."""
    return {
        "pixel_values": noise(2, 1, 4, 3, 56, 56),
        "aspect_ratio_ids": torch.tensor([[2], [2]]),
        "aspect_ratio_mask": torch.tensor([[[1, 1, 0, 0]]] * 2),
    }


def prompted(model: Any) -> dict[str, Any]:
    """An image with an example and its answer."""
    high, wide = model.config.image_size
    shape = high // 2, wide
    return {
        "pixel_values": noise(2, 3, *shape),
        "prompt_pixel_values": noise(2, 3, *shape),
        "prompt_masks": noise(2, 3, *shape),
    }


def patched(*shape: int) -> Any:
    """An image as a list of patches with its grid."""
    return lambda model: {"pixel_values": noise(32, *shape), "grid_thw": torch.tensor([[1, 4, 8]])}


def sized(model: Any) -> dict[str, Any]:
    """An image as one row of patches, with the size of its grid."""
    return {"pixel_values": noise(1, 3, 16, 16 * 32), "target_sizes": torch.tensor([[4, 8]])}


SMALL = {"image_size": 56}
THIN = {"width_coefficient": 0.5, "depth_coefficient": 0.1, "image_size": 64, "hidden_dim": 640}
FILM = {"image_size": 32, "num_frames": 4}
ROTATED = {"num_heads": 9}  # whose size is even, for rotary embeddings in two dimensions
FROM_RESNET = {
    "num_queries": 10,
    "backbone_config": RESNET,
    "encoder_in_channels": [8, 16, 16],
    "decoder_in_channels": [16, 16, 16],
}
DENSE = {"backbone_config.out_indices": [1, 2, 3, 4], "backbone_config.out_features": None}
FOUR_STAGES = RESNET | {"out_features": ["stage1", "stage2", "stage3", "stage4"]}
HIERA = {
    "backbone_channel_list": [768, 384, 192, 96],
    "backbone_config.image_size": [128, 128],
    "backbone_feature_sizes": [[32, 32], [16, 16], [8, 8]],
}
SAM = {"prompt_encoder_config.image_embedding_size": 16, "vision_config.num_pos_feats": 8}

VISION: dict[str, Recipe] = {
    "swin": Recipe(changes={"image_size": 112}),  # several windows in both stages
    "internvl_vision": Recipe(changes={"image_size": [56, 56]}),
    "qianfan_ocr_vision": Recipe(changes={"image_size": [56, 56]}),
    "granite_docling_vision": Recipe(changes={"image_size": 64}),
    "phi4_multimodal_vision": Recipe(changes={"image_size": 56, "crop_size": 56}, gain=1.0),
    "tipsv2_vision_model": Recipe(changes=SMALL),
    "vivit": Recipe(changes=FILM),
    "videomae": Recipe(changes=FILM),
    "vjepa2": Recipe(
        changes={"crop_size": 32, "frames_per_clip": 4},
        inputs=pixels(4, 3, 32, 32, name="pixel_values_videos"),
    ),
    "videoprism_vision_model": Recipe(
        changes={"image_size": 36, "num_frames": 4}, inputs=pixels(4, 3, 36, 36, name="pixel_values_videos")
    ),
    "xclip_vision_model": Recipe(
        changes={"image_size": 64}, inputs=lambda model: {"pixel_values": noise(16, 3, 64, 64)}
    ),
    "llama4_vision_model": Recipe(changes=SMALL | {"num_attention_heads": 4, "intermediate_size": 192}),
    "align_vision_model": Recipe(factors=(1,), changes=THIN),
    "efficientnet": Recipe(factors=(1,), changes=THIN),
    "bit": Recipe(factors=(1,)),
    "cvt": Recipe(changes={"depth": [1, 2, 3]}),
    "mlcd": Recipe(changes=SMALL | {"num_attention_heads": 13}),
    "mlcd_vision_model": Recipe(changes=SMALL | {"num_attention_heads": 13}),
    "mllama_vision_model": Recipe(changes=SMALL | {"intermediate_layers_indices": [0, 1]}, inputs=tiles),
    "florence_vision": Recipe(inputs=lambda model: {"hidden_states": noise(2, 3, 64, 64)}),
    "bridgetower_vision_model": Recipe(
        changes={"hidden_size": 128, "image_size": 64}, inputs=lambda model: {"image": noise(2, 3, 64, 64)}
    ),
    "chmv2": Recipe(layers=4, changes=DENSE | {"backbone_config.image_size": 64}),
    "depth_anything": Recipe(layers=4, changes=DENSE | {"backbone_config.image_size": 56}),
    "prompt_depth_anything": Recipe(layers=4, changes=DENSE | {"backbone_config.image_size": 56}),
    "zoedepth": Recipe(layers=4, changes=DENSE | {"backbone_config.image_size": 64}),
    "rt_detr": Recipe(changes=FROM_RESNET),
    "rt_detr_v2": Recipe(changes=FROM_RESNET),
    "d_fine": Recipe(changes=FROM_RESNET),
    "deimv2": Recipe(changes=FROM_RESNET),
    "pp_doclayout_v2": Recipe(changes=FROM_RESNET),
    "pp_doclayout_v3": Recipe(changes=FROM_RESNET),
    "pp_doclayout_v4": Recipe(changes=FROM_RESNET),
    "maskformer": Recipe(changes={"backbone_config": FOUR_STAGES}, gain=1.0),
    "mask2former": Recipe(changes={"backbone_config": FOUR_STAGES}),
    "sam": Recipe(changes=SAM),
    "sam_hq": Recipe(changes=SAM),
    "sam2_vision_model": Recipe(changes=HIERA, inputs=pixels(3, 128, 128)),
    "sam2": Recipe(
        changes={f"vision_config.{key}": value for key, value in HIERA.items()}
        | {"prompt_encoder_config.image_size": 128},
        inputs=lambda model: {
            "pixel_values": noise(2, 3, 128, 128),
            "input_points": torch.full((2, 1, 1, 2), 60.0),
            "input_labels": torch.ones(2, 1, 1, dtype=torch.long),
        },
    ),
    "seggpt": Recipe(changes={"image_size": [64, 32]}, inputs=prompted),
    "siglip2_vision_model": Recipe(inputs=shaped_patches),
    "gemma4_vision": Recipe(inputs=placed_patches),
    "pix2struct_vision_model": Recipe(inputs=flat_patches(768)),
    "kosmos_2_5_vision_model": Recipe(inputs=flat_patches(768)),
    "idefics2_perceiver": Recipe(
        inputs=lambda model: {
            "context": noise(2, 20, model.config.hidden_size),
            "attention_mask": torch.ones(2, 20, dtype=torch.long),
        }
    ),
    "qwen3_vl_vision": Recipe(changes=ROTATED),
    "qwen3_vl_moe_vision": Recipe(changes=ROTATED),
    "qwen3_5_vision": Recipe(changes=ROTATED),
    "qwen3_5_moe_vision": Recipe(changes=ROTATED),
    "qwen3_omni_moe_vision_encoder": Recipe(changes=ROTATED),
    "qwen4_exp_vision": Recipe(changes=ROTATED),
    "cohere_compass_vision": Recipe(changes=ROTATED),
    "superglue": Recipe(inputs=pixels(2, 3, 64, 64)),
    "lightglue": Recipe(inputs=pixels(2, 3, 64, 64)),
    "paddleocr_vl_vision": Recipe(
        changes={"num_attention_heads": 9, "image_size": 56},
        inputs=lambda model: {"pixel_values": noise(1, 32, 3, 14, 14), "grid_thw": torch.tensor([[1, 4, 8]])},
    ),
    "kimi_k25_vision": Recipe(changes={"num_attention_heads": 9}, inputs=patched(3, 14, 14)),
    "muse_glimmer_vision": Recipe(inputs=patched(1176)),
    "muse_spark_vision": Recipe(inputs=patched(1176)),
    "molmo2_vision": Recipe(
        changes={"image_size": [56, 56], "num_position_embeddings": 16}, inputs=pixels(16, 588)
    ),
    "minicpm_ocr_vision": Recipe(inputs=sized),
    "minicpmv4_6_vision": Recipe(inputs=sized),
    "minicpmv4_7_vision": Recipe(inputs=sized),
    "vitmatte": Recipe(changes={"hidden_size": 48, "backbone_config.image_size": 64}),
    "videomt": Recipe(
        changes={"image_size": 64}, inputs=lambda model: {"pixel_values_videos": noise(1, 2, 3, 64, 64)}
    ),
    "deepseek_ocr2_vision": Recipe(changes={"sam_config.downsample_channels": [32, 256]}),
    "unlimited_ocr_vision": Recipe(changes={"sam_config.downsample_channels": [32, 64]}),
    "video_llama_3_vision": Recipe(
        inputs=lambda model: patched(768)(model) | {"merge_sizes": torch.tensor([2])}
    ),
}
