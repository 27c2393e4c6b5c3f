"""The title and notes of every view; and tables of named columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias


@dataclass(frozen=True, slots=True, kw_only=True)
class Titled:
    """The words of a view: a title, a subtitle, and notes below."""

    title: str = ""
    subtitle: str = ""
    notes: tuple[str, ...] = ()


Cell: TypeAlias = "str | tuple[tuple[str, str | float], ...]"
"""A text, or pieces of one, each with a style: ``bold``, ``dim``, a colour, or a level of the colour map."""

BREAK = ("\n", "")  # a piece that ends in a real line break; in any other, line breaks are made visible


@dataclass(frozen=True)
class Column:
    """A column: its name, whether it is right-aligned, and how overlong texts are treated.

    They wrap between words (``wrap``) or anywhere (``fold``), are cut off at the column's edge
    (``keep``), or end in an ellipsis (``cut``), in a column as wide as the line allows (``rest``).
    """

    name: str
    right: bool = False
    long: Literal["wrap", "fold", "keep", "cut", "rest"] = "wrap"


@dataclass(frozen=True)
class Table(Titled):
    """Rows under the names of their columns.

    ``gap`` is the number of spaces between columns; ``edge`` adds them after the last one, too. ``dim``
    are the numbers of dimmed rows. ``command``, to be copied, stands below on one line. ``narrow``
    replaces the table where space is short.
    """

    columns: tuple[Column, ...] = ()
    rows: tuple[tuple[Cell, ...], ...] = ()
    gap: int = 2
    edge: bool = False
    dim: frozenset[int] = frozenset()
    command: str = ""
    narrow: Table | None = None
