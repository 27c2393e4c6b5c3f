"""Which layers, heads and kind of attention."""

from dataclasses import dataclass

from attnscope.cli.options.complete import complete_head, complete_kind, complete_layer
from attnscope.cli.options.declare import WHERE, flag, option


@dataclass(frozen=True, kw_only=True)
class LayerOptions:
    """Layers by their number and kind."""

    layers: str | None = option(
        "Layers, counted from 0: 5, or several, like 0-3,7.",
        "--layer",
        "--layers",
        panel=WHERE,
        complete=complete_layer,
    )
    kind: str | None = option("encoder, decoder or cross.", panel=WHERE, complete=complete_kind)


@dataclass(frozen=True, kw_only=True)
class HeadOptions(LayerOptions):
    """Layers, or one head."""

    head: str | None = option("One head: L5H3, 5.3, 5-3, or its number with --layer.", complete=complete_head)


@dataclass(frozen=True, kw_only=True)
class ShownHeads(HeadOptions):
    """All heads, one head, or one token of them."""

    token: str | None = option(
        "A word, a token's number, or a patch as row,column: what it looks at, and who looks at it."
    )
    ablate: str | None = option(
        "Set one head's output to zero, and print what changes in the model's predictions.", panel=WHERE
    )
    writes: bool = flag(
        "What each head writes to the score of the next token, or of --target, with all else that the score "
        "is the sum of. With --head: the words that it favours.",
        panel=WHERE,
    )
    against: str | None = option("With --writes: another word, whose score is taken away.", panel=WHERE)
