"""Load a Hugging Face model: from the hub, its cache or a folder.

Nothing in a model folder is trusted: weights are read from safetensors files, and code that a folder
carries is not run, unless the caller asks for either by name.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from attnscope.errors import ModelError, first_line
from attnscope.memory import require
from attnscope.models.huggingface.hub import require_on_hub
from attnscope.models.huggingface.images import load_processor
from attnscope.models.huggingface.model import HuggingFaceModel
from attnscope.models.model import accepts
from attnscope.models.size import weights_size

MOST_LAYERS = 10_000
"""More layers than any model has; a config may ask for billions of them."""


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
    source: dict[str, Any] = {"revision": revision, "trust_remote_code": trust_remote_code}
    if device_map is not None and importlib.util.find_spec("accelerate") is None:
        raise ModelError("a device map needs the package accelerate: pip install accelerate")
    config = _load_config(name, **source)
    tokenizer: Any = None
    no_tokenizer: ModelError | None = None
    try:
        tokenizer = load_tokenizer(name, **source)
    except ModelError as error:  # models of images have none
        no_tokenizer = error
    if device.type == "cpu" and device_map is None:
        instead = "take a smaller --dtype, or a smaller model"
        require(weights_size(name, revision, dtype), f"{name} with its weights", instead)
    try:
        loaded, loading = _pick_class(config, generative, predicting).from_pretrained(
            name,
            config=config,
            dtype="auto" if dtype is None else dtype,
            use_safetensors=None if allow_pickle else True,
            output_loading_info=True,
            **source,
            **({} if device_map is None else {"device_map": device_map}),
        )
    except Exception as error:
        raise ModelError(_explain(name, error)) from error
    if device_map is None:
        loaded.to(device)
    with_head = generative or predicting
    module = loaded.base_model if with_head else loaded
    missing = sorted(key for key in loading["missing_keys"] if "pooler" not in key)
    if with_head:
        _require_head(name, loaded, missing)
    notes = [f"{len(missing)} weights are missing and stay random: {missing[0]}, ..."] if missing else []
    if generative:
        _forget_preferences(loaded)
    if accepts(module, "input_ids"):
        if no_tokenizer is not None:
            raise no_tokenizer
    elif not accepts(module, "pixel_values"):
        raise ModelError(f"{name} reads {module.main_input_name}: choose a model of text or of images")
    return HuggingFaceModel(
        name,
        module,
        tokenizer,
        notes,
        positions=_positions(module),
        writer=loaded if with_head else None,
        load_processor=functools.partial(load_processor, name, **source),
    )


def _pick_class(config: Any, generative: bool, predicting: bool) -> Any:
    """The automatic class that loads what is wanted.

    Some types exist as masked and as causal models; what the folder says it was saved from decides, and a
    folder that does not tell holds a masked one.
    """
    import transformers

    if not generative and not predicting:
        return transformers.AutoModel
    if config.is_encoder_decoder:
        return transformers.AutoModelForSeq2SeqLM
    saved = config.architectures or ()
    causal = any(name.endswith(("ForCausalLM", "LMHeadModel")) for name in saved)
    masked = type(config) in transformers.AutoModelForMaskedLM._model_mapping
    return (
        transformers.AutoModelForMaskedLM
        if predicting and masked and not causal
        else transformers.AutoModelForCausalLM
    )


def _require_head(name: str, writer: Any, missing: Sequence[str]) -> None:
    """Raise ``ModelError`` if weights of the language-model head are among the missing ones."""
    base, head = writer.base_model, writer.get_output_embeddings()
    inside = {id(weights) for weights in base.parameters()} if base is not writer else set()
    outside = {id(weights) for weights in (head.parameters() if head is not None else ())}
    for key, weights in writer.named_parameters():
        if key in missing and (id(weights) in outside or (base is not writer and id(weights) not in inside)):
            raise ModelError(f"{name} predicts no tokens: it has no language-model head (no {key})")


def _forget_preferences(writer: Any) -> None:
    """Take away what the folder prefers in texts: penalties, forced words, samplers."""
    from transformers import GenerationConfig

    stored = writer.generation_config
    names = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")
    writer.generation_config = GenerationConfig(**{name: getattr(stored, name, None) for name in names})


def load_tokenizer(name: str, *, revision: str | None = None, trust_remote_code: bool = False) -> Any:
    """The tokenizer of a hub id or a local folder, as transformers loads it. Raises ``ModelError``."""
    source: dict[str, Any] = {"revision": revision, "trust_remote_code": trust_remote_code}
    config = _load_config(name, **source)
    import transformers

    try:
        return transformers.AutoTokenizer.from_pretrained(name, config=config, **source)
    except Exception as error:
        raise ModelError(_explain(f"the tokenizer of {name}", error)) from error


def _load_config(name: str, *, revision: str | None, trust_remote_code: bool) -> Any:
    """The config of a hub id or a local folder. Raises ``ModelError`` if there is none."""
    if not Path(name).is_dir():
        require_on_hub(name, revision)
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    try:
        stored, _ = transformers.PretrainedConfig.get_config_dict(name, revision=revision)
        _require_plausible(name, stored)
        return transformers.AutoConfig.from_pretrained(
            name, revision=revision, trust_remote_code=trust_remote_code
        )
    except ModelError:
        raise
    except Exception as error:  # whatever a foreign folder provokes is the folder's fault, not ours
        raise ModelError(_explain(name, error)) from error


def _require_plausible(name: str, config: Mapping[str, Any]) -> None:
    """Raise ``ModelError`` for a number of layers that would take hours to build before it fails."""
    for key, value in config.items():
        if isinstance(value, Mapping):
            _require_plausible(name, value)
        elif "layer" in key and isinstance(value, int) and value > MOST_LAYERS:
            raise ModelError(f"{name} cannot be loaded: its config.json asks for {value:,} layers ({key})")


def _positions(module: nn.Module) -> int | None:
    """The most tokens that the model has positions for, from its table of positions or its config."""
    for name, table in module.named_modules():
        if isinstance(table, nn.Embedding) and name.rpartition(".")[2] in {"position_embeddings", "wpe"}:
            reserved = 0 if table.padding_idx is None else table.padding_idx + 1
            return table.num_embeddings - reserved
    config: Any = module.config
    limit = getattr(config.get_text_config(), "max_position_embeddings", None)
    return limit if isinstance(limit, int) and limit > 0 else None


def _explain(name: str, error: Exception) -> str:
    """One sentence on why a model did not load."""
    message = str(error)
    if "trust_remote_code" in message:
        return f"{name} carries code of its own: read it, then pass --trust-remote-code to run it"
    if "Unrecognized configuration class" in message:
        return f"{name} does not write text: transformers has no language-model head for a model of its type"
    if "no file named" in message or "pytorch_model.bin" in message:
        return (
            f"{name} has no safetensors weights: pass --allow-pickle to load pickled ones, "
            "if you trust whoever made them"
        )
    return f"{name} cannot be loaded: {first_line(error)}"
