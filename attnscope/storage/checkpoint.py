"""Files of sums: what a run over texts has saved, whole or of one shard, and all shards together."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscope.errors import InputError
from attnscope.storage.files import clean_texts, read_json, write_whole

if TYPE_CHECKING:
    from torch import nn

CHECKPOINT_VERSION = 5  # the version of a checkpoint
SUMS_BYTES = 1 << 30  # most bytes of a checkpoint: the sums of 100,000 heads
SAMPLED_NUMBERS = 64  # numbers taken from each weight for a model's fingerprint


def write_checkpoint(path: Path, identity: Mapping[str, Any], state: Mapping[str, Any]) -> None:
    """Write the sums so far as JSON, whole or not at all. Raises ``OutputError``."""
    content = {"attnscope checkpoint": CHECKPOINT_VERSION, "of": identity, "state": state}
    write_whole(path, json.dumps({**content, "sha256": _checksum(identity, state)}).encode())


def read_checkpoint(path: Path, identity: Mapping[str, Any]) -> dict[str, Any] | None:
    """Read what ``write_checkpoint`` wrote, if it exists; ``InputError`` for another file or identity."""
    if not path.exists():
        return None
    of, state = _read(path)
    if differing := _differ(of, identity):
        raise InputError(f"{path} belongs to a run with another {differing}: delete it, or name another file")
    return state


def read_shards(paths: Sequence[Path], identity: Mapping[str, Any]) -> Iterator[tuple[Path, Any, Any]]:
    """The files of all shards of one run, in their order: each one's path, identity and state.

    ``identity`` is what they must be of, as far as it is known. Raises ``InputError`` if a shard is missing,
    unfinished or there twice, or if they are not of one run.
    """
    files: dict[int, Path] = {}
    first: Mapping[str, Any] = {}
    count = 0
    for path in paths:
        of, state = _read(path)
        number, shards = of.pop("shard", None) or (1, 1)
        first, count = first or of, count or shards
        differing = _differ(of, {**first, **identity})
        if shards != count or differing:
            other = differing or f"number of shards: {shards}, not {count}"
            raise InputError(f"{path} belongs to a run with another {other}")
        if not state["progress"]["finished"]:
            raise InputError(f"{path} is not finished: the same command resumes shard {number}/{count}")
        if number in files:
            raise InputError(f"{files[number]} and {path} both are shard {number}/{count}")
        files[number] = path
    missing = [f"{number}/{count}" for number in range(1, count + 1) if number not in files]
    if missing:
        more = f" and {len(missing) - 9:,} more" if len(missing) > 9 else ""
        raise InputError(f"of {count:,} shards, {', '.join(missing[:9])}{more} is missing: measure it first")
    for _, path in sorted(files.items()):
        yield path, *_read(path)


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The identity and the state in a file of sums. Raises ``InputError``."""
    try:
        content = read_json(path, SUMS_BYTES)
        if content["attnscope checkpoint"] != CHECKPOINT_VERSION:
            raise KeyError
        of, state = dict(content["of"]), dict(content["state"])
        if content["sha256"] != _checksum(of, state):
            raise ValueError
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        problem = "is not a checkpoint of attnscope, or a damaged one: delete it, or name another file"
        raise InputError(f"{path} {problem}") from None
    cleaned: dict[str, Any] = clean_texts(state)
    return of, cleaned


def _differ(of: Mapping[str, Any], identity: Mapping[str, Any]) -> str:
    """The names of what differs, in words."""
    names = [name for name in identity if of.get(name) != json.loads(json.dumps(identity[name]))]
    return "question" if "question" in names else " and ".join(names)


def _checksum(identity: Mapping[str, Any], state: Mapping[str, Any]) -> str:
    """A checkpoint's checksum: a changed number would silently give a wrong score."""
    return hashlib.sha256(json.dumps([identity, state]).encode()).hexdigest()


def fingerprint(module: nn.Module) -> str:
    """A model's fingerprint: names, shapes and types of its weights, and a few numbers of each."""
    digest = hashlib.sha256()
    for name, weights in sorted(module.state_dict().items()):
        if hasattr(weights, "full_tensor"):  # of a process that has a part of it
            weights = weights.full_tensor()
        has_values = weights.device.type != "meta"
        few = weights.detach().reshape(-1)[:SAMPLED_NUMBERS].double().tolist() if has_values else []
        digest.update(f"{name} {list(weights.shape)} {weights.dtype} {few}\n".encode())
    return digest.hexdigest()
