"""The batches of a window, shared among processes and threads, and added up in their order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Generic, TypeVar

from attnscope.analysis.corpus.batches import Batch
from attnscope.analysis.corpus.processes import Processes
from attnscope.analysis.corpus.progress import Progress
from attnscope.analysis.corpus.workers import in_order

Asked = TypeVar("Asked")
Result = TypeVar("Result")
Share = TypeVar("Share")

ROUND = 4
"""Batches of each of several processes after which these bring together what they have."""


@dataclass(frozen=True)
class Walk(Generic[Asked, Result, Share]):
    """What is done with each batch and what is asked of it.

    ``work`` runs on one of the ``threads``. ``share`` makes of its result what the batch adds, and ``add``
    adds that, in the order of the batches whatever the number of processes. ``watch`` is told of progress.
    """

    work: Callable[[tuple[Batch, Asked]], Result]
    share: Callable[[Batch, Result], Share]
    add: Callable[[Share], None]
    watch: Callable[[Progress], None]
    threads: int

    def window(
        self,
        jobs: Sequence[tuple[Batch, Asked]],
        progress: Progress,
        begun: Progress,
        done: int,
        processes: Processes,
    ) -> Iterator[Progress]:
        """Do this process's share of a window, which ends at ``done`` and was at ``begun`` before.

        Yields, whenever the sums have more batches, how far they are: as a run says that begins with the
        window again and leaves those batches out.
        """
        every = sum(batch.tokens for batch, _ in jobs)
        passed = sum(batch.tokens for batch, _ in jobs[: begun.batches])
        left = jobs[begun.batches :]
        mine = left[processes.number :: processes.count]
        round_ = processes.count * (ROUND if processes.count > 1 else 1)
        with closing(in_order(self.work, mine, self.threads)) as results:
            for start in range(0, len(left), round_):
                shares = []
                for number, (batch, _) in enumerate(left[start : start + round_]):
                    if number % processes.count == processes.number:
                        shares.append(self.share(batch, next(results)))
                    passed += batch.tokens
                    progress.texts += batch.texts
                    progress.tokens += batch.tokens
                    progress.done = begun.done + (done - begun.done) * passed // every
                    self.watch(progress)
                for each in zip_longest(*processes.gather(shares)):
                    for share in filter(None, each):
                        self.add(share)
                yield replace(
                    begun,
                    texts=progress.texts,
                    tokens=progress.tokens,
                    notes=progress.notes,
                    taken=progress.taken,
                    calls=progress.calls,
                    layout=progress.layout,
                    batches=begun.batches + start + round_,
                )
        progress.done, progress.batches = done, 0
