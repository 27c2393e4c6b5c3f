"""``attnscope why``: why a head attends from one part of a text to another."""

from dataclasses import replace
from functools import cache
from typing import Annotated

from typer import Argument, Option

from attnscope.attention import Head
from attnscope.cli import options
from attnscope.cli.command import MOST_USED, Group, command, refuse, refuse_combined, refuse_typed
from attnscope.cli.deliver import deliver
from attnscope.cli.source import list_prompts, model_progress, read_source, split_questions


class CellOptions(Group):
    """Which cells are explained, and how far back."""

    panel = MOST_USED
    cells: Annotated[list[str] | None, Argument(help='From where to where, "it -> cat", and the text.')] = (
        None
    )
    against: Annotated[
        str | None, Option(help='Cells whose terms are subtracted: "it -> mat".', metavar='"FROM -> TO"')
    ] = None
    depth: Annotated[
        int, Option(help="2: explain the heads that wrote the strongest term, too; 3: ...", min=1, max=6)
    ] = 1


class WhyOutput(options.TableOutput):
    """How many terms are listed, and where the answer goes."""

    suffixes = (*options.PICTURES, ".html", ".json")

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_combined(("top", "as_json as_csv out", "the strongest hundred are written"))

    top: Annotated[int | None, Option(help="List N terms; default: 8.", metavar="N", min=1, max=100)] = None


@command
def why(
    query: CellOptions,
    source: options.TextAmong,
    template: options.PromptsOptions,
    attention: options.OneHeadOptions,
    output: WhyOutput,
    picture: options.SavedOptions,
    model: options.ModelOptions,
) -> None:
    """Explain why a head attends from one token to another.

    The score before the softmax is a sum of terms: what wrote the query (embeddings, earlier heads,
    feed-forward layers, biases) times what wrote the key, norm scales held. A term counts by its excess over
    the row's other keys, or over --against. Cells are written as for attnscope find, and averaged. Without
    --head, it is the head that attends there most. Over --prompts, terms are means.

    Examples:

    attnscope why "it -> cat" "The cat sat as it was tired."
    attnscope why "it -> cat" "The cat sat; it" --head L3H1 --against "it -> sat"
    attnscope why "b#2 -> c" "a b c d a b" -m own-causal --head L1H0 --depth 2
    attnscope why "* -> -1" "The king said no." --head L1H0 -o why.svg
    """
    several = template.prompts is not None
    refuse(several and attention.head is None, "--head", "which head? attnscope find says which attend there")
    refuse_typed("generate", "the scores are those of the text as it stands: leave it out")
    kind, head = attention.kind, options.parse_head(attention.head, attention) if attention.head else None
    head = head and Head(head.layer, head.head, kind or head.kind)  # type: ignore[arg-type]  # find() names them
    questions, source = split_questions(query.cells, source, "cells")
    refuse(len(questions) > 1, "CELLS", f"name one pair: here are {' and '.join(map(str, questions))}")
    pass_source = read_source(source, model)
    from attnscope.questions.head import one_head
    from attnscope.questions.prompts import mean_maps, mean_why
    from attnscope.questions.rules import parse_questions
    from attnscope.questions.why import (
        LISTED_TERMS,
        OPENED_TOKENS,
        explain_cells,
        explain_head,
        why_answer,
    )

    against = None if query.against is None else parse_questions(query.against)[0]
    prompts = list_prompts(pass_source, template)
    loaded = pass_source.load()
    read = cache(pass_source.reader(loaded))
    texts = [read(each.text) for each in prompts]
    with model_progress(loaded, *texts):
        if head is None or not several:
            chosen = head or options.select(attention)
            result = explain_head(loaded, texts[0], questions[0], chosen, against, query.depth)
        else:
            result = mean_why(
                loaded, prompts, texts, pass_source.text, questions[0], head, against, query.depth
            )
        paged = output.out is not None and output.out.suffix.lower() == ".html"
        shown = dict.fromkeys(each.head for each in result.path if paged)
        if several and paged:
            maps, notes = mean_maps(loaded, [*zip(prompts, texts, strict=True)], pass_source.text, shown)
            result = replace(result, notes=(*result.notes, *notes))
        else:
            maps = {each: one_head(loaded, texts[0], each).heatmap for each in shown}
        alone = paged and not several and len(texts[0].tokens) <= OPENED_TOKENS
        opened = dict(explain_cells(loaded, texts[0], [result.path[0].head])) if alone else {}
    about = loaded, pass_source.text, template.prompts, *texts
    answer = why_answer(result, output.top or LISTED_TERMS, maps, opened)
    deliver("why", answer, output, picture, None, about)
