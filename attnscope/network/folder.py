"""An encoder and its tokenizer in a folder: written, read back with checks; and the bundled ones."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch.overrides import TorchFunctionMode

from attnscope.errors import AttnscopeError, InputError, ModelError, OutputError
from attnscope.limits import LARGEST_CONFIG, LARGEST_VOCABULARY
from attnscope.network.encoder import Encoder, EncoderConfig
from attnscope.storage.files import read_json, read_regular, write_whole
from attnscope.storage.tensors import read_safetensors

PAD, UNK, CLS, SEP, MASK = SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
FORMAT = "attnscope-encoder"
VERSION = 1
CONFIG, WEIGHTS, TOKENIZER = "config.json", "model.safetensors", "tokenizer.json"
BUNDLED = ("own", "own-causal")
PRETRAINED = Path(__file__).resolve().parent.parent / "pretrained"


def save_encoder(
    folder: str | Path, encoder: Encoder, tokenizer: Tokenizer, dtype: torch.dtype = torch.float32
) -> None:
    """Write the three files, weights as ``dtype``; each file appears whole or not at all."""
    from safetensors.torch import save as as_bytes

    folder = Path(folder)
    state = {name: x.detach().cpu().to(dtype).contiguous() for name, x in encoder.state_dict().items()}
    config = {"format": FORMAT, "version": VERSION, **asdict(encoder.config)}
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{folder} cannot be written: {error.strerror or error}") from error
    write_whole(folder / TOKENIZER, tokenizer.to_str(pretty=True).encode())
    write_whole(folder / WEIGHTS, as_bytes(state, metadata={"format": "pt"}))
    write_whole(folder / CONFIG, (json.dumps(config, indent=2) + "\n").encode())


def load_encoder(folder: str | Path) -> tuple[Encoder, Tokenizer]:
    """Read a folder of ``save_encoder``, safetensors only; the encoder is in ``eval`` mode and float32."""
    folder = Path(folder)
    config = load_config(folder)
    path = folder / WEIGHTS
    if not path.is_file():
        others = sorted(p.name for p in folder.iterdir() if p.suffix in (".bin", ".pt", ".pth", ".ckpt"))
        found = f"{others[0]} is there, but only safetensors are read" if others else ""
        raise ModelError(f"{folder} has no {WEIGHTS}: {found or 'there are no weights to read'}")
    try:
        state, _ = read_safetensors(path)
    except (ValueError, OSError) as error:
        raise ModelError(f"{path} cannot be read as safetensors: {error}") from error
    tokenizer = load_tokenizer(folder / TOKENIZER)
    size = tokenizer.get_vocab_size()
    if size > config.vocabulary:
        raise ModelError(f"{folder}: the tokenizer has {size} tokens, but the model only {config.vocabulary}")
    sizes = {f"layers.{n}.linear1.weight": (config.hidden, config.width) for n in range(config.layers)}
    _check_shapes(path, {"embedding.weight": (config.vocabulary, config.width), **sizes}, state)
    with _Undrawn():
        encoder = Encoder(config)  # only now that the config is known to ask for no more than the file holds
    shapes = {name: tuple(x.shape) for name, x in encoder.state_dict().items()}
    _check_shapes(path, shapes, state)
    unknown = sorted(set(state) - set(shapes))
    if unknown:
        raise ModelError(f"{path} does not fit its config: it holds {unknown[0]!r}, which has no place there")
    encoder.load_state_dict({name: x.float() for name, x in state.items()}, strict=True)
    return encoder.eval(), tokenizer


def load_tokenizer(path: Path) -> Tokenizer:
    """Read a ``tokenizer.json`` that holds the five special tokens; raises ``ModelError`` otherwise."""
    try:
        tokenizer = Tokenizer.from_buffer(read_regular(path, LARGEST_VOCABULARY))
    except AttnscopeError as error:
        raise ModelError(str(error)) from None
    except Exception as error:  # the library raises bare Exception for every kind of bad file
        raise ModelError(f"{path} cannot be read as a tokenizer: {error}") from error
    for token in SPECIAL:
        if tokenizer.token_to_id(token) is None:
            raise ModelError(f"{path} has no token {token}, which the encoder needs")
    return tokenizer


class _Undrawn(TorchFunctionMode):
    """Skips drawing initial weights, two thirds of the loading time: a file overwrites them all."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Return a tensor that would be drawn (``normal_`` and the like) as it is."""
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") in ("normal_", "uniform_", "kaiming_uniform_"):
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


def load_config(folder: str | Path) -> EncoderConfig:
    """The config of a folder that ``save_encoder`` wrote; raises ``ModelError`` for any other folder."""
    path = Path(folder) / CONFIG
    if not path.is_file():
        raise ModelError(f"{folder} holds no model: there is no {CONFIG} in it")
    try:
        values = read_json(path, LARGEST_CONFIG)
    except (OSError, ValueError, InputError) as error:
        raise ModelError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(values, dict) or values.pop("format", None) != FORMAT:
        raise ModelError(f"{path} is not the config of an attnscope encoder")
    version = values.pop("version", None)
    if version != VERSION:
        raise ModelError(f"{path} has version {version!r}, but this release reads version {VERSION}")
    try:
        return EncoderConfig.from_dict(values)
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from None


def is_encoder_folder(folder: str | Path) -> bool:
    """Whether ``save_encoder`` wrote this folder, judged by its config alone."""
    try:
        values = read_json(Path(folder) / CONFIG, LARGEST_CONFIG)
    except (OSError, ValueError, InputError):
        return False
    return isinstance(values, dict) and values.get("format") == FORMAT


def folder_of(name: str) -> Path:
    """The folder that a name means: one inside the package, for ``own`` and ``own-causal``, or a path."""
    return PRETRAINED / name if name in BUNDLED else Path(name)


def _check_shapes(
    path: Path, expected: Mapping[str, tuple[int, ...]], state: Mapping[str, torch.Tensor]
) -> None:
    for name, shape in expected.items():
        wrong, tensor = "", state.get(name)
        if tensor is None:
            wrong = f"it lacks {name!r}"
        elif tuple(tensor.shape) != shape:
            wrong = f"{name!r} is {tuple(tensor.shape)}, not {shape}"
        elif not tensor.is_floating_point():
            wrong = f"{name!r} is {tensor.dtype}, not a float"
        if wrong:
            raise ModelError(f"{path} does not fit its config: {wrong}")
