"""Find and load a Hugging Face model: from the hub, its cache or a folder.

Nothing in a model folder is trusted: weights are read from safetensors files, and code that a folder
carries is not run, unless the caller asks for either by name.
"""

from __future__ import annotations

import functools
import importlib.util
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from attnscope.errors import ModelError, first_line
from attnscope.memory import require
from attnscope.models.huggingface import HuggingFaceModel
from attnscope.models.images import load_processor
from attnscope.models.model import accepts
from attnscope.models.size import weights_size
from attnscope.models.vision import VisionModel

MOST_LAYERS = 10_000
"""More layers than any model has; a config may ask for billions of them."""

HUB_TIMEOUT = 10.0
"""Seconds to wait for the hub's first answer."""


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
) -> HuggingFaceModel | VisionModel:
    """Load a hub id or a local folder. ``dtype`` ``None`` takes the type that the weights are stored in.

    ``generative`` loads the language-model head with which it writes on, ``predicting`` the one that it was
    trained with. ``device_map`` spreads the layers over devices (needs accelerate); then ``device`` says
    nothing. Raises ``ModelError`` with one sentence for anything that keeps the model from being loaded,
    ``SizeError`` if its weights would not fit the memory that is free.
    """
    asked: dict[str, Any] = {"revision": revision, "trust_remote_code": trust_remote_code}
    if device_map is not None and importlib.util.find_spec("accelerate") is None:
        raise ModelError("a device map needs the package accelerate: pip install accelerate")
    config = _find(name, **asked)
    tokenizer: Any = None
    silent: ModelError | None = None
    try:
        tokenizer = load_tokenizer(name, **asked)
    except ModelError as error:  # models of images have none
        silent = error
    if device.type == "cpu" and device_map is None:
        instead = "take a smaller --dtype, or a smaller model"
        require(weights_size(name, revision, dtype), f"{name} with its weights", instead)
    try:
        loaded, loading = _class(config, generative, predicting).from_pretrained(
            name,
            config=config,
            dtype="auto" if dtype is None else dtype,
            use_safetensors=None if allow_pickle else True,
            output_loading_info=True,
            **asked,
            **({} if device_map is None else {"device_map": device_map}),
        )
    except Exception as error:
        raise ModelError(_reason(name, error)) from error
    if device_map is None:
        loaded.to(device)
    headed = generative or predicting
    module = loaded.base_model if headed else loaded
    missing = sorted(key for key in loading["missing_keys"] if "pooler" not in key)
    if headed:
        _expect_head(name, loaded, missing)
    notes = [f"{len(missing)} weights are missing and stay random: {missing[0]}, ..."] if missing else []
    writer = _plainly_writing(loaded) if generative else loaded if predicting else None
    processor = functools.partial(load_processor, name, **asked)
    if not accepts(module, "input_ids"):
        if not accepts(module, "pixel_values"):
            raise ModelError(f"{name} reads {module.main_input_name}: choose a model of text or of images")
        return VisionModel(name, module, processor, notes)
    if silent is not None:
        raise silent
    return HuggingFaceModel(
        name, module, tokenizer, notes, positions=_positions(module), writer=writer, processor=processor
    )


def _class(config: Any, generative: bool, predicting: bool) -> Any:
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


def _expect_head(name: str, writer: Any, missing: Sequence[str]) -> None:
    """Raise ``ModelError`` if weights of the language-model head are among the missing ones."""
    base, head = writer.base_model, writer.get_output_embeddings()
    inside = {id(weights) for weights in base.parameters()} if base is not writer else set()
    outside = {id(weights) for weights in (head.parameters() if head is not None else ())}
    for key, weights in writer.named_parameters():
        if key in missing and (id(weights) in outside or (base is not writer and id(weights) not in inside)):
            raise ModelError(f"{name} predicts no tokens: it has no language-model head (no {key})")


def _plainly_writing(writer: Any) -> Any:
    """The model without the taste in texts that came in its folder: penalties, forced words, samplers."""
    from transformers import GenerationConfig

    told = writer.generation_config
    names = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")
    writer.generation_config = GenerationConfig(**{name: getattr(told, name, None) for name in names})
    return writer


def load_tokenizer(name: str, *, revision: str | None = None, trust_remote_code: bool = False) -> Any:
    """The tokenizer of a hub id or a local folder, as transformers loads it. Raises ``ModelError``."""
    asked: dict[str, Any] = {"revision": revision, "trust_remote_code": trust_remote_code}
    config = _find(name, **asked)
    import transformers

    try:
        return transformers.AutoTokenizer.from_pretrained(name, config=config, **asked)
    except Exception as error:
        raise ModelError(_reason(f"the tokenizer of {name}", error)) from error


def _find(name: str, *, revision: str | None, trust_remote_code: bool) -> Any:
    """The config of a hub id or a local folder. Raises ``ModelError`` if there is none."""
    if not Path(name).is_dir():
        _ask_hub(name, revision)
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    try:
        said, _ = transformers.PretrainedConfig.get_config_dict(name, revision=revision)
        _expect_plausible(name, said)
        return transformers.AutoConfig.from_pretrained(
            name, revision=revision, trust_remote_code=trust_remote_code
        )
    except ModelError:
        raise
    except Exception as error:  # whatever a foreign folder provokes is the folder's fault, not ours
        raise ModelError(_reason(name, error)) from error


def _expect_plausible(name: str, config: Mapping[str, Any]) -> None:
    """Raise ``ModelError`` for a number of layers that would take hours to build before it fails."""
    for key, value in config.items():
        if isinstance(value, Mapping):
            _expect_plausible(name, value)
        elif "layer" in key and isinstance(value, int) and value > MOST_LAYERS:
            raise ModelError(f"{name} cannot be loaded: its config.json asks for {value:,} layers ({key})")


def _ask_hub(name: str, revision: str | None) -> None:
    """Raise ``ModelError`` at once if ``name`` is neither in the cache nor on a hub that answers.

    The library would try five times, half a minute in all, before it says so.
    """
    import huggingface_hub as hub
    from huggingface_hub import errors

    try:
        if isinstance(hub.try_to_load_from_cache(name, "config.json", revision=revision), str):
            return
        logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
        hub.HfApi().model_info(name, revision=revision, timeout=HUB_TIMEOUT)
    except errors.HFValidationError:
        raise ModelError(
            f"no model {name!r}: it is neither a folder here nor a hub id such as 'openai-community/gpt2'"
        ) from None
    except errors.GatedRepoError:
        raise ModelError(
            f"{name} is on the hub, but its authors ask for consent: accept its terms there, then log in "
            "with 'hf auth login'"
        ) from None
    except errors.RevisionNotFoundError:
        raise ModelError(f"{name} has no revision {revision!r} on the hub") from None
    except errors.RepositoryNotFoundError:
        raise ModelError(
            f"no model {name!r}: there is no such folder here, and no public model of that name on the hub"
        ) from None
    except errors.OfflineModeIsEnabled:
        raise ModelError(
            f"no model {name!r}: there is no such folder here, it is not in the cache, and the hub is "
            "switched off (--offline, or HF_HUB_OFFLINE)"
        ) from None
    except Exception as error:  # every transport has its own exceptions for "nobody answers"
        raise ModelError(
            f"no model {name!r}: there is no such folder here, it is not in the cache, and the hub cannot "
            f"be reached ({first_line(error)})"
        ) from None


def _positions(module: nn.Module) -> int | None:
    """The most tokens that the model has positions for, from its table of positions or its config."""
    for name, table in module.named_modules():
        if isinstance(table, nn.Embedding) and name.rpartition(".")[2] in {"position_embeddings", "wpe"}:
            reserved = 0 if table.padding_idx is None else table.padding_idx + 1
            return table.num_embeddings - reserved
    config: Any = module.config
    limit = getattr(config.get_text_config(), "max_position_embeddings", None)
    return limit if isinstance(limit, int) and limit > 0 else None


def _reason(name: str, error: Exception) -> str:
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
