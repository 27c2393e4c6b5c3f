"""What a measure is, and the table of all measures.

To add a measure, add one function under ``@measure(...)``. Its form says what the function is given and
handles the rows, the fused pass and the baseline.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from attnscope.attention import Token
from attnscope.fused.request import Request
from attnscope.measures.block import TokenFacts
from attnscope.measures.forms import Form
from attnscope.plugins import load_plugins
from attnscope.registry import Registry, docstring

LACKING = {
    "positions": "compares positions of one sequence, and here there are two sequences",
    "queries": "needs tokens, and this axis holds bare positions",
    "keys": "needs tokens, and this axis holds bare positions",
    "scores": "needs the scores before the softmax, and here only weights are known",
}
"""Why a measure does not exist, by missing requirement."""


@dataclass(frozen=True)
class Measure:
    """One number per row, with all that a reader needs to know; ``rows`` says which rows count."""

    name: str
    form: Form
    unit: str
    bounds: str
    formula: str
    rows: str
    source: str

    @property
    def summary(self) -> str:
        """The first sentence of the function's docstring."""
        return docstring(self.form.function).split("\n")[0].split("  ")[0].rstrip(".")  # without shapes

    def missing(self, offered: Iterable[str]) -> str | None:
        """Why this measure does not exist for an attention that offers only this; ``None`` if it does."""
        lacking = [need for need in self.form.needs if need not in offered]
        return f"{self.name} {LACKING[lacking[0]]}" if lacking else None


MEASURES: Registry[Measure] = Registry(
    "measure",
    retired={"spread": "normalized_entropy", "span": "effective_keys", "sink": "no_key"},
    more=lambda: load_plugins("measures"),  # each measure declares its own, under @measure
)

Function = TypeVar("Function", bound="Callable[..., Any]")


def measure(
    name: str,
    form: type[Form],
    *,
    formula: str,
    source: str,
    unit: str = "share",
    bounds: str = "0 to 1",
    rows: str | None = None,
) -> Callable[[Function], Function]:
    """Return a decorator that registers a function as the measure ``name``; its form says what it is given.

    ``rows`` says in words which rows count, if the form's own words are not plain enough.
    """

    def file(function: Function) -> Function:
        entry = Measure(name, form(function), unit, bounds, formula, rows or form.rows, source)
        MEASURES.register(name)(entry)
        return function

    return file


def fused_request(
    names: Iterable[str], texts: Sequence[Sequence[Token]], cells: int | None = None
) -> Request | None:
    """What to ask the fused pass for to compute these measures; ``None`` if it cannot compute them all.

    ``texts`` are those of a batch, of equal length, or one for all of it; ``cells`` also asks for a map.
    """
    facts = TokenFacts.of(texts) if texts and texts[0] else None
    request = Request(cells=cells)
    able = [MEASURES[name].form.ask(name, request, facts) for name in names]
    return request if all(able) else None
