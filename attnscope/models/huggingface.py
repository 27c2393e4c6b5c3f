"""Hugging Face models: encoder-only, decoder-only and encoder-decoder, from the hub or a folder.

Nothing in a model folder is trusted: weights are read from safetensors files, and code that a folder
carries is not run, unless the caller asks for either by name.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from attnscope.attention import Axis, Kind, Token
from attnscope.errors import InputError, ModelError, first_line
from attnscope.models.model import Model, Prepared, accepts
from attnscope.models.tokens import tokens_of, tokens_of_ids

HUB_TIMEOUT = 10.0
"""Seconds to wait for the hub's first answer."""


@dataclass(frozen=True)
class _Read:
    """One tokenized text, or pair: what the tokenizer returned and the tokens of it."""

    fields: Mapping[str, list[int]]
    tokens: tuple[Token, ...]


class HuggingFaceModel(Model):
    """A transformers model with its tokenizer."""

    def __init__(self, name: str, module: nn.Module, tokenizer: Any, notes: Sequence[str] = ()) -> None:
        config: Any = module.config
        super().__init__(name, module, _positions(module), notes)
        self.tokenizer = tokenizer
        self.encoder_decoder = bool(config.is_encoder_decoder)
        self.settings: dict[str, Any] = {"use_cache": False} if accepts(module, "use_cache") else {}

    def prepare(
        self, text: str, second: str | None = None, *, max_tokens: int | None = None, truncate: bool = False
    ) -> Prepared:
        """The inputs and labelled axes of a text; a second text is its pair, or a decoder's target.

        Without a target an encoder-decoder model reads the text on both sides, and a note says so.
        """
        if self.encoder_decoder:
            return self._source_and_target(text, second, max_tokens, truncate)
        read, notes = self._read(text, second, max_tokens, truncate)
        if second is not None and not _parted(read.tokens):
            notes += (f"{self.name} joins the two texts without a separator",)
        axes: dict[Kind, tuple[Axis, Axis]] = {
            "encoder": (read.tokens, read.tokens),
            "decoder": (read.tokens, read.tokens),
        }
        return Prepared(self._tensors(read.fields), axes, read.tokens, notes, self.settings)

    def _source_and_target(
        self, text: str, target: str | None, max_tokens: int | None, truncate: bool
    ) -> Prepared:
        source, notes = self._read(text, None, max_tokens, truncate)
        if target is None:
            notes += ("the decoder reads the text itself: give a second text to be its target",)
        wanted, cut = self._read(text if target is None else target, None, max_tokens, truncate)
        start = self._start()
        ids = [start.id, *wanted.fields["input_ids"][:-1]]
        decoder: tuple[Token, ...] = (start, *wanted.tokens[:-1])
        inputs = self._tensors(source.fields) | {"decoder_input_ids": self._tensor(ids)}
        axes: dict[Kind, tuple[Axis, Axis]] = {
            "encoder": (source.tokens, source.tokens),
            "decoder": (decoder, decoder),
            "cross": (decoder, source.tokens),
        }
        notes += tuple(note for note in cut if note not in notes)
        return Prepared(inputs, axes, source.tokens, notes, self.settings)

    def _read(
        self, text: str, second: str | None, max_tokens: int | None, truncate: bool
    ) -> tuple[_Read, tuple[str, ...]]:
        texts = [text] if second is None else [text, second]
        fields = self.tokenizer(*texts, verbose=False)
        keep, notes = self._fit(len(fields["input_ids"]), max_tokens=max_tokens, truncate=truncate)
        if keep is not None:
            fields = self.tokenizer(*texts, truncation=True, max_length=keep, verbose=False)
        if not fields["input_ids"]:
            raise InputError(f"the tokenizer of {self.name} finds no token in the text")
        if fields.encodings is not None:
            tokens = tokens_of(fields.encodings[0], texts)
        else:
            tokens = tokens_of_ids(self.tokenizer, fields["input_ids"], self.tokenizer.all_special_ids)
        return _Read(dict(fields), tokens), notes

    def _start(self) -> Token:
        """The token that a decoder begins with."""
        config: Any = self.module.config
        candidates = (
            getattr(config, "decoder_start_token_id", None),
            getattr(getattr(self.module, "generation_config", None), "decoder_start_token_id", None),
            getattr(config, "bos_token_id", None),
            getattr(config, "pad_token_id", None),
            self.tokenizer.pad_token_id,
        )
        start = next((id_ for id_ in candidates if isinstance(id_, int)), 0)
        return Token(self.tokenizer.convert_ids_to_tokens(start), start, special=True)

    def _tensors(self, fields: Mapping[str, list[int]]) -> dict[str, Tensor]:
        return {name: self._tensor(ids) for name, ids in fields.items() if accepts(self.module, name)}

    def _tensor(self, ids: Sequence[int]) -> Tensor:
        return torch.tensor([list(ids)], device=self.device)  # [1, token]


def load_huggingface(
    name: str,
    *,
    device: torch.device,
    dtype: torch.dtype | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
    allow_pickle: bool = False,
) -> HuggingFaceModel:
    """Load a hub id or a local folder. ``dtype`` ``None`` takes the type that the weights are stored in.

    Raises ``ModelError`` with one sentence for anything that keeps the model from being loaded.
    """
    asked: dict[str, Any] = {"revision": revision, "trust_remote_code": trust_remote_code}
    tokenizer = load_tokenizer(name, **asked)
    import transformers

    try:
        config = transformers.AutoConfig.from_pretrained(name, **asked)
        module, loading = transformers.AutoModel.from_pretrained(
            name,
            config=config,
            dtype="auto" if dtype is None else dtype,
            use_safetensors=None if allow_pickle else True,
            output_loading_info=True,
            **asked,
        )
    except Exception as error:
        raise ModelError(_reason(name, error)) from error
    if not accepts(module, "input_ids"):
        raise ModelError(f"{name} reads {module.main_input_name}, not text: show it a text model")
    missing = sorted(key for key in loading["missing_keys"] if "pooler" not in key)
    notes = [f"{len(missing)} weights are missing and stay random: {missing[0]}, ..."] if missing else []
    return HuggingFaceModel(name, module.to(device), tokenizer, notes)


def load_tokenizer(name: str, *, revision: str | None = None, trust_remote_code: bool = False) -> Any:
    """The tokenizer of a hub id or a local folder, as transformers loads it. Raises ``ModelError``."""
    if not Path(name).is_dir():
        _ask_hub(name, revision)
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    asked: dict[str, Any] = {"revision": revision, "trust_remote_code": trust_remote_code}
    try:
        config = transformers.AutoConfig.from_pretrained(name, **asked)
    except Exception as error:  # whatever a foreign folder provokes is the folder's fault, not ours
        raise ModelError(_reason(name, error)) from error
    try:
        return transformers.AutoTokenizer.from_pretrained(name, config=config, **asked)
    except Exception as error:
        raise ModelError(_reason(f"the tokenizer of {name}", error)) from error


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
            "switched off (HF_HUB_OFFLINE)"
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


def _parted(tokens: Sequence[Token]) -> bool:
    """Whether a special token stands between the two texts of a pair."""
    opening = next((i for i, token in enumerate(tokens) if token.segment == 1 and not token.special), 0)
    return opening > 0 and tokens[opening - 1].special


def _reason(name: str, error: Exception) -> str:
    """One sentence on why a model did not load."""
    message = str(error)
    if "trust_remote_code" in message:
        return f"{name} carries code of its own: read it, then pass --trust-remote-code to run it"
    if "no file named" in message or "pytorch_model.bin" in message:
        return (
            f"{name} has no safetensors weights: pass --allow-pickle to load pickled ones, "
            "if you trust whoever made them"
        )
    return f"{name} cannot be loaded: {first_line(error)}"
