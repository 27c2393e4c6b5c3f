"""Inputs for a model of any type, from the names that its forward takes and from its config."""

from __future__ import annotations

import inspect
from typing import Any

import torch

LENGTH = 12


def noise(*shape: int) -> torch.Tensor:
    """Random numbers."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def numbers(high: int, *shape: int, low: int = 5) -> torch.Tensor:
    """Random whole numbers from ``low``."""
    return torch.randint(low, max(high, low + 1), shape, generator=torch.Generator().manual_seed(2))


def attribute(config: Any, *names: str, default: Any = None) -> Any:
    """The first of some attributes that a config or one of its parts has."""
    parts = [config, *(getattr(config, name, None) for name in PARTS)]
    values = (getattr(part, name, None) for part in parts for name in names)
    return next((value for value in values if value is not None), default)


PARTS = (
    "text_config", "vision_config", "audio_config", "encoder", "decoder", "encoder_config",
    "decoder_config", "thinker_config", "backbone_config", "image_encoder_config", "speech_config",
    "llm_config", "qformer_config",
)  # fmt: skip


def side(value: Any) -> tuple[int, int]:
    """Height and width of an image size in any of its spellings."""
    if isinstance(value, dict):
        return value["height"], value["width"]
    several = value if isinstance(value, (list, tuple)) else [value]
    return int(several[0]), int(several[-1])


def vocabulary(config: Any) -> int:
    """Token ids that are no special token lie below this."""
    size = attribute(config, "vocab_size", "src_vocab_size", "n_vocab", default=100)
    special = [
        value
        for name, value in vars(config).items()
        if ("token_id" in name or "token_index" in name) and isinstance(value, int) and value > 20
    ]
    return min([int(size), 1000, *special])


def feedings(model: Any, batch: int = 2) -> list[dict[str, Any]]:
    """What a model's forward may be fed, the likeliest first; some forwards reject some."""
    names = list(inspect.signature(model.forward).parameters)
    main = getattr(model, "main_input_name", "input_ids")
    if main not in names:
        main = "input_ids" if "input_ids" in names else names[0]
    text = texts(model, names, batch)
    several: list[dict[str, Any]] = []
    if "grid_thw" in names or "image_grid_thw" in names:
        several += patches(model, names)
    if "pixel_values" in names or "pixel_values_videos" in names:
        pixels = image(model, names, batch)
        if "input_ids" in names and takes_both(model):
            several.append(text | pixels)
        elif main != "input_ids":
            several += [pixels, text | pixels]
    for name in ("input_features", "input_values", "audio_values", "spectrogram"):
        if name in names and main != "input_ids":
            too = text if "decoder_input_ids" in names else {}
            several += [too | given for given in sounds(model, name, batch)]
    if "input_ids" in names:
        several += [text, {"input_ids": text["input_ids"]}]
    width = attribute(model.config, "hidden_size", "d_model", "embed_dim", default=32)
    for name in ("hidden_states", "inputs_embeds", "input_embeds", "query_embeds", "inputs"):
        if name in names and main != "input_ids":
            several.append({name: noise(batch, LENGTH, width)})
    if "encoder_hidden_states" in names:
        wide = attribute(model.config, "encoder_hidden_size", "cross_attention_hidden_size", default=width)
        context = {"encoder_hidden_states": noise(batch, LENGTH + 3, wide)}
        several += [given | context for given in several]
    return several


def patches(model: Any, names: list[str]) -> list[dict[str, Any]]:
    """An image as a list of flat patches with its grid, one square and one not."""
    config = getattr(model.config, "vision_config", model.config)
    patch, _ = side(attribute(config, "patch_size", default=14))
    channels = attribute(config, "in_channels", "num_channels", "in_chans", default=3)
    grid = torch.tensor([[1, 4, 8]])
    first = next(name for name in names if name not in ("self", "input_ids"))
    grids = "grid_thw" if "grid_thw" in names else "image_grid_thw"
    depths = dict.fromkeys((attribute(config, "temporal_patch_size", default=1), 1))
    return [
        {first: noise(32, *shape), grids: grid}
        for depth in depths
        for shape in ((channels * depth * patch * patch,), (channels, patch, patch))
    ]


def texts(model: Any, names: list[str], batch: int) -> dict[str, Any]:
    """Token ids and what goes with them."""
    high = vocabulary(model.config)
    given: dict[str, Any] = {"input_ids": numbers(high, batch, LENGTH)} if "input_ids" in names else {}
    if "attention_mask" in names and given:
        given["attention_mask"] = torch.ones(batch, LENGTH, dtype=torch.long)
    if "decoder_input_ids" in names:
        given["decoder_input_ids"] = numbers(high, batch, LENGTH - 4)
    if "bbox" in names:
        given["bbox"] = torch.zeros(batch, LENGTH, 4, dtype=torch.long)
    return given


def takes_both(model: Any) -> bool:
    """Whether a model reads a text and an image together, as two inputs of equal rank."""
    names = inspect.signature(model.forward).parameters
    two = {"text_config", "vision_config"} <= set(vars(model.config))
    return "pixel_values" in names and "input_ids" in names and two and hasattr(model, "get_text_features")


def image(model: Any, names: list[str], batch: int) -> dict[str, Any]:
    """Pixels in the shape that the config speaks of."""
    config = model.config
    high, wide = side(attribute(config, "image_size", "img_size", "input_size", default=64))
    high, wide = min(high, 512), min(wide, 512)
    channels = attribute(config, "num_channels", "in_channels", "in_chans", default=3)
    channels = channels if isinstance(channels, int) and channels <= 4 else 3
    frames = attribute(config, "num_frames", "frames_per_clip")
    films = ("video", "timesformer", "vivit", "vjepa", "xclip")
    if frames is not None and any(word in type(model).__name__.lower() for word in films):
        name = "pixel_values_videos" if "pixel_values_videos" in names else "pixel_values"
        return {name: noise(batch, int(frames), channels, high, wide)}
    return {"pixel_values": noise(batch, channels, high, wide)}


def sounds(model: Any, name: str, batch: int) -> list[dict[str, Any]]:
    """Sound as features, either axis first, or as samples."""
    config = model.config
    names = ("num_mel_bins", "input_channels", "input_size", "feature_size", "input_dim")
    mels = attribute(config, *names, default=80)
    places = attribute(config, "max_source_positions")
    frames = 2 * places if places is not None and places <= 3000 else 64
    tall = attribute(config, "max_length", default=64)
    shapes = [(mels, frames), (frames, mels), (tall, mels), (1, 1001, 64), (8000,), (1, 8000)]
    return [{name: noise(batch, *shape)} for shape in shapes]
