"""Sums of an unfinished run in a file, so that it can be resumed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscope.errors import InputError
from attnscope.storage.files import read_json, write_whole
from attnscope.text import Untrusted

if TYPE_CHECKING:
    from torch import nn

FORMAT = 2
SAMPLED = 64
"""Numbers of each weight that tell a model from others."""


def write_checkpoint(path: Path, identity: Mapping[str, Any], state: Mapping[str, Any]) -> None:
    """Write what was added up so far, as JSON, whole or not at all. Raises ``OutputError``."""
    content = {
        "attnscope checkpoint": FORMAT,
        "of": identity,
        "state": state,
        "sha256": _checksum(identity, state),
    }
    write_whole(path, json.dumps(content).encode())


def read_checkpoint(path: Path, identity: Mapping[str, Any]) -> dict[str, Any] | None:
    """What ``write_checkpoint`` wrote, if there is such a file.

    Raises ``InputError`` for a file that is none, and for one of another model, other texts or other
    measures: the sentence names what differs.
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
    cleaned: dict[str, Any] = _clean(state)
    return cleaned


def _clean(state: Any) -> Any:
    """The same with every text in it made clean: nobody knows who wrote the file."""
    if isinstance(state, str):
        return str(Untrusted(state))
    if isinstance(state, dict):
        return {str(Untrusted(name)): _clean(value) for name, value in state.items()}
    return [_clean(value) for value in state] if isinstance(state, list) else state


def _checksum(identity: Mapping[str, Any], state: Mapping[str, Any]) -> str:
    """The checksum of a checkpoint's content: a number that changed would be a wrong figure later."""
    return hashlib.sha256(json.dumps([identity, state]).encode()).hexdigest()


def fingerprint(module: nn.Module) -> str:
    """What tells a model from others: names, shapes and types of its weights, and a few numbers of each."""
    digest = hashlib.sha256()
    for name, weights in sorted(module.state_dict().items()):
        few = (
            weights.detach().reshape(-1)[:SAMPLED].double().tolist() if weights.device.type != "meta" else []
        )
        digest.update(f"{name} {list(weights.shape)} {weights.dtype} {few}\n".encode())
    return digest.hexdigest()
