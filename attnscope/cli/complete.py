"""What Tab offers: quickly, without torch, from files on disk."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeAlias, get_args

from attnscope.plugins import entry_points_of

Complete: TypeAlias = Callable[[], Iterable[str]]
"""All possible values; those with the typed prefix are offered."""

PACKAGE = Path(__file__).parents[1]
WEAK = ("previous", "next", "self", "induction", "duplicate", "positional")
ROLES = ("positional", *(f"weak {name}" for name in WEAK), "weak", "sharp", "broad", "none")
"""Roles that are not measures."""


def kinds() -> Iterable[str]:
    """Kinds of attention."""
    return ("encoder", "decoder", "cross")


def colour_maps() -> Iterable[str]:
    """Colour maps: those of the page, and the diverging ones."""
    from attnscope.render.colour import OFFERED, TWO_SIDED

    return (*OFFERED, *TWO_SIDED)


def measures() -> Iterable[str]:
    """The measures, read from their source files."""
    declared = (file.read_text("utf-8") for file in sorted((PACKAGE / "measures").glob("*.py")))
    names = [name for text in declared for name in re.findall(r'^@measure\(\s*"(\w+)"', text, re.M)]
    return (*names, *(each.name for each in entry_points_of("measures")))


def explained() -> Iterable[str]:
    """Measures, roles, weighings, and prediction figures."""
    from attnscope.figures import Weigh
    from attnscope.measures.flow import METHODS

    return (*measures(), *ROLES, *get_args(Weigh)[1:], *METHODS, "importance", "ablation", "logits")


def models() -> Iterable[str]:
    """The bundled encoders, and cached models of the hub."""
    from huggingface_hub.constants import HF_HUB_CACHE

    names = (folder.name for folder in sorted(Path(HF_HUB_CACHE).glob("models--*")))
    return ("own", "own-causal", *(name.removeprefix("models--").replace("--", "/") for name in names))
