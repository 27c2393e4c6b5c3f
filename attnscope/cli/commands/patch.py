"""``attnscope patch``: how much of the difference between two texts each head carries."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from attnscope.cli.command import command, flag, option, refuse
from attnscope.cli.commands.cut import CauseOptions, CauseOutput, parse_heads
from attnscope.cli.deliver import deliver
from attnscope.cli.heads import select
from attnscope.cli.options import LayerOptions, ModelOptions, PrintedOptions, SecondNamed, check_picture
from attnscope.cli.source import read_source
from attnscope.cli.waiting import waiting


@dataclass(frozen=True, kw_only=True)
class PatchOptions:
    """What is put where."""

    with_text: str | None = option("The other text, which differs in what the prediction hangs on.")
    what: Literal["output", "q", "k", "v", "pattern"] = option(
        "What of a head is patched: its output, queries, keys, values, or its weights (pattern).",
        default="output",
    )
    noise: bool = flag("Put the other text's heads into the text's pass, not the text's into the other's.")
    fast: bool = flag("Estimate all heads from one gradient (attribution patching).")


@command
def patch(
    source: SecondNamed,
    asked: PatchOptions,
    cause: CauseOptions,
    attention: LayerOptions,
    output: CauseOutput,
    picture: PrintedOptions,
    model: ModelOptions,
) -> None:
    """Activation patching: which heads restore a prediction?

    The effect is the share of the score's difference between the two texts that comes back, 1 for all of
    it. Both texts need the same number of tokens.

    Examples:

    attnscope patch "When Mary and John met, Mary gave" --with-text "When Mary and John met, John gave"
    -m openai-community/gpt2 --target " John" --against " Mary"

    attnscope patch "The cat sat on the" --with-text "The dog sat on the" -m own-causal --fast

    attnscope patch "The cat sat on the" --with-text "The dog sat on the" -m own-causal --what pattern --noise
    """
    refuse(asked.with_text is None, "--with-text", "give the other text")
    refuse(asked.fast and asked.what != "output", "--what", "--fast estimates the effect of outputs alone")
    from attnscope.questions.cause import of_intervention
    from attnscope.questions.patching import patch

    heads = parse_heads(cause, attention)
    check_picture(output.out, picture.cmap, one=True, signed=True)
    given = read_source(source, model)
    loaded, prepared = given.open(predicting=True)
    another = replace(given.asked, text=asked.with_text, file=None, line=None, keep=None)
    other = read_source(another, model).prepare(loaded)
    with waiting(f"{loaded.name} predicts with the heads of another text"):
        result = patch(
            loaded,
            prepared,
            other,
            select(attention),
            heads=heads,
            what=asked.what,
            noise=asked.noise,
            fast=asked.fast,
            target=cause.target,
            against=cause.against,
        )
    deliver("patch", of_intervention(result), output, picture)
