"""``attnscope show --writes``: what each head writes to the score of a token."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from attnscope.cli.heads import parse_head
from attnscope.cli.options.heads import ShownHeads
from attnscope.cli.options.model import WeighedModelOptions
from attnscope.cli.options.picture import WHOLE, PrintedOptions, check_picture
from attnscope.cli.options.source import SourceOptions
from attnscope.cli.plain import print_answer
from attnscope.cli.source import read_source, reading
from attnscope.errors import OutputError

if TYPE_CHECKING:
    from attnscope.analysis.writes import Word, Writes
    from attnscope.answers.answer import Answer

PAGE = ".html"


def show_writes(
    source: SourceOptions,
    asked: ShownHeads,
    out: Path | None,
    picture: PrintedOptions,
    model: WeighedModelOptions,
    *,
    as_json: bool,
) -> None:
    """Print or save the direct effects of all parts of a model on one score."""
    if asked.token or asked.ablate or model.weigh != "raw" or (asked.layers and not asked.head):
        raise typer.BadParameter(
            "it is of all parts of the model: with --head, --target and --against alone",
            param_hint="--writes",
        )
    paged = out is not None and out.suffix.lower() == PAGE
    if out is not None and out.suffix.lower() in WHOLE and not paged:
        raise OutputError(
            "save a picture (.png, .svg, .pdf) or a page (.html), or take the numbers with --json"
        )
    head = None if asked.head is None else parse_head(asked.head, asked)
    check_picture(out, picture.cmap, one=not paged, signed=True)
    given = read_source(source, replace(model, target=None))
    from attnscope.analysis.writes import direct_effects
    from attnscope.answers.writes import of_writes
    from attnscope.cli import answers

    loaded, prepared = given.open(predicting=True)
    with reading(loaded, prepared):
        result = direct_effects(loaded, prepared, model.target, asked.against, head)
    if as_json:
        print_answer("show", _numbers(result))
    elif out is not None and paged:
        _save_page(of_writes(result, head), out, picture)
    elif out is not None:
        answers.save(of_writes(result, head), out, picture)
    else:
        answers.print_views(of_writes(result, head), picture)


def _save_page(answer: Answer, out: Path, picture: PrintedOptions) -> None:
    """All of it as one page."""
    from attnscope.cli import answers
    from attnscope.render.page.terms import terms_page
    from attnscope.storage.whole import write_whole
    from attnscope.views import HeadMap

    view: Any = answers.dress(answer.pictures["writes"], picture)
    maps = [each for each in answer.views if isinstance(each, HeadMap)]
    write_whole(out, terms_page(view, maps, picture.cmap).encode())
    print(f"saved {out}", file=sys.stderr)


def _numbers(result: Writes) -> dict[str, Any]:
    """All parts as plain data."""
    effects = result.effects
    return {
        "title": result.title,
        "prediction": result.said,
        "notes": list(result.notes),
        "score": result.score,
        "heads": [
            {"kind": head.kind, "layer": head.layer, "head": head.head, "effect": effect}
            for head, effect in effects.heads.items()
        ],
        "feed_forward": [
            {"layer": layer, "effect": effect} for layer, effect in sorted(effects.feed_forward.items())
        ],
        "mixers": [
            {"layer": layer, "module": module, "effect": effect}
            for (layer, module), effect in sorted(effects.mixers.items())
        ],
        "embeddings": effects.embeddings,
        "biases": effects.biases,
        "rest": result.rest,
        "words": [
            {
                "kind": head.kind,
                "layer": head.layer,
                "head": head.head,
                "raised": [_word(word) for word in favours.raised],
                "lowered": [_word(word) for word in favours.lowered],
            }
            for head, favours in result.words.items()
        ],
    }


def _word(word: Word) -> dict[str, Any]:
    return {"text": word.text, "moved": word.moved}
