"""How much of a text is read: no more than a model has positions for, and no more than can be tokenized."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from attnscope.errors import InputError
from attnscope.text import MOST_CHARACTERS

Fit: TypeAlias = Callable[[int], tuple[int | None, tuple[str, ...]]]
"""How many tokens to keep of so many, or ``None`` for all of them, and what to say of it."""


def fit_tokens(
    name: str,
    positions: int | None,
    count: int,
    characters: int,
    *,
    max_tokens: int | None,
    truncate: bool,
) -> tuple[int | None, tuple[str, ...]]:
    """How many of ``count`` tokens to keep (``None``: all), and a note if that cuts the text.

    Of a text of more ``characters`` than are read, ``count`` are the tokens of its beginning. Raises
    ``InputError`` for a text that is too long, and is not to be cut.
    """
    wanted = count if max_tokens is None else min(count, max_tokens)
    more = "more than " if characters > MOST_CHARACTERS else ""
    if positions is not None and wanted > positions and not truncate:
        raise InputError(
            f"the text has {more}{count:,} tokens and {name} reads at most {positions:,}: "
            "shorten it, or pass --truncate to cut it"
        )
    if more and max_tokens is None and not truncate:
        raise InputError(
            f"the text has {characters:,} characters, and at most {MOST_CHARACTERS:,} of one text are read: "
            "shorten it, or pass --max-tokens to cut it"
        )
    limits = [limit for limit in (max_tokens, positions) if limit is not None]
    if limits and count > min(limits):
        return min(limits), (f"cut: the first {min(limits):,} of {more}{count:,} tokens are shown",)
    note = f"cut: the first {MOST_CHARACTERS:,} of {characters:,} characters are read"
    return None, ((note,) if more else ())
