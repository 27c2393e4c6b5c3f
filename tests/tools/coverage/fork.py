"""Work in a child process, with a limit of time and memory."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable


def in_a_fork(work: Callable[[], str], seconds: int, memory: int) -> tuple[str, int]:
    """What ``work`` returns, and the child's status: a crash or an endless pass ends with the child."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
        signal.setitimer(signal.ITIMER_PROF, seconds)  # of work, however busy the machine
        with os.fdopen(write, "w") as pipe:
            pipe.write(work())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        line = pipe.read()
    _, status = os.waitpid(child, 0)
    return line, status
