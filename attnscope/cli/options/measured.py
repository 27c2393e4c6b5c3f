"""What is measured of the heads, which of them are listed, and where the figures go."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from attnscope.cli.options.complete import complete_explained, complete_measure
from attnscope.cli.options.declare import MODEL, PICTURE, WHERE, flag, option
from attnscope.cli.options.heads import LayerOptions
from attnscope.cli.options.picture import NumbersOptions


@dataclass(frozen=True, kw_only=True)
class MeasuredHeads(LayerOptions):
    """The heads that are listed, and in which order."""

    where: str | None = option('Only heads that meet "entropy<1 and role=previous".')
    sort: str | None = option(
        "The largest of a measure first; layer by layer if not given.", complete=complete_measure
    )
    top: int | None = option("Only so many heads.", min=1)


@dataclass(frozen=True, kw_only=True)
class StatsOptions:
    """What is measured beside the figures of the table, and how."""

    importance: bool = flag(
        "Also an estimate of how much the model's predictions depend on each head, at the cost of a pass or "
        "two; it needs an output head.",
        panel=WHERE,
    )
    ablation: Literal["zero", "mean"] | None = option(
        "Also how much the loss of the model's predictions rises without each head, set to zero or, over a "
        "corpus, to its mean output: a pass for each head.",
        panel=WHERE,
    )
    faithful: bool = flag(
        "Instead: which head ranks first the tokens that a prediction really needs, that of --target; flow "
        "--faithful compares ways of weighing.",
        panel=WHERE,
    )
    pooled: Path | None = option(
        "Save every head on at most 256 × 256 cells: .npz, .safetensors, .json, .csv, or .html. show, "
        "export and browse read the first three with --from.",
        panel=PICTURE,
    )
    cell: Literal["share", "mean", "max"] = option(
        "With --pooled: the share of its queries' attention that a cell's keys get, or the mean or "
        "the largest of its weights.",
        panel=PICTURE,
        default="share",
    )
    rows: str | None = option(
        "Figures of some rows alone, one run of tokens as they are numbered: 30-46.", panel=WHERE
    )
    by_position: str | None = option(
        "How one measure of the heads changes along the text, as a curve a head.",
        panel=WHERE,
        complete=complete_measure,
    )
    exact_kernel: bool = flag("Never let the fused pass take the place of the model's kernel.", panel=MODEL)


@dataclass(frozen=True, kw_only=True)
class StatsOutput(NumbersOptions):
    """Where the figures go."""

    as_csv: bool = flag("Print all figures as CSV.", "--csv")
    head_map: str | None = option(
        "Draw one measure of all heads, layers down and heads across.", "--map", complete=complete_measure
    )
    out: Path | None = option("Save the map or the curves as .png, .svg or .pdf.", "--out", "-o")
    explain: str | None = option(
        "Say what a measure, a role or a weighing means, and stop.", complete=complete_explained
    )
    list: bool = flag("List all measures, and stop.")
