"""How much memory a model's weights will take, before any of them is read."""

from __future__ import annotations

import math
from pathlib import Path

import torch


def weights_size(name: str, revision: str | None, dtype: torch.dtype | None) -> int:
    """Bytes of the safetensors weights in a folder, or in the cache of the hub, once they are ``dtype``.

    ``None`` keeps the type they are stored in. 0 where there are none, as before a download.
    """
    files = sorted(_folder(name, revision).glob("*.safetensors"))
    if dtype is None:
        return sum(file.stat().st_size for file in files)
    return sum(_elements(file) for file in files) * dtype.itemsize


def _folder(name: str, revision: str | None) -> Path:
    if Path(name).is_dir():
        return Path(name)
    import huggingface_hub as hub

    found = hub.try_to_load_from_cache(name, "config.json", revision=revision)
    return Path(found).parent if isinstance(found, str) else Path(name)


def _elements(file: Path) -> int:
    """The numbers in a file, of which only the header is read; 0 if it is damaged, as loading will say."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, "pt") as tensors:
            names = tensors.keys()
            return sum(math.prod(tensors.get_slice(name).get_shape()) for name in names)
    except (SafetensorError, OSError):
        return 0
