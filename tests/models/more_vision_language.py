"""More tiny folders of models that read a picture in their text: of other ways to stand there."""

from collections.abc import Callable
from typing import Any

import transformers as t
from transformers.models.blip_2.configuration_blip_2 import Blip2VisionConfig
from transformers.models.florence2.configuration_florence2 import Florence2VisionConfig
from transformers.models.instructblip.configuration_instructblip import InstructBlipVisionConfig
from transformers.models.janus.configuration_janus import JanusVisionConfig, JanusVQVAEConfig
from transformers.models.llama4.configuration_llama4 import Llama4TextConfig, Llama4VisionConfig
from transformers.models.ovis2.configuration_ovis2 import Ovis2VisionConfig
from transformers.models.video_llama_3.configuration_video_llama_3 import VideoLlama3VisionConfig

from tests.models.vision_language import (
    QWEN,
    SQUARE,
    TEXT,
    VISION,
    _id,
    _text,
    glm4v,
    make_tokenizer,
    qwen3_vl,
)

UNSIZED = {name: size for name, size in VISION.items() if name != "image_size"}
QUERIES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "encoder_hidden_size": 32,
    "vocab_size": 40,
}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}


def llama4() -> tuple[Any, Any]:
    """Tiles with signs between their rows and columns, then the whole."""
    signs = ["<|image_start|>", "<|image_end|>", "<|tile_x_separator|>", "<|tile_y_separator|>"]
    words = make_tokenizer("<|image|>", "<|patch|>", *signs)
    text = {"intermediate_size_mlp": 32, "num_local_experts": 2, "moe_layers": []}
    wide = {f"{name}_dim": 32 for name in ("vision_output", "projector_input", "projector_output")}
    config = t.Llama4Config(
        vision_config=Llama4VisionConfig(**VISION | {"intermediate_size": 128}, **wide),
        text_config=_text(Llama4TextConfig, words, layer_types=["full_attention"] * 2, **text),
        image_token_index=_id(words, "<|patch|>"),
    )
    return config, t.Llama4Processor(t.Llama4ImageProcessor(size=SQUARE, max_patches=4), words, patch_size=14)


def janus() -> tuple[Any, Any]:
    """A square; the model draws, too, with another tower."""
    around = {"boi_token": "<begin_of_image>", "eoi_token": "<end_of_image>"}
    words = make_tokenizer(image_token="<image_placeholder>", **around)
    vision = {name: size for name, size in VISION.items() if name != "intermediate_size"}
    drawn = {"embed_dim": 8, "num_embeddings": 16, "base_channels": 32, "channel_multiplier": [1, 1]}
    sizes = {"num_res_blocks": 1, "num_patches": 4, "projection_dim": 32, "image_token_embed_dim": 32}
    config = t.JanusConfig(
        vision_config=JanusVisionConfig(**vision, mlp_ratio=1, projection_dim=32, num_image_tokens=16),
        vq_config=JanusVQVAEConfig(**drawn, **sizes),
        text_config=_text(t.LlamaConfig, words),
        image_token_id=_id(words, "<image_placeholder>"),
    )
    return config, t.JanusProcessor(
        t.JanusImageProcessor(size=SQUARE, min_size=14), words, num_image_tokens=16
    )


def ovis2() -> tuple[Any, Any]:
    """Tiles, each token a mixture of words for what is seen, with indicators between them."""
    names = ("<IMG_START>", "<IMG_GRID>", "<IMG_COL>", "<IMG_ROW>", "<IMG_END>")
    words = make_tokenizer("<image>", "<IMG_ATOM>", *names)
    config = t.Ovis2Config(
        vision_config=Ovis2VisionConfig(
            **VISION, vocab_size=64, num_visual_indicator_tokens=5, hidden_stride=2
        ),
        text_config=_text(t.Qwen2Config, words),
        image_token_id=_id(words, "<IMG_ATOM>"),
        visual_indicator_token_ids=[_id(words, name) for name in names],
        hidden_size=32,
    )
    images = t.Ovis2ImageProcessor(size=SQUARE, crop_to_patches=True, max_patches=4, min_patches=1)
    return config, t.Ovis2Processor(images, words, image_seq_length=4, image_token="<IMG_ATOM>")


def cohere2_vision() -> tuple[Any, Any]:
    """Tiles with the ends of lines, then the whole."""
    around = {"boi_token": "<|START_OF_IMG|>", "eoi_token": "<|END_OF_IMG|>"}
    words = make_tokenizer(image_token="<|IMG_PATCH|>", img_line_break_token="<|IMG_LINE_BREAK|>", **around)
    config = t.Cohere2VisionConfig(
        vision_config=t.SiglipVisionConfig(**VISION, vision_use_head=False),
        text_config=_text(t.Cohere2Config, words),
        image_token_id=_id(words, "<|IMG_PATCH|>"),
        downsample_factor=2,
    )
    # its patch size is how many tokens a tile has along its side
    images = t.Cohere2VisionImageProcessor(size=SQUARE, patch_size=2, max_patches=6, min_patches=1)
    return config, t.Cohere2VisionProcessor(images, words)


def video_llama_3() -> tuple[Any, Any]:
    """Any proportions, each patch a token."""
    words = make_tokenizer("<|image_pad|>", "<|video_pad|>")
    config = t.VideoLlama3Config(
        vision_config=VideoLlama3VisionConfig(**UNSIZED),
        text_config=_text(t.Qwen2Config, words),
        image_token_id=_id(words, "<|image_pad|>"),
        video_token_id=_id(words, "<|video_pad|>"),
    )
    sizes = {"patch_size": 14, "min_pixels": 56 * 56, "max_pixels": 140 * 140}
    images = t.VideoLlama3ImageProcessor(**sizes)
    return config, t.VideoLlama3Processor(images, words, t.VideoLlama3VideoProcessor(**sizes))


def _like_qwen3_vl(kind: Any, text: dict[str, Any], **vision: Any) -> tuple[Any, Any]:
    """A config of another text model, read by the same processor."""
    config, processor = qwen3_vl()
    words, names = processor.tokenizer, ("vision_start", "vision_end", "image", "video")
    rope = config.text_config.rope_parameters
    config = kind(
        vision_config={
            "hidden_size": 32,
            "out_hidden_size": 32,
            "depth": 2,
            "num_heads": 2,
            "intermediate_size": 32,
            "patch_size": 14,
            "num_position_embeddings": 64,
            **vision,
        },
        text_config=_text(type(kind().text_config), words, rope_parameters=rope, **text),
        **{f"{name}_token_id": _id(words, token) for name, token in zip(names, QWEN, strict=True)},
    )
    return config, processor


def qwen3_5() -> tuple[Any, Any]:
    """Any proportions, four patches a token, in a text with full attention."""
    return _like_qwen3_vl(t.Qwen3_5Config, {"layer_types": ["full_attention"] * 2})


def qwen3_vl_moe() -> tuple[Any, Any]:
    """The same, read by experts."""
    return _like_qwen3_vl(t.Qwen3VLMoeConfig, EXPERTS | {"num_experts": 4}, deepstack_visual_indexes=[0])


def _like_glm4v(kind: Any, **text: Any) -> Any:
    """A config of another text model with the tower of GLM-4V."""
    values, config = glm4v()[0].to_dict(), kind()
    rope = values["text_config"]["rope_parameters"]
    sizes = TEXT | {"vocab_size": values["text_config"]["vocab_size"], "pad_token_id": 1} | text
    return kind(
        vision_config=values["vision_config"],
        text_config=type(config.text_config)(**sizes, rope_parameters=rope),
        **{name: id_ for name, id_ in values.items() if name.endswith("token_id")},
    )


def glm46v() -> tuple[Any, Any]:
    """As GLM-4V, with signs between the frames of a video."""
    words = glm4v()[1].tokenizer
    small = {"shortest_edge": 56 * 56, "longest_edge": 2 * 140 * 140}
    videos = t.Glm46VVideoProcessor(patch_size=14, size={**small, "longest_edge": 8 * 140 * 140})
    images = t.Glm46VImageProcessor(patch_size=14, size=small)
    return _like_glm4v(t.Glm46VConfig), t.Glm46VProcessor(images, words, videos)


def glm4v_moe() -> tuple[Any, Any]:
    """As GLM-4V, read by experts."""
    text = EXPERTS | {"n_routed_experts": 4, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1}
    return _like_glm4v(t.Glm4vMoeConfig, **text), glm4v()[1]


def glm_ocr() -> tuple[Any, Any]:
    """As GLM-4V, for pages."""
    return _like_glm4v(t.GlmOcrConfig), glm4v()[1]


def idefics() -> tuple[Any, Any]:
    """The picture is looked at across, from layers between those of the text."""
    words = make_tokenizer("<fake_token_around_image>", "<image>", "<end_of_utterance>")
    text = {name: size for name, size in TEXT.items() if name not in ("num_key_value_heads", "head_dim")}
    config = t.IdeficsConfig(
        **text,
        vocab_size=len(words),
        additional_vocab_size=0,
        pad_token_id=1,
        cross_layer_interval=1,
        use_resampler=False,
        vision_config=VISION | {"embed_dim": 32},
    )
    return config, t.IdeficsProcessor(t.IdeficsImageProcessor(image_size=56), words, image_size=56)


def _queried(kind: Any, tower: Any, words: Any) -> Any:
    text = {"hidden_size": 32, "word_embed_proj_dim": 32, "ffn_dim": 32, "num_hidden_layers": 2}
    size = {"vocab_size": len(words), "num_attention_heads": 2, "max_position_embeddings": 512}
    return kind(
        vision_config=tower(**VISION),
        qformer_config=QUERIES,
        text_config=t.OPTConfig(**text, **size, pad_token_id=1),
        num_query_tokens=8,
        image_token_index=_id(words, "<image>"),
    )


def blip_2() -> tuple[Any, Any]:
    """Learned queries stand for the picture, put before the text by the processor itself."""
    words = make_tokenizer("<image>")
    processor = t.Blip2Processor(t.BlipImageProcessor(size=SQUARE), words, num_query_tokens=8)
    return _queried(t.Blip2Config, Blip2VisionConfig, words), processor


def instructblip() -> tuple[Any, Any]:
    """The same; the queries read the text, too."""
    words = make_tokenizer("<image>")
    images = t.BlipImageProcessor(size=SQUARE)
    processor = t.InstructBlipProcessor(images, words, make_tokenizer(), num_query_tokens=8)
    return _queried(t.InstructBlipConfig, InstructBlipVisionConfig, words), processor


def kosmos_2() -> tuple[Any, Any]:
    """Learned queries, at places of which the processor tells: their ids mean nothing."""
    pairs = [sign for name in ("phrase", "object") for sign in (f"<{name}>", f"</{name}>")]
    more = ["</delimiter_of_multi_objects/>", "<grounding>"]
    patches = [f"<patch_index_{number:04}>" for number in range(16)]
    words = make_tokenizer("<image>", "</image>", *pairs, *more, *patches)
    text = {"vocab_size": 128, "embed_dim": 32, "layers": 2, "ffn_dim": 32, "attention_heads": 2}
    config = t.Kosmos2Config(
        text_config=text | {"max_position_embeddings": 256}, vision_config=VISION, latent_query_num=64
    )
    images = t.CLIPImageProcessor(size={"shortest_edge": 56}, crop_size=SQUARE)
    return config, t.Kosmos2Processor(images, words, num_patch_index_tokens=16)


def florence2() -> tuple[Any, Any]:
    """An encoder reads the picture, of a tower whose patches overlap, and the text; a decoder writes."""
    words = make_tokenizer(image_token="<image>")
    layers = {"depths": [1, 1], "embed_dim": [16, 32], "num_heads": [2, 2], "num_groups": [2, 2]}
    patches = {"patch_size": [7, 3], "patch_stride": [4, 2], "patch_padding": [3, 1]}
    text = {f"{side}_{name}": 2 for side in ("encoder", "decoder") for name in ("layers", "attention_heads")}
    wide = {"d_model": 32, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "decoder_start_token_id": 2}
    config = t.Florence2Config(
        vision_config=Florence2VisionConfig(
            **layers, **patches, patch_prenorm=[False, True], window_size=4, projection_dim=32
        ),
        text_config=t.BartConfig(**text, **wide, vocab_size=len(words), pad_token_id=1),
        image_token_id=_id(words, "<image>"),
    )
    images = t.CLIPImageProcessor(size=SQUARE, do_center_crop=False)
    images.image_seq_length = 50
    return config, t.Florence2Processor(images, words)


CODES = 16
"""Words for what is seen."""

DRAWN = {"embed_dim": 16, "base_channels": 32, "num_res_blocks": 1, "attn_resolutions": []}


def chameleon() -> tuple[Any, Any]:
    """Chosen by what is nearest."""
    letters = ["".join("ABCDEFGHIJ"[int(digit)] for digit in str(number)) for number in range(CODES)]
    words = make_tokenizer("<image>", "<racm3:break>", "<eoss>", *[f"IMGIMG{name}Z" for name in letters])
    sizes = {"num_embeddings": CODES, "latent_channels": 32, "resolution": 56, "channel_multiplier": [1, 1]}
    config = _text(
        t.ChameleonConfig,
        words,
        vocabulary_map=words.get_vocab(),
        vq_config=DRAWN | sizes,
        image_token_id=_id(words, "<image>"),
    )
    images = t.ChameleonImageProcessor(size={"shortest_edge": 56}, crop_size=SQUARE)
    return config, t.ChameleonProcessor(images, words, image_seq_length=784)


def emu3() -> tuple[Any, Any]:
    """The same, of any proportions, with a word for the end of each row."""
    signs = {"boi": "<|image start|>", "eoi": "<|image end|>", "image_wrapper": "<|image token|>"}
    named = {f"{name}_token": sign for name, sign in (signs | {"eof": "<|extra_201|>"}).items()}
    codes = [f"<|visual token {number:06}|>" for number in range(CODES)]
    words = make_tokenizer(*codes, "<|extra_200|>", image_token="<image>", **named)
    sizes = {"codebook_size": CODES, "embed_dim": 4, "latent_channels": 4, "channel_multiplier": [1, 1, 1, 1]}
    config = t.Emu3Config(
        text_config=_text(t.Emu3TextConfig, words, bos_token_id=2, eos_token_id=3),
        vq_config=DRAWN | sizes | {"hidden_size": 32},
        vocabulary_map=words.get_vocab(),
    )
    images = t.Emu3ImageProcessor(min_pixels=32 * 32, max_pixels=64 * 64)
    return config, t.Emu3Processor(images, words)


MORE: dict[str, Callable[[], tuple[Any, Any]]] = {
    f.__name__: f
    for f in (
        llama4,
        janus,
        ovis2,
        cohere2_vision,
        video_llama_3,
        qwen3_5,
        qwen3_vl_moe,
        glm46v,
        glm4v_moe,
        glm_ocr,
        idefics,
        blip_2,
        instructblip,
        kosmos_2,
        chameleon,
        emu3,
        florence2,
    )
}

NUMBERED = ("blip_2", "instructblip", "kosmos_2", "chameleon", "emu3", "florence2")
"""Those of which no token stands for a part of the picture alone."""
