"""How answers appear: an image in a notebook, text in a console, numbers as data."""

from __future__ import annotations

import base64
import html
import io
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscope.errors import AttnscopeError, OutputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from rich.console import Console

    from attnscope.axes import Array
    from attnscope.questions.answer import Answer
    from attnscope.questions.head import OneHead
    from attnscope.questions.stats import Stats


class Display:
    """Base of what prints as text in a console, and as HTML or an image in a notebook."""

    def _repr_html_(self) -> str | None:
        return None

    def _repr_png_(self) -> bytes | None:
        return None

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        page = self._repr_html_()
        shown = {"text/html": page} if page is not None else {"image/png": self._repr_png_()}
        return {"text/plain": repr(self), **shown}


class Drawing(Display):
    """An answer as pictures, with the numbers behind it; ``save`` writes it, ``cmap`` colours it."""

    def __init__(self, answer: Answer, cmap: str | None = None) -> None:
        self._answer = answer
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
            raise AttnscopeError("this answer is not a table: read numbers")
        header, *rows = self._answer.table()
        return _pandas().DataFrame(rows, columns=header)

    def save(self, path: str | Path, *, dpi: float = 150, width: float | None = None) -> None:
        """Write the picture, .png, .svg or .pdf; several kinds of attention make several files."""
        from attnscope.render.image import save_image

        if not self._answer.pictures:
            raise OutputError(f"{path} cannot be written: it is a table: frame() has it")
        for file, view in self._answer.files(Path(path)):
            save_image(view, file, dpi=dpi, cmap=self._cmap, width=width)

    @cached_property
    def _images(self) -> list[bytes]:
        from attnscope.render.image import drawing, encode

        images = []
        for view in self._answer.pictures.values():
            with drawing(view, cmap=self._cmap) as (figure, _):
                images.append(encode(figure, "png"))
        return images

    def __repr__(self) -> str:
        from attnscope.render.pixels import print_views

        return as_text(lambda console: print_views(self._answer.views, console, plain=True))

    def _repr_png_(self) -> bytes | None:
        return self._images[0] if self._images else None

    def _repr_html_(self) -> str | None:
        """All images stacked, and the heads worth a look; ``None`` if a single image is all."""
        from attnscope.views.heads import Ranking

        rankings = [view for view in self._answer.views if isinstance(view, Ranking)]
        if len(self._images) == 1 and not rankings:
            return None
        coded = (base64.b64encode(image).decode() for image in self._images)
        parts = [f'<img src="data:image/png;base64,{image}" style="max-width:100%">' for image in coded]
        for ranking in rankings:
            parts.append(f"<p><b>{html.escape(ranking.title)}</b></p>" if ranking.heads else "")
            parts.append(_html_table((), [(each.head, each.reason, each.command) for each in ranking.heads]))
            parts += [f"<p>{html.escape(note)}</p>" for note in ranking.notes]
        return "\n".join(parts)


class HeadDrawing(Drawing):
    """One head: its heatmap with labels, its unpooled weights, its figures by measure, and its role."""

    def __init__(self, answer: Answer, result: OneHead, weights: Array, cmap: str | None) -> None:
        super().__init__(answer, cmap)
        self.weights = weights  # [query, key]
        self.head, self._view = result.figures.address, result.heatmap
        self.figures, self.role = result.figures.figures, result.figures.role
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


def _pandas() -> Any:
    try:
        import pandas
    except ModuleNotFoundError as error:
        raise AttnscopeError("a frame needs pandas, which is not installed: pip install pandas") from error
    return pandas


def as_text(draw: Callable[[Console], object]) -> str:
    """The drawing on a console as wide as the terminal, also in Jupyter."""
    from rich.console import Console

    file, width = io.StringIO(), shutil.get_terminal_size((100, 24)).columns
    draw(Console(file=file, width=width, highlight=False, force_jupyter=False, color_system=None))
    return file.getvalue().rstrip("\n")


FRAME = 640  # height of a page in a notebook, in pixels


class FigureTable(Drawing):
    """The figures of all heads: ``heads`` as objects, ``rows`` as plain data, ``frame`` for pandas."""

    def __init__(self, measured: Stats) -> None:
        from attnscope.measures import MEASURES
        from attnscope.questions.stats import of_stats

        taken = {name for head in measured.heads for name in head.figures}
        names = [name for name in MEASURES if name in taken]
        super().__init__(of_stats(measured, measured.heads, names, None))
        self.measured, self.heads = measured, measured.heads

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A dictionary per head: kind, layer, head, role, and each figure and its baseline."""
        assert self._answer.table is not None
        header, *rows = self._answer.table()
        return [dict(zip(map(str, header), row, strict=True)) for row in rows]

    def frame(self) -> Any:
        """The rows as a ``pandas.DataFrame``, indexed by head."""
        return _pandas().DataFrame(self.rows, index=[str(head.address) for head in self.heads])

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
        from attnscope.storage.files import write_whole

        write_whole(path, self.html.encode())

    def __repr__(self) -> str:
        return f"a page of all heads of {self.title}: save it, and open it in a browser"

    def _repr_html_(self) -> str:
        """A frame that may run the page's own script and save its pictures, and nothing else."""
        return (
            f'<iframe sandbox="allow-scripts allow-downloads" srcdoc="{html.escape(self.html)}" '
            f'style="width:100%;height:{FRAME}px;border:0"></iframe>'
        )


def _html_table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """An HTML table whose first column is its index."""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in names)
    lines = ["<table>", f"<thead><tr>{head}</tr></thead><tbody>" if names else "<tbody>"]
    for index, *cells in rows:
        line = "".join(f"<td>{html.escape(cell)}</td>" for cell in cells)
        lines.append(f"<tr><th>{html.escape(index)}</th>{line}</tr>")
    return "\n".join((*lines, "</tbody></table>"))
