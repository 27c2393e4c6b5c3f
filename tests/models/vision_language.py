"""Tiny folders of models that read an image as part of their text, each with its real processor."""

import inspect
import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers

from tests.models.folders import save

LAYERS = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
VISION = LAYERS | {"image_size": 56, "patch_size": 14}
TEXT = LAYERS | {"num_key_value_heads": 1, "max_position_embeddings": 4096, "head_dim": 16}
SQUARE = {"height": 56, "width": 56}
SENTENCE = "what is on the mat a red square shape describe this left right dog cat husky ? . , :"
WORDS = SENTENCE.split()


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


NAMED = re.compile(r'tokenizer\.(\w+_token)\b|getattr\(\s*(?:self\.)?tokenizer, "(\w+_token)"')
SIGN = re.compile(r'"(<[^"\s{}]{1,40}>|\[[A-Z_]+\])"')
BESIDE = re.compile(r"_(start|end)_token_(id|index)$")
USUAL = re.compile(r"(add_)?(pad|unk|bos|eos)_token")


def make_words(config: Any, processor: Any, *special: str, **named: str) -> Any:
    """A tokenizer of whole words, with the special tokens that a processor asks for in its source."""
    source = inspect.getsource(inspect.getmodule(processor))
    asked = [one or other for one, other in NAMED.findall(source)]
    asked += [key.rpartition("_")[0] for key in config().to_dict() if BESIDE.search(key)]
    own = {token: f"<{token}>" for token in asked if not USUAL.fullmatch(token)}
    signs = [sign for sign in SIGN.findall(source) if sign not in ("<s>", "</s>", "<unk>")]
    own = {token: sign for token, sign in (own | named).items() if sign}
    return make_tokenizer(*dict.fromkeys([*signs, *special]), **own)


def name_tokens(config: Any, processor: Any) -> None:
    """Give the config the ids that its special tokens have in the processor's tokenizer."""
    for key in config.to_dict():
        stem, _, last = key.rpartition("_")
        if stem.endswith("_token") and last in ("id", "index"):
            sources = (processor, processor.tokenizer)
            for token in [getattr(one, ending, None) for one in sources for ending in (f"{stem}_id", stem)]:
                id_ = processor.tokenizer.convert_tokens_to_ids(token) if isinstance(token, str) else token
                if isinstance(id_, int) and id_ > 3:  # behind those that every tokenizer has
                    setattr(config, key, id_)
                    break


Settings = Mapping[str, Any]
Part = tuple[str, Settings]  # the class of a processor's part, without its last words, and its settings


@dataclass(frozen=True)
class Family:
    """A type by its ``kind``, the name of its config and of its processor unless ``processor`` is another.

    ``vision`` and ``text`` are settings of the inner configs, the latter beside ``TEXT``, or of the config
    itself if it is ``flat``; ``options`` are of the processor. ``signs`` and ``named`` are special tokens
    that its source does not name, ``ids`` fields of the config that do not tell their token, or tokens.
    """

    kind: str
    vision: Settings
    images: Part
    text: Settings = field(default_factory=dict)
    videos: Part | None = None
    signs: Sequence[str] = ()
    named: Mapping[str, str] = field(default_factory=dict)
    ids: Mapping[str, str | Sequence[str]] = field(default_factory=dict)
    config: Settings = field(default_factory=dict)
    options: Settings = field(default_factory=dict)
    processor: str | None = None
    flat: bool = False

    def make(self) -> tuple[Any, Any]:
        """The config and the processor."""
        kind = getattr(transformers, f"{self.kind}Config")
        processor = getattr(transformers, f"{self.processor or self.kind}Processor")
        words = make_words(kind, processor, *self.signs, **dict(self.named))
        text = TEXT | {"vocab_size": len(words), "pad_token_id": 1} | deepcopy(self.text)
        inner = text if self.flat else {"text_config": text}
        seen = {"vision_config": dict(self.vision)} if self.vision else {}
        drawn = {"vocabulary_map": words.get_vocab()} if self.kind in ("Chameleon", "Emu3") else {}
        config = kind(**inner, **seen, **drawn, **self.config)
        parts = {"image_processor": _make(self.images, "ImageProcessor"), "tokenizer": words}
        if self.videos is not None:
            parts["video_processor"] = _make(self.videos, "VideoProcessor")
        if self.kind == "InstructBlip":
            parts["qformer_tokenizer"] = make_tokenizer()
        made = processor(**parts, **self.options)
        name_tokens(config, made)
        for name, token in self.ids.items():
            setattr(config, name, words.convert_tokens_to_ids(token))
        return config, made


def _make(part: Part, last: str) -> Any:
    return getattr(transformers, part[0] + last)(**part[1])


def seeing(**settings: Any) -> Settings:
    """A tower of those settings beside the usual ones."""
    return VISION | settings


CUT = {"size": {"shortest_edge": 56}, "crop_size": SQUARE}
WHOLE = {"size": SQUARE}
PINS = {"image_grid_pinpoints": [[56, 112], [112, 56], [112, 112]]}
LAST = {"vision_feature_layer": -1}
PATCHED = {"patch_size": 14, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1}
TILED = WHOLE | {"crop_to_patches": True, "max_patches": 6, "min_patches": 2}
FOUR = {"image_seq_length": 4}
OWN = {"image_token": ""}  # the processor's own, which its tokenizer does not name
LLAVA = Family("Llava", VISION, ("CLIP", CUT), named=OWN, config=LAST, options=PATCHED)
LLAVA_NEXT = replace(LLAVA, kind="LlavaNext", images=("LlavaNext", CUT | PINS), config=LAST | PINS)

DEEP = {"depth": 2, "num_heads": 2, "hidden_size": 32}
WINDOWS = DEEP | {"out_hidden_size": 32, "intermediate_size": 32, "window_size": 56}
ROPE = {"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 10000.0}
QWEN2_VL = Family(
    "Qwen2VL",
    DEEP | {"embed_dim": 32, "mlp_ratio": 2},
    ("Qwen2VL", {"patch_size": 14, "max_pixels": 140 * 140}),
    {"rope_parameters": ROPE},
    ("Qwen2VL", {"patch_size": 14, "size": {"shortest_edge": 56 * 56, "longest_edge": 16 * 140 * 140}}),
)
EDGES = {"size": {"longest_edge": 112}, "max_image_size": {"longest_edge": 56}}
IDEFICS3 = Family(
    "Idefics3",
    VISION,
    ("Idefics3", EDGES),
    signs=[f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)],
    options={"image_seq_len": 4},
)
QUERIES = {"num_query_tokens": 8}
QUERIED = Family(
    "Blip2",
    VISION,
    ("Blip", WHOLE),
    {"ffn_dim": 32, "max_position_embeddings": 512},
    signs=["<image>"],
    named=OWN,
    ids={"image_token_index": "<image>"},
    config=QUERIES | {"qformer_config": LAYERS | {"vocab_size": 40}},
    options=QUERIES,
)
LATENTS = {"resampler_n_latents": 8, "resampler_depth": 1, "resampler_n_heads": 2, "resampler_head_dim": 16}
OVIS = ("<IMG_START>", "<IMG_GRID>", "<IMG_COL>", "<IMG_ROW>", "<IMG_END>")
CODES = 16  # words for what is seen
DRAWN = {"embed_dim": 16, "base_channels": 32, "num_res_blocks": 1, "attn_resolutions": []}
SIDES = {
    f"{side}_{name}": size
    for side in ("encoder", "decoder")
    for name, size in (("layers", 2), ("attention_heads", 2), ("ffn_dim", 32))
}

FAMILIES = {
    "llava": LLAVA,  # one square, of which each patch is a token
    "vipllava": replace(  # the same, made of several layers of the tower
        LLAVA, kind="VipLlava", config={"vision_feature_layers": [-2, -1]}, processor="Llava"
    ),
    # a small picture of the whole, and tiles of which the padding is cut away, each row with an end
    "llava_next": LLAVA_NEXT,
    "llava_next_video": replace(  # and videos, of which four patches of a frame are averaged into a token
        LLAVA_NEXT, kind="LlavaNextVideo", videos=("LlavaNextVideo", CUT), signs=["<image>", "<video>"]
    ),
    "llava_onevision": Family(  # the same with another tower
        "LlavaOnevision",
        VISION,
        ("LlavaOnevision", WHOLE | PINS),
        videos=("LlavaOnevision", WHOLE),
        config=PINS,
        options={"num_image_tokens": 16, "vision_feature_select_strategy": "full"},
    ),
    "qwen2_vl": QWEN2_VL,  # any proportions, four patches a token
    "qwen2_5_vl": replace(  # the same, with attention in windows
        QWEN2_VL, kind="Qwen2_5_VL", vision=WINDOWS | {"fullatt_block_indexes": [1]}
    ),
    "paligemma": Family(  # a square, and a prefix that sees itself whole
        "PaliGemma",
        seeing(model_type="siglip_vision_model", vision_use_head=False),
        ("Siglip", WHOLE | {"image_seq_length": 16}),
        {"model_type": "gemma"},
        signs=["<image>", *(f"<loc{at:04}>" for at in range(1024)), *(f"<seg{at:03}>" for at in range(128))],
        named=OWN,
        config={"projection_dim": 32},
    ),
    "gemma3": Family(  # a square, of which four patches are averaged into a token
        "Gemma3",
        seeing(vision_use_head=False),
        ("Gemma3", WHOLE),
        named={"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>", "image_token": "<image_soft>"},
        ids={"image_token_id": "<image_soft>"},
        config={"mm_tokens_per_image": 4},
        options=FOUR,
    ),
    "idefics2": Family(  # learned queries stand for the picture: none of them has a place in it
        "Idefics2",
        VISION,
        ("Idefics2", {"size": {"longest_edge": 56, "shortest_edge": 28}, "do_image_splitting": False}),
        config={"perceiver_config": LATENTS | {"num_key_value_heads": 1}},
        options={"image_seq_len": 8},
    ),
    "idefics3": IDEFICS3,  # tiles with names between them, a small picture of the whole behind them
    "smolvlm": replace(IDEFICS3, kind="SmolVLM", images=("SmolVLM", EDGES), videos=("SmolVLM", EDGES)),
    "internvl": Family(  # tiles in one row of tokens, then a small picture of the whole
        "InternVL",
        seeing(image_size=[56, 56], use_mean_pooling=False) | {"patch_size": [14, 14]},
        ("GotOcr2", TILED),
        videos=("InternVL", WHOLE),
        options=FOUR,
    ),
    "mllama": Family(  # the picture is looked at across, from some layers
        "Mllama",
        seeing(num_global_layers=1, vision_output_dim=64, intermediate_layers_indices=[1]),
        ("Mllama", WHOLE | {"max_image_tiles": 4}),
        {"cross_attention_layers": [1], "vocab_size": 25},  # without the sign of a picture
    ),
    "lfm2_vl": Family(  # tiles of any proportions, four patches a token
        "Lfm2Vl",
        LAYERS | {"patch_size": 14, "num_patches": 16, "vision_use_head": False},
        (
            "Lfm2Vl",
            {"encoder_patch_size": 14, "tile_size": 56, "max_tiles": 4, "downsample_factor": 2}
            | {"min_image_tokens": 4, "max_image_tokens": 16},
        ),
        {"layer_types": ["full_attention"] * 2},
        signs=[f"<|img_row_{at // 10 + 1}_col_{at % 10 + 1}|>" for at in range(100)],
    ),
}

MORE = {  # other ways to stand in a text
    "llama4": Family(  # tiles with signs between their rows and columns, then the whole
        "Llama4",
        seeing(intermediate_size=128, vision_output_dim=32, projector_input_dim=32, projector_output_dim=32),
        ("Llama4", WHOLE | {"max_patches": 4}),
        {"layer_types": ["full_attention"] * 2, "intermediate_size_mlp": 32}
        | {"num_local_experts": 2, "moe_layers": []},
        ids={"image_token_index": "<|patch|>"},
    ),
    # tiles, each token a mixture of words for what is seen, with indicators between them
    "ovis2": Family(
        "Ovis2",
        seeing(vocab_size=64, hidden_stride=2),
        ("Ovis2", TILED | {"max_patches": 4, "min_patches": 1}),
        signs=["<image>", "<IMG_ATOM>", *OVIS],
        ids={"image_token_id": "<IMG_ATOM>", "visual_indicator_token_ids": OVIS},
        config={"hidden_size": 32},
        options=FOUR,
    ),
    # the picture is looked at across, from layers between those of the text
    "idefics": Family("Idefics", VISION, ("Idefics", {"image_size": 56}), flat=True),
    # learned queries stand for the picture, put before the text by the processor itself
    "blip_2": QUERIED,
    "instructblip": replace(QUERIED, kind="InstructBlip"),  # the same; the queries read the text, too
    "kosmos_2": Family(  # learned queries, at places of which the processor tells: their ids mean nothing
        "Kosmos2",
        VISION,
        ("CLIP", CUT),
        {"vocab_size": 128, "ffn_dim": 32, "max_position_embeddings": 256},
        options={"num_patch_index_tokens": 16},
    ),
    # words that stand for what is seen, chosen by what is nearest
    "chameleon": Family(
        "Chameleon",
        {},
        ("Chameleon", CUT),
        named={"image_token": "<image>"},
        signs=[f"IMGIMG{''.join('ABCDEFGHIJ'[int(digit)] for digit in str(at))}Z" for at in range(CODES)],
        config={
            "vq_config": DRAWN
            | {"num_embeddings": CODES, "latent_channels": 32, "resolution": 56, "channel_multiplier": [1, 1]}
        },
        options={"image_seq_length": 784},
        flat=True,
    ),
    "emu3": Family(  # the same, of any proportions, with a word for the end of each row
        "Emu3",
        {},
        ("Emu3", {"min_pixels": 32 * 32, "max_pixels": 64 * 64}),
        {"bos_token_id": 2, "eos_token_id": 3},
        signs=[*(f"<|visual token {at:06}|>" for at in range(CODES)), "<|extra_200|>"],
        named={"image_token": "<image>", "image_wrapper_token": "<|image token|>"}
        | {"eof_token": "<|extra_201|>"},
        config={
            "vq_config": DRAWN
            | {"codebook_size": CODES, "embed_dim": 4, "latent_channels": 4, "hidden_size": 32}
            | {"channel_multiplier": [1, 1, 1, 1]}
        },
    ),
    # an encoder reads the picture, of a tower whose patches overlap, and the text; a decoder writes
    "florence2": Family(
        "Florence2",
        {"depths": [1, 1], "embed_dim": [16, 32], "num_heads": [2, 2], "num_groups": [2, 2]}
        | {"patch_size": [7, 3], "patch_stride": [4, 2], "patch_padding": [3, 1]}
        | {"patch_prenorm": [False, True], "window_size": 4, "projection_dim": 32},
        ("CLIP", WHOLE | {"do_center_crop": False, "image_seq_length": 50}),
        SIDES | {"decoder_start_token_id": 2},
    ),
}

ALL = FAMILIES | MORE

NUMBERED = ("blip_2", "instructblip", "kosmos_2", "chameleon", "emu3", "florence2")
"""Those of which no token stands for a part of the picture alone."""

NEED_TORCHVISION = {name for name, family in ALL.items() if family.videos} | {"lfm2_vl", "llama4"}
"""Those whose processors cannot be made without torchvision."""


def vision_language(folder: Path, name: str) -> str:
    """The folder of a tiny model of that family, with random weights."""
    config, processor = ALL[name].make()
    torch.manual_seed(0)
    return save(folder, transformers.AutoModelForImageTextToText.from_config(config), processor, seed=None)
