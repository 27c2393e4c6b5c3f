"""What is measured of the heads, which of them are listed, and where the figures go."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from attnscope.cli.command import MODEL, PICTURE, WHERE, command, flag, option, refuse
from attnscope.cli.complete import complete_explained, complete_measure
from attnscope.cli.corpus import check_texts, measure_corpus
from attnscope.cli.deliver import PLAIN, deliver, save_data
from attnscope.cli.faithful import check_alone, show_heads
from attnscope.cli.heads import parse_numbers, select
from attnscope.cli.options import (
    WHOLE,
    CorpusOptions,
    LayerOptions,
    NumbersOptions,
    PrintedOptions,
    SourceOptions,
    WeighedModelOptions,
    check_picture,
    check_place,
)
from attnscope.cli.source import SourceInput, load_model, read_source, reading
from attnscope.figures import ABLATION, IMPORTANCE, PREDICTIONS

if TYPE_CHECKING:
    from attnscope.cli.source import PassKind
    from attnscope.questions.selection import Selection
    from attnscope.questions.stats import Condition, Stats


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

    panel = WHERE
    importance: bool = flag(
        "Also an estimate of how much the model's predictions depend on each head, at the cost of a pass or "
        "two; it needs an output head."
    )
    ablation: Literal["zero", "mean"] | None = option(
        "Also how much the loss of the model's predictions rises without each head, set to zero or, over a "
        "corpus, to its mean output: a pass for each head."
    )
    faithful: bool = flag(
        "Instead: which head ranks first the tokens that a prediction really needs, that of --target; flow "
        "--faithful compares ways of weighing."
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
    rows: str | None = option("Figures of some rows alone, one run of tokens as they are numbered: 30-46.")
    by_position: str | None = option(
        "How one measure of the heads changes along the text, as a curve a head.", complete=complete_measure
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


PARTS = 48
"""Runs of rows that a curve has, at most."""

TOP = 8
"""Heads whose curves are drawn, unless another number is asked for."""


def parse_rows(spelling: str | None) -> range | None:
    """One run of rows, ``30-46``, both ends in it; ``None`` stays ``None``. Anything else is wrong usage."""
    rows = parse_numbers(spelling, "--rows")
    if rows is None:
        return None
    run = range(rows[0], rows[-1] + 1)
    refuse(rows != tuple(run), "--rows", f"{spelling!r}: name one run of rows, like 30-46")
    return run


def check_asked(attention: MeasuredHeads, output: StatsOutput, asked: StatsOptions, *, one: bool) -> None:
    """Refuse what does not go together, before any work; ``one`` says that one text is measured."""
    from attnscope.measures import MEASURES

    parse_rows(asked.rows)
    for name in ("rows", "by_position", "pooled"):
        wrong = getattr(asked, name) and not one
        refuse(wrong, f"--{name.replace('_', '-')}", "it goes with one text, not with --texts")
    drawn = output.head_map is not None or asked.by_position is not None or asked.faithful
    if asked.by_position is not None:
        refuse(asked.rows, "--by-position", "a curve has all rows: leave --rows away")
        ordered = attention.where or attention.sort
        refuse(ordered, "--where, --sort", "the curves come in an order of their own: leave it away")
        MEASURES[asked.by_position]
    refuse(asked.ablation == "mean" and one, "--ablation", "a mean is taken over a corpus: add --texts")
    refuse(
        output.out is not None and not drawn,
        "--out",
        "--out saves a picture: add --map MEASURE or --by-position MEASURE",
    )
    if asked.pooled is not None:
        check_place(asked.pooled, WHOLE)


@command
def stats(
    source: SourceOptions,
    corpus: CorpusOptions,
    attention: MeasuredHeads,
    output: StatsOutput,
    asked: StatsOptions,
    picture: PrintedOptions,
    model: WeighedModelOptions,
) -> None:
    """Measure every head on a text, at any length that the model reads, or over all texts of a corpus.

    Each figure is an average over the rows that count; --explain says which those are. In parentheses
    stands the baseline: the figure on even attention. Over a corpus, ± is the standard error over its texts.

    Examples:

    attnscope stats "The cat sat on the mat because it was tired." --sort previous --top 5

    attnscope stats -f book.txt -m openai-community/gpt2 --truncate --where "entropy<1 and role!=first"

    attnscope stats -f sample_inputs/repeated.txt -m own-causal --truncate --by-position induction

    attnscope stats -f book.txt --sort induction --pooled book.npz

    attnscope stats --texts corpus.jsonl --checkpoint sums.json --csv

    attnscope stats --texts corpus.txt -m own-causal --ablation zero

    torchrun --nproc-per-node 2 -m attnscope stats --texts corpus.txt

    attnscope stats --explain induction
    """
    if output.list or output.explain is not None:
        return _explain(output.explain)
    check_texts(corpus, source)
    check_asked(attention, output, asked, one=corpus.texts is None)
    check_picture(output.out, picture.cmap, one=True, signed=not asked.faithful)
    given = None if corpus.texts else read_source(source, model)
    selection = select(attention)
    if asked.faithful:
        check_alone(given is not None and source.saved is None and not output.as_csv and not output.head_map)
        assert given is not None
        return show_heads(given, selection, model, attention.top, output, picture)
    from attnscope.measures import DEFAULT
    from attnscope.questions.answer import Answer, of_maps
    from attnscope.questions.processes import torchrun_processes
    from attnscope.questions.stats import curves_by_position, measure_maps, of_stats, parse_conditions

    met = parse_conditions(attention.where) if attention.where is not None else ()
    names = tuple(dict.fromkeys((*DEFAULT, *_measures(attention.sort, output.head_map, met, asked))))
    if given is not None and asked.by_position is not None:
        loaded, prepared = given.open(kind="kernel")
        with reading(loaded, prepared):
            curves = curves_by_position(
                loaded, prepared, selection, asked.by_position, parts=PARTS, top=attention.top or TOP
            )
        answer = Answer((curves,), {"": curves}, lambda: curves)
        return deliver("stats", answer, replace(output, as_csv=False), picture, model.metadata)
    if given is not None:
        result = _measure(given, selection, names, asked, saving=output.out is not None)
    else:
        predicting = asked.importance or asked.ablation is not None
        result = measure_corpus(
            corpus, source, lambda: load_model(model, predicting=predicting), selection, names,
            exact_kernel=asked.exact_kernel, importance=asked.importance, ablation=asked.ablation,
        )  # fmt: skip
    if torchrun_processes().number:
        return
    if output.head_map is not None:
        maps = of_maps(measure_maps(result, output.head_map))
        return deliver("stats", maps, replace(output, as_csv=False, as_json=False), picture)
    sort = attention.sort or next(iter(result.predictions), None)
    heads = result.meeting(met, sort)[: attention.top]
    if output.as_json or output.as_csv:
        answer = of_stats(replace(result, heads=tuple(heads)), names)
        return deliver("stats", answer, output, picture, model.metadata)
    from rich.console import Console

    from attnscope.questions.figure_table import figure_table
    from attnscope.render.terminal import print_view

    console = Console(highlight=False)
    print_view(figure_table(result, heads, sort, console.width), console)


def _measures(
    sort: str | None, head_map: str | None, met: tuple[Condition, ...], asked: StatsOptions
) -> list[str]:
    """The measures that options name. Raises ``SelectionError`` for one that does not exist."""
    from attnscope.measures import MEASURES

    conditions = (condition.name for condition in met if condition.name != "role")
    named = [name for name in (sort, head_map, *conditions) if name is not None]
    unasked = IMPORTANCE in named and not asked.importance
    refuse(unasked, "--importance", "add --importance: it takes a second pass")
    unasked = ABLATION in named and asked.ablation is None
    refuse(unasked, "--ablation", "add --ablation zero: it takes a pass a head")
    measures = [name for name in named if name not in PREDICTIONS]
    for name in measures:
        MEASURES[name]
    return measures


def _measure(
    given: SourceInput, selection: Selection, names: tuple[str, ...], asked: StatsOptions, *, saving: bool
) -> Stats:
    """The figures of one text; its maps are saved where they are asked for."""
    from attnscope.measures import DEFAULT
    from attnscope.questions.answer import Answer
    from attnscope.questions.layers import by_layer, of_layers
    from attnscope.questions.stats import measure_heads

    kind: PassKind = "fused" if names == DEFAULT else "other"
    loaded, prepared = given.open(
        predicting=asked.importance or asked.ablation is not None,
        cached=asked.pooled is None,
        kind="kernel" if asked.exact_kernel or asked.rows is not None else kind,
        saving=saving,
    )
    with reading(loaded, prepared):
        result = measure_heads(
            loaded,
            prepared,
            selection,
            names=names,
            exact_kernel=asked.exact_kernel,
            importance=asked.importance,
            ablation=asked.ablation is not None,
            pool=asked.cell if asked.pooled else None,
            rows=parse_rows(asked.rows),
        )
        if asked.pooled is not None and result.maps is not None:
            layers, figures = result.maps, by_layer(result.heads)
            page = partial(of_layers, layers, figures, loaded, prepared, selection)
            save_data(Answer((), {}, dict, layers=lambda: layers.data, heads=page), asked.pooled, PLAIN)
    return result


def _explain(name: str | None) -> None:
    """Print what one measure or role means, or a line for each."""
    from attnscope.measures import MEASURES, explain

    if name is not None:
        print(explain(name))
        return
    width = max(len(name) for name in MEASURES)
    for name, measure in MEASURES.items():
        print(f"{name:{width}}  {measure.unit:6}  {measure.formula}")
    print(f"{'offset=K':{width}}  {'share':6}  A[i, i+K], for any K: offset=-2")
    print(f"{'[NAME]':{width}}  {'share':6}  Σ A[i, j] over special tokens of that name: [CLS], </s>")
