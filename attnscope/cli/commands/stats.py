"""``attnscope stats``: what is measured, which heads are listed, and where the scores go."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Option

from attnscope.cli import options
from attnscope.cli.command import (
    Group,
    command,
    is_given,
    offering,
    refuse,
    refuse_combined,
    refuse_without,
)
from attnscope.cli.corpus import CorpusOptions, check_texts, each_text, measure_corpus, text_reader
from attnscope.cli.deliver import PLAIN, deliver, describe_answer, print_answer, save
from attnscope.cli.messages import notify
from attnscope.cli.source import (
    PassSource,
    load_model,
    read_source,
)
from attnscope.scores import note_empty
from attnscope.text import LARGEST_COUNT

if TYPE_CHECKING:
    from attnscope.attention import Head
    from attnscope.questions.answer import Answer
    from attnscope.questions.conditions import Condition
    from attnscope.questions.selection import Selection
    from attnscope.questions.stats import Stats


class MeasuredHeads(options.HeadOptions):
    """The heads that are listed, and in which order."""

    settable = "sort top"
    where: Annotated[str | None, Option(help='Only heads that meet "entropy<1 and role=previous".')] = None
    sort: Annotated[
        str | None,
        Option(
            help="By a measure, which --latex then prints alone, role or head; -entropy: smallest first; "
            "default: role above baseline.",
            autocompletion=offering(options.measure_names),
        ),
    ] = None
    top: Annotated[
        int | None,
        Option(help="List at most N heads, or 0: all; default: 20 in a terminal.", metavar="N", min=0),
    ] = None


class StatsOptions(Group):
    """What is measured besides the scores of the table, and how."""

    panel = options.WHERE
    faithful: Annotated[bool, Option(help="Rank heads by how they find what a prediction needs.")] = False
    pooled: Annotated[
        Path | None,
        Option(
            help="Save every head, pooled: .npz, .safetensors, .json, .csv, .html.",
            rich_help_panel=options.PICTURE,
        ),
    ] = None
    cell: Annotated[
        Literal["share", "mean", "max"],
        Option(
            help="With --pooled: the keys' share, or the mean or largest weight.",
            rich_help_panel=options.PICTURE,
        ),
    ] = "share"
    rows: Annotated[str | None, Option(help="Only rows of these tokens: 30-46.")] = None
    by_position: Annotated[
        str | None,
        Option(
            help="Plot one measure along the text, one curve per head.",
            autocompletion=offering(options.measure_names),
        ),
    ] = None


class StatsOutput(options.TableOutput):
    """Where the scores go."""

    suffixes = (*options.PICTURES, *options.TABLES)
    head_map: Annotated[
        str | None,
        Option(
            "--map", help="Draw one measure of all heads.", autocompletion=offering(options.measure_names)
        ),
    ] = None
    jsonl: Annotated[bool, Option(help="With --texts: print one line of JSON per text.")] = False


PARTS = 48  # most runs of rows in a curve
PRINTED, CURVES, FAITHFUL_HEADS = 20, 8, 12
"""Default numbers of heads: in a terminal, with curves, and by faithfulness."""


@command
def stats(
    source: options.BatchSource,
    corpus: CorpusOptions,
    attention: MeasuredHeads,
    output: StatsOutput,
    extras: StatsOptions,
    picture: options.SignedOptions,
    model: options.MixedModelOptions,
    kernel: options.KernelOptions,
) -> None:
    """Measure every head on a text or a corpus.

    Heads are sorted by how far the score of their role lies above its baseline, the same score on uniform
    attention. Scores are averages over rows; attnscope explain says which. Over a corpus, ± is the standard
    error over texts.

    Examples:

    attnscope stats "The cat sat on the mat because it was tired." --top 5
    attnscope stats "The cat sat on the mat because it was tired." --map entropy
    attnscope stats -f sample_inputs/article.txt --truncate --where "previous>0.5"
    attnscope stats --repeat-random 20 -m own-causal --sort induction
    attnscope stats --texts sample_inputs/sentences.txt --csv
    """
    from attnscope.measures import DEFAULT, MEASURES
    from attnscope.questions.conditions import parse_conditions
    from attnscope.questions.stats import measure_maps, measure_of

    check_texts(corpus, source)
    rows = options.parse_rows(extras.rows)
    _refuse_conflicts(output)
    if extras.pooled is not None:
        options.check_place(extras.pooled, options.WHOLE)
    pass_source = None if corpus.many else read_source(source, model)
    selection = options.select_heads(attention)
    if extras.faithful and pass_source is not None:
        answer, read = _rank_by_faithfulness(pass_source, selection, attention.top, model)
        return deliver("stats", answer, output, picture, model.metadata, read)
    conditions = parse_conditions(attention.where) if attention.where is not None else ()
    sort = measure_of(attention.sort)
    named = sort, output.head_map, extras.by_position, *(each.name for each in conditions)
    refuse(output.head_map == "role", "--map", "draws a measure: attnscope show --by role draws the roles")
    added = [name for name in named if name not in (None, "role", "head")]
    for name in added:
        MEASURES[name]  # an unknown name is refused before the model is loaded
    if pass_source is not None and extras.by_position is not None:
        answer, read = _plot_by_position(pass_source, selection, extras.by_position, attention.top)
        return deliver("stats", answer, output, picture, model.metadata, read)
    names = tuple(dict.fromkeys((*DEFAULT, *added)))
    table = ScoreTable(selection.named, conditions, attention, names)
    selection = replace(selection, head=None, among=())  # the role of one head depends on the others
    how: dict[str, Any] = {"names": names, "exact_kernel": kernel.exact_kernel}
    if output.jsonl:
        return _print_lines(source, corpus, selection, table, model, **how)
    if pass_source is None:
        result = measure_corpus(corpus, source, model, selection, **how)
    else:
        result = _measure_text(pass_source, selection, extras, rows=rows, **how)
    answer = table.answer(result)
    if output.head_map is not None:
        maps = measure_maps(result, output.head_map)
        answer = replace(answer, views=tuple(maps.values()), pictures=maps)
    deliver("stats", answer, output, picture, model.metadata, result.read)
    if output.as_csv or output.suffix == options.PARQUET:
        for sentence in note_empty(result.heads, names):
            notify(sentence)


def _refuse_conflicts(output: StatsOutput) -> None:
    """Wrong usage for options that exclude each other, or would do nothing."""
    drawn = "it draws every head"
    tabular = output.suffix in options.TABLES
    refuse_without(
        *([] if tabular else [("out", "head_map by_position faithful")]),
        ("cell", "pooled"),
        ("jsonl", "texts"),
        (options.COLOURS, "head_map by_position out"),
    )
    refuse_combined(
        ("rows by_position pooled faithful", "texts", "it is of one text"),
        ("faithful", "saved", "a file has no model"),
        ("by_position head_map pooled cell rows sort where jsonl as_csv exact_kernel mixers", "faithful", ""),
        ("head sort where top", "head_map", drawn),
        *([("as_json as_csv", "head_map", "add -o FILE.png")] * (output.out is None)),
        ("rows where sort", "by_position", "a curve covers all rows, and curves have a fixed order"),
        ("head_map jsonl as_csv pooled cell", "by_position", "it draws its curves alone"),
        ("jsonl", "head_map", ""),
        *([("head_map by_position jsonl", "out", f"a {output.suffix} file holds the table")] * tabular),
        ("jsonl", "checkpoint", "nothing is added up"),
    )


@dataclass(frozen=True)
class ScoreTable:
    """Which heads are listed, in which order, and the measures of a file."""

    heads: tuple[Head, ...]
    conditions: tuple[Condition, ...]
    listing: MeasuredHeads
    names: tuple[str, ...]

    def answer(self, result: Stats) -> Answer:
        """The heads of a result that are listed."""
        from attnscope.questions.stats import find_heads, stats_answer

        heads = [one for each in self.heads for one in find_heads(each, result.heads)] or result.heads
        sort = self.listing.sort
        listed = [each for each in result.meeting(self.conditions, sort) if each in heads]
        saved = is_given("as_latex") or is_given("out")
        shown = most(self.listing.top, PRINTED) if sys.stdout.isatty() and not saved else None
        listed = listed[: self.listing.top or None]
        return stats_answer(result, listed, self.names, sort, shown, alone=saved)


def most(top: int | None, default: int) -> int:
    """How many heads are listed by ``--top``: 0 stands for all."""
    return default if top is None else top or LARGEST_COUNT


def _rank_by_faithfulness(
    source: PassSource, selection: Selection, top: int | None, model: options.MixedModelOptions
) -> tuple[Answer, Any]:
    """Heads by how they find the tokens that a prediction needs, and what was read."""
    from attnscope.questions.faithful import compare_weighted_heads, faithfulness_answer

    source = replace(source, model=replace(model, weighting="raw", target=None))  # weighted below
    with source.open_with_progress(predicting=True) as text:
        ranking = compare_weighted_heads(*text, model.weighting, model.target, selection)
    return faithfulness_answer(ranking, most(top, FAITHFUL_HEADS)), text


def _plot_by_position(
    source: PassSource, selection: Selection, name: str, top: int | None
) -> tuple[Answer, Any]:
    """One measure along the text, and what was read."""
    from attnscope.questions.answer import Answer
    from attnscope.questions.curves import curves_by_position

    with source.open_with_progress() as text:
        curves = curves_by_position(*text, selection, name, parts=PARTS, top=most(top, CURVES))
    return Answer.from_view("", curves), text


def _measure_text(
    source: PassSource,
    selection: Selection,
    extras: StatsOptions,
    names: tuple[str, ...],
    *,
    exact_kernel: bool,
    rows: range | None,
) -> Stats:
    """All heads of one text; --pooled saves them, too."""
    from attnscope.measures import DEFAULT
    from attnscope.questions.answer import Answer
    from attnscope.questions.layers import heads_of_layers
    from attnscope.questions.stats import measure_heads

    pool = None if extras.pooled is None else extras.cell
    kind = "kernel" if exact_kernel or rows is not None else "fused" if names == DEFAULT else "other"
    with source.open_with_progress(cached=pool is None, kind=kind) as text:
        how: dict[str, Any] = {"exact_kernel": exact_kernel, "pool": pool, "rows": rows}
        result = measure_heads(*text, selection, names=names, **how)
        layers = result.maps
        if extras.pooled is not None and layers is not None:
            about = partial(describe_answer, "stats", text)
            page = partial(heads_of_layers, layers, result.heads, *text, selection)
            save(
                Answer((), {}, dict, layers=lambda: layers.data, heads=page),
                extras.pooled,
                PLAIN,
                about=about,
            )
    return result


def _print_lines(
    source: options.SourceOptions,
    corpus: CorpusOptions,
    selection: Selection,
    table: ScoreTable,
    model: options.MixedModelOptions,
    **how: Any,
) -> None:
    """One line of JSON per text of a corpus."""
    from attnscope.questions.stats import measure_heads

    loaded = load_model(model)
    read = text_reader(loaded, source)
    for where, prepared in each_text(corpus, read, strict=corpus.strict, chat=source.chat):
        result = measure_heads(loaded, prepared, selection, **how)
        print_answer("stats", {**table.answer(result).numbers, **model.metadata, "where": where}, result.read)
