"""Tiny folders of the other types that read images in texts: a shrunk config, and its real processor.

The parts of a processor, its placeholders and its image sizes come from the type's own classes. ``RECIPES``
has what these leave open, ``LEFT`` the types that are not built, with the reason.
"""

import functools
import importlib
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import CONFIG_MAPPING

from tests.models.folders import save
from tests.models.vision_language import LAYERS, SQUARE, VISION, make_tokenizer, make_words, name_tokens
from tests.tools.coverage.recipes import RECIPES as COVERED
from tests.tools.coverage.shrink import small_config

WIDE = ("out_hidden_size", "text_hidden_size", "adapter_out_dim", "output_dim")


@dataclass(frozen=True)
class Reading:
    """What a type's own classes do not tell of a small model and its processor.

    ``changes`` of the config have dotted keys; ``images`` are settings of the image processor, ``options`` of
    the processor, and ``like`` is a type of the same processor, or of the parts that its own lacks.
    """

    changes: Mapping[str, Any] = field(default_factory=dict)
    images: Mapping[str, Any] = field(default_factory=dict)
    videos: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    like: str | None = None
    signs: Sequence[str] = ()
    ids: Mapping[str, str] = field(default_factory=dict)  # of the config, by dotted keys: their tokens
    side: int | None = None  # of a picture, in pixels


def inside(part: str, **settings: Any) -> dict[str, Any]:
    """Settings of a part of a config, by their dotted names."""
    return {f"{part}.{name}": value for name, value in settings.items()}


tower = functools.partial(inside, "vision_config")
HEADS, FOURTEEN, NAMED_HEADS = tower(num_heads=9), tower(num_heads=14), tower(num_attention_heads=9)
DEEP = HEADS | tower(deepstack_visual_indexes=[0])
STARTS = {"vision_start_token_id": 5, "vision_end_token_id": 6}
GEMMA4 = {"hidden_size": 48, "intermediate_size": 96, "head_dim": 24, "pooling_kernel_size": 2}
GEMMA4 |= {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2}
UNIFIED = {"pooling_kernel_size": 2, "mm_posemb_size": 64, "mm_embed_dim": 144, "output_proj_dims": 144}
SOFT = {"pooling_kernel_size": 2, "patch_size": 16, "max_soft_tokens": 70}
PIXTRAL = {"size": {"longest_edge": 112}, "patch_size": {"height": 14, "width": 14}}
PINS = {"image_grid_pinpoints": [[56, 112], [112, 56], [112, 112]]}
CHART = (
    "{% for m in messages %}{% for p in m.content %}{% if p.type == 'image' %}"
    "<img>{{ '<imgpad>' * 256 }}</img>{% else %}{{ p.text }}{% endif %}{% endfor %}{% endfor %}"
)


def square(side: int) -> dict[str, Any]:
    """The size of pictures."""
    return {"size": {"height": side, "width": side}}


JANUS: dict[str, Any] = {"images": {"min_size": 14}, "options": {"num_image_tokens": 16}, "side": 56}

RECIPES: dict[str, Reading] = {
    "aya_vision": Reading(  # tiles, with words between them that say which
        NAMED_HEADS,
        images={"crop_to_patches": True, "max_patches": 6, "min_patches": 2},
        options={"img_size": 56, "downsample_factor": 2},
        signs=["TILE_GLOBAL", "TILE", *(f"TILE_{number}" for number in range(1, 13))],
    ),
    "cohere2_vision": Reading(  # its patch size is how many tokens a tile has along its side
        NAMED_HEADS | tower(patch_size=14),
        images={"patch_size": 2, "max_patches": 6, "min_patches": 1},
        side=56,
    ),
    "ernie4_5_vl_moe": Reading(tower(num_heads=10), videos={"draw_on_frames": False}),
    "exaone4_5": Reading(FOURTEEN | tower(num_key_value_heads=7)),
    "gemma4": Reading({"vision_config": GEMMA4}, images=SOFT),
    "glm4v_moe": Reading(
        {"text_config.num_attention_heads": 16, "text_config.rope_parameters.mrope_section": [2, 1, 1]},
        like="glm4v",
    ),
    "glm_ocr": Reading(like="glm4v"),
    "glmga": Reading(like="glm46v"),
    "granite_docling": Reading(
        tower(scale_factor=2, deepstack_visual_indexes=[0]), options={"image_seq_len": 4}
    ),
    "hyperclovax_vision_v2": Reading(FOURTEEN),
    "janus": Reading(  # a square; the model draws, too, with another tower
        tower(num_attention_heads=8, patch_size=14, num_image_tokens=16, projection_dim=256)
        | inside("vq_config", base_channels=32, channel_multiplier=[1, 1]),
        **JANUS,
    ),
    "kimi_k25": Reading(NAMED_HEADS | tower(pos_emb_width=64)),
    "lighton_ocr": Reading(images=PIXTRAL),
    **dict.fromkeys(["minicpmv4_6", "minicpmv4_7"], Reading({"insert_layer_id": 0})),
    "minimax_m3_vl": Reading(
        signs=[f"]<]{name}[>[" for name in ("image", "video", "start of image", "end of image")]
    ),
    "qianfan_ocr": Reading({"image_seq_length": 4}, options={"image_seq_length": 4}),
    "qwen2_5_omni_thinker": Reading(FOURTEEN | STARTS, like="qwen2_5_omni"),
    "qwen3_omni_moe_thinker": Reading(HEADS | STARTS, like="qwen3_omni_moe"),
    **dict.fromkeys(["cosmos3_edge", "paddleocr_vl"], Reading(NAMED_HEADS)),
    **dict.fromkeys(["qwen3_5", "qwen3_5_moe", "qwen4_exp"], Reading(HEADS)),
    **dict.fromkeys(["qwen3_vl", "qwen3_vl_moe", "cosmos3_omni"], Reading(DEEP, like="qwen3_vl")),
    "aria": Reading(
        NAMED_HEADS
        | tower(patch_size=14, image_size=980)
        | {"projector_patch_to_query_dict": {"1225": 8, "4900": 16}},
        options={"size_conversion": {490: 8, 980: 16}},
    ),
    "deepseek_ocr2": Reading(
        inside("text_config", mlp_layer_types=["dense", "dense"])
        | inside("vision_config.sam_config", downsample_channels=[32, 256], image_size=1024),
        images=square(1024) | {"tile_size": 768, "max_patches": 2},
        options={"patch_size": 16},
    ),
    "unlimited_ocr": Reading(
        inside("vision_config.sam_config", downsample_channels=[32, 64]),
        images=square(256) | {"tile_size": 128, "max_patches": 4},
        options={"patch_size": 16},
    ),
    # a square with padding around the picture
    "deepseek_vl": Reading(tower(num_attention_heads=8, patch_size=14), **JANUS),
    "deepseek_vl_hybrid": Reading(
        inside("high_res_vision_config", global_attn_indexes=[0]),
        images={"high_res_size": square(256)["size"]},
        options={"num_image_tokens": 16},
    ),
    "dots3_note": Reading({"audio_config.adapter_input_size": 80}, images={"temporal_patch_size": 1}),
    "diffusion_gemma": Reading({"vision_config": GEMMA4}, images=SOFT, like="gemma4"),
    "got_ocr2": Reading(side=1024),
    "granite4_vision": Reading(
        tower(hidden_size=64, num_attention_heads=4, patch_size=14)
        | {"deepstack_layer_map": [[-1, 0]], "spatial_target_layers": [1], "downsample_rate": "2/4"}
        | PINS,
        options={"patch_size": 14, "vision_feature_select_strategy": "default", "downsample_rate": "2/4"}
        | {"num_additional_image_tokens": 1},
        images=PINS,
        side=56,
    ),
    **dict.fromkeys(["inkling2", "inkling_mm_model"], Reading(images=square(40))),
    **dict.fromkeys(
        ["mistral3", "mistral_large4"], Reading(images=PIXTRAL, options={"spatial_merge_size": 2})
    ),
    "t5gemma2": Reading(
        inside("encoder.vision_config", image_size=56, patch_size=14) | {"encoder.mm_tokens_per_image": 4},
        options={"image_seq_length": 4},
        ids=dict.fromkeys(["image_token_index", "encoder.image_token_id"], "<image_token>")
        | {"eoi_token_index": "<eoi_token>"},
    ),
    "molmo2": Reading(
        inside("adapter_config", vision_feature_layer=[1, 0], text_hidden_size=256)
        | tower(num_position_embeddings=36),
        images={"overlap_margins": [1, 1], "max_crops": 4},
        side=84,
        ids={"image_patch_id": "<im_patch>"}
        | {f"image_{place}_token_id": f"<im_{place}>" for place in ("start", "end")},
    ),
    "gemma4_unified": Reading({"vision_config": UNIFIED}, images=SOFT, videos=SOFT),
    **dict.fromkeys(["muse_glimmer", "muse_spark"], Reading(tower(pos_emb_width=32, num_attention_heads=12))),
    "nemotron_h_omni": Reading(like="parakeet_encoder"),
    "pp_formulanet": Reading(tower(output_channels=256, window_size=4)),
    "pp_chart2table": Reading(
        side=1024,
        signs=["<img>", "<imgpad>", "</img>"],
        options={"chat_template": CHART},
        ids={"image_token_index": "<imgpad>"},
    ),
    "step3p7": Reading(
        tower(num_attention_heads=12, image_size=224),
        images=square(224) | {"patch_size": 112, "max_image_size": 448},
        ids={"image_token_id": "<im_patch>"},
    ),
}

LEFT = {
    "evolla": "reads proteins, no pictures",
    "fuyu": "its processor has another name for the pixels",
    "mistral4": "reads text alone",
    "pi0": "moves a robot: reads its state with pictures",
    "video_llava": "its processor has another name for the pixels",
    "udop": "its processor reads the words of a page by tesseract, which is not here",
}


def vision_encoder_decoder(folder: Path) -> str:
    """As TrOCR: patches of a square, and a decoder that looks at them across."""
    words = make_tokenizer()
    writes = {"vocab_size": len(words), "is_decoder": True, "add_cross_attention": True}
    torch.manual_seed(0)
    model = transformers.VisionEncoderDecoderModel(
        encoder=transformers.ViTModel(transformers.ViTConfig(**VISION)),
        decoder=transformers.BertLMHeadModel(transformers.BertConfig(**writes, **LAYERS)),
    )
    model.config.decoder_start_token_id, model.config.pad_token_id = 2, 1
    made = getattr(transformers, "ViTImageProcessorPil", transformers.ViTImageProcessor)
    images = made(size=SQUARE)
    return save(folder, model, transformers.TrOCRProcessor(images, words), seed=None)


def make_folder(name: str, folder: Path) -> str:
    """The folder of a tiny model of a type, with random weights."""
    if name == "vision-encoder-decoder":
        return vision_encoder_decoder(folder)
    reading, vision = (
        RECIPES.get(name, Reading()),
        CONFIG_MAPPING[name]().to_dict().get("vision_config") or {},
    )
    patch = vision.get("patch_size")
    patch = patch if isinstance(patch, int) else 14
    side = reading.side or 4 * patch
    processor = _make_processor(name, reading, patch, side)
    config = _make_config(name, reading, vision, side)
    name_tokens(config, processor)
    for key, token in reading.ids.items():
        *path, last = key.split(".")
        part = functools.reduce(getattr, path, config)
        setattr(part, last, processor.tokenizer.convert_tokens_to_ids(token))
    torch.manual_seed(0)
    return save(folder, transformers.AutoModelForImageTextToText.from_config(config), processor, seed=None)


PARTS = {"image_processor": "image_processing", "video_processor": "video_processing"}
PARTS |= {"feature_extractor": "feature_extraction"}


def _class_of(part: str, *types: str | None) -> str | None:
    """The class of a part of the first type that has it; imported late, when torchvision can be."""
    module = importlib.import_module(f"transformers.models.auto.{PARTS[part]}_auto")
    mapping = getattr(module, f"{part.upper()}_MAPPING_NAMES")
    names = next(filter(None, map(mapping.get, types)), None)
    names = names.get("torchvision") or names.get("pil") if isinstance(names, dict) else names
    return next(filter(None, names), None) if isinstance(names, (list, tuple)) else names


def _make_processor(name: str, reading: Reading, patch: int, side: int) -> Any:
    from transformers.models.auto.processing_auto import PROCESSOR_MAPPING_NAMES

    names = {"kosmos-2.5": "Kosmos2_5Processor"} | PROCESSOR_MAPPING_NAMES
    kind = getattr(transformers, names.get(name) or names[reading.like])
    words = make_words(CONFIG_MAPPING[name], kind, *reading.signs)
    takes = inspect.signature(kind.__init__).parameters
    settings = {"image_processor": reading.images, "video_processor": reading.videos}
    parts = {
        part: _make_part(_class_of(part, name, reading.like), settings.get(part), patch, side)
        for part in PARTS
        if part in takes
    }
    sizes = {"patch_size": patch} if "patch_size" in takes else {}
    return kind(**parts, tokenizer=words, **sizes | dict(reading.options))


def _make_part(name: str | None, settings: Mapping[str, Any] | None, patch: int, side: int) -> Any:
    if name is None:
        return None
    kind = getattr(transformers, name)
    if settings is None:
        return kind()
    sizes = ("size", "crop_size", "tile_size", "scale_resolution")
    small: dict[str, Any] = {
        key: _small(getattr(kind, key), side) for key in sizes if getattr(kind, key, None)
    }
    if isinstance(getattr(kind, "patch_size", None), int):
        small["patch_size"] = patch
    return kind(**small | dict(settings))


def _small(size: Any, side: int) -> Any:
    """A size of pictures in the way that a processor gives its own; two edges bound the number of pixels."""
    if not isinstance(size, dict):
        return side
    if set(size) == {"shortest_edge", "longest_edge"}:
        return {"shortest_edge": side**2, "longest_edge": (5 * side // 2) ** 2}
    return dict.fromkeys(size, side)


def _make_config(name: str, reading: Reading, vision: Mapping[str, Any], side: int) -> Any:
    covered = COVERED.get(name)
    changes = dict(covered.changes) if covered else {}
    if vision.get("image_size") is not None:
        single = isinstance(vision["image_size"], int)
        changes["vision_config.image_size"] = side if single else [side, side]
    config = small_config(name, covered.factors[0] if covered else 16, 2, changes | dict(reading.changes))
    text = getattr(config, "text_config", None)
    for tower in ("vision_config", "audio_config"):
        for wide in WIDE:
            if hasattr(text, "hidden_size") and hasattr(getattr(config, tower, None), wide):
                setattr(getattr(config, tower), wide, text.hidden_size)
    return config
