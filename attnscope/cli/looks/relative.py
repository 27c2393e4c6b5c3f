"""``attnscope show --relative``: what a token looks at in a picture, beside a neutral text."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from attnscope.cli.options.picture import WHOLE
from attnscope.cli.source import open_two, reading

if TYPE_CHECKING:
    from attnscope.analysis.selection import Selection
    from attnscope.cli.options.heads import ShownHeads
    from attnscope.cli.source import Source
    from attnscope.views import Focus


def check_relative(attention: ShownHeads, source: Source, out: Path | None) -> None:
    """Refuse a neutral text where there is nothing that it stands beside."""
    if attention.neutral is not None and not attention.relative:
        raise typer.BadParameter("it goes with --relative", param_hint="--neutral")
    whole = out is not None and out.suffix.lower() in WHOLE
    result = bool(attention.token and source.asked.pictures and source.text)
    if attention.relative and (whole or attention.ablate is not None or not result):
        raise typer.BadParameter(
            "it goes with --token, a picture, a text and a model", param_hint="--relative"
        )


def look_relatively(source: Source, selection: Selection, neutral: str | None) -> Focus:
    """What the token looks at, beside the same pictures under a neutral text."""
    from attnscope.analysis.places.relative import NEUTRAL, relative_token

    text = NEUTRAL if neutral is None else neutral
    other = replace(source, text=text, asked=replace(source.asked, generate=None, keep=None))
    (model, prepared), (_, plain) = open_two(source, other)
    with reading(model, prepared, plain):
        return relative_token(model, prepared, plain, selection, text)
