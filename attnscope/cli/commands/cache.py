"""``attnscope cache``: lists and removes cached passes."""

from datetime import datetime
from typing import Annotated

from typer import Option

from attnscope.cli.command import Group, command
from attnscope.text import clean

MAX_TEXT_CHARACTERS = 200  # most characters of a listed text
MAX_NAME_CHARACTERS = 32  # most characters of a model's name


class CacheOptions(Group):
    """What to do with them."""

    clear: Annotated[bool, Option(help="Remove all cached passes.")] = False


@command
def cache(options: CacheOptions) -> None:
    """List or remove cached passes.

    A pass of up to 64 MB is cached, with its text: any of fewer than 512 tokens, and longer ones of small
    models. Only you can read the folder. It holds 300 MB; the oldest passes are removed first. --no-cache
    runs the model again, ATTNSCOPE_CACHE=off caches nothing, ATTNSCOPE_CACHE=FOLDER changes the folder.

    Examples:

    attnscope cache
    attnscope cache --clear
    """
    from attnscope.models.trace_model import TracedModel
    from attnscope.private import CACHE_VARIABLE
    from attnscope.render.terminal import print_view
    from attnscope.storage.cache import cache_folder, clear_passes, list_passes
    from attnscope.views import Column, Table

    folder = cache_folder()
    if folder is None:
        return print(f"nothing is cached: {CACHE_VARIABLE} is off")
    if options.clear:
        count = clear_passes()
        return print(f"removed {count:,} pass{'es' * (count != 1)} from {clean(str(folder))}")
    entries = list_passes()
    rows = []
    for entry in entries:
        trace, about = entry.trace, entry.trace.description
        text = about.text or ("an image" if about.images else "")
        used = f"{datetime.fromtimestamp(entry.used):%d %b %H:%M}"
        size = f"{len(trace.axis(about.tokens)):,}", f"{entry.size / 1e6:.1f}"
        title = TracedModel(trace).title
        model = title if len(title) <= MAX_NAME_CHARACTERS else f"{title[: MAX_NAME_CHARACTERS - 1]}…"
        rows.append((used, model, *size, " ".join(text.split())[:MAX_TEXT_CHARACTERS]))
    right = [Column(name, right=True, long="keep") for name in ("tokens", "MB")]
    left = [Column(name, long="keep") for name in ("last used", "model")]
    if entries:
        print_view(Table((*left, *right, Column("text", long="rest")), tuple(rows)))
    total = sum(entry.size for entry in entries) / 1e6
    print(f"{len(entries):,} pass{'es' * (len(entries) != 1)}, {total:.1f} MB in {clean(str(folder))}")
