"""An answer: its views, and its numbers as plain data for JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscope.axes import Array
from attnscope.records import plain
from attnscope.views import Drawable, View

if TYPE_CHECKING:
    from attnscope.storage.arrays import Kinds


VERSION = 1  # raised by any release that removes a field from an answer, or changes its meaning


def name_schema(command: str) -> str:
    """The name of a command's ``--json`` schema, with its version."""
    return f"urn:attnscope:{command}:{VERSION}"


@dataclass(frozen=True, eq=False)
class Answer:
    """The views of an answer, those among them that make picture files, and functions for the numbers.

    ``write`` makes a record, or a mapping; ``table`` the rows of a CSV file, with a header; ``arrays`` the
    contents of an ``.npz`` file; ``layers`` the weights of whole layers, with title and notes, for any data
    file; ``heads`` all heads, for a page. They are functions because most answers are only drawn.
    """

    views: tuple[View, ...]
    pictures: Mapping[str, Drawable]
    write: Callable[[], Any]
    table: Callable[[], Iterable[Sequence[object]]] | None = None
    arrays: Callable[[], Mapping[str, Array]] | None = None
    layers: Callable[[], tuple[Kinds, str, tuple[str, ...]]] | None = None
    heads: Callable[[], Any] | None = None  # questions.layers.AllHeads, which is built on answers

    @cached_property
    def numbers(self) -> Mapping[str, Any]:
        """The numbers behind the views, as plain data."""
        numbers: Mapping[str, Any] = plain(self.write())
        return numbers

    def files(self, path: Path) -> Iterator[tuple[Path, Drawable]]:
        """Each picture with its file; several kinds of attention make several files, named after them."""
        for name, view in self.pictures.items():
            yield path if len(self.pictures) == 1 else path.with_stem(f"{path.stem}-{name}"), view


def csv_rows(entries: Iterable[object], names: Sequence[str]) -> Iterator[tuple[object, ...]]:
    """A header and a row an entry; ``head.layer`` is a column ``layer``."""
    yield tuple(name.rpartition(".")[2] for name in names)
    yield from map(attrgetter(*names), entries)
