"""A tiny random model of every speech and sound type of transformers, with its own processor.

``python -m tests.tools.sounds [TYPES] --table tests/tools/sounds.md`` builds each type for which
transformers lists a feature extractor or a class for audio, at the size that ``tests.tools.coverage`` uses,
but with its own feature sizes and lengths. Each is saved to a folder and read as ``show --audio`` reads it,
with two seconds of noise. The table answers: which attention is captured; whether frames are named by time,
by letters, or numbered with a note; how far a head is from the model's own eager one. (WavLM reports the
mean of its heads. For SeamlessM4T v2, sdpa itself differs from eager, and the captured weights reproduce
the kernel's output. For Nemotron, eager gives NaN in masked rows; sdpa does not, and the captured weights
reproduce its output to 3e-7.) Refusals are quoted.
"""

import inspect
import tempfile
from collections import Counter
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.models.auto import feature_extraction_auto as extractors
from transformers.models.auto import modeling_auto as auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.processing_auto import PROCESSOR_MAPPING_NAMES

from attnscope.attention import Token
from attnscope.axes import SOUND_ID
from attnscope.errors import AttnscopeError, first_line
from attnscope.models import Model, ModelInput, load
from attnscope.models.huggingface.sounds import SOUND_IDS, SoundTextModel
from tests.capture.observing import MapObserver
from tests.models import speech
from tests.models.vision_language import make_tokenizer
from tests.tools.coverage.recipes import RECIPES, Recipe
from tests.tools.coverage.shrink import build, model_class, small_config
from tests.tools.survey import Row, grid, survey

OWN = (
    "num_mel_bins", "mel_bins", "n_mels", "feature_size", "input_feat_per_channel", "max_length",
    "feature_projection_input_dim", "max_source_positions", "input_feat_size", "input_size", "input_dim",
    "n_mel_channels", "audio_channels", "spec_size", "frequency_stride", "time_stride", "patch_size",
    "codebook_size", "max_position_embeddings"
)  # fmt: skip
"""Settings that stay as they are, because what prepares sounds goes by them."""

ALSO: dict[str, dict[str, Any]] = {
    "clap": {"audio_config.hidden_size": 192},  # twice the size of a patch, as it has two stages
    "qwen3_asr": {"audio_config.output_dim": 128},  # as wide as its text
}
"""Settings that follow from those."""

SIGNS = {
    "qwen3_asr": ("<|audio_pad|>", "<|audio_start|>", "<|audio_end|>"),
    "voxtral": ("[AUDIO]",),
}
"""The signs of a sound that a processor asks its tokenizer for: of the sound, its beginning and its end."""

WORDS = 400


def own_settings(values: dict[str, Any], path: str = "") -> dict[str, Any]:
    """Those of ``OWN``, by their dotted names."""
    kept = {}
    for key, value in ((key, value) for key, value in values.items() if isinstance(key, str)):
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
    recipe, settings, signs = RECIPES.get(name, Recipe()), CONFIG_MAPPING[name]().to_dict(), find_signs(name)
    others = {key: value for key, value in recipe.changes.items() if key not in OWN}
    changes = own_settings(settings) | others | ALSO.get(name, {})
    words = make_tokenizer(*signs.values(), words=["the", "cat", *map(str, range(18))], **signs)
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
    how = {"feature_size": find_bands(config.to_dict()), "truncation": "rand_trunc"}  # as for one sound alone
    takes = inspect.signature(maker.__init__).parameters
    made = maker(**{key: value for key, value in how.items() if key in takes and value})
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
    settings = CONFIG_MAPPING[name]().to_dict()
    if name not in PROCESSOR_MAPPING_NAMES or not any(key in settings for key in SOUND_IDS):
        return {}
    if name in SIGNS:
        return dict(zip(("audio_token", "audio_bos_token", "audio_eos_token"), SIGNS[name], strict=False))
    asked = inspect.signature(getattr(transformers, PROCESSOR_MAPPING_NAMES[name]).__init__).parameters
    return {key: one.default for key, one in asked.items() if "token" in key and isinstance(one.default, str)}


def join(name: str, extractor: Any, words: Any) -> Any:
    """The processor of a type that reads a text and a sound."""
    kind = getattr(transformers, PROCESSOR_MAPPING_NAMES[name])
    parts = dict.fromkeys(("feature_extractor", "audio_processor"), extractor)
    parts |= dict.fromkeys(("tokenizer", "alignment_tokenizer"), words)
    asked = inspect.signature(kind.__init__).parameters
    return kind(**{key: part for key, part in parts.items() if key in asked})


def find_bands(values: dict[str, Any]) -> int | None:
    here = (values.get(key) for key in ("num_mel_bins", "input_feat_per_channel"))
    inside = (find_bands(value) for value in values.values() if isinstance(value, dict))
    return next((one for one in (*here, *inside) if isinstance(one, int)), None)


COLUMNS = ("type", "class", "attention", "sound tokens", "difference from eager", "remarks")


def types() -> list[str]:
    """The types that are listed with what prepares sounds, or in a table of models that hear."""
    heads = ["CTC", "SPEECH_SEQ_2_SEQ", "AUDIO_CLASSIFICATION", "AUDIO_FRAME_CLASSIFICATION", "AUDIO_XVECTOR"]
    tables = [getattr(auto, f"MODEL_FOR_{table}_MAPPING_NAMES") for table in heads]
    return sorted(set(extractors.FEATURE_EXTRACTOR_MAPPING_NAMES).union(*tables))


def name_tokens(prepared: ModelInput) -> str:
    """The names of the sound tokens."""
    axes = {axis for pair in prepared.axes.values() for axis in pair if not isinstance(axis, range)}
    heard: list[Token] = [token for token in max(axes, key=len, default=()) if token.id >= SOUND_ID]
    if not heard:
        return "numbered, with a note" if prepared.notes else "numbered"
    first = heard[min(1, len(heard) - 1)].text
    return f"{len(heard)}, the second: {first}"


def measure_eager(model: Model, folder: Path, prepared: ModelInput) -> str:
    """How far the first map of each kind is from the same of the model's own eager attention."""
    keep = MapObserver(lambda site: range(1))
    model.run(prepared, [keep])
    if not keep.maps:
        return "no map"
    plain = type(model.module).from_pretrained(folder, attn_implementation="eager").eval()
    with torch.inference_mode():
        output = getattr(plain, prepared.entry)(
            **prepared.inputs, **prepared.settings, output_attentions=True
        )
    off = []
    for kind in ("encoder", "decoder", "cross"):
        names = (f"{kind}_attentions", *(["attentions"] if kind != "cross" else []))
        seen = next((one for one in keep.maps if one.site.kind == kind), None)
        given = next((maps for maps in (getattr(output, field, None) for field in names) if maps), None)
        if seen is not None and given and given[0][0, :1].shape == seen.weights[0].shape:
            off.append(float((given[0][0, 0] - seen.weights[0, 0]).abs().max()))
    return f"{max(off):.1e}" if off else "gives none of that shape"


def check(name: str) -> list[str]:
    with tempfile.TemporaryDirectory() as place:
        folder, sound, kind = Path(place) / "model", speech.noise(Path(place) / "noise.wav"), "?"

        def told(text: str) -> str:
            return text.replace(str(folder), "FOLDER").replace("|", "¦")

        step = "not built"
        try:
            kind = save(folder, name)
            step = "fails"
            model = load(str(folder))
            kind = type(model.module).__name__
            text = "the cat" if isinstance(model, SoundTextModel) else None
            prepared = model.prepare_audio(sound, text)
            record = model.run(prepared, [])
        except AttnscopeError as error:
            return [name, kind, "", "", "", told(first_line(error))]
        except Exception as error:
            return [name, kind, "", "", "", f"{step}: {type(error).__name__}: {first_line(error)[:80]}"]
        kinds = Counter(layer.site.kind for layer in record.sites)
        seen = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
        notes = "; ".join(note for note in prepared.notes if "language is" not in note)
        try:
            eager = measure_eager(model, folder, prepared)
        except Exception as error:
            eager = type(error).__name__
        return [name, kind, seen, told(name_tokens(prepared)), eager, notes.replace(str(folder), "FOLDER")]


def sort(row: list[str]) -> str:
    """What a row says, in a few words."""
    _, _, seen, named, _, more = row
    if not seen:
        return "not built here" if more.startswith("not built") else "refused with the reason"
    numbered = named.startswith("numbered") or "sound ·" in named
    return "shown, numbered" if numbered else "shown with times"


def write(rows: list[Row]) -> str:
    listed = [each.get("row") or [each["name"], "?", "", "", "", each["note"]] for each in rows]
    lines = ["# Sounds\n\nGenerated by `python -m tests.tools.sounds`; its docstring says what is checked."]
    others = ("torchaudio", "torchvision", "timm")  # which some of the types ask for
    found = ", ".join(f"{name} {version(name)}" if find_spec(name) else f"no {name}" for name in others)
    lines += [f"With transformers {transformers.__version__}: {found}.\n"]
    lines += grid([COLUMNS, *listed])
    counts = Counter(map(sort, listed)).most_common()
    return "\n".join([*lines, "\n" + "; ".join(f"{count} {what}" for what, count in counts) + ".\n"])


if __name__ == "__main__":
    survey("sounds", types, lambda name: {"row": check(name)}, write, seconds=200)
