"""Several processes that share the texts of a corpus: those that torchrun started, on one machine or many,
and those that each of them forks, a processor each.

A separate file, so that asking for the number of processes imports no model.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import signal
import sys
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, TypeAlias, TypeVar

from attnscope.errors import AttnscopeError, ModelError, first_line
from attnscope.lazy import torch
from attnscope.limits import memory_shared

Work = TypeVar("Work")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Processes:
    """How many processes share the work, and which of them this one is; number 0 has the answer."""

    number: int = 0
    count: int = 1

    def gather(self, mine: object) -> list[Any]:
        """Each process's value, in order, at number 0; an empty list at the others."""
        everyones = [mine] * self.count
        if self.count > 1:
            with _distributed() as distributed:
                distributed.gather_object(mine, everyones if self.number == 0 else None)
        return everyones if self.number == 0 else []

    def broadcast(self, word: Any) -> Any:
        """Process 0's value, at every process."""
        said = [word]
        if self.count > 1:
            with _distributed() as distributed:
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
    """Join the processes that torchrun started while the block runs, if its program has not, as in training.

    They exchange sums in main memory, so they use gloo, whatever the model's device.
    """
    processes = torchrun_processes()
    if processes.count == 1 or joined_processes().count > 1:
        yield Processes()
        return
    with _distributed() as distributed:
        distributed.init_process_group("gloo")
    try:
        yield processes
    finally:
        distributed.destroy_process_group()


@contextmanager
def _distributed() -> Iterator[Any]:
    """``torch.distributed``; what it raises says that another process failed."""
    import torch.distributed as distributed

    try:
        yield distributed
    except RuntimeError as error:
        raise ModelError("another process of this job failed: see its message") from error


LARGE_MODEL = 1 << 28  # weights from which on a model's products give all of torch's threads enough to do
FEW = 4  # batches for each process from which on none waits long for another


def workers(model: Any, batches: int) -> int:
    """How many processes may put batches through a model at a time: one for each of torch's threads.

    The batches of a small model give torch's threads little to do, and threads of Python wait for each
    other. Elsewhere than on Linux, forking is not safe.
    """
    count = torch.get_num_threads()
    daemon = multiprocessing.current_process().daemon  # it may have no children
    if sys.platform != "linux" or daemon or not model.forkable or model.device.type != "cpu":
        return 1
    large = sum(weights.numel() for weights in model.module.parameters()) >= LARGE_MODEL
    return 1 if large or batches < FEW * count else count


def in_order(
    work: Callable[[Work], Result], items: Sequence[Work], count: int
) -> Generator[Result, None, None]:
    """The results of ``work`` in the order of the items, by this process and others forked from it.

    Each has one thread, and takes the next item when it is free. Results are pickled; an error is raised at
    its place in the order. Whatever ``work`` changes in its process, the others do not see.
    """
    count = min(count, len(items))
    if count < 2:
        yield from map(work, items)
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    forked, left = [], _pipe_of_numbers(len(items))
    gc.freeze()  # a search for garbage writes to every object, and each process would copy all of them
    try:
        with memory_shared(count):
            own, *others = (_attempts(work, items, left) for _ in range(count))
            forked = [_fork(each) for each in others]
            pipes, done = [results for _, results in forked], Attempts()
            for number in range(len(items)):
                while number not in done:
                    mine = next(own, None)  # rather than wait for others
                    if not mine and not pipes:
                        raise ModelError(
                            "a process that computed some of the texts ended, perhaps for lack of memory: "
                            "set OMP_NUM_THREADS=1 to compute all in one process"
                        )
                    done |= mine or {}
                    ready = wait(pipes, 0 if mine else None)
                    for results in [each for each in pipes if each in ready]:
                        try:
                            done |= pickle.loads(results.recv_bytes())
                        except EOFError:  # the end of its work, or of the process
                            pipes.remove(results)
                result, error = done.pop(number)
                if error is not None:
                    raise error
                yield result
    finally:
        left.close()
        for process, results in forked:
            results.close()
            process.kill()
            process.join()
        gc.unfreeze()
        torch.set_num_threads(before)


WIDTH = 4  # bytes of a number
PIPE_BYTES = 1 << 20
"""Bytes of results that wait in a pipe, so that a process need not wait until the last one was read."""


def _pipe() -> tuple[Connection, Connection]:
    """The two ends of a pipe: what is received, and what is sent."""
    import fcntl

    receiver, sender = multiprocessing.Pipe(duplex=False)
    fcntl.fcntl(sender.fileno(), fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    return receiver, sender


def _pipe_of_numbers(count: int) -> Connection:
    """A pipe that holds the numbers below ``count``, which fit; whoever reads one has taken that item."""
    receiver, sender = _pipe()
    os.write(sender.fileno(), b"".join(number.to_bytes(WIDTH, "little") for number in range(count)))
    sender.close()
    return receiver


Attempts: TypeAlias = dict[int, tuple[Any, "Exception | None"]]  # by item: its result, or how it failed


def _attempts(work: Callable[[Any], Any], items: Sequence[Any], left: Connection) -> Iterator[Attempts]:
    """Work on items that no process has taken; the first error is the last result."""
    error = None
    while error is None and (taken := os.read(left.fileno(), WIDTH)):
        number, result = int.from_bytes(taken, "little"), None
        try:
            result = work(items[number])
        except Exception as raised:
            known = isinstance(raised, AttnscopeError) or type(raised).__module__ == "builtins"
            error = raised if known else RuntimeError(first_line(raised))  # others may not pickle
        yield {number: (result, error)}


def _fork(attempts: Iterator[Attempts]) -> tuple[BaseProcess, Connection]:
    """Start a process that makes these attempts, and sends them."""
    receiver, sender = _pipe()
    context, sent = multiprocessing.get_context("fork"), (attempts, receiver, sender)
    process = context.Process(target=_send, args=sent, daemon=True)
    with warnings.catch_warnings():
        # Python warns that a lock of another thread stays closed in the new process. The other thread here
        # draws the progress, and the new process prints nothing
        warnings.simplefilter("ignore", DeprecationWarning)
        process.start()
    sender.close()
    return process, receiver


def _send(attempts: Iterator[Attempts], receiver: Connection, sender: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the first one ends this
    receiver.close()  # so that sending fails once the first process is gone
    sys.stdout = sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    for made in attempts:
        sender.send_bytes(pickle.dumps(made))  # as bytes: torch would pass tensors by descriptors
