"""Tiny folders of models that read a picture as a part of their text, each with its real processor."""

from collections.abc import Callable, Sequence
from typing import Any

import tokenizers
import transformers

VISION = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "image_size": 56,
    "patch_size": 14,
}
TEXT = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 32,
    "max_position_embeddings": 4096,
    "head_dim": 16,
}
SQUARE = {"height": 56, "width": 56}
WORDS = [
    "what",
    "is",
    "on",
    "the",
    "mat",
    "a",
    "red",
    "square",
    "shape",
    "describe",
    "this",
    "left",
    "right",
    "dog",
    "cat",
    "husky",
    "?",
    ".",
    ",",
    ":",
]


def make_tokenizer(*special: str, words: Sequence[str] = WORDS, **named: str) -> Any:
    """A tokenizer of whole words, with the special tokens of a family, and what some of them are for."""
    base = ["<unk>", "<pad>", "<s>", "</s>"]
    vocabulary = {word: number for number, word in enumerate([*base, *words])}
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner,
        unk_token="<unk>",
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        model_specific_special_tokens=named,
    )
    tokenizer.add_tokens([tokenizers.AddedToken(token, special=True) for token in special])
    return tokenizer


def _text(kind: type, tokenizer: Any, **more: Any) -> Any:
    return kind(**TEXT | {"vocab_size": len(tokenizer), "pad_token_id": 1} | more)


def _id(tokenizer: Any, token: str) -> int:
    return int(tokenizer.convert_tokens_to_ids(token))


def llava() -> tuple[Any, Any]:
    """One square, of which each patch is a token."""
    t, words = transformers, make_tokenizer("<image>")
    config = t.LlavaConfig(
        vision_config=t.CLIPVisionConfig(**VISION),
        text_config=_text(t.LlamaConfig, words),
        image_token_id=_id(words, "<image>"),
        vision_feature_layer=-1,
    )
    images = t.CLIPImageProcessor(size={"shortest_edge": 56}, crop_size=SQUARE)
    return config, t.LlavaProcessor(
        images, words, patch_size=14, vision_feature_select_strategy="default", num_additional_image_tokens=1
    )


def vipllava() -> tuple[Any, Any]:
    """The same, made of several layers of the tower."""
    t = transformers
    config, processor = llava()
    config = t.VipLlavaConfig(
        vision_config=config.vision_config,
        text_config=config.text_config,
        image_token_id=config.image_token_id,
        vision_feature_layers=[-2, -1],
    )
    return config, processor


def llava_next() -> tuple[Any, Any]:
    """A small picture of the whole, and tiles of which the padding is cut away, each row with an end."""
    t = transformers
    config, processor = llava()
    pins = [[56, 112], [112, 56], [112, 112]]
    config = t.LlavaNextConfig(
        vision_config=config.vision_config,
        text_config=config.text_config,
        image_token_id=config.image_token_id,
        vision_feature_layer=-1,
        image_grid_pinpoints=pins,
    )
    images = t.LlavaNextImageProcessor(
        size={"shortest_edge": 56}, crop_size=SQUARE, image_grid_pinpoints=pins
    )
    return config, t.LlavaNextProcessor(
        images,
        processor.tokenizer,
        patch_size=14,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
    )


def llava_next_video() -> tuple[Any, Any]:
    """The same, and videos, of which four patches of a frame are averaged into a token."""
    t = transformers
    one, processor = llava_next()
    words = make_tokenizer("<image>", "<video>")
    config = t.LlavaNextVideoConfig(
        vision_config=one.vision_config,
        text_config=_text(t.LlamaConfig, words),
        image_token_id=_id(words, "<image>"),
        video_token_id=_id(words, "<video>"),
        vision_feature_layer=-1,
        image_grid_pinpoints=one.image_grid_pinpoints,
    )
    return config, t.LlavaNextVideoProcessor(
        t.LlavaNextVideoVideoProcessor(size={"shortest_edge": 56}, crop_size=SQUARE),
        processor.image_processor,
        words,
        patch_size=14,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
    )


def llava_onevision() -> tuple[Any, Any]:
    """The same with another tower."""
    t, words = transformers, make_tokenizer("<image>", "<video>")
    pins = [[56, 112], [112, 56], [112, 112]]
    config = t.LlavaOnevisionConfig(
        vision_config=t.SiglipVisionConfig(**VISION),
        text_config=_text(t.Qwen2Config, words),
        image_token_id=_id(words, "<image>"),
        video_token_id=_id(words, "<video>"),
        vision_feature_layer=-1,
        image_grid_pinpoints=pins,
    )
    images = t.LlavaOnevisionImageProcessor(size=SQUARE, image_grid_pinpoints=pins)
    return config, t.LlavaOnevisionProcessor(
        images,
        words,
        t.LlavaOnevisionVideoProcessor(size=SQUARE),
        num_image_tokens=16,
        vision_feature_select_strategy="full",
        patch_size=14,
    )


QWEN = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")


def _qwen(kind: str, **vision: Any) -> tuple[Any, Any]:
    t, words = transformers, make_tokenizer(*QWEN)
    ids = {
        f"{name}_token_id": _id(words, token)
        for name, token in zip(("vision_start", "vision_end", "image", "video"), QWEN, strict=True)
    }
    named = getattr(t, f"{kind}Config")
    base = named().text_config
    rope = {"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 10000.0}
    text = _text(type(base), words, rope_parameters=rope)
    config = named(vision_config=vision, text_config=text, **ids)
    images = t.Qwen2VLImageProcessor(patch_size=14, min_pixels=56 * 56, max_pixels=140 * 140)
    videos = getattr(t, f"{'Qwen3VL' if kind == 'Qwen3VL' else 'Qwen2VL'}VideoProcessor")(
        patch_size=14, size={"shortest_edge": 56 * 56, "longest_edge": 16 * 140 * 140}
    )
    return config, getattr(t, f"{kind}Processor")(images, words, videos)


def qwen2_vl() -> tuple[Any, Any]:
    """Any proportions, four patches a token."""
    return _qwen("Qwen2VL", embed_dim=32, hidden_size=32, depth=2, num_heads=2, mlp_ratio=2, patch_size=14)


def qwen2_5_vl() -> tuple[Any, Any]:
    """The same, with attention in windows."""
    size = {"hidden_size": 32, "out_hidden_size": 32, "depth": 2, "num_heads": 2, "intermediate_size": 32}
    return _qwen("Qwen2_5_VL", **size, patch_size=14, window_size=56, fullatt_block_indexes=[1])


def qwen3_vl() -> tuple[Any, Any]:
    """The same, with more of the picture added in later layers."""
    size = {"hidden_size": 32, "out_hidden_size": 32, "depth": 2, "num_heads": 2, "intermediate_size": 32}
    return _qwen("Qwen3VL", **size, patch_size=14, num_position_embeddings=64, deepstack_visual_indexes=[0])


def paligemma() -> tuple[Any, Any]:
    """A square, and a prefix that sees itself whole."""
    t, words = transformers, make_tokenizer("<image>")
    words.add_tokens([f"<loc{number:04}>" for number in range(1024)] + [f"<seg{i:03}>" for i in range(128)])
    config = t.PaliGemmaConfig(
        vision_config=t.SiglipVisionConfig(**VISION, vision_use_head=False),
        text_config=_text(t.GemmaConfig, words),
        image_token_id=_id(words, "<image>"),
        projection_dim=32,
    )
    images = t.SiglipImageProcessor(size=SQUARE)
    images.image_seq_length = 16
    return config, t.PaliGemmaProcessor(images, words)


def gemma3() -> tuple[Any, Any]:
    """A square, of which four patches are averaged into a token."""
    t = transformers
    words = make_tokenizer(
        boi_token="<start_of_image>", eoi_token="<end_of_image>", image_token="<image_soft_token>"
    )
    config = t.Gemma3Config(
        vision_config=t.SiglipVisionConfig(**VISION, vision_use_head=False),
        text_config=_text(t.Gemma3TextConfig, words),
        image_token_id=_id(words, "<image_soft_token>"),
        boi_token_id=_id(words, "<start_of_image>"),
        eoi_token_id=_id(words, "<end_of_image>"),
        mm_tokens_per_image=4,
    )
    images = t.Gemma3ImageProcessor(size=SQUARE)
    return config, t.Gemma3Processor(images, words, image_seq_length=4)


def idefics2() -> tuple[Any, Any]:
    """Learned queries stand for the picture: none of them has a place in it."""
    t, words = transformers, make_tokenizer("<fake_token_around_image>", "<image>", "<end_of_utterance>")
    config = t.Idefics2Config(
        vision_config=t.models.idefics2.configuration_idefics2.Idefics2VisionConfig(**VISION),
        perceiver_config={
            "hidden_size": 32,
            "resampler_n_latents": 8,
            "resampler_depth": 1,
            "resampler_n_heads": 2,
            "resampler_head_dim": 16,
            "num_key_value_heads": 1,
        },
        text_config=_text(t.MistralConfig, words),
        image_token_id=_id(words, "<image>"),
    )
    images = t.Idefics2ImageProcessor(
        size={"longest_edge": 56, "shortest_edge": 28}, do_image_splitting=False
    )
    return config, t.Idefics2Processor(images, words, image_seq_len=8)


def _idefics3(kind: str, text: type) -> tuple[Any, Any]:
    t = transformers
    names = [f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)]
    words = make_tokenizer(
        "<fake_token_around_image>", "<image>", "<end_of_utterance>", "<global-img>", *names
    )
    config = getattr(t, f"{kind}Config")(
        vision_config=VISION,
        text_config=_text(text, words),
        image_token_id=_id(words, "<image>"),
        scale_factor=2,
    )
    sizes = {"size": {"longest_edge": 112}, "max_image_size": {"longest_edge": 56}}
    images = getattr(t, f"{kind}ImageProcessor")(**sizes)
    more = (t.SmolVLMVideoProcessor(**sizes),) if kind == "SmolVLM" else ()
    return config, getattr(t, f"{kind}Processor")(images, words, *more, image_seq_len=4)


def idefics3() -> tuple[Any, Any]:
    """Tiles with names between them, a small picture of the whole behind them."""
    return _idefics3("Idefics3", transformers.LlamaConfig)


def smolvlm() -> tuple[Any, Any]:
    """The same."""
    return _idefics3("SmolVLM", transformers.LlamaConfig)


def internvl() -> tuple[Any, Any]:
    """Tiles in one row of tokens, then a small picture of the whole."""
    t = transformers
    words = make_tokenizer(
        start_image_token="<img>",
        end_image_token="</img>",
        context_image_token="<IMG_CONTEXT>",
        video_token="<video>",
    )
    vision = t.InternVLVisionConfig(
        **VISION | {"image_size": [56, 56], "patch_size": [14, 14]}, use_mean_pooling=False
    )
    config = t.InternVLConfig(
        vision_config=vision,
        text_config=_text(t.Qwen2Config, words),
        image_token_id=_id(words, "<IMG_CONTEXT>"),
        vision_feature_layer=-1,
    )
    images = t.GotOcr2ImageProcessor(size=SQUARE, crop_to_patches=True, max_patches=6, min_patches=2)
    videos = t.InternVLVideoProcessor(size=SQUARE)
    return config, t.InternVLProcessor(images, words, videos, image_seq_length=4)


def aya_vision() -> tuple[Any, Any]:
    """Tiles, with words between them that say which."""
    t = transformers
    tiles = [f"TILE_{number}" for number in range(1, 13)]
    names = ("<|START_OF_IMG|>", "<|END_OF_IMG|>", "<|IMG_PATCH|>", "<|IMG_LINE_BREAK|>", "TILE_GLOBAL")
    words = make_tokenizer("<image>", *names, "TILE", *tiles)
    config = t.AyaVisionConfig(
        vision_config=t.SiglipVisionConfig(**VISION, vision_use_head=False),
        text_config=_text(t.Cohere2Config, words),
        image_token_id=_id(words, "<|IMG_PATCH|>"),
        downsample_factor=2,
        vision_feature_layer=-1,
    )
    images = t.GotOcr2ImageProcessor(size=SQUARE, crop_to_patches=True, max_patches=6, min_patches=2)
    return config, t.AyaVisionProcessor(images, words, patch_size=14, img_size=56, downsample_factor=2)


def mistral3() -> tuple[Any, Any]:
    """Any proportions, with an end of each row among the tokens."""
    t, words = transformers, make_tokenizer("[IMG]", "[IMG_BREAK]", "[IMG_END]")
    config = t.Mistral3Config(
        vision_config=t.PixtralVisionConfig(**VISION | {"image_size": 112}, head_dim=16),
        text_config=_text(t.MistralConfig, words),
        image_token_id=_id(words, "[IMG]"),
        spatial_merge_size=2,
        vision_feature_layer=-1,
    )
    images = t.PixtralImageProcessor(size={"longest_edge": 112}, patch_size={"height": 14, "width": 14})
    return config, t.PixtralProcessor(
        images,
        words,
        patch_size=14,
        spatial_merge_size=2,
        image_token="[IMG]",
        image_break_token="[IMG_BREAK]",
        image_end_token="[IMG_END]",
    )


def mllama() -> tuple[Any, Any]:
    """The picture is looked at across, from some layers."""
    t, words = transformers, make_tokenizer("<|image|>", "<|python_tag|>")
    vision = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_global_layers": 1,
        "attention_heads": 2,
        "intermediate_size": 32,
        "vision_output_dim": 64,
        "image_size": 56,
        "patch_size": 14,
        "max_num_tiles": 4,
        "intermediate_layers_indices": [1],
        "supported_aspect_ratios": [[1, 1], [1, 2], [1, 3], [1, 4], [2, 1], [2, 2], [3, 1], [4, 1]],
    }
    text = TEXT | {"vocab_size": len(words) - 1, "pad_token_id": 1, "cross_attention_layers": [1]}
    config = t.MllamaConfig(vision_config=vision, text_config=text, image_token_index=_id(words, "<|image|>"))
    images = t.MllamaImageProcessor(size=SQUARE, max_image_tiles=4)
    return config, t.MllamaProcessor(images, words)


def glm4v() -> tuple[Any, Any]:
    """Any proportions, four patches a token, signs around each picture."""
    t = transformers
    around = ["<|begin_of_image|>", "<|end_of_image|>", "<|begin_of_video|>", "<|end_of_video|>"]
    words = make_tokenizer("<|image|>", "<|video|>", *around)
    names = ("image_start", "image_end", "video_start", "video_end")
    ids = {f"{name}_token_id": _id(words, token) for name, token in zip(names, around, strict=True)}
    vision = {
        "hidden_size": 32,
        "depth": 2,
        "num_heads": 2,
        "intermediate_size": 32,
        "out_hidden_size": 32,
        "patch_size": 14,
        "image_size": 56,
        "spatial_merge_size": 2,
    }
    rope = {
        "rope_type": "default",
        "mrope_section": [2, 3, 3],
        "rope_theta": 10000.0,
        "partial_rotary_factor": 1.0,
    }
    config = t.Glm4vConfig(
        vision_config=vision,
        text_config=_text(type(t.Glm4vConfig().text_config), words, rope_parameters=rope),
        image_token_id=_id(words, "<|image|>"),
        video_token_id=_id(words, "<|video|>"),
        **ids,
    )
    small = {"shortest_edge": 56 * 56, "longest_edge": 2 * 140 * 140}
    videos = t.Glm4vVideoProcessor(patch_size=14, size={**small, "longest_edge": 8 * 140 * 140})
    return config, t.Glm4vProcessor(t.Glm4vImageProcessor(patch_size=14, size=small), words, videos)


def deepseek_vl() -> tuple[Any, Any]:
    """A square with padding around the picture."""
    t, words = transformers, make_tokenizer(image_token="<image_placeholder>")
    config = t.DeepseekVLConfig(
        vision_config=t.SiglipVisionConfig(**VISION, vision_use_head=False),
        text_config=_text(t.LlamaConfig, words),
        image_token_id=_id(words, "<image_placeholder>"),
    )
    images = t.DeepseekVLImageProcessor(size=SQUARE, min_size=14)
    return config, t.DeepseekVLProcessor(images, words, num_image_tokens=16)


def lfm2_vl() -> tuple[Any, Any]:
    """Tiles of any proportions, four patches a token."""
    t = transformers
    words = make_tokenizer(
        image_token="<image>",
        image_start_token="<|image_start|>",
        image_end_token="<|image_end|>",
        image_thumbnail_token="<|img_thumbnail|>",
    )
    tiles = [f"<|img_row_{row}_col_{column}|>" for row in range(1, 11) for column in range(1, 11)]
    words.add_tokens([tokenizers.AddedToken(tile, special=True) for tile in tiles])
    vision = {name: size for name, size in VISION.items() if name != "image_size"}
    config = t.Lfm2VlConfig(
        vision_config=t.Siglip2VisionConfig(**vision, num_patches=16, vision_use_head=False),
        text_config=_text(t.Lfm2Config, words, layer_types=["full_attention"] * 2),
        image_token_id=_id(words, "<image>"),
        downsample_factor=2,
    )
    images = t.Lfm2VlImageProcessor(
        encoder_patch_size=14,
        tile_size=56,
        max_tiles=4,
        min_image_tokens=4,
        max_image_tokens=16,
        downsample_factor=2,
    )
    return config, t.Lfm2VlProcessor(images, words)


FAMILIES: dict[str, Callable[[], tuple[Any, Any]]] = {
    f.__name__: f
    for f in (
        llava,
        vipllava,
        llava_next,
        llava_next_video,
        llava_onevision,
        qwen2_vl,
        qwen2_5_vl,
        qwen3_vl,
        paligemma,
        gemma3,
        idefics2,
        idefics3,
        smolvlm,
        internvl,
        aya_vision,
        mistral3,
        mllama,
        glm4v,
        deepseek_vl,
        lfm2_vl,
    )
}
