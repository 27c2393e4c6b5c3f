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
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from time import monotonic, sleep
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


class LostProcess(ModelError):
    """Another process of this job has ended before its work was done."""


class Sharing:
    """How processes share the batches of a corpus; this one is alone, and takes all of them."""

    first = True  # whether this process has the sums, and writes the files
    count = 1  # how many processes, or groups of those that split a model's heads, take batches

    def __init__(self) -> None:
        self._mine: Any = None

    def places(self, window: str, count: int, some: int) -> Iterator[int]:
        """Take ``some`` batches of a window after others that nobody has; yields the first of each."""
        yield from range(0, count, some or 1)

    def give(self, part: Any) -> None:
        """Add to what this process has measured."""
        if self._mine is None:
            self._mine = part
        else:
            self._mine.merge(part)

    def hand_over(self) -> None:
        """Let the first process have it, at the end of a window."""

    def received(self) -> Iterator[Any]:
        """What has been measured of this window since the last time, by this process and by others."""
        if self._mine is not None:
            yield self._mine
            self._mine = None

    def check(self) -> None:
        """Raise ``LostProcess`` if the job is about to end."""

    def wait(self) -> None:
        """Give the others a moment. Raises ``LostProcess`` if one of them is gone."""

    def share(self, name: str, word: Any) -> Any:
        """The first process's value, at every process."""
        return word


PAUSE_SECONDS = 0.02  # between two looks at what others have done
BEAT_SECONDS = 1.0  # between two signs of life
LOST_SECONDS = 60.0  # without one, after which a process is taken for lost
HANDING_SECONDS = 5.0  # after which a process hands over what it has measured
MOST_BYTES = 1 << 22  # of a value in the store, which refuses 8 MiB and more

_runs = count()


class StoreSharing(Sharing):
    """Processes that share batches by a store of torch.distributed.

    It counts the batches that are taken, passes sums on, and holds a sign of life of each process. Collective
    operations are left to those that split a model's heads, ``parts`` at a time.
    """

    def __init__(self, number: int, count: int, parts: int) -> None:
        from attnscope.capture.placing.split_heads import job_store

        super().__init__()
        self.first, self.count, self._others = number == 0, count // parts, count - 1
        (self._group, self._part), self._parts = divmod(number, parts), parts
        self._store = job_store(f"texts {next(_runs)}")
        self._window, self._handed_at = "", monotonic()
        self._handed = Counter[tuple[str, int]]()  # by window and group: what was handed over, or received
        self._beats: dict[int, tuple[int, float]] = {}
        self._ended, self._stopped = threading.Event(), ""

    def places(self, window: str, count: int, some: int) -> Iterator[int]:
        """Take batches; those that split a model's heads take the same."""
        self._window = window
        while (start := self._take(window, some)) < count:
            yield start

    def _take(self, window: str, some: int) -> int:
        taken = [self._store.add(window, some) - some if self._part == 0 else 0]
        if self._parts > 1:
            with _distributed() as distributed:
                distributed.broadcast_object_list(taken, src=0)
        return taken[0]

    def give(self, part: Any) -> None:
        """Hand over from time to time what was measured."""
        super().give(part)
        if monotonic() - self._handed_at >= HANDING_SECONDS:
            self.hand_over()

    def hand_over(self) -> None:
        """Put it into the store; the first process has its own."""
        if self._part == 0 and not self.first and self._mine is not None:
            self._put(self._next(self._group), self._mine)
            self._handed[self._window, self._group] += 1
        if not self.first:
            self._mine, self._handed_at = None, monotonic()

    def received(self) -> Iterator[Any]:
        """Of the first process: all that was measured; nothing of the others."""
        if not self.first:
            return
        yield from super().received()
        for group in range(1, self.count):
            while self._store.check([key := self._next(group)]):
                self._handed[self._window, group] += 1
                yield self._get(key, keep=False)

    def _next(self, group: int) -> str:
        return f"{self._window} of {group}: {self._handed[self._window, group]}"

    def check(self) -> None:
        """Heed a signal to end."""
        if self._stopped:
            raise LostProcess(self._stopped)

    def wait(self) -> None:
        """Look for signs of life."""
        sleep(PAUSE_SECONDS)
        self.check()
        for group in range(self.count):
            beat, now = self._store.add(f"beat {group}", 0), monotonic()
            before, since = self._beats.get(group, (None, now))
            if beat != before:
                self._beats[group] = beat, now
            if beat < 0 or (beat and beat == before and now - since > LOST_SECONDS):
                raise LostProcess(f"process {group * self._parts} of this job has ended")

    def share(self, name: str, word: Any) -> Any:
        """Pass it on in the store."""
        if self.first:
            self._put(name, word)
            return word
        while not self._store.check([name]):
            self.wait()
        return self._get(name, keep=True)

    @contextmanager
    def live(self) -> Iterator[None]:
        """Give signs of life while the block runs; ``check`` heeds a signal to end."""
        beating = threading.Thread(target=self._beat, daemon=True)
        main = threading.current_thread() is threading.main_thread()
        before = signal.signal(signal.SIGTERM, self._stop) if self.first and main else None
        beating.start()
        failed = True
        try:
            yield
            failed = False
        finally:
            self._ended.set()
            beating.join()
            if before is not None:
                signal.signal(signal.SIGTERM, before)
            with suppress(RuntimeError):  # the store may be gone
                self._leave(failed)

    def _beat(self) -> None:
        with suppress(RuntimeError):
            while self._part == 0:
                self._store.add(f"beat {self._group}", 1)
                if self._ended.wait(BEAT_SECONDS):
                    return

    def _stop(self, *_: Any) -> None:
        self._stopped = "another process of this job has ended, or the job was stopped"

    def _leave(self, failed: bool) -> None:
        """Say so; the process that holds the store is the last one to leave."""
        if failed:
            self._store.set(f"beat {self._group}", "-1")
        if not self.first:
            self._store.add("left", 1)
        elif os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
            with suppress(LostProcess):
                while self._store.add("left", 0) < self._others:
                    self.wait()

    def _put(self, key: str, value: Any) -> None:
        content = pickle.dumps(value)
        pieces = [content[start : start + MOST_BYTES] for start in range(0, len(content), MOST_BYTES)]
        for number, piece in enumerate(pieces):
            self._store.set(f"{key}, piece {number}", piece)
        self._store.set(key, str(len(pieces)))

    def _get(self, key: str, *, keep: bool) -> Any:
        keys = [f"{key}, piece {number}" for number in range(int(self._store.get(key)))]
        value = pickle.loads(b"".join(map(self._store.get, keys)))
        for each in () if keep else (key, *keys):
            self._store.delete_key(each)
        return value


@contextmanager
def together(parts: int = 1) -> Iterator[Sharing]:
    """Share batches with the processes that torchrun started while the block runs.

    ``parts`` processes at a time split the heads of one model. A program that has joined its processes
    itself, as in training, shares its texts itself.
    """
    processes, joined = torchrun_processes(), joined_processes()
    if processes.count == 1 or joined.count not in (1, parts):
        yield Sharing()
        return
    with _distributed():
        sharing = StoreSharing(processes.number, processes.count, parts)
    with sharing.live():
        yield sharing


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
