"""``attnscope stats``: what is measured, which heads are listed, and where the figures go."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Option

from attnscope.cli import options
from attnscope.cli.command import Group, command, is_typed, offering, refuse, refuse_first, refuse_useless
from attnscope.cli.commands.flow import FAITHFUL_ALONE
from attnscope.cli.deliver import PLAIN, deliver, print_answer, save
from attnscope.cli.source import check_texts, each_text, load_model, measure_corpus, read_source, text_reader

if TYPE_CHECKING:
    from attnscope.questions.stats import Stats


class MeasuredHeads(options.HeadOptions):
    """The heads that are listed, and in which order."""

    settable = "sort top"
    where: Annotated[str | None, Option(help='Only heads that meet "entropy<1 and role=previous".')] = None
    sort: Annotated[
        str | None,
        Option(
            help="By a measure, role or head; default: role above baseline.",
            autocompletion=offering(options.measure_names),
        ),
    ] = None
    top: Annotated[int | None, Option(help="List at most N heads.", metavar="N", min=1)] = None


class StatsOptions(Group):
    """What is measured beyond the table's figures, and how."""

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
            help="Plot one measure along the text, a curve a head.",
            autocompletion=offering(options.measure_names),
        ),
    ] = None
    exact_kernel: Annotated[
        bool, Option(help="Run the model's own kernel, never the fused pass.", rich_help_panel=options.MODEL)
    ] = False


class StatsOutput(options.TableOutput):
    """Where the figures go."""

    head_map: Annotated[
        str | None,
        Option(
            "--map", help="Draw one measure of all heads.", autocompletion=offering(options.measure_names)
        ),
    ] = None
    jsonl: Annotated[bool, Option(help="With --texts: print a line of JSON for each text.")] = False


PARTS = 48  # most runs of rows in a curve
TOP, FAITHFUL_TOP = 8, 12  # default numbers of heads with curves, and of heads by faithfulness


@command
def stats(
    source: options.SourceOptions,
    corpus: options.CorpusOptions,
    attention: MeasuredHeads,
    output: StatsOutput,
    asked: StatsOptions,
    picture: options.SignedOptions,
    model: options.WeightedModelOptions,
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
    from attnscope.questions import stats as study
    from attnscope.questions.answer import Answer
    from attnscope.questions.layers import heads_of_layers
    from attnscope.questions.processes import torchrun_processes

    check_texts(corpus, source)
    one, rows, curved = corpus.texts is None, options.parse_rows(asked.rows), asked.by_position is not None
    drawn = output.head_map is not None or curved or asked.faithful
    undrawn = "saves a picture: add --map MEASURE or --by-position MEASURE"
    single = "only valid with one text, not with --texts"
    refuse_first(
        (asked.rows and not one, "--rows", single),
        (asked.by_position and not one, "--by-position", single),
        (asked.pooled and not one, "--pooled", single),
        (output.out is not None and not drawn, "--out", undrawn),
        (is_typed("cell") and asked.pooled is None, "--cell", "requires --pooled"),
    )
    refuse_useless(
        ("--map", output.head_map, "it draws every head", "head sort where top"),
        ("--map", output.head_map and output.out is None, "it draws: add -o FILE.png", "as_json as_csv"),
        ("--by-position", curved, "a curve covers all rows, in a fixed order", "rows where sort"),
        ("--by-position", curved, "it draws its curves alone", "head_map jsonl as_csv pooled cell"),
        ("--faithful", asked.faithful, FAITHFUL_ALONE, "by_position head_map pooled cell rows sort where"),
        ("--faithful", asked.faithful, FAITHFUL_ALONE, "jsonl as_csv exact_kernel"),
        ("--head", attention.head, "it names one head", "sort where top"),
        ("a table", not (output.head_map or curved or output.out), "add --map MEASURE", options.COLOURS),
    )
    if asked.pooled is not None:
        options.check_place(asked.pooled, options.WHOLE)
    given = read_source(source, model) if one else None
    selection = options.select_heads(attention)
    if asked.faithful:
        others = source.saved or output.as_csv or output.head_map
        refuse(given is None or others, "--faithful", FAITHFUL_ALONE)
        assert given is not None
        from attnscope.questions.faithful import compare_weighted_heads, faithfulness_answer

        given = replace(given, model=replace(model, weighting="raw", target=None))  # weighted below
        with given.open_with_progress(predicting=True) as (loaded, prepared):
            ranked = compare_weighted_heads(loaded, prepared, model.weighting, model.target, selection)
        answer = faithfulness_answer(ranked, attention.top or FAITHFUL_TOP)
        return deliver("stats", answer, output, picture, model.metadata, (loaded, prepared))
    met = study.parse_conditions(attention.where) if attention.where is not None else ()
    sort = attention.sort if attention.sort not in ("role", "head") else None
    named = (sort, output.head_map, asked.by_position, *(each.name for each in met if each.name != "role"))
    asked_for = [name for name in named if name is not None]
    for name in asked_for:
        MEASURES[name]  # an unknown name is refused before the model is loaded
    if given is not None and asked.by_position is not None:
        with given.open_with_progress() as (loaded, prepared):
            curves = study.curves_by_position(
                loaded, prepared, selection, asked.by_position, parts=PARTS, top=attention.top or TOP
            )
        answer = Answer.from_view("", curves)
        return deliver("stats", answer, output, picture, model.metadata, (loaded, prepared))
    head, selection = selection.head, replace(selection, head=None)  # its role depends on the other heads
    names = tuple(dict.fromkeys((*DEFAULT, *asked_for)))
    how: dict[str, Any] = {"names": names, "exact_kernel": asked.exact_kernel}

    def answer_of(found: Stats) -> Answer:
        kept = found.heads if head is None else study.find_heads(head, found.heads)
        listed = [each for each in found.meeting(met, attention.sort) if each in kept]
        return study.stats_answer(found, listed[: attention.top], names, attention.sort)

    if output.jsonl:
        refuse_first(
            (one, "--jsonl", "only valid with --texts; one text has --json"),
            (output.head_map, "--jsonl", "not valid with --map"),
            (corpus.checkpoint, "--jsonl", "not valid with --checkpoint: nothing is added up"),
        )
        loaded = load_model(model)
        read = text_reader(loaded, source)
        for where, prepared in each_text(corpus, read, strict=corpus.strict, chat=source.chat):
            each = study.measure_heads(loaded, prepared, selection, **how)
            print_answer("stats", {**answer_of(each).numbers, **model.metadata, "where": where}, each.read)
        return None
    if given is None:
        result = measure_corpus(corpus, source, model, selection, **how)
    else:
        kernel, saving = asked.exact_kernel or rows is not None, output.out is not None
        kind = "kernel" if kernel else "fused" if names == DEFAULT else "other"
        opened = given.open_with_progress(cached=asked.pooled is None, kind=kind, saving=saving)
        with opened as (loaded, prepared):
            pool = asked.cell if asked.pooled else None
            result = study.measure_heads(loaded, prepared, selection, **how, pool=pool, rows=rows)
            layers = result.maps
            if asked.pooled is not None and layers is not None:
                page = partial(heads_of_layers, layers, result.heads, loaded, prepared, selection)
                save(Answer((), {}, dict, layers=lambda: layers.data, heads=page), asked.pooled, PLAIN)
    if torchrun_processes().number:
        return
    answer = answer_of(result)
    if output.head_map is not None:
        maps = study.measure_maps(result, output.head_map)
        answer = replace(answer, views=tuple(maps.values()), pictures=maps)
    deliver("stats", answer, output, picture, model.metadata, result.read)
