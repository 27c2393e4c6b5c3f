"""Modules by their paths."""

from __future__ import annotations


def is_inside(path: str, other: str) -> bool:
    """Whether a module stands inside another."""
    return path != other and (not other or path.startswith(f"{other}."))
