"""Tiny folders of the other types that read pictures in texts: a config made small, and its real processor.

What a type's processor is made of, which signs its tokenizer needs and how large its pictures are is asked of
its own classes; ``vision_readings.py`` says what they do not tell.
"""

import functools
import inspect
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers

from tests.models.vision_language import SQUARE, WORDS, make_tokenizer
from tests.models.vision_readings import RECIPES, Reading
from tests.tools.coverage.recipes import RECIPES as COVERED
from tests.tools.coverage.shrink import small_config

NAMED = re.compile(r'tokenizer\.(\w+_token)\b|getattr\(\s*(?:self\.)?tokenizer, "(\w+_token)"')
SIGN = re.compile(r'"(<[^"\s{}]{1,40}>|\[[A-Z_]+\])"')
AROUND = re.compile(r"_(start|end)_token_(id|index)$")
USUAL = ("pad_token", "unk_token", "bos_token", "eos_token")
WIDE = ("out_hidden_size", "text_hidden_size", "adapter_out_dim", "output_dim")


SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}


def vision_encoder_decoder(folder: Path) -> str:
    """As TrOCR: patches of a square, and a decoder that looks at them across."""
    words = make_tokenizer()
    encoder = transformers.ViTConfig(**SIZES, image_size=56, patch_size=14)
    decoder = transformers.BertConfig(
        vocab_size=len(words), is_decoder=True, add_cross_attention=True, **SIZES
    )
    torch.manual_seed(0)
    model = transformers.VisionEncoderDecoderModel(
        encoder=transformers.ViTModel(encoder), decoder=transformers.BertLMHeadModel(decoder)
    )
    model.config.decoder_start_token_id, model.config.pad_token_id = 2, 1
    for weights in model.parameters():
        torch.nn.init.normal_(weights, std=0.2)
    model.save_pretrained(folder)
    transformers.TrOCRProcessor(transformers.ViTImageProcessorPil(size=SQUARE), words).save_pretrained(folder)
    return str(folder)


def make_folder(name: str, folder: Path) -> str:
    """The folder of a tiny model of a type, with random weights."""
    if name == "vision-encoder-decoder":
        return vision_encoder_decoder(folder)
    reading = RECIPES.get(name, Reading())
    kind = transformers.CONFIG_MAPPING[name]
    vision = kind().to_dict().get("vision_config") or {}
    patch = vision.get("patch_size")
    patch = patch if isinstance(patch, int) else 14
    side = reading.side or 4 * patch
    processor = _make_processor(name, reading, patch, side)
    config = _make_config(name, reading, vision, side)
    _name_tokens(config, processor)
    for key, token in reading.ids.items():
        *path, last = key.split(".")
        setattr(
            functools.reduce(getattr, path, config), last, processor.tokenizer.convert_tokens_to_ids(token)
        )
    torch.manual_seed(0)
    module = transformers.AutoModelForImageTextToText.from_config(config)
    with torch.no_grad():
        for weights in module.parameters():
            torch.nn.init.normal_(weights, std=0.2)
    module.save_pretrained(folder)
    processor.save_pretrained(folder)
    return str(folder)


def _classes_of(part: str) -> Any:
    """The classes of a part of processors, by type; imported late, when torchvision can be."""
    from transformers.models.auto import feature_extraction_auto as sounds
    from transformers.models.auto import image_processing_auto as images
    from transformers.models.auto import video_processing_auto as videos

    return {
        "image_processor": images.IMAGE_PROCESSOR_MAPPING_NAMES,
        "video_processor": videos.VIDEO_PROCESSOR_MAPPING_NAMES,
        "feature_extractor": sounds.FEATURE_EXTRACTOR_MAPPING_NAMES,
    }[part]


def _make_processor(name: str, reading: Reading, patch: int, side: int) -> Any:
    from transformers.models.auto.processing_auto import PROCESSOR_MAPPING_NAMES

    kind = getattr(transformers, reading.processor or PROCESSOR_MAPPING_NAMES[name])
    source = inspect.getsource(inspect.getmodule(kind))
    found = dict.fromkeys(one or other for one, other in NAMED.findall(source))
    around = [
        key.rpartition("_")[0] for key in transformers.CONFIG_MAPPING[name]().to_dict() if AROUND.search(key)
    ]
    named = {token: f"<{token}>" for token in [*found, *around] if token not in USUAL}
    signs = [sign for sign in SIGN.findall(source) if sign not in ("<s>", "</s>", "<unk>")]
    words = make_tokenizer(*dict.fromkeys([*signs, *reading.signs]), **named)
    if reading.spelled:
        words = make_tokenizer(words=[*WORDS, "▁", *signs, *reading.signs], **named)
        pattern = "|".join([*map(re.escape, reading.signs), r"▁|\w+|[^\w\s▁]"])
        words.backend_tokenizer.normalizer = tokenizers.normalizers.Prepend("▁")
        words.backend_tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Split(
            tokenizers.Regex(pattern), "removed", invert=True
        )
    takes = inspect.signature(kind.__init__).parameters
    settings = {"image_processor": reading.images, "video_processor": reading.videos}
    parts = {
        part: _make_part(
            reading.parts.get(part) or _first(_classes_of(part).get(name)), settings.get(part), patch, side
        )
        for part in ("image_processor", "video_processor", "feature_extractor")
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
    small: dict[str, Any] = {
        key: _small(getattr(kind, key), side)
        for key in ("size", "crop_size", "tile_size", "scale_resolution")
        if getattr(kind, key, None)
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


def _name_tokens(config: Any, processor: Any) -> None:
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


def _first(names: Any) -> str | None:
    names = names.get("torchvision") or names.get("pil") if isinstance(names, dict) else names
    return next(filter(None, names), None) if isinstance(names, (list, tuple)) else names
