"""A chat as it is given: one message, or all of them as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from attnscope.errors import InputError

EXAMPLE = '[{"role": "user", "content": "Who slept?"}]'


def read_messages(text: str, system: str | None = None) -> list[dict[str, str]]:
    """The messages of a chat, each with its role and its content.

    A text that is a JSON list of messages is a whole chat; any other is one message of a user, with
    ``system`` before it if that is given. Raises ``InputError`` for a list of something else.
    """
    messages: Any = None
    if text.lstrip().startswith("[") and text.rstrip().endswith("]"):
        try:
            messages = json.loads(text)
        except (ValueError, RecursionError):
            messages = None  # a text that begins with a bracket
    if messages is None:
        messages = [{"role": "user", "content": text}]
    elif not messages or not all(map(_is_message, messages)):
        raise InputError(f"a chat in JSON is a list of messages, each with a role and a content: {EXAMPLE}")
    said = [] if system is None else [{"role": "system", "content": system}]
    return [*said, *messages]


def _is_message(message: Any) -> bool:
    return isinstance(message, Mapping) and all(
        isinstance(message.get(name), str) for name in ("role", "content")
    )
