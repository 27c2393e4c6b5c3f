"""How much is read and built, what memory is free, and how long foreign work may take."""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from attnscope.errors import SizeError

UNNOTICED = 1 << 28
"""Bytes that are asked for without looking: 256 MB."""

DEADLINE, FOREIGN_SECONDS = "ATTNSCOPE_DEADLINE", 5.0
"""Processor seconds that a chat template, or reading a config, may take; honest ones take milliseconds."""

MEMORY, LEAST_BYTES = "ATTNSCOPE_MEMORY", 512 << 20
"""What a command may take however little is free: threads reserve some that they never use."""

MOST_CALLS = 2048
"""How often a module may attend in one pass: no honest model repeats a layer as many times."""

SPARE_MODULES = 2000
"""Modules, and tensors, that a model may be built of beyond those that its files can fill."""

SPARE_NUMBERS = 1 << 26
"""Numbers that it may have beyond those."""

LARGEST_CONFIG = 8 << 20
"""Bytes that a file of settings, or a chat template, may have; the largest have one or two million."""

LARGEST_STATE = 64 << 20
"""Bytes of JSON that attnscope itself wrote and reads again: a checkpoint, a snapshot, a manifest."""

LARGEST_VOCABULARY = 128 << 20
"""Bytes that any other file but one of weights may have; the largest vocabularies have a quarter of it."""

HASHED_BYTES = 16 << 20
"""Bytes of a model's files, the smallest first, that are identified by their contents: some 20 ms."""

MOST_MODEL_FILES = 2000
"""Files of a folder that are identified: no model has as many."""

MEASURED_WEIGHTS = 1 << 26
"""Weights of a short pass that are measured before anybody asks: 256 heads of 512 tokens."""

MOST_VIDEO_FRAMES = 16
"""Frames of a video that a model is shown; of longer ones, so many are taken evenly."""

HUB_SECONDS = 10.0
"""Seconds to wait for the hub's first answer."""


def free_memory() -> int:
    """Bytes that this process could still take: of the machine, or of its container if that has less."""
    import psutil

    machine: int = psutil.virtual_memory().available
    container = _container()
    return machine if container is None else min(machine, container)


def require(size: int, what: str, instead: str) -> None:
    """Raise ``SizeError`` if ``size`` bytes are not free; ``instead`` says what to do then."""
    if size <= UNNOTICED:
        return
    free = free_memory()
    if size > free:
        raise SizeError(
            f"{what} would take {readable(size)}, and {readable(free)} of memory are free: {instead}"
        )


def out_of_memory(error: BaseException) -> bool:
    """Whether Python, torch on a CPU, or torch on an accelerator could not get memory."""
    named = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return named or "DefaultCPUAllocator" in str(error)


@contextmanager
def memory_limited() -> Iterator[None]:
    """Let this process take the memory that is free, or as much as ``ATTNSCOPE_MEMORY`` says (4G, 500M, off).

    Where the system counts it (Linux), and where no GPU's driver reserves memory that it does not take.
    Raises ``SizeError`` for a size that is none.
    """
    asked, taken = os.environ.get(MEMORY, ""), _taken()
    most = None if asked in ("", "off") else _bytes(asked)
    if taken is None or asked == "off" or Path("/dev/nvidiactl").exists():
        yield
        return
    import resource

    before = soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = taken + max(LEAST_BYTES, free_memory()) if most is None else most
    known = [each for each in (soft, hard, limit) if each != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min(known), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def _bytes(size: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?([kMGT]?)B?", size.strip(), re.IGNORECASE)
    if match is None:
        raise SizeError(f"{MEMORY}={size} is no size: write 4G, 500M or off")
    return int(float(match[1]) * 1000 ** " kmgt".index(match[2].lower() or " "))


def _taken() -> int | None:
    """Bytes of private memory that this process has; ``None`` where the system does not say."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmData:"))
    except (OSError, StopIteration, ValueError):
        return None


def foreign_seconds() -> float | None:
    """How long foreign work may take, as ``ATTNSCOPE_DEADLINE`` says; ``None`` for off."""
    asked = os.environ.get(DEADLINE, "")
    try:
        return None if asked == "off" else float(asked or FOREIGN_SECONDS)
    except ValueError:
        raise SizeError(f"{DEADLINE}={asked} is no number of seconds: write 30 or off") from None


def readable(size: int) -> str:
    """Bytes as a person says them: ``1.4 GB``."""
    amount = float(size)
    for unit in ("bytes", "kB", "MB"):
        if amount < 1000:
            return f"{amount:.3g} {unit}"
        amount /= 1000
    return f"{amount:,.1f} GB"


def _container() -> int | None:
    """What the memory limit of a control group leaves (Linux, version 2), which psutil does not know."""
    try:
        folder = Path("/sys/fs/cgroup") / _group()
        most = (folder / "memory.max").read_text(encoding="ascii").strip()
        taken = int((folder / "memory.current").read_text(encoding="ascii"))
        # files that are only cached make room when memory is asked for
        lines = (folder / "memory.stat").read_text(encoding="ascii").splitlines()
        cached = next((int(line.split()[1]) for line in lines if line.startswith("inactive_file ")), 0)
        return None if most == "max" else max(0, int(most) - taken + cached)
    except (OSError, ValueError, IndexError):
        return None


def _group() -> str:
    line = Path("/proc/self/cgroup").read_text(encoding="ascii").splitlines()[-1]
    return line.split(":", 2)[2].strip().lstrip("/")


class OutOfTime(BaseException):
    """Time is over. No ``Exception``, so that no foreign code takes it for one of its own."""


@contextmanager
def time_limited(seconds: float | None) -> Iterator[None]:
    """Raise ``OutOfTime`` in the body after so much processor time, on the main thread of any Unix."""
    main = threading.current_thread() is threading.main_thread()
    if seconds is None or not main or not hasattr(signal, "setitimer"):
        yield
        return
    if signal.getitimer(signal.ITIMER_PROF)[0]:  # somebody else's clock runs
        yield
        return

    def stop(number: int, frame: Any) -> None:
        raise OutOfTime

    before = signal.signal(signal.SIGPROF, stop)
    # again and again: raised in a callback of the garbage collector, an exception is lost
    signal.setitimer(signal.ITIMER_PROF, seconds, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
