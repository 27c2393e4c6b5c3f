"""What is compared with what, and where the comparison goes."""

from dataclasses import dataclass
from pathlib import Path

from attnscope.cli.options.declare import argument, flag, option
from attnscope.cli.options.heads import LayerOptions
from attnscope.cli.options.picture import NumbersOptions

WITH = "What to compare with"


@dataclass(frozen=True, kw_only=True)
class Contrast:
    """What is compared with what."""

    heads: list[str] | None = argument("Two heads, L1H2 L5H3, to be compared with each other.")
    with_text: str | None = option("The same model on another text: what changes in which head.", panel=WITH)
    with_model: str | None = option(
        "Another model on the same text: how far each head drifted, or its best match.", panel=WITH
    )
    with_trace: Path | None = option(
        "A file that --keep made, of another text, model or checkpoint.", panel=WITH
    )
    feeds: bool = flag(
        "Which earlier heads write what one head, L1H2, reads, or any: by the weights, without a text.",
        panel=WITH,
    )


@dataclass(frozen=True, kw_only=True)
class ComparedHeads(LayerOptions):
    """Layers, or one head number."""

    head: str | None = option(
        "3: this head number through all layers. L5H3: with --with-text, its difference map."
    )


@dataclass(frozen=True, kw_only=True)
class CompareOutput(NumbersOptions):
    """Where the comparison goes."""

    as_csv: bool = flag("Print the distances as CSV.", "--csv")
    everything: bool = flag(
        "Of all heads, print also a plane with every head on it, and singletons.", "--all"
    )
    out: Path | None = option(
        "Save a picture (.png, .svg, .pdf), or the numbers as arrays (.npz).", "--out", "-o"
    )
