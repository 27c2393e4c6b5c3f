"""Several threads of one process that share the batches of a corpus."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

from attnscope.models import Model

Item = TypeVar("Item")
Result = TypeVar("Result")


def workers(model: Model) -> int:
    """How many batches may go through a model at a time.

    Small batches leave threads inside of torch's operations little to share, so each thread takes batches of
    its own, if the model is on the CPU and keeps nothing of a pass.
    """
    return torch.get_num_threads() if model.stateless and model.device.type == "cpu" else 1


def in_order(
    work: Callable[[Item], Result], items: Sequence[Item], threads: int
) -> Generator[Result, None, None]:
    """The results of ``work``, done by threads with one thread inside each, in the order of the items.

    An error comes out where its result would; what has not begun by then never does.
    """
    threads = min(threads, len(items))
    if threads < 2:
        yield from map(work, items)
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    pool = ThreadPoolExecutor(threads, "attnscope", initializer=torch.set_num_threads, initargs=(1,))
    try:
        yield from pool.map(work, items)
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(before)
