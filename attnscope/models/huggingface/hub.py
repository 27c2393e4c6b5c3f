"""Whether the hub has a model, in one sentence and without long waits."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

from attnscope.errors import ModelError, first_line
from attnscope.network.folder import BUNDLED
from attnscope.registry import nearest_name

TIMEOUT = 10.0
"""Seconds to wait for the hub's first answer."""

ANSWERS = {
    "HFValidationError": (
        "no model {name!r}: {near}it is neither a folder here nor a hub id such as 'openai-community/gpt2'"
    ),
    "GatedRepoError": (
        "{name} is on the hub, but its authors ask for consent: accept its terms there, then log in with "
        "'hf auth login'"
    ),
    "RevisionNotFoundError": "{name} has no revision {revision!r} on the hub",
    "RepositoryNotFoundError": (
        "no model {name!r}: {near}there is no such folder here, and no public model of that name on the hub"
    ),
    "OfflineModeIsEnabled": (
        "no model {name!r}: {near}there is no such folder here, it is not in the cache, and the hub is "
        "switched off (--offline, or HF_HUB_OFFLINE)"
    ),
}
"""What each exception of the hub's library says; the first that fits counts."""


def require_on_hub(name: str, revision: str | None) -> None:
    """Raise ``ModelError`` at once if ``name`` is neither in the cache nor on a hub that answers.

    The library would try five times, half a minute in all, before it says so.
    """
    import huggingface_hub as hub
    from huggingface_hub import errors

    try:
        if isinstance(hub.try_to_load_from_cache(name, "config.json", revision=revision), str):
            return
        logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
        hub.HfApi().model_info(name, revision=revision, timeout=TIMEOUT)
    except Exception as error:  # every transport has its own exceptions for "nobody answers"
        near = nearest_name(name, (*BUNDLED, *_cached()))
        for kind, sentence in ANSWERS.items():
            if isinstance(error, getattr(errors, kind)):
                raise ModelError(sentence.format(name=name, revision=revision, near=near)) from None
        raise ModelError(
            f"no model {name!r}: {near}there is no such folder here, it is not in the cache, and the hub "
            f"cannot be reached ({first_line(error)})"
        ) from None


def _cached() -> Iterator[str]:
    """The models of the hub that are on this machine."""
    from huggingface_hub.constants import HF_HUB_CACHE

    for folder in sorted(Path(HF_HUB_CACHE).glob("models--*")):
        yield folder.name.removeprefix("models--").replace("--", "/")
