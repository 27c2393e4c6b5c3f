"""Tables as LaTeX in the style of booktabs, for papers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from attnscope.text import ISOLATE, ISOLATE_END, clean
from attnscope.views import Cell, HeadMap, Table

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
    """A table as printed, without its notes."""
    names = [column.name.replace("\n", " ").strip() for column in view.columns]
    rows = [[_text(cell) for cell in row] for row in view.rows]
    return _tabular(names, rows, [column.right for column in view.columns])


def latex_of_map(view: HeadMap) -> str:
    """One number per head: a row per layer."""
    rows = [[name, *row] for name, row in zip(view.rows, view.texts, strict=True)]
    return _tabular(["", *view.columns], rows, [False, *[True] * len(view.columns)])


def latex_of_rows(table: Iterable[Sequence[object]]) -> str:
    """The rows of a CSV file with its header; numbers in three digits."""
    names, *rows = table
    right = [any(isinstance(row[place], float) for row in rows) for place in range(len(names))]
    return _tabular(list(map(str, names)), [list(map(_figure, row)) for row in rows], right)


def _text(cell: Cell) -> str:
    text = cell if isinstance(cell, str) else "".join(words for words, _ in cell)
    return " ".join(text.split())


def _figure(value: object) -> str:
    if value is None or value != value:
        return "–"
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def _tabular(names: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[bool]) -> str:
    head, *body = (" & ".join(map(escape_latex, row)) + r" \\" for row in (names, *rows))
    begin = ["% \\usepackage{booktabs}", f"\\begin{{tabular}}{{{''.join('lr'[each] for each in right)}}}"]
    return "\n".join([*begin, r"\toprule", head, r"\midrule", *body, r"\bottomrule", r"\end{tabular}"])
