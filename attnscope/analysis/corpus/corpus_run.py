"""What every run over a corpus is told: which texts, how they are read, and who hears of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from attnscope.analysis.corpus.progress import Progress


@dataclass(frozen=True, kw_only=True)
class CorpusRun:
    """A run stops after ``limit`` texts, and reads of each at most ``max_tokens``.

    ``truncate`` cuts a text that is longer than the model's positions. One that cannot be read is skipped
    and its place passed to ``report``, or raises ``InputError`` if ``strict``. ``watch`` is told after every
    batch how far the run is. ``checkpoint`` names a file that keeps the sums, written every ``EVERY`` seconds
    and after every window; a run that finds it goes on from there to bit-identical sums.
    """

    limit: int | None = None
    max_tokens: int | None = None
    truncate: bool = False
    strict: bool = False
    checkpoint: Path | None = None
    report: Callable[[str], None] = lambda sentence: None
    watch: Callable[[Progress], None] = lambda progress: None
