"""``attnscope find``: which heads attend from one part of a text to another, or to known answers."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from attnscope.cli import options
from attnscope.cli.command import (
    Group,
    Often,
    command,
    fields_of,
    refuse,
    refuse_combined,
    refuse_without,
    repeat,
)
from attnscope.cli.corpus import MERGED, CorpusOptions, check_texts, corpus_run, find_sums, measure_corpus
from attnscope.cli.deliver import deliver
from attnscope.cli.source import load_model, read_source, split_questions

if TYPE_CHECKING:
    from attnscope.questions.find import FindResult


class GoldOptions(Group):
    """The file, and which of its questions are asked."""

    panel = "Questions with known answers"
    gold: Annotated[
        Path | None,
        Often(help="Questions with answers: .conllu, .jsonl, or 'source ||| target'."),
    ] = None
    alignments: Annotated[
        Path | None, Option(help="Pharaoh format: 0-0 1-2, source first; 2?3 is possible.")
    ] = None
    rows: Annotated[
        str | None,
        Option(help="With --alignments: rows predicting a target word, or reading it; default: both."),
    ] = None
    relation: Annotated[str | None, Often(help="Only these labels: nsubj,obj.")] = None
    coreference: Annotated[bool, Option(help="With a treebank: find the earlier mention.")] = False
    held_out: Annotated[bool, Often(help="Score heads on other texts.")] = False


class FindTexts(CorpusOptions):
    """The texts of a corpus, or of the file of questions."""

    needed = "texts gold"
    texts: Annotated[str | None, Often(help="A corpus: .txt, .jsonl, a folder ...")] = None


NO_PICTURE = "it has no picture: use --json, --csv or -o FILE.tex"
MAX_QUESTIONS = 500  # each is a table; more belong in a file for --gold


class QuestionOptions(Group):
    """The questions, and the text."""

    questions: Annotated[list[str] | None, Argument(help='Questions, like "it -> cat", and the text.')] = None


class FindOutput(options.TableOutput):
    """How many heads are listed, and where the answer goes."""

    settable = "top"
    suffixes = (*options.PICTURES, *options.TABLES)

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_combined(("top", "as_json as_csv out", "all heads are written"))

    top: Annotated[int | None, Option(help="List N heads; default: 8, --gold: 1.", metavar="N", min=1)] = None


def answer_gold(
    path: Path,
    gold: GoldOptions,
    corpus: FindTexts,
    source: options.SourceOptions,
    attention: options.LayerOptions,
    output: FindOutput,
    model: options.MixedModelOptions,
) -> None:
    """Ask all heads the questions of a file, and print how well they answer."""
    from attnscope.questions.gold import find_gold, gold_answer, merged_gold
    from attnscope.storage.gold import ROWS, read_gold

    refuse_without(("rows", "alignments"))
    refuse(gold.rows not in (None, *ROWS), "--rows", "write predicting or reading")
    file = read_gold(path, alignments=gold.alignments, coreference=gold.coreference, rows=gold.rows)
    relations = [name.strip() for name in (gold.relation or "").split(",") if name.strip()]
    how: dict[str, Any] = {"relations": relations, "held_out": gold.held_out}
    selection = options.select(attention)
    if corpus.merge is not None:
        refuse_combined(("limit strict checkpoint shard", "merge", MERGED))
        result = merged_gold(find_sums(corpus.merge, source, model), file, selection, **how)
    else:
        loaded = load_model(model)
        with corpus_run(source, corpus, file.size) as run:
            result = find_gold(loaded, file, selection, run=run, **how)
    answer, read = gold_answer(result, output.top or 1), (*result.read, gold.alignments)
    deliver("find", answer, output, metadata=model.metadata, read=read)


def open_strongest(
    result: "FindResult",
    source: options.SourceOptions,
    attention: options.LayerOptions,
    picture: options.PrintedOptions,
    model: options.MixedModelOptions,
) -> list[str]:
    """The commands that show the first question's strongest head, and say why it attends there."""
    heads = [each.head for each in result.first.heads]
    kind = heads[0].kind if len({head.kind for head in heads}) > 1 else attention.kind
    head = options.OneHeadOptions(head=heads[0].name, kind=kind)
    commands = [repeat("show", source, picture, model, head)]
    if not model.metadata and not (source.saved or source.generate or model.mixers):
        cells = QuestionOptions(questions=[str(result.first.question)])
        commands.append(repeat("why", cells, source, model, head))
    return [each for each in commands if each is not None]


@command
def find(
    query: QuestionOptions,
    gold: GoldOptions,
    corpus: FindTexts,
    source: options.TextAmong,
    attention: options.LayerOptions,
    output: FindOutput,
    picture: options.PrintedOptions,
    model: options.MixedModelOptions,
) -> None:
    """Find the heads that attend from one part of a text to another.

    A part is a word (cat), one of several (cat#2), a token's number (5), a phrase ('the mat'), [CLS],
    special, punctuation, image, /regex/, or * for every word. One of the two may be a distance (-2) from the
    other. The right one may be same (the row's token elsewhere), after same (what followed it earlier), or
    several by and, or; such a rule alone, "same or +0", is about every row.

    A score is the share of the left part's attention that goes to the right part, with --texts a mean over
    tokens; its baseline is that of uniform attention.

    With --gold a file has the questions: a treebank, alignments, or lines {"text": "The cat sat.", "pairs":
    [[2, 1, "subject"]]} (from, to, label; words count from 0, or are characters: [4, 7]). A head is right
    where a word's largest weight, special tokens and itself aside, goes to the answer.

    Examples:

    attnscope find "it -> cat" "The cat sat on the mat because it was tired."
    attnscope find "same or -1" -f sample_inputs/article.txt --truncate --top 3
    attnscope find "after same" --texts sample_inputs/sentences.txt
    attnscope find "it <-> cat" "The cat sat because it was tired." -o it.png
    attnscope find --gold sample_inputs/treebank.conllu --held-out
    """
    from attnscope.questions.find import LISTED_HEADS, asks_all_rows, corpus_heads, find_answer, find_heads

    if gold.gold is not None:
        inputs = query.questions or source.names_one
        refuse(inputs or corpus.texts, "--gold", "the file has the texts: give no text and no question")
        refuse_combined(
            *([("out", "gold", NO_PICTURE)] * (output.suffix not in options.TABLES)),
            ("mixers", "gold", "its questions are asked of attention"),
        )
        return answer_gold(gold.gold, gold, corpus, source, attention, output, model)
    refuse_without((fields_of(GoldOptions, but=("gold",)), "gold"))
    questions, source = split_questions(query.questions, source, "a question", many=corpus.many)
    refuse(
        len(questions) > MAX_QUESTIONS,
        "QUESTION",
        f"{len(questions):,} questions: ask {MAX_QUESTIONS} at a time",
    )
    selection = options.select(attention)
    if corpus.many:
        check_texts(corpus, source)
        refuse_combined(("mixers", "texts merge", "a corpus is measured by its attention"))
        names = tuple(f"find({question})" for question in questions)
        stats = measure_corpus(corpus, source, model, selection, names=names)
        found = corpus_heads(stats.heads, questions, stats.title, stats.notes)
        answer = find_answer(found, output.top or LISTED_HEADS)
        return deliver("find", answer, output, picture, model.metadata, stats.read)
    kind = "other" if asks_all_rows(questions) else "kernel"
    with read_source(source, model).open_with_progress(kind=kind) as (loaded, prepared):
        result = find_heads(loaded, prepared, questions, selection)
    commands = open_strongest(result, options.SourceOptions(**vars(source)), attention, picture, model)
    read = loaded, prepared
    deliver(
        "find",
        find_answer(result, output.top or LISTED_HEADS, commands),
        output,
        picture,
        model.metadata,
        read,
    )
