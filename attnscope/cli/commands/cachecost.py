"""``attnscope cachecost``: the loss when heads see only the first tokens and the last ones."""

from functools import partial
from typing import Annotated

from typer import Option

from attnscope.cli import options
from attnscope.cli.command import MOST_USED, Group, command, refuse, refuse_combined
from attnscope.cli.corpus import TextsOptions, each_text
from attnscope.cli.deliver import deliver
from attnscope.cli.messages import notify, spinner
from attnscope.cli.source import load_model

TABLE = ".tsv"  # the suffix of a pattern file


class WindowOptions(Group):
    """What a limited head sees, and how many heads are not limited."""

    panel = MOST_USED
    sink: Annotated[int, Option(help="A limited head sees the first N tokens.", min=0)] = 4
    recent: Annotated[int, Option(help="A limited head sees the last N tokens.", min=1)] = 256
    full_heads: Annotated[str, Option(help="Shares of heads that see everything, with commas.")] = (
        "0.25,0.5,0.75"
    )
    needle: Annotated[str | None, Option(help="Plant needles at these depths, 0 to 1: 0.1,0.5,0.9.")] = None
    truncate: Annotated[bool, Option(help="Cut texts to the positions of the model.")] = False


class PatternOutput(options.TableOutput):
    """Where the answer goes."""

    suffixes = (*options.PICTURES, TABLE)


@command
def cachecost(
    window: WindowOptions,
    corpus: TextsOptions,
    output: PatternOutput,
    picture: options.SavedOptions,
    model: options.ModelOptions,
) -> None:
    """Measure what a short key-value cache costs, head by head.

    Each key-value head alone is limited to the first tokens and the last ones; the rise of the loss is exact.
    Then the costliest heads see everything, and all others only the window. -o FILE.tsv writes one line per
    layer, with a number from 0 to 1 for each key-value head, as published patterns do.

    Examples:

    attnscope cachecost --texts sample_inputs/words.jsonl -m own-causal --recent 8
    """
    from attnscope.models.inputs import Limit
    from attnscope.questions.cachecost import cachecost, cachecost_answer
    from attnscope.storage.files import write_whole

    refuse(corpus.texts is None, "--texts", "give the texts that the loss is measured on")
    refuse_combined(("full_heads", "as_csv", "it has single heads"))
    shares, depths = _shares("--full-heads", window.full_heads), _shares("--needle", window.needle or "")
    pattern = output.out if output.out is not None and output.out.suffix.lower() == TABLE else None
    loaded = load_model(model, predicting=True)
    read = partial(loaded.prepare, limit=Limit(truncate=window.truncate))
    texts = [prepared for _, prepared in each_text(corpus, read, strict=True)]
    with spinner(f"{loaded.title} · {len(texts):,} texts"):
        result = cachecost(loaded, texts, window.sink, window.recent, shares, depths)
    if pattern is None:
        about = loaded, corpus.path, *texts
        return deliver("cachecost", cachecost_answer(result), output, picture, None, about)
    write_whole(pattern, result.tsv.encode())
    notify(f"saved {pattern}")


def _shares(name: str, text: str) -> list[float]:
    """Numbers from 0 to 1."""
    try:
        shares = [float(part) for part in text.split(",") if part.strip()]
    except ValueError:
        shares = [-1.0]
    refuse(not all(0 <= share <= 1 for share in shares), name, "write numbers from 0 to 1: 0.25,0.5")
    return shares
