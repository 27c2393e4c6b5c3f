"""Small random models of any type, and what their forwards are fed.

Every width is divided by one factor, with few layers and few experts: that keeps relations (heads × head size
= width, equal widths of two towers), so most types need no rule of their own. Vocabularies are cut, special
tokens moved to their ends. Image sizes and window sizes stay as they are. What is fed follows from the names
that a forward takes and from the config.
"""

import copy
import importlib
import inspect
import re
from typing import Any

import torch

WIDTH = re.compile(
    r"hidden|intermediate|(^|_)dims?($|_)|dim$|^d_|d_model|n_embd|n_inner|embed|channels?|width|lora_rank|"
    r"query_pre_attn_scalar|ffn|mlp|proj|inner|section|head_size|_features$|size_per_head|planes|value_size|"
    r"key_size|state_size|output_size|latent|rank$|filters|^size$|conv_dim|bottleneck|d_head|d_ssm|d_state|ssm_size|ssm_state|lru_width"
)
FIXED = re.compile(
    r"image|pixel|patch|vocab|window|kernel|chunk|block|codebook_size|batch|stride|buffer|pool|context|crop|grid|"
    r"group|num_|^n_(?!embd|inner)|max_|position|token|sample|frame|hop|fft|mel|lag|label|beam|rate|index|segment|bucket|"
    r"memory|sequence|length|layers|ratio|act|num$|_id$|num_channels|in_channels$|out_channels_video|pdrop|type|"
    r"expansion|multiplier|mult$|factor|dilation|padding|dropout|theta|eps|scale|heads|experts|levels|freq"
)
LAYERS = re.compile(
    r"^(num_hidden_layers|n_layers?|num_layers|encoder_layers|decoder_layers|depth|num_encoder_layers|"
    r"num_decoder_layers|num_hidden_blocks|num_blocks|n_blocks|num_transformer_layers|.*_num_hidden_layers|"
    r"num_hidden_layers_.*|.*_layers|.*_depth|num_.*_layers)$"
)
NOT_LAYERS = re.compile(
    r"feat_extract|conv|exit|return|no_split|skip|window|feature_layers|moe_layers|dense|adapter|reuse|share|sparse|vision_feature"
)
SORTS = ("layer_types", "layers_block_type", "mlp_layer_types", "hybrid_override_pattern", "indexer_types")
MROPE = re.compile(r"vl|glm4v|glm46v|glm_ocr|glm_image|glmga|colqwen|omni|paddleocr")
VOCABULARY = 2000
TOKEN = re.compile(r"token_(id|index)$|token_ids$|_token$")
EXPERTS = re.compile(r"^(n_routed|num|num_local|moe_num|n|num_routed)_experts$")
CHOSEN = re.compile(
    r"^(num_experts_per_tok|num_experts_per_token|top_k_experts|moe_k|moe_topk|moe_top_k|top_k)$"
)


SETTLED = {"attn_layer_indices": [1], "attn_layer_period": 2, "attn_layer_offset": 1}
PLAIN_BACKBONES = ("dinov2", "dinov3_vit", "vit", "swin", "vitdet", "vitpose_backbone", "beit")

RESNET = {"model_type": "resnet", "embedding_size": 8, "hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1]}
RESNET |= {"layer_type": "basic", "out_features": ["stage2", "stage3", "stage4"]}
"""A backbone for the models that would fetch one from another library."""


def shrunk(values: dict[str, Any], factor: int, layers: int) -> dict[str, Any]:
    """A config's dictionary with small numbers in the place of large ones."""
    kept, count = _kept_layers(values, layers), _layer_count(values)
    small = {key: _small(key, value, factor, layers, kept, count) for key, value in values.items()}
    stages = () if "hidden_sizes" in small else ("out_features", "out_indices", "stage_names")
    for key in ("per_layer_config", *stages):
        small.pop(key, None)
    backbone = small.get("backbone_config") or {}
    if "use_timm_backbone" in small or str(backbone.get("model_type")).startswith("timm"):
        small["backbone_config"] = dict(RESNET)
        small |= {key: None for key in ("use_timm_backbone", "backbone", "backbone_kwargs") if key in small}
    if small.get("head_dim", 0) is None and small.get("num_attention_heads"):
        small["head_dim"] = small["hidden_size"] // small["num_attention_heads"]
    rope, type_ = small.get("rope_parameters"), str(small.get("model_type"))
    turned = isinstance(rope, dict) and "mrope_section" not in rope
    if turned and "num_attention_heads" in small and MROPE.search(type_):
        size = small.get("head_dim") or small["hidden_size"] // small["num_attention_heads"]
        half = int(size * rope.get("partial_rotary_factor", 1.0)) // 2
        rope["mrope_section"] = [half - 2 * (half // 3), half // 3, half // 3]
    groups = ("n_group", "topk_group", "num_expert_group")
    return small | {key: 1 for key in groups if isinstance(small.get(key), int)}


def _layer_count(values: dict[str, Any]) -> int:
    keys = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "depth", "encoder_layers")
    return next((values[key] for key in keys if isinstance(values.get(key), int)), 0)


def _kept_layers(values: dict[str, Any], layers: int) -> list[int]:
    """Which layers stay: the first ones, and the first of every sort that the config names."""
    count, kept = _layer_count(values), dict[int, None]()
    for sorts in map(values.get, SORTS):
        if isinstance(sorts, (list, tuple, str)) and len(sorts) == count:
            kept |= {list(sorts).index(sort): None for sort in sorts}
    others = [place for place in range(count) if place not in kept]
    return sorted([*kept, *others[: max(0, layers - len(kept))]])


def _small(key: str, value: Any, factor: int, layers: int, kept: list[int], count: int) -> Any:
    if isinstance(value, dict):
        whole = key == "backbone_config" and value.get("model_type") not in PLAIN_BACKBONES
        whole |= key in ("label2id", "task_specific_params") or not all(isinstance(one, str) for one in value)
        return value if whole else shrunk(value, factor, layers)
    if not isinstance(value, (int, str, list, tuple)) or isinstance(value, bool):
        return value
    if key == "mrope_section" and isinstance(value, (list, tuple)) and len(value) == 3:
        third = sum(value) // factor // 3
        return [sum(value) // factor - 2 * third, third, third]
    if isinstance(value, (list, tuple)):
        if count > 2 and len(value) == count and kept:
            value = [value[place] for place in kept]
        if key == "depths" or key.endswith("_depths"):
            return [min(depth, 2) for depth in value]
        if value and isinstance(value[0], dict):
            return [shrunk(part, factor, layers) for part in value]
        return [_small(key, part, factor, layers, [], 0) for part in value]
    if key in SETTLED:
        return SETTLED[key]
    if key == "hybrid_override_pattern" and len(value) == count:
        return "".join(value[place] for place in kept)
    if not isinstance(value, int):
        return value
    if key.endswith("vocab_size") or key in ("n_vocab", "src_vocab_size", "tgt_vocab_size"):
        return min(value, VOCABULARY)
    if TOKEN.search(key):
        return VOCABULARY - 200 + value % 199 if value >= VOCABULARY else value
    if LAYERS.match(key) and not NOT_LAYERS.search(key):
        return min(value, max(layers, len(kept)) if value == count else layers)
    if key.endswith("chunk_size") and value > 16:
        return 16
    if key == "image_size" and value > 512:
        return 256
    if EXPERTS.match(key) or CHOSEN.match(key):
        return min(value, 16 if EXPERTS.match(key) else 8)
    if WIDTH.search(key) and not FIXED.search(key) and value >= factor * 2 and value % factor == 0:
        return value // factor
    return value


def small_config(model_type: str, factor: int, layers: int, changes: dict[str, Any]) -> Any:
    """The default config of a type made small; ``changes`` has dotted keys, applied last."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    cls = CONFIG_MAPPING[model_type]
    values = shrunk(copy.deepcopy(cls().to_dict()), factor, layers)
    for key, value in changes.items():
        place = values
        *path, last = key.split(".")
        for part in path:
            place = place[part]
        place[last] = value
    for key in ("architectures", "transformers_version", "dtype", "torch_dtype"):
        values.pop(key, None)
    return cls.from_dict(values)


def model_class(model_type: str, config: Any, wanted: str | None = None) -> Any:
    """The class that a type's config builds: its base model, else any class that takes this config."""
    import transformers
    from transformers.models.auto import modeling_auto as auto

    if wanted is not None:
        return getattr(transformers, wanted)
    for mapping in (auto.MODEL_MAPPING_NAMES, auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES):
        names = mapping.get(model_type)
        for name in [names] if isinstance(names, str) else list(names or ()):
            if hasattr(transformers, name):
                return getattr(transformers, name)
    package, _, stem = type(config).__module__.rpartition(".")
    module = importlib.import_module(f"{package}.{stem.replace('configuration_', 'modeling_')}")
    found = [
        cls
        for name, cls in inspect.getmembers(module, inspect.isclass)
        if getattr(cls, "config_class", None) is type(config)
        and issubclass(cls, transformers.PreTrainedModel)
        and not name.endswith("PreTrainedModel")
        and cls.__module__ == module.__name__
    ]
    if not found:
        raise LookupError("no model class takes this config")
    return min(found, key=lambda cls: (not cls.__name__.endswith("Model"), "For" not in cls.__name__))


def build(cls: Any, config: Any, gain: float, attention: str | dict[str, str] | None = None) -> Any:
    """A random model in ``eval``, the same numbers every time."""
    options = {} if attention is None else {"attn_implementation": attention}
    torch.manual_seed(0)
    model = cls._from_config(copy.deepcopy(config), dtype=torch.float32, **options).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.is_floating_point() and not torch.isfinite(parameter).all():
                parameter.normal_(0, 0.02)
            elif parameter.ndim >= 2 and parameter.is_floating_point():
                parameter.mul_(gain)
    return model


LENGTH = 12


def noise(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def numbers(high: int, *shape: int) -> torch.Tensor:
    """Random whole numbers from 5."""
    return torch.randint(5, max(high, 6), shape, generator=torch.Generator().manual_seed(2))


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
    named = {name: value for name, value in vars(config).items() if re.search("token_(id|index)", name)}
    return min([int(size), 1000, *(one for one in named.values() if isinstance(one, int) and one > 20)])


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
    others = set(names) if main != "input_ids" else set()
    for name in ("input_features", "input_values", "audio_values", "spectrogram"):
        if name in others:
            too = text if "decoder_input_ids" in names else {}
            several += [too | given for given in sounds(model, name, batch)]
    if "input_ids" in names:
        several += [text, {"input_ids": text["input_ids"]}]
    width = attribute(model.config, "hidden_size", "d_model", "embed_dim", default=32)
    states = ("hidden_states", "inputs_embeds", "input_embeds", "query_embeds", "inputs")
    several += [{name: noise(batch, LENGTH, width)} for name in states if name in others]
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
    two = {"text_config", "vision_config"} <= set(vars(model.config)) and hasattr(model, "get_text_features")
    return two and {"pixel_values", "input_ids"} <= set(inspect.signature(model.forward).parameters)


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
    names = ("num_mel_bins", "input_channels", "input_size", "feature_size", "input_dim")
    mels = attribute(model.config, *names, default=80)
    tall = attribute(model.config, "max_length", default=64)
    places = attribute(model.config, "max_source_positions", default=3001)
    frames = 2 * places if places <= 3000 else 64
    shapes = [(mels, frames), (frames, mels), (tall, mels), (1, 1001, 64), (8000,), (1, 8000)]
    return [{name: noise(batch, *shape)} for shape in shapes]
