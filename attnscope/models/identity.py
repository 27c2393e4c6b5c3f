"""The identity of a model, to the byte: equal identities mean equal weights, tokenizer and config.

Small files are identified by their contents; large ones by size, times and place on the disk: a change
through a memory map may leave those as they were.

``describe_input`` says what an answer is about, with checksums that any machine finds again.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from hashlib import sha256
from importlib import metadata
from itertools import accumulate
from math import inf
from pathlib import Path
from typing import Annotated, Any, TypeAlias

from attnscope.limits import HASHED_BYTES, MOST_MODEL_FILES
from attnscope.models.inputs import ModelInput
from attnscope.records import Meaning, record
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


@cache
def _hash_sources() -> str:
    """What tells this package's files from others, when they were imported."""
    sources = [
        (path, status.st_size, status.st_mtime_ns)
        for place, _, names in os.walk(PACKAGE)
        for path in (os.path.join(place, name) for name in names if name.endswith(".py"))
        for status in [os.stat(path)]
    ]
    return sha256(repr(sorted(sources)).encode()).hexdigest()


def identify_programs() -> list[Any]:
    """The versions of this package and of the libraries that run a model."""
    versions: dict[str, str | None] = dict.fromkeys(LIBRARIES)
    for library in LIBRARIES:
        with suppress(metadata.PackageNotFoundError):
            versions[library] = version(library)
    added = [package_of(entry) for group in GROUPS for entry in entry_points_of(group)]
    return [
        __version__,
        _hash_sources(),
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

    repository = Path(HF_HUB_CACHE) / f"models--{name.replace('/', '--')}"
    commit = revision or "main"
    with suppress(OSError, ValueError):
        commit = (repository / "refs" / commit).read_text("utf-8").strip()
    snapshot = repository / "snapshots" / commit
    return snapshot if (snapshot / "config.json").is_file() else None


def find_commit(name: str, revision: str | None) -> str | None:
    """The commit of a model of the hub, if it is on this machine."""
    folder = _folder_of(name, revision)
    return folder.name if folder is not None and folder.parent.name == "snapshots" else None


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
    status, name = path.stat(), str(path.relative_to(folder))
    if not stat.S_ISREG(status.st_mode):
        raise ValueError("it is not a file")
    if hashed:
        return name, status.st_size, hash_file(path)
    if abs(time.time() - max(status.st_mtime, status.st_ctime)) < SETTLED or time.time() < status.st_ctime:
        raise ValueError("it was written a moment ago")
    return name, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev


QUOTED, LISTED = 1000, 64  # most characters of a text, and most tokens, that are given whole


@record("what was read, and by which model")
class Input:
    """What an answer is about."""

    model: Annotated[str, Meaning("the model's name")]
    revision: Annotated[str | None, Meaning("the commit of a model of the hub")]
    checksum: Annotated[str | None, Meaning("of sha256sum * | sha256sum in the model's folder, if small")]
    text: Annotated[str | None, Meaning("the text, or template of prompts, if short", optional=True)]
    second_text: Annotated[str | None, Meaning("the second text of a pair, likewise", optional=True)]
    sha256: Annotated[str | None, Meaning("of the text in UTF-8, a second one behind a tab", optional=True)]
    files: Annotated[Mapping[str, str | None] | None, Meaning("their sha256; of pipes null", optional=True)]
    texts: Annotated[int | None, Meaning("how many texts were read, if not one", optional=True)]
    token_count: Annotated[int | None, Meaning("of all texts, as read and generated; null if not counted")]
    tokens: Annotated[tuple[str, ...] | None, Meaning("those of one text, if few", optional=True)]


Read: TypeAlias = ModelInput | Path | str | tuple[int, int] | None


def describe_input(model: Any, *read: Read) -> Input:
    """A model, or its name, and what it read: inputs, files, texts, or the count of texts and tokens."""
    name, revision = getattr(model, "name", model), getattr(model, "revision", None)
    path: Path | None = getattr(model, "path", None)
    folder = None if path or revision else _folder_of(name, None)
    inputs = [each for each in read if isinstance(each, ModelInput)]
    counts = len(inputs), sum(len(each.tokens) for each in inputs)
    texts, tokens = next((each for each in read if isinstance(each, tuple)), counts)
    one = inputs[0] if len(inputs) == 1 else None
    wordings = _read_texts(one, read)
    text, second, *_ = [each if len(each) <= QUOTED else None for each in wordings] + [None, None]
    return Input(
        name,
        revision,
        None if folder is None else _checksum(folder, HASHED_BYTES),
        text,
        second,
        sha256("\t".join(wordings).encode()).hexdigest() if wordings else None,
        _checksums(one, path, *read) or None,
        None if texts < 2 else texts,
        tokens or None,
        tuple(token.text for token in one.tokens) if one and tokens <= LISTED else None,
    )


def _read_texts(one: ModelInput | None, read: Sequence[Read]) -> list[str]:
    """The text that is described, named or that of the only input, and its second one if it is a pair."""
    request = None if one is None else one.request
    own = request.text if request else one and one.text
    text = next((each for each in read if isinstance(each, str)), own)
    return [each for each in (text, request and request.second) if each]


def _checksums(one: ModelInput | None, *read: Read) -> dict[str, str | None]:
    """The checksum of each file, those among what the only input was made of included."""
    beside = one.request.files if one is not None and one.request else ()
    return {str(each): _checksum(each) for each in (*read, *beside) if isinstance(each, Path)}


def _checksum(path: Path, most: float = inf) -> str | None:
    """The hash of a file, or of what sha256sum prints for all files in a folder of so many bytes."""
    try:
        if not path.is_dir():
            return hash_file(path) if path.is_file() else None
        files = [file for file in sorted(path.rglob("*"), key=Path.as_posix) if file.is_file()]
        if sum(file.stat().st_size for file in files) > most:
            return None
        lines = (f"{hash_file(each)}  {each.relative_to(path).as_posix()}\n" for each in files)
        return sha256("".join(lines).encode()).hexdigest()
    except OSError:
        return None
