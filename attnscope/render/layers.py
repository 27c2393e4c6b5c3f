"""Every head in full, written as a page or as data."""

from __future__ import annotations

from pathlib import Path

from attnscope.errors import OutputError
from attnscope.questions.layers import AllHeads, WholeLayers
from attnscope.storage.files import write_whole

PAGE = ".html"  # the suffix of a page


def save_layers(layers: WholeLayers, path: Path) -> None:
    """Write all heads as data, as the suffix says.

    Raises ``OutputError`` for a place that cannot be written to, or a suffix that does not exist.
    """
    from attnscope.storage.arrays import save_weights

    save_weights(layers.kinds, path, title=layers.title, notes=layers.notes)


def save_page(heads: AllHeads, path: Path, cmap: str | None = None) -> None:
    """Write all heads as a page. Raises ``OutputError`` for a place that cannot be written to."""
    write_whole(path, page_of(heads, cmap).encode())


def page_of(heads: AllHeads, cmap: str | None = None) -> str:
    """All heads as a page. Raises ``OutputError`` for numbers that are no weights."""
    layers = heads.layers
    if layers.least < 0:
        raise OutputError(
            "a page shows weights from 0 up, and there are negative ones; save a picture or .npz"
        )
    from attnscope.render.page.page import page

    return page(
        layers.kinds,
        title=layers.title,
        subtitle=layers.subtitle,
        notes=layers.notes,
        cmap=cmap,
        top=layers.top,
        proofs=layers.proofs,
        described=heads.described,
        worth=heads.worth,
        written=layers.written,
        scene=heads.scene,
    )
