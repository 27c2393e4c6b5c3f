"""The loss of each token, and its view; showing a cached one needs no torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, TypeAlias

from attnscope.records import Meaning, record
from attnscope.text import visible
from attnscope.views.table import Column, Table


@record("a token and its loss")
class TokenLoss:
    """The loss of one token."""

    token: Annotated[str, Meaning("the token")]
    loss: Annotated[float | None, Meaning("its cross-entropy in nats; null where it is not predicted")]


Losses: TypeAlias = Annotated[
    tuple[TokenLoss, ...] | None, Meaning("the loss of each token (--loss)", optional=True)
]


def of_token_losses(losses: Sequence[TokenLoss]) -> Table:
    """The tokens in order, each with its loss, coloured up to the largest."""
    known = [each.loss for each in losses if each.loss is not None]
    top = max(known, default=0.0) or 1.0
    pieces: list[tuple[str, str | float]] = []
    for each in losses:
        pieces += [(", ", "dim")] if pieces else []
        text = visible(each.token)
        pieces.append((text, "dim") if each.loss is None else (f"{text} {each.loss:.1f}", each.loss / top))
    mean = sum(known) / max(len(known), 1)
    title = f"loss of each token, in nats (mean {mean:.2f})"
    return Table((Column(""),), ((tuple(pieces),),), title=title)
