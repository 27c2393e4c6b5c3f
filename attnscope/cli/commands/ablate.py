"""``attnscope ablate``: what a model's predictions lose without a head."""

from typing import Annotated

from typer import Option

from attnscope.cli import options
from attnscope.cli.command import MOST_USED, Group, command, refuse, refuse_combined, refuse_without
from attnscope.cli.corpus import CorpusOptions, check_texts, measure_corpus
from attnscope.cli.deliver import deliver
from attnscope.cli.messages import spinner
from attnscope.cli.source import model_progress, read_source


class AblateOptions(Group):
    """How heads are ablated, and how many are listed."""

    panel = MOST_USED
    settable = "top"
    mean: Annotated[bool, Option(help="With --texts: set a head to its mean output, not to 0.")] = False
    importance: Annotated[bool, Option(help="Estimate it from gradients: two passes in all.")] = False
    top: Annotated[int, Option(help="List at most N heads.", metavar="N", min=1)] = 10


@command
def ablate(
    source: options.SourceOptions,
    corpus: CorpusOptions,
    ablation: AblateOptions,
    attention: options.HeadOptions,
    output: options.TableOutput,
    picture: options.SavedOptions,
    model: options.ModelOptions,
) -> None:
    """Measure what the model's predictions lose without each head.

    Each head's output is set to zero in turn; heads are listed by how far the loss rises. With --head: the
    predictions that change most without those heads, all removed at once. A causal model predicts each
    next token, a masked model each token while it is masked. What one prediction loses without each head:
    attnscope cut "* -> *" TEXT --how zero.

    Examples:

    attnscope ablate "The cat sat on the mat because it was tired."
    attnscope ablate "The cat sat on the mat." --head L2H1,L3H0
    attnscope ablate "The cat sat on the mat because it was tired." --importance
    attnscope ablate --texts sample_inputs/sentences.txt -m own-causal --mean
    """
    check_texts(corpus, source)
    heads = options.parse_heads(attention.head, attention)
    texts = corpus.many
    plain = not (texts or ablation.importance)
    refuse(len(heads) > 1 and not plain, "--head", "several heads are removed from one text: name one")
    refuse_without(("mean", "texts merge"))
    refuse_combined(
        ("mean", "importance", "an estimate removes no head"),
        ("top", "as_json as_csv out", "all heads are written"),
        *([("out as_csv", "head", "use --json"), ("top", "head", "it names the heads")] * plain),
    )
    selection = options.select(attention, head=heads[0] if len(heads) == 1 else None)
    from attnscope.questions.loss import Way, ablation_answer
    from attnscope.questions.loss import ablate as ablate_heads
    from attnscope.questions.stats import measure_heads, removals_answer

    if texts:
        method: Way | None = None if ablation.importance else "mean" if ablation.mean else "zero"
        result = measure_corpus(
            corpus, source, model, selection, importance=ablation.importance, ablation=method
        )
        return deliver("ablate", removals_answer(result, ablation.top), output, picture, None, result.read)
    pass_source = read_source(source, model)
    loaded = pass_source.load(predicting=True)
    prepared = pass_source.prepare(loaded)
    if heads and not ablation.importance:
        with spinner(f"{loaded.name} predicts with and without {', '.join(map(str, heads))}"):
            answer = ablation_answer(ablate_heads(loaded, prepared, selection, heads))
        return deliver("ablate", answer, output, read=(loaded, prepared))
    with model_progress(loaded, prepared):
        result = measure_heads(
            loaded, prepared, selection, importance=ablation.importance, ablation=not ablation.importance
        )
    deliver("ablate", removals_answer(result, ablation.top), output, picture, None, result.read)
