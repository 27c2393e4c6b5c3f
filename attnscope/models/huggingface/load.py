"""Load a Hugging Face model: from the hub, its cache or a folder.

Nothing in a model folder is trusted: weights are read from safetensors files, and code that a folder
carries is not run, unless the caller asks for either by name.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import torch
from torch import nn

from attnscope.errors import ModelError
from attnscope.memory import require
from attnscope.models.bounds.limits import bounded, built_within
from attnscope.models.bounds.size import stored_weights, weights_size
from attnscope.models.bounds.trial import try_first
from attnscope.models.huggingface.classifier import Classifier, pick_classifier
from attnscope.models.huggingface.model import HuggingFaceModel
from attnscope.models.huggingface.reader import NoTokenizer
from attnscope.models.huggingface.sounds.hearing import HearingModel, hears_too
from attnscope.models.huggingface.sounds.letters import is_ctc
from attnscope.models.huggingface.sounds.speech import SpeechModel
from attnscope.models.huggingface.sounds.text import SoundTextModel, stands_for_sounds
from attnscope.models.huggingface.source import WITHOUT, Source
from attnscope.models.inspection import accepts, hears

SLACK = 320 << 20
"""Bytes that may be taken beside the weights while a model is loaded."""

TENSOR = 1000
"""Bytes of a vocabulary that take as long to read as a module takes to build, about."""

THREAD = 10 << 20
"""Bytes of the stack of a thread that torch may start meanwhile."""


def load_huggingface(
    name: str,
    *,
    device: torch.device,
    dtype: torch.dtype | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
    allow_pickle: bool = False,
    generative: bool = False,
    predicting: bool = False,
    device_map: str | Mapping[str, str] | None = None,
) -> HuggingFaceModel:
    """Load a hub id or a local folder. ``dtype`` ``None`` takes the type that the weights are stored in.

    ``generative`` loads the language-model head with which it generates, ``predicting`` the one that it was
    trained with. ``device_map`` spreads the layers over devices (needs accelerate); then ``device`` says
    nothing. Raises ``ModelError`` with one sentence for anything that keeps the model from being loaded,
    ``SizeError`` if its weights would not fit the memory that is free.
    """
    from transformers import AutoModel, AutoModelForImageTextToText

    source = Source(name, revision, trust_remote_code)
    if device_map is not None and importlib.util.find_spec("accelerate") is None:
        raise ModelError("a device map needs the package accelerate: pip install accelerate")
    config = source.load_config()
    tokenizer: Any = None
    no_tokenizer: ModelError | None = None
    try:
        tokenizer = source.load_tokenizer(config)
    except ModelError as error:  # models of images have none
        no_tokenizer = error
    if device.type == "cpu" and device_map is None:
        instead = "take a smaller --dtype, or a smaller model"
        require(weights_size(name, revision, dtype), f"{name} with its weights", instead)
    options: dict[str, Any] = {} if device_map is None else {"device_map": device_map}
    classes = pick_classifier(config) if predicting and not generative else None
    kind = classes or _pick_class(config, generative, predicting)
    with source.shielded(), _within_weights(source, config, dtype):
        _try_to_build(source, kind, config)
        named: dict[str, Any] = {
            "config": config,
            "dtype": "auto" if dtype is None else dtype,
            "use_safetensors": None if allow_pickle else True,
            "output_loading_info": True,
        }
        loaded, loading = kind.from_pretrained(name, **named, **source.options, **options)
        other = AutoModelForImageTextToText._model_mapping.get(type(config), None)
        if kind is AutoModel and other is not None and _finds_other(loading, config, other):
            kind = AutoModelForImageTextToText  # whose names of weights this release knows
            loaded, loading = kind.from_pretrained(name, **named, **source.options, **options)
    if device_map is None:
        loaded.to(device)
    module = loaded if kind is AutoModel else loaded.base_model
    if accepts(loaded, "decoder_input_ids") and not accepts(module, "decoder_input_ids"):
        module = loaded  # the layers that read tokens stand around the base
    missing = sorted(key for key in loading["missing_keys"] if "pooler" not in key)
    headless = is_ctc(config) and any(key.startswith(("lm_head", "ctc_head")) for key in missing)
    if kind is not AutoModel and (generative or predicting) and not is_ctc(config):
        _require_head(name, loaded, missing, of_tokens=classes is None)
    notes = [f"{len(missing)} weights are missing and stay random: {missing[0]}, ..."] if missing else []
    preferred = getattr(loaded, "generation_config", None)
    if preferred is not None and (generative or hears(module)):
        _forget_preferences(loaded)
    if accepts(module, "input_ids") and no_tokenizer is not None:
        tokenizer = NoTokenizer(no_tokenizer)
    made_with: dict[str, Any] = {
        "positions": find_positions(module),
        "writer": None if kind is AutoModel or headless else loaded,
    }
    if hears(module) and not stands_for_sounds(config):
        extractor = source.load_extractor
        return SpeechModel(
            name, module, tokenizer, notes, **made_with, load_processor=extractor, preferred=preferred
        )
    if hears_too(module) and not stands_for_sounds(config) and classes is None:
        both = {"load_processor": source.load_processor, "load_extractor": source.load_extractor}
        return HearingModel(name, module, tokenizer, notes, **made_with, **both)
    make = HuggingFaceModel if classes is None else Classifier
    if stands_for_sounds(config):
        make = SoundTextModel
    return make(name, module, tokenizer, notes, **made_with, load_processor=source.load_processor)


@contextmanager
def _within_weights(source: Source, config: Any, dtype: torch.dtype | None) -> Iterator[None]:
    """Let a model take the memory of its weights, and be built of no more than they can fill."""
    name, revision = source.name, source.revision
    with ExitStack() as stack:
        stack.enter_context(built_within(name, lambda: stored_weights(name, revision)))
        stored = stored_weights(name, revision).size
        if stored and getattr(config, "quantization_config", None) is None:
            size = stored + 2 * max(stored, weights_size(name, revision, dtype))
            memory = size + SLACK + torch.get_num_threads() * THREAD
            stack.enter_context(bounded(f"loading {name}", memory))
        yield


def _finds_other(loading: Mapping[str, Any], config: Any, other: type[nn.Module]) -> bool:
    """Whether weights have other names than the bare model's, because ``other`` with a head was saved."""
    missing = [key for key in loading["missing_keys"] if "pooler" not in key]
    return bool(missing and loading["unexpected_keys"]) and other.__name__ in (config.architectures or ())


def _try_to_build(source: Source, kind: Any, config: Any) -> None:
    """Raise ``ModelError`` if a model takes too long to build, before there is any weight in it."""

    with suppress(KeyError):  # this imports the class, once for both processes
        kind._model_mapping[type(config)]

    def build() -> None:
        with torch.device("meta"):
            kind.from_config(config, trust_remote_code=source.trust_remote_code)

    tensors = stored_weights(source.name, source.revision).tensors
    try_first(f"building {source.name}", build, TENSOR * tensors)


def _pick_class(config: Any, generative: bool, predicting: bool) -> Any:
    """The automatic class that loads what is wanted.

    Some types exist as masked and as causal models; what the folder says it was saved from decides, and a
    folder that does not tell holds a masked one.
    """
    import transformers

    kind = type(config)
    speech, seeing = transformers.AutoModelForSpeechSeq2Seq, transformers.AutoModelForImageTextToText
    of_text = kind in transformers.AutoModelForSeq2SeqLM._model_mapping
    made = speech._model_mapping.get(kind, None)
    saved_so = made is not None and made.__name__ in (config.architectures or ())
    if config.is_encoder_decoder and made is not None and (saved_so or not of_text):
        return speech  # its head says which language it hears
    if is_ctc(config):
        return transformers.AutoModelForCTC  # its letters name the frames
    if kind in transformers.AutoModelForCTC._model_mapping or not (generative or predicting):
        bare = kind not in transformers.AutoModel._model_mapping and kind in seeing._model_mapping
        return seeing if bare else transformers.AutoModel  # some have no class without a head
    if config.is_encoder_decoder and (of_text or kind not in seeing._model_mapping):
        return transformers.AutoModelForSeq2SeqLM
    if kind in seeing._model_mapping:
        return seeing
    if stands_for_sounds(config):
        return transformers.AutoModelForMultimodalLM
    saved = config.architectures or ()
    causal = any(name.endswith(("ForCausalLM", "LMHeadModel")) for name in saved)
    masked = type(config) in transformers.AutoModelForMaskedLM._model_mapping
    return (
        transformers.AutoModelForMaskedLM
        if predicting and masked and not causal
        else transformers.AutoModelForCausalLM
    )


def _require_head(name: str, writer: Any, missing: Sequence[str], *, of_tokens: bool) -> None:
    """Raise ``ModelError`` if weights of the head over words, or classes, are among the missing ones."""
    base, head = writer.base_model, writer.get_output_embeddings()
    inside = {id(weights) for weights in base.parameters()} if base is not writer else set()
    outside = {id(weights) for weights in (head.parameters() if head is not None else ())}
    for key, weights in writer.named_parameters():
        if key in missing and (id(weights) in outside or (base is not writer and id(weights) not in inside)):
            kind = "tokens: it has no language-model" if of_tokens else "classes: its weights have no"
            raise ModelError(f"{name} predicts no {kind} head (no {key}); {WITHOUT}")


def _forget_preferences(writer: Any) -> None:
    """Take away what the folder prefers in texts: penalties, forced words, samplers."""
    from transformers import GenerationConfig

    stored = writer.generation_config
    names = ["bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id"]
    if hears(writer):  # what is no speech was no part of what it learned to write
        names += ["suppress_tokens", "begin_suppress_tokens"]
    kept = {name: getattr(stored, name, None) for name in names}
    if kept["decoder_start_token_id"] is None:  # of two models that were joined by hand
        kept["decoder_start_token_id"] = getattr(writer.config, "decoder_start_token_id", None)
    writer.generation_config = GenerationConfig(**kept)


def find_positions(module: nn.Module) -> int | None:
    """The most tokens that the model has positions for, from its table of positions or its config."""
    for name, table in module.named_modules():
        if isinstance(table, nn.Embedding) and name.rpartition(".")[2] in {"position_embeddings", "wpe"}:
            reserved = 0 if table.padding_idx is None else table.padding_idx + 1
            return table.num_embeddings - reserved
    config: Any = module.config
    limit = getattr(config.get_text_config(), "max_position_embeddings", None)
    return limit if isinstance(limit, int) and limit > 0 else None
