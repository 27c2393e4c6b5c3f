"""What a notebook shows as HTML: the figures of all heads as a table, all heads as a page."""

from __future__ import annotations

import html
import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscope.answers.figure_table import NOTHING
from attnscope.errors import AttnscopeError
from attnscope.notebook.shown import Shown, text_console

if TYPE_CHECKING:
    from attnscope.analysis.figures.stats import Stats
    from attnscope.measures import HeadFigures

FRAME = 640
"""Pixels that a page is high in a notebook."""


@dataclass(frozen=True, eq=False, repr=False)
class Table(Shown):
    """The figures of all heads: ``heads`` as they are, ``rows`` as plain data, ``frame`` for pandas."""

    measured: Stats

    @property
    def heads(self) -> tuple[HeadFigures, ...]:
        """Every head with its figures, each beside its baseline, and its role."""
        return self.measured.heads

    @property
    def numbers(self) -> Mapping[str, Any]:
        """The figures as plain data: what the command line prints with ``--json``."""
        from attnscope.answers.figures import numbers_of

        return numbers_of(self.measured, self.heads)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A dictionary a head: kind, layer, head, role, and each figure and its baseline."""
        from attnscope.answers.figures import table_of
        from attnscope.measures import MEASURES

        taken = {name for head in self.heads for name in head.figures}
        names = [name for name in MEASURES if name in taken]
        header, *rows = table_of(self.measured, self.heads, names)
        return [dict(zip(header, row, strict=True)) for row in rows]

    def frame(self) -> Any:
        """The rows as a ``pandas.DataFrame``. Raises ``AttnscopeError`` where there is no pandas."""
        try:
            import pandas
        except ModuleNotFoundError as error:
            raise AttnscopeError(
                "a frame needs pandas, which is not installed: pip install pandas"
            ) from error
        return pandas.DataFrame(self.rows)

    def _text(self) -> str:
        from attnscope.answers.figure_table import print_table

        file = io.StringIO()
        print_table(self.measured, self.heads, None, text_console(file))
        return file.getvalue().rstrip("\n")

    def _repr_html_(self) -> str:
        """A line a head; each figure with its baseline behind it, without measures that are 0 everywhere."""
        rows = self.rows
        names = [
            name
            for name in (rows[0] if rows else ())
            if not name.endswith(_BASELINE) and any(_says_something(row[name]) for row in rows)
        ]
        head = "".join(f"<th>{html.escape(name)}</th>" for name in names)
        body = "\n".join(
            "<tr>" + "".join(f"<td>{_cell(row, name)}</td>" for name in names) + "</tr>" for row in rows
        )
        return f"<table><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table>"

    def _bundle(self) -> dict[str, Any]:
        return {"text/html": self._repr_html_()}


@dataclass(frozen=True, eq=False, repr=False)
class Page(Shown):
    """All heads as one page of HTML that needs nothing else; a notebook shows it in a frame of its own."""

    html: str
    title: str

    def save(self, path: str | Path) -> None:
        """Write the page. Raises ``OutputError``."""
        from attnscope.storage.whole import write_whole

        write_whole(path, self.html.encode())

    def _text(self) -> str:
        return f"a page of all heads of {self.title}: save it, and open it in a browser"

    def _repr_html_(self) -> str:
        """A frame that may run the page's own script and save its pictures, and reach nothing."""
        return (
            f'<iframe sandbox="allow-scripts allow-downloads" srcdoc="{html.escape(self.html)}" '
            f'style="width:100%;height:{FRAME}px;border:0"></iframe>'
        )

    def _bundle(self) -> dict[str, Any]:
        return {"text/html": self._repr_html_()}


_BASELINE = "_baseline"


def _says_something(value: Any) -> bool:
    return not isinstance(value, float) or abs(value) >= NOTHING


def _cell(row: Mapping[str, Any], name: str) -> str:
    value, measure = row[name], {"score": "role", "role": None}.get(name, name)
    baseline = row.get(f"{measure}{_BASELINE}")
    if value is None:
        return "–"
    behind = "" if baseline is None else f" <small>({_round(baseline)})</small>"
    return (_round(value) if isinstance(value, float) else html.escape(str(value))) + behind


def _round(value: float) -> str:
    return f"{round(value, 2) + 0.0:.2f}"  # no -0.00
