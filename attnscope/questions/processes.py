"""Several processes, on one machine or many, that share the texts of a corpus: torch.distributed.

A separate file, so that asking for the number of processes imports no model.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from attnscope.errors import ModelError


@dataclass(frozen=True)
class Processes:
    """How many processes share the work, and which of them this one is; number 0 has the answer."""

    number: int = 0
    count: int = 1

    def gather(self, mine: object) -> list[Any]:
        """Each process's value, in order, at number 0; an empty list at the others."""
        if self.count == 1:
            return [mine]
        import torch.distributed as distributed

        everyones: list[Any] = [None] * self.count
        with _lost():
            distributed.gather_object(mine, everyones if self.number == 0 else None)
        return everyones if self.number == 0 else []

    def broadcast(self, word: Any) -> Any:
        """Process 0's value, at every process."""
        if self.count == 1:
            return word
        import torch.distributed as distributed

        said = [word]
        with _lost():
            distributed.broadcast_object_list(said, src=0)
        return said[0]


def torchrun_processes() -> Processes:
    """The place of this process among those that torchrun started; alone without it."""
    return Processes(int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1")))


def joined_processes() -> Processes:
    """The place of this process in the group that its program has joined; alone without one."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return Processes()
    return Processes(distributed.get_rank(), distributed.get_world_size())


@contextmanager
def together() -> Iterator[Processes]:
    """Join the processes that torchrun started while the block runs.

    They exchange sums in main memory, so they use gloo, whatever the model's device. If a program has
    joined them before, as in training, each process takes all texts.
    """
    processes = torchrun_processes()
    if processes.count == 1 or joined_processes().count > 1:
        yield Processes()
        return
    import torch.distributed as distributed

    with _lost():
        distributed.init_process_group("gloo")
    try:
        yield processes
    finally:
        distributed.destroy_process_group()


@contextmanager
def _lost() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise ModelError("another process of this job failed: see its message") from error
