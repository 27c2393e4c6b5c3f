"""``attnscope logits``: what each part of a model adds to a score, and the prediction after each layer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from attnscope.cli.command import MOST_USED, command, option, refuse
from attnscope.cli.deliver import deliver
from attnscope.cli.heads import parse_head
from attnscope.cli.options import (
    PICTURES,
    HeadOptions,
    ModelOptions,
    NumbersOptions,
    PrintedOptions,
    SourceOptions,
    check_picture,
    check_place,
)
from attnscope.cli.source import read_source, reading


@dataclass(frozen=True, kw_only=True)
class ScoreOptions:
    """Whose score is taken apart."""

    panel = MOST_USED
    target: str | None = option(
        "The prediction: a word at the end of the text, or the number of a token. Default: most likely."
    )
    against: str | None = option("Another word, whose score is subtracted.")


@dataclass(frozen=True, kw_only=True)
class LogitsOptions(ScoreOptions):
    """And what it is taken apart into."""

    by: Literal["head", "layer"] = option(
        "head: what each head adds; layer: the prediction after each layer (logit lens).", default="head"
    )


@dataclass(frozen=True, kw_only=True)
class LogitsOutput(NumbersOptions):
    """Where the answer goes."""

    out: Path | None = option("Save a picture (.png, .svg, .pdf) or a page (.html).", "--out", "-o")


@command
def logits(
    source: SourceOptions,
    asked: LogitsOptions,
    attention: HeadOptions,
    output: LogitsOutput,
    picture: PrintedOptions,
    model: ModelOptions,
) -> None:
    """Direct logit attribution: what each head adds to a token's logit.

    Heads, feed-forward layers, embeddings and biases sum to the score. With --head: the words whose logits
    that head raises and lowers most. With --by layer: the final norm and the output head on the residual
    stream after each layer (logit lens).

    Examples:

    attnscope logits "The cat sat on the" -m openai-community/gpt2 --target mat --against floor

    attnscope logits "The king said that he would" -m own-causal --head L3H1

    attnscope logits "The king said that he would" -m own-causal --by layer --target be
    """
    refuse(attention.layers and not attention.head, "--layer", "only valid with --head")
    by_layer = asked.by == "layer"
    refuse(by_layer and (attention.head or output.out), "--by", "layer prints a table: no --head, no --out")
    head = None if attention.head is None else parse_head(attention.head, attention)
    if output.out is not None:
        check_place(output.out, (*PICTURES, ".html"))
    check_picture(output.out, picture.cmap, one=False, signed=True)
    given = read_source(source, model)
    from attnscope.questions.lens import logit_lens, of_lens
    from attnscope.questions.logits import direct_effects, of_writes

    loaded, prepared = given.open(predicting=True)
    with reading(loaded, prepared):
        if by_layer:
            answer = of_lens(logit_lens(loaded, prepared, asked.target, asked.against))
        else:
            effects = direct_effects(loaded, prepared, asked.target, asked.against, head)
            answer = of_writes(effects, head)
    deliver("logits", answer, output, picture)
