"""``attnscope check``: claims about heads, for training jobs and continuous integration."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attnscope.cli import corpus, options
from attnscope.cli.loading import load_model
from attnscope.cli.text import read_text
from attnscope.cli.waiting import waiting

if TYPE_CHECKING:
    from attnscope.analysis.claims import Claim
    from attnscope.analysis.stats import Stats

EXAMPLES = """Examples:

attnscope check "L0H3.self > 0.5" "count(previous > 0.5) >= 2" --texts sample_inputs/sentences.txt

attnscope check "any.induction > 0.1" -m own-causal --file sample_inputs/repeated.txt --truncate

attnscope check --texts corpus.txt --save before.json

attnscope check --texts corpus.txt --against before.json --tolerance 0.02
"""

AGAINST = "Snapshots"
MOST = 10
"""Changed figures that are listed."""


def check(
    context: typer.Context,
    claims: Annotated[
        list[str] | None,
        typer.Argument(
            help='Claims such as "L0H2.previous > 0.9", "L0H2.role = previous", "any.induction > 0.4", '
            '"all.entropy < 3", "count(previous > 0.5) >= 2".',
            show_default=False,
        ),
    ] = None,
    text: Annotated[
        str | None,
        typer.Option(
            help="The text; - reads standard input.", rich_help_panel=options.TEXT, show_default=False
        ),
    ] = None,
    file: options.File = None,
    max_tokens: options.MaxTokens = None,
    truncate: options.Truncate = False,
    texts: corpus.Texts = None,
    field: corpus.Field = "text",
    limit: corpus.Limit = None,
    strict: corpus.Strict = False,
    checkpoint: corpus.Checkpoint = None,
    save: Annotated[
        Path | None,
        typer.Option(help="Write all figures to a file.", rich_help_panel=AGAINST, show_default=False),
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(
            help="Compare all figures with such a file.", rich_help_panel=AGAINST, show_default=False
        ),
    ] = None,
    tolerance: Annotated[
        float,
        typer.Option(
            min=0.0, help="How far a figure may be; a share of it above 1.", rich_help_panel=AGAINST
        ),
    ] = 0.05,
    model: options.ModelName = "own",
    tokenizer: options.Tokenizer = "own",
    device: options.Device = "auto",
    device_map: options.DeviceMap = None,
    dtype: options.Dtype = "auto",
    revision: options.Revision = None,
    trust_remote_code: options.TrustRemoteCode = False,
    allow_pickle: options.AllowPickle = False,
    offline: options.Offline = False,
) -> None:
    """Check claims about heads: exit code 0 if all of them hold, 1 if not.

    A claim names a head and a measure (attnscope stats --list), any or all heads, or a count of heads.
    """
    from attnscope.analysis.claims import claim
    from attnscope.analysis.corpus.processes import launched
    from attnscope.analysis.selection import Selection
    from attnscope.analysis.snapshot import save_snapshot
    from attnscope.analysis.stats import stats
    from attnscope.measures import DEFAULT
    from attnscope.storage.corpus import read_corpus

    read = [claim(each) for each in claims or ()]
    if not read and save is None and against is None:
        raise typer.BadParameter("claim something, or give --save or --against", param_hint="CLAIMS")
    names = tuple(dict.fromkeys((*DEFAULT, *(name for each in read for name in each.names))))
    if texts is not None:
        if text is not None or file is not None:
            raise typer.BadParameter("give a text or --texts, not both", param_hint="--text")
        source = read_corpus(texts, field)
        seen = corpus.measure_corpus(context, load_model(context), source, Selection(), names)
    else:
        corpus.refuse_without_texts(context)
        if text is None and file is None:
            raise typer.BadParameter("give --texts CORPUS, --text or --file", param_hint="--texts")
        first, _ = read_text(text, None, file, None)
        loaded = load_model(context)
        prepared = loaded.prepare(first, max_tokens=max_tokens, truncate=truncate)
        with waiting(f"{model} reads {len(prepared.tokens):,} tokens"), loaded.threads(prepared):
            seen = stats(loaded, prepared, Selection(), names=names)
    loud = launched().number == 0
    holds = _judge(seen, read, loud)
    if against is not None:
        holds = _compare(seen, against, tolerance, loud) and holds
    if save is not None and loud:
        save_snapshot(seen, save)
        print(f"saved {save}")
    raise typer.Exit(0 if holds else 1)


def _judge(seen: Stats, claims: list[Claim], loud: bool) -> bool:
    """Print one line a claim; whether all of them hold."""
    from attnscope.axes import visible

    verdicts = [claim.judged(seen.heads) for claim in claims]
    width = max((len(verdict.claim) for verdict in verdicts), default=0)
    for verdict in verdicts if loud else ():
        print(f"{'ok' if verdict.holds else 'FAILED':6}  {visible(verdict.claim):{width}}  {verdict.found}")
    return all(verdict.holds for verdict in verdicts)


def _compare(seen: Stats, path: Path, tolerance: float, loud: bool) -> bool:
    """Print what has changed since a snapshot; whether nothing has."""
    from attnscope.analysis.snapshot import changes
    from attnscope.axes import visible

    found = changes(seen, path, tolerance)
    if loud:
        heads = len({change.head for change in found})
        words = f"{len(found):,} figures of {heads:,} heads differ by more than" if found else "all within"
        print(f"{'FAILED' if found else 'ok':6}  against {path}: {words} {tolerance:g}")
        for change in found[:MOST]:
            before, now = ("none" if v is None else f"{v:.4g}" for v in (change.before, change.now))
            print(f"        {visible(change.head)}.{visible(change.measure)}: {before} before, {now} now")
        if len(found) > MOST:
            print(f"        and {len(found) - MOST:,} more")
    return not found
