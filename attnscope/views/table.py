"""What stands above and below every view; and a table: named columns, a row a line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias


@dataclass(frozen=True, slots=True, kw_only=True)
class Titled:
    """The words of a view: a title, what it is about, and notes below."""

    title: str = ""
    subtitle: str = ""
    notes: tuple[str, ...] = ()


Cell: TypeAlias = "str | tuple[tuple[str, str | float], ...]"
"""A text, or pieces of one, each with a style: ``bold``, ``dim``, a colour, or a level of the colour map."""

BREAK = ("\n", "")
"""The piece behind which a new line begins; in any other, line breaks are made visible."""


@dataclass(frozen=True)
class Column:
    """A column: its name, whether it stands on the right, and what becomes of texts that are too long.

    They go on in the next line between words (``wrap``) or anywhere (``fold``), are cut at the column's edge
    (``keep``), or end in an ellipsis (``cut``), in a column as wide as the line leaves (``rest``).
    """

    name: str
    right: bool = False
    long: Literal["wrap", "fold", "keep", "cut", "rest"] = "wrap"


@dataclass(frozen=True)
class Table:
    """Rows under the names of their columns.

    ``gap`` is the number of spaces between columns; with ``edge`` they stand behind the last one, too.
    ``dim`` are the numbers of rows that recede. ``command``, to be copied, stands below on one line.
    ``narrow`` is shown instead where there is little room.
    """

    columns: tuple[Column, ...] = ()
    rows: tuple[tuple[Cell, ...], ...] = ()
    title: str = ""
    subtitle: str = ""
    notes: tuple[str, ...] = ()
    gap: int = 2
    edge: bool = False
    dim: frozenset[int] = frozenset()
    command: str = ""
    narrow: Table | None = None
