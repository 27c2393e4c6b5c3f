"""Modules by their paths."""

from __future__ import annotations

import re


def is_inside(path: str, other: str) -> bool:
    """Whether a module stands inside another."""
    return path != other and (not other or path.startswith(f"{other}."))


def pattern(path: str) -> str:
    """A path without its numbers: modules of one pattern are the same one of several layers."""
    return re.sub(r"(^|\.)\d+(?=\.|$)", r"\1*", path)
