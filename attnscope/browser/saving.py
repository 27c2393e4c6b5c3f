"""A picture under a name that is not taken yet."""

from __future__ import annotations

from itertools import count
from pathlib import Path

from attnscope.render.image import Drawable, save


def save_new(view: Drawable, folder: Path, name: str, cmap: str | None) -> tuple[Path, list[str]]:
    """Save as ``name.png``, or ``name-2.png`` and so on where that exists; return where, and what to warn of.

    Raises ``OutputError`` where the folder does not exist or cannot be written to.
    """
    names = (name if number == 1 else f"{name}-{number}" for number in count(1))
    path = next(path for path in (folder / f"{stem}.png" for stem in names) if not path.exists())
    return path, save(view, path, cmap=cmap)
