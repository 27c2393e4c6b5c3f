"""Numbers for other programs: one line of JSON on standard output."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from attnscope.answers.version import name_schema
from attnscope.text import escape_json


def print_plain(numbers: Any) -> None:
    """Print dictionaries, lists, texts and numbers as JSON; what is no finite number is ``null`` there."""
    print(escape_json(json.dumps(_finite(numbers), ensure_ascii=False, allow_nan=False)))


def print_answer(command: str, numbers: Mapping[str, Any]) -> None:
    """Print what a command found, behind the name of the schema that says what is in it."""
    print_plain({"schema": name_schema(command), **numbers})


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
