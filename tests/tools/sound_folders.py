"""Folders of the types of transformers that hear: random, tiny, with what prepares their sounds."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import transformers

from attnscope.models.huggingface.sounds import SOUND_IDS
from tests.models import speech
from tests.models.vision_language import make_tokenizer
from tests.tools.coverage.recipes import RECIPES, Recipe
from tests.tools.coverage.shrink import build, model_class, small_config

OWN = (
    "num_mel_bins", "mel_bins", "n_mels", "feature_size", "input_feat_per_channel", "max_length",
    "feature_projection_input_dim", "max_source_positions", "input_feat_size", "input_size", "input_dim",
    "n_mel_channels", "audio_channels", "spec_size", "frequency_stride", "time_stride", "patch_size",
    "codebook_size", "max_position_embeddings"
)  # fmt: skip
"""Settings that stay as they are, because what prepares sounds goes by them."""

ALSO: dict[str, dict[str, Any]] = {"clap": {"audio_config.hidden_size": 192}}
"""Settings that follow from those: twice the size of a patch, as it has two stages."""

WORDS = 400


def own_settings(values: dict[str, Any], path: str = "") -> dict[str, Any]:
    """Those of ``OWN``, by their dotted names."""
    kept = {}
    for key, value in values.items():
        if not isinstance(key, str):
            continue
        if isinstance(value, dict):
            kept |= own_settings(value, f"{path}{key}.")
        elif key in OWN and value is not None:
            kept[path + key] = value
        elif key == "vocab_size":
            kept[path + key] = WORDS
        elif key.endswith("_token_id") and isinstance(value, int):
            kept[path + key] = min(value, WORDS - 1)
    return kept


def save(folder: Path, name: str) -> str:
    """A folder with a random model of a type, what prepares its sounds, and words.  -> its class"""
    from transformers.models.auto import feature_extraction_auto as extractors
    from transformers.models.auto import modeling_auto as auto
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    recipe = RECIPES.get(name, Recipe())
    settings = CONFIG_MAPPING[name]().to_dict()
    changes = own_settings(settings)
    changes |= {key: value for key, value in recipe.changes.items() if key not in OWN}
    changes |= ALSO.get(name, {})
    signs = find_signs(name)
    words = make_tokenizer(*signs.values(), words=["the", "cat", *map(str, range(10))], **signs)
    if "audio_token" in signs:
        key = next(key for key in SOUND_IDS if key in settings)
        changes[key] = words.convert_tokens_to_ids(signs["audio_token"])
    config = small_config(name, recipe.factors[0], 2, changes)
    tables = (auto.MODEL_FOR_CTC_MAPPING_NAMES, auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES)
    wanted = next((table[name] for table in tables if name in table), recipe.model)
    kind = model_class(name, config, wanted)
    build(kind, config, 1.0).save_pretrained(folder)
    extractor = extractors.FEATURE_EXTRACTOR_MAPPING_NAMES.get(name, "Wav2Vec2FeatureExtractor")
    if name == "wav2vec2-bert":  # the table has that of the wave
        extractor = "SeamlessM4TFeatureExtractor"
    maker = getattr(transformers, extractor)
    bands = find_bands(config.to_dict())
    sized = bands and "feature_size" in inspect.signature(maker.__init__).parameters
    how: dict[str, Any] = {"feature_size": bands} if sized else {}
    if "truncation" in inspect.signature(maker.__init__).parameters:  # as what reads one sound alone has it
        how["truncation"] = "rand_trunc"
    made = maker(**how)
    made.save_pretrained(folder)
    if "audio_token" in signs:
        join(name, made, words).save_pretrained(folder)
    elif name in auto.MODEL_FOR_CTC_MAPPING_NAMES:
        speech.letters(folder)
    else:
        speech.tokenizer().save_pretrained(folder)
    return str(kind.__name__)


def find_signs(name: str) -> dict[str, str]:
    """The tokens that the processor of a type puts beside a sound in a text, as it calls them by itself."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.processing_auto import PROCESSOR_MAPPING_NAMES

    settings = CONFIG_MAPPING[name]().to_dict()
    if name not in PROCESSOR_MAPPING_NAMES or not any(key in settings for key in SOUND_IDS):
        return {}
    asked = inspect.signature(getattr(transformers, PROCESSOR_MAPPING_NAMES[name]).__init__).parameters
    return {key: one.default for key, one in asked.items() if "token" in key and isinstance(one.default, str)}


def join(name: str, extractor: Any, words: Any) -> Any:
    """The processor of a type that reads a text and a sound."""
    from transformers.models.auto.processing_auto import PROCESSOR_MAPPING_NAMES

    kind = getattr(transformers, PROCESSOR_MAPPING_NAMES[name])
    parts = {"feature_extractor": extractor, "audio_processor": extractor, "tokenizer": words}
    parts["alignment_tokenizer"] = words
    asked = inspect.signature(kind.__init__).parameters
    return kind(**{key: part for key, part in parts.items() if key in asked})


def find_bands(values: dict[str, Any]) -> int | None:
    """How many bands the config of an encoder reads."""
    here = (values.get(key) for key in ("num_mel_bins", "input_feat_per_channel"))
    inside = (find_bands(value) for value in values.values() if isinstance(value, dict))
    return next((one for one in (*here, *inside) if isinstance(one, int)), None)
