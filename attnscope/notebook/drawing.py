"""How answers appear in Python: as text in a console, as an image, a table or a page in a notebook."""

from __future__ import annotations

import base64
import html
import io
import re
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from attnscope.axes import Array
from attnscope.errors import AttnscopeError, OutputError
from attnscope.measures import MEASURES
from attnscope.questions.answer import Answer
from attnscope.questions.head import OneHead
from attnscope.questions.stats import Stats, stats_answer
from attnscope.render.terminal import print_views
from attnscope.storage.files import write_whole
from attnscope.text import clean
from attnscope.views import Ranking, describe

if TYPE_CHECKING:  # what loads matplotlib is imported when it is needed
    from matplotlib.axes import Axes


PYTHON = (
    (r"--kind (\w+) shows it", r'its name with the kind, as "\1 L0H0", shows it'),
    (r" \(--kind \w+\)| \(--exact-kernel[^)]*\)", ""),
    (r"--csv (?:prints|has)", "frame() has"),
    (r"--top \d+", "numbers has all"),
    (r"--json|--csv", "numbers"),
    (r"--([a-z][a-z-]*)", lambda option: option[1].replace("-", "_")),
)
"""What the notes of the command line say of its options, and what stands for it in Python."""


def in_python(note: str) -> str:
    """A note with the arguments and attributes of Python in place of options."""
    for option, words in PYTHON:
        note = re.sub(option, words, note)
    return note


class Display:
    """Base of what prints as text in a console, and as HTML or an image in a notebook."""

    def _repr_html_(self) -> str | None:
        return None

    def _repr_png_(self) -> bytes | None:
        return None

    def _repr_mimebundle_(
        self, include: Any = None, exclude: Any = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        shown: dict[str, Any] = {"text/plain": repr(self)}
        if (page := self._repr_html_()) is not None:
            return shown | {"text/html": page}, {}
        if (image := self._repr_png_()) is None:
            return shown, {}
        return shown | {"image/png": image}, {"image/png": {"alt": self._alt}}

    @property
    def _alt(self) -> str:
        """What the picture shows, for those who cannot see it."""
        return ""


class Drawing(Display):
    """An answer as pictures, with the numbers behind it; ``save`` writes it, ``cmap`` colours it."""

    def __init__(self, answer: Answer, cmap: str | None = None) -> None:
        views = (
            replace(view, notes=tuple(map(in_python, view.notes))) if hasattr(view, "notes") else view
            for view in answer.views
        )
        self._answer = replace(answer, views=tuple(views))
        self._cmap = cmap

    @property
    def numbers(self) -> Mapping[str, Any]:
        """The numbers behind the picture, as plain data: what the command line prints with ``--json``."""
        return self._answer.numbers

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on the picture."""
        return tuple(self._answer.numbers.get("notes", ()))

    def frame(self) -> Any:
        """The numbers as a ``pandas.DataFrame``: what the command line prints with ``--csv``."""
        if self._answer.table is None:
            raise AttnscopeError("this answer has no table: use numbers")
        try:
            import pandas
        except ModuleNotFoundError as error:
            raise AttnscopeError("frame() needs pandas: pip install pandas") from error
        header, *rows = self._answer.table()
        return pandas.DataFrame(rows, columns=header)

    def save(self, path: str | Path, *, dpi: float = 150, width: float | None = None) -> None:
        """Write the picture: .png, .svg, .pdf or .jpg."""
        from attnscope.render.image import save_image

        if not self._answer.pictures:
            raise OutputError(f"cannot write {path}: this answer is a table; use frame()")
        save_image(self._answer.picture, path, dpi=dpi, cmap=self._cmap, width=width)

    @cached_property
    def _image(self) -> bytes | None:
        from attnscope.render.image import drawing, encode

        if not self._answer.pictures:
            return None
        with drawing(self._answer.picture, cmap=self._cmap) as (figure, _):
            return encode(figure, "png")

    @property
    def _alt(self) -> str:
        return ". ".join(map(clean, describe(self._answer.picture))) if self._answer.pictures else ""

    def __repr__(self) -> str:
        return as_text(lambda console: print_views(self._answer.views, console, plain=True))

    def _repr_png_(self) -> bytes | None:
        return self._image

    def _repr_html_(self) -> str | None:
        """The image and the heads worth a look; ``None`` if there is only an image."""
        rankings = [view for view in self._answer.views if isinstance(view, Ranking)]
        if self._image is None or not rankings:
            return None
        image = base64.b64encode(self._image).decode()
        alt = html.escape(self._alt)
        parts = [f'<img alt="{alt}" src="data:image/png;base64,{image}" style="max-width:100%">']
        for ranking in rankings:
            parts.append(f"<p><b>{html.escape(ranking.title)}</b></p>" if ranking.heads else "")
            parts.append(_html_table((), [(each.head, each.reason, each.command) for each in ranking.heads]))
            parts += [f"<p>{html.escape(note)}</p>" for note in ranking.notes]
        return "\n".join(parts)


class HeadDrawing(Drawing):
    """One head: its heatmap with labels, its unpooled weights, its scores by measure, and its role."""

    def __init__(self, answer: Answer, result: OneHead, weights: Array, cmap: str | None) -> None:
        super().__init__(answer, cmap)
        self.weights = weights  # [query, key]
        self.head, self._view = result.scores.address, result.heatmap
        self.scores, self.role = result.scores.scores, result.scores.role
        self.queries = tuple(place.label for place in self._view.weights.queries)
        self.keys = tuple(place.label for place in self._view.weights.keys)

    def plot(self, ax: Axes | None = None, *, cmap: str | None = None) -> Axes:
        """Draw the heatmap on the given axes, or on the current ones, and return them."""
        from attnscope.render.image.maps import draw_heatmap

        if ax is None:
            import matplotlib.pyplot as plt

            ax = plt.gca()
        draw_heatmap(self._view, ax, cmap or self._cmap)
        return ax


def as_text(draw: Callable[[Console], object]) -> str:
    """The drawing on a console as wide as the terminal, also in Jupyter."""
    file, width = io.StringIO(), shutil.get_terminal_size((100, 24)).columns
    draw(Console(file=file, width=width, highlight=False, force_jupyter=False, color_system=None))
    return file.getvalue().rstrip("\n")


class ScoreDrawing(Drawing):
    """The scores of all heads: ``heads`` as objects, ``rows`` as plain data, ``frame`` for pandas."""

    def __init__(self, measured: Stats) -> None:
        measured_names = {name for head in measured.heads for name in head.scores}
        names = [name for name in MEASURES if name in measured_names]
        super().__init__(stats_answer(measured, measured.heads, names, None))
        self.measured, self.heads = measured, measured.heads

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A dictionary per head: kind, layer, head, role, and each score and its baseline."""
        assert self._answer.table is not None
        header, *rows = self._answer.table()
        return [dict(zip(map(str, header), row, strict=True)) for row in rows]

    def frame(self) -> Any:
        """The rows as a ``pandas.DataFrame``, indexed by head."""
        return super().frame().set_axis([str(head.address) for head in self.heads])

    def _repr_html_(self) -> str:
        """A row per head, with the columns of ``attnscope stats``."""
        table: Any = self._answer.views[0]
        rows = [
            [cell if isinstance(cell, str) else "".join(text for text, _ in cell) for cell in row]
            for row in table.rows
        ]
        notes = "".join(f"<p>{html.escape(note)}</p>" for note in table.notes)
        return _html_table([column.name.replace("\n", " ").strip() for column in table.columns], rows) + notes


@dataclass(frozen=True, eq=False, repr=False)
class HeadsPage(Display):
    """All heads as one self-contained HTML page; a notebook shows it in a frame."""

    html: str
    title: str

    def save(self, path: str | Path) -> None:
        """Write the page. Raises ``OutputError``."""
        write_whole(path, self.html.encode())

    def __repr__(self) -> str:
        return f"a page of all heads of {self.title}: save it, and open it in a browser"

    def _repr_html_(self) -> str:
        """A frame that may run the page's own script and save its pictures, and nothing else."""
        return (
            f'<iframe sandbox="allow-scripts allow-downloads" srcdoc="{html.escape(self.html)}" '
            f'style="width:100%;height:640px;border:0"></iframe>'
        )


def _html_table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """An HTML table whose first column is its index."""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in names)
    lines = ["<table>", f"<thead><tr>{head}</tr></thead><tbody>" if names else "<tbody>"]
    for index, *cells in rows:
        line = "".join(f"<td>{html.escape(cell)}</td>" for cell in cells)
        lines.append(f"<tr><th>{html.escape(index)}</th>{line}</tr>")
    return "\n".join((*lines, "</tbody></table>"))
