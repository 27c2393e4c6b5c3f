"""Sums of an unfinished run in a file, so that it can be resumed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscope.errors import InputError
from attnscope.storage.files import clean_texts, read_json, write_whole

if TYPE_CHECKING:
    from torch import nn

FORMAT = 2
SAMPLED = 64  # numbers taken from each weight for a model's fingerprint


def write_checkpoint(path: Path, identity: Mapping[str, Any], state: Mapping[str, Any]) -> None:
    """Write the sums so far as JSON, whole or not at all. Raises ``OutputError``."""
    content = {"attnscope checkpoint": FORMAT, "of": identity, "state": state}
    write_whole(path, json.dumps({**content, "sha256": _checksum(identity, state)}).encode())


def read_checkpoint(path: Path, identity: Mapping[str, Any]) -> dict[str, Any] | None:
    """Read what ``write_checkpoint`` wrote, if the file exists.

    Raises ``InputError`` for any other file, and for a checkpoint of another model, other texts or other
    measures: the sentence names the difference.
    """
    try:
        content = read_json(path)
        if content["attnscope checkpoint"] != FORMAT:
            raise KeyError
        of, state = dict(content["of"]), dict(content["state"])
        if content["sha256"] != _checksum(of, state):
            raise ValueError
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise InputError(
            f"{path} is not a checkpoint of attnscope, or a damaged one: delete it, or name another file"
        ) from None
    differing = [name for name in identity if of.get(name) != json.loads(json.dumps(identity[name]))]
    if differing:
        raise InputError(
            f"{path} belongs to a run with another {' and '.join(differing)}: delete it, or name another file"
        )
    cleaned: dict[str, Any] = clean_texts(state)
    return cleaned


def _checksum(identity: Mapping[str, Any], state: Mapping[str, Any]) -> str:
    """A checkpoint's checksum: a changed number would silently give a wrong figure."""
    return hashlib.sha256(json.dumps([identity, state]).encode()).hexdigest()


def fingerprint(module: nn.Module) -> str:
    """A model's fingerprint: names, shapes and types of its weights, and a few numbers of each."""
    digest = hashlib.sha256()
    for name, weights in sorted(module.state_dict().items()):
        known = weights.device.type != "meta"
        few = weights.detach().reshape(-1)[:SAMPLED].double().tolist() if known else []
        digest.update(f"{name} {list(weights.shape)} {weights.dtype} {few}\n".encode())
    return digest.hexdigest()
