"""The figures of every head of a text, and which of them are meant."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass

from attnscope.capture.only import Only
from attnscope.capture.recorder import Observer
from attnscope.capture.single_pass import SinglePass
from attnscope.capture.stand_in import StandIn
from attnscope.errors import SelectionError
from attnscope.look.choice import Choice
from attnscope.look.sentences import expect, provenance
from attnscope.measures import DEFAULT, MEASURES, ROLES, HeadFigures, Measured
from attnscope.models import Model, Prepared


@dataclass(frozen=True, eq=False)
class Stats:
    """The figures of the heads that are meant, what ran, and what to know.

    ``ran`` says whether the kernels ran beside the measuring, or a single pass in their place.
    """

    heads: tuple[HeadFigures, ...]
    title: str
    ran: str
    notes: tuple[str, ...]


def stats(
    model: Model,
    prepared: Prepared,
    choice: Choice,
    *,
    names: tuple[str, ...] = DEFAULT,
    exact_kernel: bool = False,
) -> Stats:
    """Run the model once and measure every head that is meant.

    From 512 tokens on, on the CPU, a single pass over blocks stands in for torch's fused kernel: it computes
    the layer's output (within 1e-4) and the figures together, where computing the scores again beside the
    kernel would cost several times as much. ``exact_kernel`` always leaves the kernel alone. Raises
    ``SelectionError`` for a layer, kind or measure that does not exist.
    """
    measured = Measured(names)
    stand_in = None if exact_kernel else StandIn(SinglePass([[token.id for token in prepared.tokens]]))
    chosen: list[Observer] = [Only(choice.heads, [measured])] if _some(choice) else [measured]
    with stand_in or nullcontext():
        record = model.run(prepared, chosen if stand_in is None else [stand_in.shown_to(chosen)])
    heads = measured.figures()
    expect(heads, record, choice)
    taken = 0 if stand_in is None else stand_in.taken
    ran = "figures measured beside the kernel"
    if taken:
        ran = f"{taken} of {len(record.sites)} calls ran as a single pass in the kernel's place"
    return Stats(
        tuple(heads),
        f"{model.title} · {provenance(record.sites)}",
        ran,
        (*model.notes, *prepared.notes),
    )


def _some(choice: Choice) -> bool:
    return choice != Choice()


OPERATORS: Mapping[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}


@dataclass(frozen=True)
class Condition:
    """``entropy<1`` or ``role=previous``; ``meets`` is false for a head that has no such figure."""

    name: str
    sign: str
    wanted: str

    def meets(self, head: HeadFigures) -> bool:
        """Whether a head is meant."""
        if self.name == "role":
            return (head.role is not None and head.role.name == self.wanted) == (self.sign == "=")
        figure = head.figures.get(self.name)
        return figure is not None and OPERATORS[self.sign](figure.value, float(self.wanted))


def conditions(text: str) -> tuple[Condition, ...]:
    """Read ``entropy<1 and previous>0.5 and role=mixed``. It is parsed, never run as code.

    Raises ``SelectionError`` for anything else.
    """
    return tuple(_condition(part.strip()) for part in re.split(r"\s+and\s+", text.strip()))


def _condition(text: str) -> Condition:
    match = re.fullmatch(r"(\w+)\s*(<=|>=|!=|<|>|=)\s*([\w.+-]+)", text, re.ASCII)
    if match is None:
        raise SelectionError(f"cannot read {text!r}: write conditions like entropy<1 and role=previous")
    name, sign, wanted = match.groups()
    if name == "role":
        if sign not in ("=", "!=") or wanted not in ROLES:
            raise SelectionError(
                f"cannot read {text!r}: write role=NAME or role!=NAME, of {', '.join(ROLES)}"
            )
        return Condition(name, sign, wanted)
    MEASURES[name]
    try:
        float(wanted)
    except ValueError:
        raise SelectionError(f"cannot read {text!r}: {wanted!r} is no number") from None
    if sign not in OPERATORS:
        raise SelectionError(f"cannot read {text!r}: compare a figure with {', '.join(OPERATORS)}")
    return Condition(name, sign, wanted)
