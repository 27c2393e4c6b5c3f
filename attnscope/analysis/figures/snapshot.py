"""All figures of a model's heads in a file, and what has changed since."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnscope.analysis.figures.stats import Stats
from attnscope.errors import InputError
from attnscope.storage.regular import read_regular
from attnscope.storage.whole import write_whole

FORMAT = 1
LARGEST = 1 << 26
"""Bytes of a snapshot, at most."""


@dataclass(frozen=True)
class Change:
    """A figure that differs by more than was tolerated; ``None`` where there is none."""

    head: str
    measure: str
    before: float | None
    now: float | None


def save_snapshot(stats: Stats, path: Path) -> None:
    """Write every figure of every head as JSON. Raises ``OutputError``."""
    content = {"attnscope snapshot": FORMAT, "title": stats.title, "heads": _figures(stats)}
    write_whole(path, (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode())


def changes(stats: Stats, path: Path, tolerance: float) -> list[Change]:
    """What differs from a snapshot, head by head.

    ``tolerance`` is absolute for figures up to 1, and relative to the snapshot's figure for larger ones. A
    head or figure that only one of the two has is a change. Raises ``InputError`` for a file that is no
    snapshot.
    """
    try:
        content = json.loads(read_regular(path, LARGEST))
        if content["attnscope snapshot"] != FORMAT:
            raise KeyError
        before: dict[str, dict[str, float]] = {
            str(head): {str(name): float(value) for name, value in figures.items()}
            for head, figures in content["heads"].items()
        }
    except FileNotFoundError:
        raise InputError(f"no such file: {path}; --save makes one") from None
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise InputError(f"{path} is no snapshot that attnscope check saved") from None
    now = _figures(stats)
    changed = []
    for head in dict.fromkeys((*before, *now)):
        old, new = before.get(head, {}), now.get(head, {})
        for name in dict.fromkeys((*old, *new)):
            was, is_ = old.get(name), new.get(name)
            if was is None or is_ is None or not abs(is_ - was) <= tolerance * max(1.0, abs(was)):
                changed.append(Change(head, name, was, is_))
    return changed


def _figures(stats: Stats) -> dict[str, Any]:
    """By head, the values by measure."""
    return {
        f"{head.site.kind} {head.name}": {name: figure.value for name, figure in head.figures.items()}
        for head in stats.heads
    }
