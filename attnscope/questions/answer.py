"""An answer: its views, its numbers as plain data for JSON, and the JSON Schema of these."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Annotated, Any

from attnscope.axes import Array
from attnscope.models.identity import Input, version
from attnscope.records import RECORDS_BY_COMMAND, Meaning, plain, record, schema, shaped
from attnscope.views import Column, Drawable, Panels, Table, View

if TYPE_CHECKING:
    from attnscope.storage.arrays import Kinds


VERSION = 1  # raised by any release that removes a field from an answer, or changes its meaning


@dataclass(frozen=True, eq=False)
class Answer:
    """The views of an answer, those that a picture file shows, and functions for the numbers.

    ``to_record`` makes a record, or a mapping; ``table`` the rows of a CSV file, with a header; ``arrays``
    the contents of an ``.npz`` file; ``layers`` the weights of whole layers, and what describes them, for any
    data file; ``heads`` all heads, for a page. They are functions because most answers are only drawn.
    """

    views: tuple[View, ...]
    pictures: Mapping[str, Drawable]
    to_record: Callable[[], Any]
    table: Callable[[], Iterable[Sequence[object]]] | None = None
    arrays: Callable[[], Mapping[str, Array]] | None = None
    layers: Callable[[], tuple[Kinds, dict[str, Any]]] | None = None
    heads: Callable[[], Any] | None = None  # questions.layers.AllHeads, which is built on answers

    @classmethod
    def from_view(cls, name: str, view: Any, result: Any = None) -> Answer:
        """One view, and its picture of that name; its numbers are those of ``result``, or its own."""
        return cls((view,), {name: view}, lambda: view if result is None else result)

    @cached_property
    def numbers(self) -> Mapping[str, Any]:
        """The numbers behind the views, as plain data."""
        numbers: Mapping[str, Any] = plain(self.to_record())
        return numbers

    @property
    def picture(self) -> Drawable:
        """The picture of a file: the only one, or all in one."""
        views = tuple(self.pictures.values())
        return views[0] if len(views) == 1 else Panels(parts=views)


def csv_rows(entries: Iterable[object], names: Sequence[str] = ()) -> Iterator[tuple[object, ...]]:
    """A header and a row an entry: what has a meaning, or ``names``; ``head.layer`` is a column ``layer``."""
    if names:
        yield tuple(name.rpartition(".")[2] for name in names)
        yield from map(attrgetter(*names), entries)
        return
    for number, row in enumerate(map(plain, entries)):
        if not number:
            yield tuple(row)
        yield tuple(row.values())


def format_table(
    formats: Mapping[str, str | Callable[[Any], str]],
    entries: Iterable[object],
    left: Sequence[str] = ("head",),
    **more: Any,
) -> Table:
    """A table of a row an entry; by column, its cell's format (``{0.loss:.3f}``) or function of the entry."""
    cells = [each.format if isinstance(each, str) else each for each in formats.values()]
    columns = tuple(Column(name, name not in left, "keep") for name in formats)
    return Table(columns, tuple(tuple(cell(entry) for cell in cells) for entry in entries), **more)


UNWEIGHTED = (
    *("info", "flow", "align", "why", "logits", "ablate"),
    *("cut", "patch", "circuit", "cachecost", "track"),
)
"""The commands that never show weighted attention."""

OF_TEXT = {"where": shaped(str, Meaning("the place of the text in its corpus (--jsonl); else absent"))}

WEIGHTED = {
    "weigh": shaped(str, Meaning("the --weighting of the weights; absent for raw weights")),
    "target": shaped(
        str, Meaning("the prediction that a gradient is of (--target); absent where none was named")
    ),
}


@record("what every answer begins with")
class Beginning:
    """What made an answer, and what it is about."""

    schema: Annotated[str, Meaning("the name of this schema, and its version behind it")]
    attnscope: Annotated[str, Meaning("the version of attnscope")]
    input: Annotated[Input, Meaning("what was read")]
    other_input: Annotated[Input | None, Meaning("what that is compared with", optional=True)] = None
    options: Annotated[
        Mapping[str, Any],
        Meaning("the options that were given and may change a number", shape=Mapping[str, Any]),
    ] = field(default_factory=dict)
    versions: Annotated[Mapping[str, str], Meaning("of the libraries that ran the model")] = field(
        default_factory=lambda: {name: version(name) for name in ("torch", "transformers")}
    )


def name_schema(command: str) -> str:
    """The name of a command's ``--json`` schema, with its version."""
    return f"urn:attnscope:{command}:{VERSION}"


def printed_records() -> dict[str, list[Any]]:
    """The records that each command may print with ``--json``; imports every question."""
    for module in iter_modules([str(Path(__file__).parent)]):
        import_module(f"attnscope.questions.{module.name}")
    return dict(sorted(RECORDS_BY_COMMAND.items()))


def schema_of(command: str) -> dict[str, Any]:
    """The schema of what a command prints with ``--json``."""
    name = name_schema(command)
    begins = schema(Beginning)
    begins["properties"]["schema"] |= {"const": name}
    more = ({} if command in UNWEIGHTED else WEIGHTED) | (OF_TEXT if command == "stats" else {})
    shapes = [
        shape
        | {"properties": begins["properties"] | shape["properties"] | more}
        | {"required": [*dict.fromkeys((*begins["required"], *shape["required"]))]}
        for shape in map(schema, printed_records()[command])
    ]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": name,
        "title": f"attnscope {command} --json",
        **(shapes[0] if len(shapes) == 1 else {"anyOf": shapes}),
    }
