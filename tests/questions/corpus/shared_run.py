"""Run by torchrun in tests: a corpus in small windows, its figures written to a file by process 0.

python -m torch.distributed.run --nproc-per-node 2 -m tests.questions.corpus.shared_run OUT CHECKPOINT [TEXTS]

With a number of texts, process 1 dies when so many were counted.
"""

import json
import sys
from dataclasses import asdict
from pathlib import Path

from attnscope.models import load
from attnscope.questions import corpus as batches
from attnscope.questions.corpus import CorpusRun
from attnscope.questions.corpus_stats import corpus_stats
from attnscope.questions.processes import torchrun_processes
from attnscope.storage.corpus import ListedTexts

TEXTS = [
    f"{who} {did} on the {where}{end}"
    for who in ("The cat", "A dog", "She", "Nobody here", "The small bird")
    for did in ("sat", "slept")
    for where, end in (("mat", "."), ("warm old rug", ", and it was tired."), ("hill", "!"))
]


def figures(stats) -> list[dict]:
    """Everything that is known of every head, as plain data."""
    return [
        {"head": f"{head.site.kind} {head.name}"}
        | {name: asdict(figure) for name, figure in head.figures.items()}
        for head in stats.heads
    ]


def main() -> None:
    """Measure, and write what was found."""
    out, checkpoint, *dies = sys.argv[1:]
    batches.WINDOW_TEXTS = 7

    def watch(progress) -> None:
        if dies and torchrun_processes().number == 1 and progress.texts >= int(dies[0]):
            raise RuntimeError("the power went out")

    stats = corpus_stats(
        load("own"), ListedTexts(TEXTS), run=CorpusRun(checkpoint=Path(checkpoint), watch=watch)
    )
    if torchrun_processes().number == 0:
        Path(out).write_text(json.dumps({"title": stats.title, "ran": stats.ran, "heads": figures(stats)}))


if __name__ == "__main__":
    main()
