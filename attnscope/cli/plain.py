"""Numbers for other programs: one line of JSON on standard output."""

from __future__ import annotations

import json
import math
from typing import Any

from attnscope.text import escape_json


def print_plain(numbers: Any) -> None:
    """Print dictionaries, lists, texts and numbers as JSON; what is no finite number is ``null`` there."""
    print(escape_json(json.dumps(_finite(numbers), ensure_ascii=False, allow_nan=False)))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
