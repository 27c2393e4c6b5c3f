"""Token text in columns of a terminal: wide, combining and right-to-left characters keep their place."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from rich.cells import cell_len

from attnscope.text import is_framed, isolate, title_words

JOINER = "\u200d"


def clusters(text: str) -> list[str]:
    """The text in units that share a cell: a character with the marks and joiners that follow it."""
    found: list[str] = []
    for character in text:
        follows = found and (
            cell_len(character) == 0 or found[-1].endswith(JOINER) or _second_flag(found[-1], character)
        )
        if follows:
            found[-1] += character
        else:
            found.append(character)
    return found


def fit(text: str, width: int, *, right: bool = False) -> str:
    """The text in exactly ``width`` cells: cut with ``…`` or filled (on the left if ``right``)."""
    kept = cut(text, width)
    space = " " * (width - cell_len(kept))
    return space + isolate(kept) if right else isolate(kept) + space


def number_label(text: str, number: int, width: int, *, right: bool = False) -> str:
    """A label and its token's number in exactly ``width`` cells; a label that is too long is cut.

    Only the label is isolated, so that a number stays behind text that runs from right to left.
    """
    room = width - len(f" {number}")
    if room < 1:
        return fit(f"{number}", width, right=right)
    kept = cut(text, room)
    space = " " * (room - cell_len(kept))
    label = f"{isolate(kept)} {number}"
    return space + label if right else label + space


def cut(text: str, width: int) -> str:
    """The text in at most ``width`` cells: ``…`` stands for its end, or for the middle of a framed token."""
    if cell_len(text) <= width:
        return text
    return "".join(_shorten(text, width, cell_len)) if width > 0 else ""


def _shorten(text: str, room: int, size: Callable[[str], int]) -> list[str]:
    """The clusters of a text that is too long, as many as there is room for, with ``…`` for the others."""
    pieces = clusters(text)
    end = _fill(pieces[::-1], 2 * (room - 1) // 3, size) if is_framed(text) else []
    begin = _fill(pieces, room - 1 - sum(map(size, end)), size)
    return [*begin, "…", *end[::-1]]


def _fill(pieces: Sequence[str], room: int, size: Callable[[str], int]) -> list[str]:
    """As many of the pieces as there is room for."""
    ends = itertools.accumulate(map(size, pieces))
    return [piece for piece, end in zip(pieces, ends, strict=True) if end <= room]


def upright(labels: Sequence[str], width: int, height: int) -> list[str] | None:
    """Lines that hold each label from top to bottom in its own column of ``width`` cells, ending below.

    At most ``height`` lines; ``None`` where a character is wider than its column.
    """
    columns = [clusters(label) for label in labels]
    if any(cell_len(cluster) > width for column in columns for cluster in column):
        return None
    tall = min(max((len(column) for column in columns), default=0), height)
    columns = [
        column if len(column) <= tall else _shorten(label, tall, lambda _: 1)
        for label, column in zip(labels, columns, strict=True)
    ]
    columns = [[" "] * (tall - len(column)) + column for column in columns]
    return ["".join(centre(column[line], width) for column in columns) for line in range(tall)]


def centre(text: str, width: int) -> str:
    """The text in the middle of ``width`` cells; it must fit."""
    space = width - cell_len(text)
    return " " * (space // 2) + isolate(text) + " " * (space - space // 2)


def wrap(text: str, width: int) -> list[str]:
    """The text in lines of at most ``width`` cells, broken between words."""
    return flow(text.split(), width, " ")


def balance(text: str, width: int) -> list[str]:
    """The text in as few lines as ``wrap`` needs, the widest as narrow as can be.

    Lines are broken between the parts of a title where that takes no line more, else between words.
    """
    items, gap = _breakable(text, width)
    lines = flow(items, width, gap)
    longest = max(map(cell_len, items), default=0)
    for narrower in range(width - 1, longest - 1, -1) if len(lines) > 1 else ():
        tried = flow(items, narrower, gap)
        if len(tried) > len(lines):
            break
        lines = tried
    return [line.removesuffix(" ·") for line in lines]


def _breakable(text: str, width: int) -> tuple[list[str], str]:
    """What is not broken, and what stands between: the parts of a title, or its words."""
    words, parts = title_words(text), text.split(" · ")
    fits = max(map(cell_len, parts)) <= width
    whole = fits and len(flow(parts, width, " · ")) <= len(flow(words, width, " "))
    return (parts, " · ") if whole else (words, " ")


def flow(items: Sequence[str], width: int, gap: str) -> list[str]:
    """Items side by side in lines of at most ``width`` cells; one that is longer than a line is cut."""
    lines: list[str] = []
    for item in items:
        longer = f"{lines[-1]}{gap}{item}" if lines else item
        if lines and cell_len(longer) <= width:
            lines[-1] = longer
        else:
            lines.append(cut(item, width))
    return lines


def _second_flag(before: str, character: str) -> bool:
    return len(before) == 1 and all(0x1F1E6 <= ord(c) <= 0x1F1FF for c in (before, character))
