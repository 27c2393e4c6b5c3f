"""``attnscope ablate``: what a model's predictions lose without a head."""

from __future__ import annotations

from dataclasses import dataclass

from attnscope.cli import options
from attnscope.cli.command import MOST_USED, command, flag, option, refuse
from attnscope.cli.commands.stats import parse_rows
from attnscope.cli.corpus import check_texts, measure_corpus
from attnscope.cli.deliver import deliver
from attnscope.cli.heads import parse_head, select
from attnscope.cli.source import load_model, read_source, reading
from attnscope.cli.waiting import waiting


@dataclass(frozen=True, kw_only=True)
class AblateOptions:
    """How a head is taken away, and how many are listed."""

    panel = MOST_USED
    mean: bool = flag("With --texts: set each head to its mean output over the corpus, not to zero.")
    rows: str | None = option("Only the predictions made at these tokens: 30-46.")
    importance: bool = flag("Estimate it from gradients: two passes instead of one a head.")
    top: int = option("List at most N heads.", min=1, default=10)


@command
def ablate(
    source: options.SourceOptions,
    corpus: options.CorpusOptions,
    asked: AblateOptions,
    attention: options.HeadOptions,
    output: options.TableOutput,
    picture: options.PrintedOptions,
    model: options.ModelOptions,
) -> None:
    """Measure what the model's predictions lose without each head.

    Each head's output is set to zero in turn, and the rise of the loss is listed, largest first. With --head:
    the predictions that change most without that head. A causal model predicts each next token, a masked
    model each token while it is masked.

    Examples:

    attnscope ablate "The cat sat on the mat because it was tired."

    attnscope ablate "The cat sat on the mat because it was tired." --head L2H1

    attnscope ablate --texts corpus.txt -m own-causal --mean --csv
    """
    check_texts(corpus, source)
    refuse(asked.mean and corpus.texts is None, "--mean", "a mean is taken over a corpus: add --texts")
    refuse(asked.mean and asked.importance, "--mean", "an estimate removes no head: leave one of them out")
    rows = parse_rows(asked.rows)
    refuse(rows and corpus.texts, "--rows", "only valid with one text, not with --texts")
    head = None if attention.head is None else parse_head(attention.head, attention)
    alone = head is not None and corpus.texts is None and not asked.importance
    refuse(alone and rows, "--rows", "--head prints every prediction: leave --rows out")
    refuse(alone and (output.out or output.as_csv), "--out, --csv", "one head is printed, or --json")
    options.check_picture(output.out, picture.cmap, signed=True, suffixes=options.PICTURES)
    selection = select(attention, head=head)
    from attnscope.measures import DEFAULT
    from attnscope.questions.ablate import Way, of_ablation
    from attnscope.questions.ablate import ablate as ablate_head
    from attnscope.questions.processes import torchrun_processes
    from attnscope.questions.stats import measure_heads, of_removals

    if corpus.texts is not None:
        way: Way | None = None if asked.importance else "mean" if asked.mean else "zero"
        result = measure_corpus(
            corpus, source, lambda: load_model(model, predicting=True), selection, DEFAULT,
            importance=asked.importance, ablation=way,
        )  # fmt: skip
        if torchrun_processes().number:
            return
    else:
        loaded, prepared = read_source(source, model).open(predicting=True)
        if alone:
            with waiting(f"{loaded.name} predicts with and without {head}"):
                answer = of_ablation(ablate_head(loaded, prepared, selection))
            return deliver("ablate", answer, output)
        with reading(loaded, prepared):
            result = measure_heads(
                loaded,
                prepared,
                selection,
                importance=asked.importance,
                ablation=not asked.importance,
                rows=rows,
            )
    deliver("ablate", of_removals(result, asked.top), output, picture)
