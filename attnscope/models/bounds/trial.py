"""Work of a foreign tokenizer, tried in a process of its own before this one does it.

Its rules and patterns are programs, that run in libraries written in Rust and C: nothing in the same process
can stop those when they take all time or memory. Where the system has no cheap copy of a process (all but
Linux), only work in Python is limited.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import warnings
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NoReturn, TypeVar

from attnscope.errors import ModelError
from attnscope.memory import readable
from attnscope.models.bounds.limits import bounded, is_out_of_memory, limit_memory

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Result = TypeVar("Result")

MEMORY = 384 << 20
"""Bytes that a trial may take beside those for the size of its work."""

PER_BYTE = 40
"""Bytes that a byte of a vocabulary or a text may take; honest ones take ten."""

SECONDS = 4
"""Seconds of processor time that a trial may take, and one more for each ``FAST`` bytes."""

FAST = 100_000
"""Bytes that the slowest honest tokenizer reads in a second."""

PATIENCE = 30
"""Seconds that a trial may stand still."""

WELL, FULL, BROKEN = 0, 3, 4


def tried(what: str, work: Callable[[], Result], size: int) -> Result:
    """What ``work`` returns, after ``try_first`` has tried the same."""
    try_first(what, work, size)
    return work()


def try_first(what: str, work: Callable[[], object], size: int) -> None:
    """Let a copy of this process do ``work``, within limits on memory and time.

    ``size`` is how many bytes of text or vocabulary the work is about. Raises ``ModelError`` if the copy does
    not come through it; what the work itself raises is left to whoever does it next.
    """
    memory, seconds = MEMORY + PER_BYTE * size, SECONDS + size // FAST
    if not sys.platform.startswith("linux"):
        with bounded(what, memory, seconds), suppress(Exception):
            work()
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the copy needs no other thread of this process
        child = os.fork()
    if child == 0:
        _attempt(work, memory, seconds)
    try:
        _, status = os.waitpid(child, 0)
    except BaseException:  # Ctrl-C
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise
    ended = os.waitstatus_to_exitcode(status)
    if ended in (-signal.SIGXCPU, -signal.SIGALRM):
        raise ModelError(f"{what} takes longer than {seconds} seconds, and was stopped")
    if ended in (FULL, -signal.SIGABRT):
        raise ModelError(f"{what} asks for more than {readable(memory)} of memory")
    if ended != WELL:
        raise ModelError(f"{what} breaks the library that runs it")


def _attempt(work: Callable[[], object], memory: int, seconds: int) -> NoReturn:
    """Do the work in this process, the copy, and end it; what the work raises is said where it counts."""
    import resource

    gc.freeze()  # what a collection looks at is copied: only what this work makes
    ended = BROKEN
    try:
        for number in (signal.SIGINT, signal.SIGALRM, signal.SIGXCPU):
            signal.signal(number, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, seconds + PATIENCE)
        if "torch" in sys.modules:
            sys.modules["torch"].set_num_threads(1)  # a copy of the process has no other threads
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in (1, 2):
            os.dup2(nowhere, stream)
        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # its threads are not in the copy
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
        limit_memory(memory)
        work()
        ended = WELL
    except Exception as error:
        ended = FULL if is_out_of_memory(error) else WELL
    finally:
        os._exit(ended)


def spell_all(tokenizer: Tokenizer) -> None:
    """Let a tokenizer spell every entry of its vocabulary, if its rules for that can make texts longer."""
    if "Replace" in repr(tokenizer.decoder):
        tokenizer.decode_batch([[id_] for id_ in range(tokenizer.get_vocab_size())])


@dataclass
class Trial:
    """Texts that a tokenizer has come through: each is tried once, many at a time."""

    what: str
    read: Callable[[tuple[str, ...]], object]
    passed: set[tuple[str, ...]] = field(default_factory=set)

    def require(self, texts: Collection[tuple[str, ...]]) -> None:
        """Raise ``ModelError`` unless the tokenizer reads all texts, each alone or a pair, within limits."""
        new = [text for text in texts if text not in self.passed]
        if not new:
            return

        def read_all() -> None:
            for text in new:
                self.read(text)

        try_first(self.what, read_all, sum(len(part) for text in new for part in text))
        self.passed = set(texts)
