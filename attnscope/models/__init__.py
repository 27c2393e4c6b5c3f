"""load(name) -> Model: the bundled encoders, folders that attnscope saved, and Hugging Face models."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from attnscope.errors import ModelError
from attnscope.lazy import torch
from attnscope.limits import foreign_output
from attnscope.models.inputs import ModelInput
from attnscope.models.model import Model
from attnscope.registry import BUNDLED

__all__ = ["DTYPES", "Model", "ModelInput", "load"]

DTYPES = ("auto", "float32", "float16", "bfloat16")


def load(
    name: str | os.PathLike[str] = "own",
    *,
    device: str = "auto",
    dtype: str = "auto",
    revision: str | None = None,
    trust_remote_code: bool = False,
    allow_pickle: bool = False,
    tokenizer: str = "own",
    generative: bool = False,
    predicting: bool = False,
    device_map: str | Mapping[str, str] | None = None,
) -> Model:
    """Load a model by name.

    ``name`` is ``own`` or ``own-causal`` (the bundled encoders), a folder that attnscope saved, a folder with
    a Hugging Face model, a hub id, or ``FILE.py:NAME`` or ``package.module:NAME`` for a module of your own:
    that runs the file, and the module reads token ids of the model named ``tokenizer``. ``device`` is auto,
    cpu, cuda or mps (auto takes the fastest), ``dtype`` one of ``DTYPES`` (auto keeps the type of the stored
    weights). Code in a model's folder runs only with ``trust_remote_code``, pickled weights load only with
    ``allow_pickle``. ``generative`` loads the language-model head of a Hugging Face model, for
    ``Model.generate``; ``predicting`` the head that it was trained with, for head importance and ablation.

    ``device_map`` spreads a Hugging Face model that is too large for one device over all devices and the
    disk ("auto", "balanced", "sequential", or a device for every module); "tp:2" splits its heads over two
    processes of torchrun. Raises ``ModelError``.
    """
    from attnscope.network import is_encoder_folder

    name = os.fspath(name)
    if device_map is not None and device != "auto":
        raise ModelError("a device map already places the layers: leave out the device")
    if (generative or predicting) and str(device_map).startswith("tp:"):
        sentence = "tensor parallelism splits the heads over processes: predictions need them in one, as by"
        raise ModelError(f"{sentence} the device map auto")
    place = choose_device(device)
    if dtype not in DTYPES:
        raise ModelError(f"no dtype {dtype!r}: there are {', '.join(DTYPES)}")
    kind = None if dtype == "auto" else getattr(torch, dtype)
    folder = Path(name)
    module, own = ":" in name and not folder.exists(), name in BUNDLED or is_encoder_folder(folder)
    if device_map is not None and (module or own):
        raise ModelError(f"{name} runs on one device: device maps are for Hugging Face models")
    if module:
        from attnscope.capture.placing.split_heads import require_whole_heads
        from attnscope.models.text.reader import ModuleModel, load_module, load_reader

        with foreign_output():  # what the file prints is not part of the answer
            loaded = load_module(name, device=place, dtype=kind)
        require_whole_heads(loaded, "wrap the module in a program of your own")
        return ModuleModel(name, loaded, load_reader(tokenizer))
    if tokenizer != "own":
        raise ModelError(f"{name} reads with its own tokenizer: --tokenizer is for models of FILE.py:NAME")
    if own:
        from attnscope.models.text.reader import load_own

        return load_own(name, device=place, dtype=kind)
    _require_model_folder(name, folder)
    from attnscope.models.huggingface.load import load_huggingface
    from attnscope.models.identity import find_commit
    from attnscope.models.untrusted_folder import ModelSource

    source = ModelSource(name, revision, trust_remote_code, allow_pickle)
    model = load_huggingface(source, place, kind, device_map, generative=generative, predicting=predicting)
    model.revision = find_commit(name, revision)
    return model


def _require_model_folder(name: str, folder: Path) -> None:
    """Raise ``ModelError`` for a file, a folder without a model, or a path where nothing is."""
    if not folder.exists():
        if name.startswith((".", "/", "~")) or name.count("/") > 1:
            raise ModelError(f"no model folder {name}")
    elif not folder.is_dir():
        code = f"name the class in it, {name}:NAME"
        advice = code if folder.suffix == ".py" else "give the folder that holds config.json"
        raise ModelError(f"{name} is a file, not a model: {advice}")
    elif (folder / "adapter_config.json").exists() and not (folder / "config.json").exists():
        raise ModelError(
            f"the folder {name} holds an adapter of peft: save merge_and_unload() of the adapted model, and "
            "name that folder"
        )
    elif not (folder / "config.json").exists():
        raise ModelError(f"the folder {name} holds no model: it has no config.json")


def choose_device(device: str) -> torch.device:
    """A device of this machine by name; ``auto`` is the fastest. Raises ``ModelError``."""
    backends = {"mps": torch.backends.mps, "cuda": torch.cuda}
    present = [name for name, backend in backends.items() if backend.is_available()] + ["cpu"]
    if device == "auto" and present[0] == "cuda":  # each torchrun process takes one GPU of its machine
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    try:
        if device == "auto" or device.partition(":")[0] in present:
            return torch.device(present[0] if device == "auto" else device)
    except RuntimeError:
        pass
    raise ModelError(f"no device {device!r} here: this machine has {', '.join(present)}")
