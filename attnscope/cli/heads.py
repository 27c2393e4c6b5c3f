"""How a head is named on the command line: ``L5H3``, ``5.3``, ``5-3``, or a layer and a head number."""

from __future__ import annotations

import re

import typer

_SPELLING = re.compile(r"[Ll](\d+)[Hh](\d+)|(\d+)[.-](\d+)", re.ASCII)


_RANGE = re.compile(r"(\d+)(?:-(\d+))?", re.ASCII)

MOST = 9999
"""The largest number of a layer or a head in a list of them."""


def parse_head(head: str | None, layer: int | None) -> tuple[int | None, int | None]:
    """Layer and head from ``--head`` and ``--layer``; ``None`` for what was not said.

    A wrong spelling, a head number without a layer, or two layers that differ is wrong usage.
    """
    if head is None:
        return layer, None
    if head.isascii() and head.isdigit():
        if layer is None:
            raise typer.BadParameter(f"which layer? write L0H{head}, or add --layer", param_hint="--head")
        return layer, int(head)
    match = _SPELLING.fullmatch(head.strip())
    if match is None:
        raise typer.BadParameter(f"{head!r} is no head: write L5H3, 5.3 or 5-3", param_hint="--head")
    named, number = (int(part) for part in match.groups() if part is not None)
    if layer is not None and layer != named:
        raise typer.BadParameter(f"--layer {layer} and --head {head} name two layers", param_hint="--head")
    return named, number


def parse_numbers(spelling: str | None, option: str) -> tuple[int, ...] | None:
    """Numbers and ranges like ``0-3,7``, each once and in order; ``None`` stays ``None``.

    Anything else, a range that runs backwards among it, is wrong usage.
    """
    if spelling is None:
        return None
    numbers: set[int] = set()
    for part in spelling.split(","):
        match = _RANGE.fullmatch(part.strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if first > last or last > MOST:
            raise typer.BadParameter(f"{spelling!r}: write numbers and ranges, like 0-3,7", param_hint=option)
        numbers.update(range(first, last + 1))
    return tuple(sorted(numbers))
