"""``attnscope stats``: the figures of every head."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attnscope.cli import corpus, figures, options
from attnscope.cli.loading import load_model
from attnscope.cli.text import read_text
from attnscope.cli.waiting import waiting

if TYPE_CHECKING:
    from attnscope.analysis.stats import Stats

EXAMPLES = """Examples:

attnscope stats "The cat sat on the mat because it was tired." --sort previous --top 5

attnscope stats -f book.txt -m openai-community/gpt2 --truncate --where "entropy<1 and role!=first"

attnscope stats -f book.txt --sort induction --pooled book.npz

attnscope stats --texts corpus.jsonl --checkpoint sums.json --csv

torchrun --nproc-per-node 2 -m attnscope stats --texts corpus.txt

attnscope stats --explain induction
"""


def stats(
    context: typer.Context,
    text: options.Text = None,
    second_text: options.SecondText = None,
    file: options.File = None,
    line: options.Line = None,
    max_tokens: options.MaxTokens = None,
    truncate: options.Truncate = False,
    texts: corpus.Texts = None,
    field: corpus.Field = "text",
    limit: corpus.Limit = None,
    strict: corpus.Strict = False,
    checkpoint: corpus.Checkpoint = None,
    layer: options.Layer = None,
    kind: options.Kind = None,
    where: Annotated[
        str | None,
        typer.Option(
            help='Only heads that meet "entropy<1 and role=previous".',
            rich_help_panel=options.WHERE,
            show_default=False,
        ),
    ] = None,
    sort: Annotated[
        str | None,
        typer.Option(
            help="The largest of a measure first; layer by layer if not given.",
            rich_help_panel=options.PICTURE,
            show_default=False,
        ),
    ] = None,
    top: Annotated[
        int | None,
        typer.Option(min=1, help="Only so many heads.", rich_help_panel=options.PICTURE, show_default=False),
    ] = None,
    importance: Annotated[
        bool,
        typer.Option(
            "--importance",
            help="Also how much the model's guesses hang on each head; it needs an output head.",
            rich_help_panel=options.PICTURE,
        ),
    ] = False,
    head_map: Annotated[
        str | None,
        typer.Option(
            "--map",
            help="Draw one measure of all heads, layers down and heads across.",
            rich_help_panel=options.PICTURE,
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="Save the map as .png, .svg or .pdf.",
            rich_help_panel=options.PICTURE,
            show_default=False,
        ),
    ] = None,
    pooled: Annotated[
        Path | None,
        typer.Option(
            help="Save every head on at most 256 × 256 cells: .npz, .safetensors, .json, .csv, or .html. "
            "show, export and browse read it with --from.",
            rich_help_panel=options.PICTURE,
            show_default=False,
        ),
    ] = None,
    cell: Annotated[
        options.Cell,
        typer.Option(
            help="With --pooled: the share of its queries' attention that a cell's keys get, or the mean or "
            "the largest of its weights.",
            rich_help_panel=options.PICTURE,
        ),
    ] = options.Cell.share,
    as_json: options.AsJson = False,
    as_csv: Annotated[
        bool, typer.Option("--csv", help="Print all figures as CSV.", rich_help_panel=options.PICTURE)
    ] = False,
    exact_kernel: Annotated[
        bool,
        typer.Option(
            "--exact-kernel",
            help="Never let a measuring pass stand in for the model's kernel.",
            rich_help_panel=options.MODEL,
        ),
    ] = False,
    model: options.ModelName = "own",
    tokenizer: options.Tokenizer = "own",
    device: options.Device = "auto",
    device_map: options.DeviceMap = None,
    dtype: options.Dtype = "auto",
    revision: options.Revision = None,
    trust_remote_code: options.TrustRemoteCode = False,
    allow_pickle: options.AllowPickle = False,
    offline: options.Offline = False,
    explain: Annotated[
        str | None, typer.Option(help="Say what a measure or a role means, and stop.", show_default=False)
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="List all measures, and stop.")] = False,
) -> None:
    """Measure every head on a text, at any length that the model reads, or over all texts of a corpus.

    Each figure is an average over the rows that count; --explain says which those are. In parentheses
    stands what even attention would give. Over a corpus, ± is the standard error over its texts.
    """
    if list_ or explain is not None:
        _tell(explain)
        return
    if texts is None:
        corpus.refuse_without_texts(context)
        first, second = read_text(text, second_text, file, line)
    elif (text, second_text, file, line) != (None,) * 4:
        raise typer.BadParameter("give a text or --texts, not both", param_hint="TEXT")
    from attnscope.analysis.conditions import conditions
    from attnscope.analysis.corpus.processes import launched
    from attnscope.analysis.selection import Selection
    from attnscope.analysis.stats import stats as measure
    from attnscope.measures import DEFAULT, MEASURES
    from attnscope.storage.corpus import read_corpus

    met = conditions(where) if where is not None else ()
    asked = [name for name in (sort, head_map, *(c.name for c in met)) if name is not None and name != "role"]
    if importance:
        asked = [name for name in asked if name != figures.IMPORTANCE]
        sort = sort or figures.IMPORTANCE
    elif figures.IMPORTANCE in asked:
        raise typer.BadParameter("add --importance: it takes a second pass", param_hint="--importance")
    for name in asked:
        MEASURES[name]
    if out is not None and head_map is None:
        raise typer.BadParameter("--out saves a map: add --map MEASURE", param_hint="--out")
    options.check_picture(out, None, one=True)
    if pooled is not None:
        if texts is not None:
            raise typer.BadParameter("it goes with one text, not with --texts", param_hint="--pooled")
        options.check_data(pooled)
    names = tuple(dict.fromkeys((*DEFAULT, *asked)))
    selection = Selection(layers=None if layer is None else (layer,), kind=kind)
    if texts is not None:
        source = read_corpus(texts, field)
        seen = corpus.measure_corpus(context, load_model(context), source, selection, names)
        if launched().number:
            return
    else:
        loaded = load_model(context)
        prepared = loaded.prepare(first, second, max_tokens=max_tokens, truncate=truncate)
        with waiting(f"{model} reads {len(prepared.tokens):,} tokens"), loaded.threads(prepared):
            seen = measure(
                loaded,
                prepared,
                selection,
                names=names,
                exact_kernel=exact_kernel,
                importance=importance,
                pool=cell.value if pooled else None,
            )
            if pooled is not None:
                from attnscope.render.layers import save_layers

                assert seen.maps is not None
                save_layers(seen.maps, pooled)
                print(f"saved {pooled}", file=sys.stderr)
    if head_map is not None:
        _draw(seen, head_map, out)
        return
    heads = [head for head in seen.heads if all(condition.meets(head) for condition in met)]
    if sort is not None:
        heads = figures.ordered(seen, heads, sort)
    heads = heads[:top]
    if as_json:
        figures.print_json(seen, heads)
    elif as_csv:
        figures.print_csv(seen, heads, names)
    else:
        figures.print_table(seen, heads, sort)


def _draw(seen: Stats, name: str, out: Path | None) -> None:
    """One measure of all heads as a map, printed or saved."""
    from attnscope.cli import answers

    maps = answers.of_maps(figures.maps(seen, name))
    if out is not None:
        answers.save(maps, out, None)
    else:
        answers.print_views(maps, cmap=None, plain=False)


def _tell(explain: str | None) -> None:
    """Print what one measure or role means, or a line for each."""
    from attnscope.measures import MEASURES
    from attnscope.measures import explain as explanation

    if explain is not None:
        print(explanation(explain))
        return
    width = max(len(name) for name in MEASURES)
    for name, measure in MEASURES.items():
        print(f"{name:{width}}  {measure.unit:6}  {measure.formula}")
