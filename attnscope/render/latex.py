"""Tables as LaTeX in the style of booktabs, for papers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from attnscope.text import ISOLATE, ISOLATE_END, clean
from attnscope.views import Cell, HeadMap, Heatmap, Table

ESCAPE_NAMES = ("less", "greater", "bar", "asciitilde", "asciicircum", "backslash")
ESCAPES = str.maketrans(
    {
        **{each: f"\\{each}" for each in "&%$#_{}"},
        **{each: f"\\text{name}{{}}" for each, name in zip("<>|~^\\", ESCAPE_NAMES, strict=True)},
        "−": "$-$",
        "±": r"$\pm$",
        "×": r"$\times$",
        "→": r"$\rightarrow$",
        "·": r"$\cdot$",
        "–": "--",
        "…": r"\ldots{}",
        ISOLATE: "",
        ISOLATE_END: "",
    }
)
"""Characters with a meaning in LaTeX, or missing from pdfLaTeX's text fonts."""


def escape_latex(text: str) -> str:
    """The text escaped, so that LaTeX sets it literally."""
    return clean(text).translate(ESCAPES)


def latex_of_table(view: Table) -> str:
    """A table as printed, units in brackets, and its notes as comments."""
    parts = [[part.strip() for part in column.name.split("\n")] for column in view.columns]
    names = [name + f" ({' '.join(units)})" * any(units) for name, *units in parts]
    rows = [[_text(cell) for cell in row] for row in view.rows]
    notes = [f"% {' '.join(clean(note).split()).partition('; --')[0]}" for note in view.notes]  # no options
    return "\n".join([_tabular(names, rows, [column.right for column in view.columns]), *notes])


def latex_of_map(view: HeadMap) -> str:
    """One number per head: a row per layer."""
    return _matrix(view.title or view.name, view.corner, view.rows, view.columns, view.texts)


def latex_of_weights(view: Heatmap) -> str:
    """The weights of one head: a row per query, a dash for each masked key."""
    known = view.weights.allowed.tolist()
    texts = [
        [f"{value:.2f}" if shown else "–" for value, shown in zip(*row, strict=True)]
        for row in zip(view.values.tolist(), known, strict=True)
    ]
    rows, columns = ([place.label for place in axis] for axis in (view.weights.queries, view.weights.keys))
    return _matrix(view.title, view.axes[:2], rows, columns, texts)


LATEX_FUNCTIONS: dict[type, Callable[[Any], str]] = {
    Table: latex_of_table,
    HeadMap: latex_of_map,
    Heatmap: latex_of_weights,
}
"""What writes each view; of an answer the first kind that it has."""


def _matrix(
    title: str,
    corner: Sequence[str],
    rows: Sequence[str],
    columns: Sequence[str],
    texts: Iterable[Sequence[str]],
) -> str:
    """Numbers under the names of their columns; the corner names the rows and the columns."""
    table = [[name, *row] for name, row in zip(rows, texts, strict=True)]
    tabular = _tabular([" / ".join(corner), *columns], table, [False, *[True] * len(columns)])
    return f"% {' '.join(clean(title).split())}\n{tabular}"


def latex_of_rows(table: Iterable[Sequence[object]]) -> str:
    """The rows of a CSV file with its header; numbers in three digits."""
    names, *rows = table
    right = [any(isinstance(row[place], float) for row in rows) for place in range(len(names))]
    return _tabular(list(map(str, names)), [list(map(_number, row)) for row in rows], right)


def _text(cell: Cell) -> str:
    text = cell if isinstance(cell, str) else "".join(words for words, _ in cell)
    return " ".join(text.split())


def _number(value: object) -> str:
    if value is None or value != value:
        return "–"
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def _tabular(names: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[bool]) -> str:
    head, *body = (" & ".join(map(escape_latex, row)) + r" \\" for row in (names, *rows))
    begin = ["% \\usepackage{booktabs}", f"\\begin{{tabular}}{{{''.join('lr'[each] for each in right)}}}"]
    return "\n".join([*begin, r"\toprule", head, r"\midrule", *body, r"\bottomrule", r"\end{tabular}"])
