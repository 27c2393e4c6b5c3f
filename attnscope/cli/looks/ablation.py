"""What a head's absence changes, printed."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from attnscope.cli.heads import parse_head, select
from attnscope.cli.options.heads import ShownHeads
from attnscope.cli.plain import print_answer
from attnscope.cli.waiting import waiting

if TYPE_CHECKING:
    from rich.text import Text

    from attnscope.analysis.intervention.ablation import Ablation, Changed
    from attnscope.models import Model, ModelInput

MOST = 8
"""Tokens whose prediction changed most that are listed."""


def show_ablation(model: Model, prepared: ModelInput, asked: ShownHeads, *, as_json: bool) -> None:
    """Take the head of --ablate away, and print what changes in the model's predictions."""
    from attnscope.analysis.intervention.ablation import ablate

    assert asked.ablate is not None
    head = parse_head(asked.ablate, asked)
    with waiting(f"{model.name} predicts with and without {asked.ablate}"):
        result = ablate(model, prepared, select(asked, head=head))
    if as_json:
        print_answer("show", asdict(result))
    else:
        _print(result)


def _print(result: Ablation) -> None:
    """The change on average, and the predictions that changed most."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    console.print(Text(f"{result.head} taken away · {result.title}"), style="bold")
    was, is_ = result.losses
    console.print(
        f"the predictions change by {result.divergence:.3g} nats on average (KL divergence), "
        f"their loss goes from {was:.3f} to {is_:.3f}\n"
    )
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("token", justify="right", no_wrap=True, overflow="ellipsis")
    table.add_column("change", justify="right", no_wrap=True)
    for name in ("predicted with it", "without it"):
        table.add_column(name)
    for one in result.changed[:MOST]:
        before, after = _predictions(one, one.before), _predictions(one, one.after)
        table.add_row(_name_change(one), f"{one.divergence:.3f}", before, after)
    console.print(table)
    more = len(result.changed) - MOST
    notes = [f"and {more:,} more predictions, each changed less"] if more > 0 else []
    notes += ["[in brackets]: the token that stands in the text", *result.notes]
    for note in notes:
        console.print(Text(f"· {note}"), style="dim")


def _name_change(one: Changed) -> Text:
    from rich.text import Text

    from attnscope.axes import visible

    return Text(f"{visible(one.token)} {one.position}")


def _predictions(one: Changed, top: tuple[tuple[str, float], ...]) -> Text:
    """The likeliest tokens, each with its probability in per cent, the right one in bold and in brackets."""
    from rich.text import Text

    from attnscope.axes import visible

    line = Text()
    for token, share in top:
        right = token == one.wanted
        words = f"[{visible(token)}]" if right else visible(token)
        line.append(f"{words} ", style="bold" if right else "")
        line.append(f"{share:.0%}  ", style="dim")
    return line
