"""The figures of every head of a text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field

from attnscope.attention import Site
from attnscope.capture import Record
from attnscope.capture.only import Only
from attnscope.capture.recorder import Observer
from attnscope.capture.single_pass import SHORTEST, SinglePass
from attnscope.capture.stand_in import StandIn
from attnscope.look.batches import joined
from attnscope.look.choice import Choice
from attnscope.look.importance import Importance, Importances
from attnscope.look.sentences import expect, provenance
from attnscope.measures import DEFAULT, HeadFigures, Measured
from attnscope.models import Model, Prepared


@dataclass(frozen=True, eq=False)
class Stats:
    """The figures of the heads that are meant, what ran, and what to know.

    ``ran`` says whether the kernels ran beside the measuring, or a single pass in their place. ``importance``
    is empty unless it was asked for.
    """

    heads: tuple[HeadFigures, ...]
    title: str
    ran: str
    notes: tuple[str, ...]
    importance: Mapping[tuple[Site, int], Importance] = field(default_factory=dict)


def stats(
    model: Model,
    prepared: Prepared,
    choice: Choice,
    *,
    names: tuple[str, ...] = DEFAULT,
    exact_kernel: bool = False,
    importance: bool = False,
) -> Stats:
    """Run the model once and measure every head that is meant.

    From 512 tokens on, on the CPU, a single pass over blocks stands in for torch's fused kernel: it computes
    the layer's output (within 1e-4) and the figures together, where computing the scores again beside the
    kernel would cost several times as much. ``exact_kernel`` always leaves the kernel alone. ``importance``
    asks for each head's importance, too, of a model with an output head (see ``look.importance``). Raises
    ``SelectionError`` for a layer, kind or measure that does not exist.
    """
    measured = Measured(names)
    ids = [[token.id for token in prepared.tokens]]
    record, taken = measuring_pass(model, prepared, measured, choice, ids, exact_kernel=exact_kernel)
    heads = measured.figures()
    expect(heads, record, choice)
    important = Importances()
    if importance:
        batch = joined([prepared])
        important.add(model, batch.prepared, batch.labels)
    return Stats(
        tuple(heads),
        f"{model.title} · {provenance(record.sites)}",
        what_ran(taken, len(record.sites)),
        (*model.notes, *prepared.notes),
        important.figures(),
    )


def measuring_pass(
    model: Model,
    prepared: Prepared,
    measured: Measured,
    choice: Choice,
    ids: Sequence[Sequence[int]],
    *,
    exact_kernel: bool = False,
) -> tuple[Record, int]:
    """One forward pass, measured; how many calls of it ran as a single pass.

    ``ids`` are the token ids of each text of the batch.
    """
    long = any(len(text) >= SHORTEST for text in ids)
    stand_in = StandIn(SinglePass(ids)) if long and not exact_kernel else None
    chosen: list[Observer] = [measured] if choice == Choice() else [Only(choice.heads, [measured])]
    with stand_in or nullcontext():
        record = model.run(prepared, chosen if stand_in is None else [stand_in.shown_to(chosen)])
    return record, 0 if stand_in is None else stand_in.taken


def what_ran(taken: int, calls: int) -> str:
    """How the figures were had, in words."""
    if taken:
        return f"{taken:,} of {calls:,} calls ran as a single pass in the kernel's place"
    return "figures measured beside the kernel"
