"""The identity of a model, to the byte: equal identities mean equal weights, tokenizer and config.

Small files are identified by their contents; large ones by size, times and place on the disk: a change
through a memory map may leave those as they were.
"""

from __future__ import annotations

import hashlib
import os
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from importlib import metadata
from itertools import accumulate
from pathlib import Path
from typing import Any

from attnscope.limits import HASHED_BYTES, MOST_MODEL_FILES
from attnscope.registry import GROUPS, entry_points_of, package_of
from attnscope.storage.files import hash_file
from attnscope.version import __version__

version = cache(metadata.version)  # a look asks twice, and reading takes two milliseconds a package

SETTLED = 2.0  # seconds after which a change of a file changes its time stamp, on any disk

PACKAGE = Path(__file__).parents[1]
LIBRARIES = (
    "torch", "transformers", "tokenizers", "safetensors", "numpy", "pillow", "torchvision", "sentencepiece",
    "accelerate", "timm", "peft", "kernels", "flash-attn", "bitsandbytes", "soundfile", "scipy"
)  # fmt: skip
"""Packages whose versions count, if installed."""


def identify_model(name: str, revision: str | None = None) -> list[Any] | None:
    """The identity of a model's files; ``None`` if it cannot be known.

    It is unknown for modules of the user's own code (any import may matter), for adapters (their base
    lies elsewhere), for models that are not on this machine, and while large files are being written.
    """
    folder = _folder_of(name, revision)
    if folder is None:
        return None
    try:
        sized = sorted((path.stat().st_size, path) for path in _files(folder))
        together = accumulate(size for size, _ in sized)
        files = [
            _identify(folder, path, hashed=read <= HASHED_BYTES)
            for (_, path), read in zip(sized, together, strict=True)
        ]
    except (OSError, ValueError):
        return None
    return [str(folder.resolve()), files]


def identify_programs() -> list[Any]:
    """The versions of this package and of the libraries that run a model."""
    sources = [
        (path, found.st_size, found.st_mtime_ns)
        for place, _, names in os.walk(PACKAGE)
        for path in (os.path.join(place, name) for name in names if name.endswith(".py"))
        for found in [os.stat(path)]
    ]
    versions: dict[str, str | None] = dict.fromkeys(LIBRARIES)
    for library in LIBRARIES:
        with suppress(metadata.PackageNotFoundError):
            versions[library] = version(library)
    added = [package_of(entry) for group in GROUPS for entry in entry_points_of(group)]
    return [
        __version__,
        hashlib.sha256(repr(sorted(sources)).encode()).hexdigest(),
        *versions.values(),
        *added,
    ]


def _folder_of(name: str, revision: str | None) -> Path | None:
    if name in ("own", "own-causal"):
        return PACKAGE / "pretrained" / name
    folder = Path(name)
    if folder.exists():
        return folder if (folder / "config.json").is_file() else None
    if ":" in name or name.count("/") > 1 or name.startswith((".", "/", "~")):
        return None
    from huggingface_hub.constants import HF_HUB_CACHE

    stored = Path(HF_HUB_CACHE) / f"models--{name.replace('/', '--')}"
    wanted = revision or "main"
    with suppress(OSError, ValueError):
        wanted = (stored / "refs" / wanted).read_text("utf-8").strip()
    snapshot = stored / "snapshots" / wanted
    return snapshot if (snapshot / "config.json").is_file() else None


def _files(folder: Path) -> Iterator[Path]:
    """Every file. Raises ``ValueError`` if there are too many, or they are not all of the model."""
    count = 0
    for place, folders, names in os.walk(folder):
        folders.sort()
        if any((Path(place) / each).is_symlink() for each in folders):
            raise ValueError("a folder is elsewhere")
        for name in sorted(names):
            count += 1
            if count > MOST_MODEL_FILES or name == "adapter_config.json":
                raise ValueError("too many files, or an adapter")
            yield Path(place) / name


def _identify(folder: Path, path: Path, *, hashed: bool) -> tuple[Any, ...]:
    """The identity of one file. Raises ``ValueError`` for a large one that is being written."""
    found, name = path.stat(), str(path.relative_to(folder))
    if not stat.S_ISREG(found.st_mode):
        raise ValueError("it is not a file")
    if hashed:
        return name, found.st_size, hash_file(path)
    if abs(time.time() - max(found.st_mtime, found.st_ctime)) < SETTLED or time.time() < found.st_ctime:
        raise ValueError("it was written a moment ago")
    return name, found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_dev
