"""``attnscope cache``: the cached passes, and their end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from attnscope.cli.command import command, flag

if TYPE_CHECKING:
    from attnscope.storage.cache import Entry

QUOTED = 200
"""Characters of a text that are listed, where there is room."""

WIDE = 32
"""Columns that a model's name takes, at most."""


@dataclass(frozen=True, kw_only=True)
class CacheOptions:
    """What to do with them."""

    clear: bool = flag("Remove all of them.")


@command
def cache(asked: CacheOptions) -> None:
    """List the passes that are kept by themselves: the same text and model is answered from there.

    A text is kept with what the model computed of it, where that takes no more than 64 MB: any of fewer than
    512 tokens, and longer ones of small models. The folder is one that only you can read, 300 MB at most; the
    oldest go first. --fresh runs a model again. ATTNSCOPE_CACHE=off keeps nothing, and
    ATTNSCOPE_CACHE=FOLDER keeps it elsewhere.

    Examples:

    attnscope cache

    attnscope cache --clear
    """
    from attnscope.storage.cache import VARIABLE, cache_folder, clear_passes, list_passes

    folder = cache_folder()
    if folder is None:
        print(f"nothing is kept: {VARIABLE} is off")
    elif asked.clear:
        count = clear_passes()
        print(f"removed {count:,} pass{'es' * (count != 1)} from {folder}")
    else:
        entries = list_passes()
        if entries:
            _print_table(entries)
        size = sum(entry.size for entry in entries) / 1e6
        print(f"{len(entries):,} pass{'es' * (len(entries) != 1)}, {size:.1f} MB in {folder}")


def _print_table(entries: list[Entry]) -> None:
    from datetime import datetime

    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from attnscope.models.kept import TracedModel
    from attnscope.text import visible

    table = Table(box=None, pad_edge=False, header_style="bold", expand=True)
    for name in ("last used", "model", "tokens", "MB"):
        justify: Literal["left", "right"] = "right" if name in ("tokens", "MB") else "left"
        table.add_column(name, justify=justify, no_wrap=True, max_width=WIDE, overflow="ellipsis")
    table.add_column("text", ratio=1, no_wrap=True, overflow="ellipsis")
    for entry in entries:
        said = entry.trace.description
        text = said.text or ("an image" if said.images else "")
        table.add_row(
            f"{datetime.fromtimestamp(entry.used):%d %b %H:%M}",
            Text(TracedModel(entry.trace).title),
            f"{len(entry.trace.axis(said.tokens)):,}",
            f"{entry.size / 1e6:.1f}",
            Text(visible(" ".join(text.split())[:QUOTED])),
        )
    Console(highlight=False).print(table)
