"""``attnscope track``: how heads change over the checkpoints of a training run."""

from __future__ import annotations

import glob
import time
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from attnscope.cli import options
from attnscope.cli.command import Group, command, offering, refuse, refuse_combined, refuse_without
from attnscope.cli.corpus import TextsOptions, open_corpus
from attnscope.cli.deliver import deliver
from attnscope.cli.messages import notify, warn
from attnscope.cli.source import load_model
from attnscope.errors import NoCheckpoint
from attnscope.text import visible

if TYPE_CHECKING:
    from attnscope.models import Model

PAUSE_SECONDS = 10.0  # seconds between two checks for new checkpoints


class TrackOptions(Group):
    """Which checkpoints are read, and what is measured."""

    checkpoints: Annotated[
        list[str] | None, Argument(help="Folders of checkpoints, a pattern in quotes, or their folder.")
    ] = None
    revisions: Annotated[str | None, Option(help="With -m: revisions on the hub, with commas.")] = None
    measure: Annotated[
        str,
        Option(
            help="Measures, with commas; attnscope explain lists them.",
            rich_help_panel=options.WHERE,
            autocompletion=offering(options.measure_names),
        ),
    ] = "entropy,first,previous,induction"
    log: Annotated[Path | None, Option(help="Keep the scores here; its checkpoints are not run again.")] = (
        None
    )
    watch: Annotated[bool, Option(help="Wait for new checkpoints until Ctrl-C; needs --log.")] = False


class CurveOptions(options.SavedOptions):
    """How curves are drawn: each has a colour of its own, and no map of colours."""

    cmap: str | None = None


@command
def track(
    run: TrackOptions,
    corpus: TextsOptions,
    attention: options.LayerOptions,
    output: options.TableOutput,
    picture: CurveOptions,
    model: options.ModelOptions,
) -> None:
    """Follow heads through training: scores over checkpoints.

    A pattern appears at the first checkpoint after which its score stays above the midpoint between its
    baseline (uniform attention) and its final value.

    Examples:

    attnscope train sample_inputs/*.txt -o at-100 --steps 100
    attnscope train sample_inputs/*.txt -o at-200 --steps 100 --start-from at-100
    attnscope track at-100 at-200 --texts sample_inputs/sentences.txt
    attnscope track at-100 at-200 --texts sample_inputs/sentences.txt -o track.png
    """
    from attnscope.measures import MEASURES
    from attnscope.questions.corpus import CorpusRun
    from attnscope.questions.track import track as follow
    from attnscope.questions.track import track_answer

    revisions = [name.strip() for name in (run.revisions or "").split(",") if name.strip()]
    refuse(corpus.texts is None, "--texts", "give the texts that heads are measured on")
    refuse_without(("revisions", "model"), ("watch", "log"), ("model", "revisions"))
    refuse_combined(("watch", "revisions", "it waits for folders"))
    both = bool(run.revisions) == bool(run.checkpoints)
    refuse(both, "CHECKPOINTS", "give folders, or -m and --revisions")
    measures = tuple(dict.fromkeys(name.strip() for name in run.measure.split(",") if name.strip()))
    for name in measures:
        MEASURES[name]
    probes, selection = open_corpus(corpus), options.select(attention)

    def load(name: str) -> Model:
        return load_model(replace(model, revision=name) if run.revisions else replace(model, model=name))

    report = cache(warn)  # each sentence once
    corpus_run, last = CorpusRun(limit=corpus.limit, truncate=True), None
    while True:
        try:
            names = revisions or find_checkpoints(run.checkpoints or [])
            result = follow(
                names, load, probes, measures, selection, run=corpus_run, log=run.log, report=report
            )
            if result != last:
                deliver("track", track_answer(result), output, picture, None, (names[0], corpus.path))
            last = result
        except NoCheckpoint as error:
            if not run.watch:
                raise
            report(str(error))
        if not run.watch:
            return
        notify(f"{len(last.steps) if last else 0} checkpoints; waiting for more, Ctrl-C ends it")
        try:
            time.sleep(PAUSE_SECONDS)
        except KeyboardInterrupt:
            return


def find_checkpoints(names: list[str]) -> list[str]:
    """The folders named directly, by a pattern, or inside a folder that is no model; or ``NoCheckpoint``."""
    folders: list[str] = []
    for name in names:
        is_run = Path(name).is_dir() and not (Path(name) / "config.json").exists()
        pattern = str(Path(glob.escape(name)) / "*-[0-9]*") if is_run else name
        matching = sorted(each for each in glob.glob(pattern) if Path(each).is_dir())
        if not matching and (is_run or glob.has_magic(name)):
            raise NoCheckpoint(f"no checkpoint matches {visible(pattern)}")
        folders += matching or [name]
    return folders
