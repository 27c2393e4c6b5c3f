"""Limits on input sizes, on the process's memory, on the time of foreign work, and on the network.

Python calls an audit hook before every connection, whichever library makes it; the hook refuses those to
other machines. Addresses of this machine stay open.
"""

from __future__ import annotations

import itertools
import math
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

from attnscope.errors import AttnscopeError, InputError, ModelError, SizeError, out_of_memory, readable

CONFIG_BYTES = 8 << 20  # most bytes of a settings file or chat template; the largest known have a quarter
STATE_BYTES = 64 << 20  # most bytes of JSON that attnscope wrote and reads again: a checkpoint, a manifest
VOCABULARY_BYTES = 128 << 20  # most bytes of any other file except weights; the largest have a quarter
HASHED_BYTES = 16 << 20  # bytes of a model's files, smallest first, that are hashed to identify it: 20 ms
MOST_MODEL_FILES = 2000  # most files of a folder that are hashed; no model has as many
MEASURED_WEIGHTS = 1 << 26  # weights of a short pass that are measured in advance: 256 heads of 512 tokens
MOST_VIDEO_FRAMES = 16  # most frames of a video shown to a model; longer videos are sampled evenly
HUB_SECONDS = 10.0  # seconds to wait for the hub's first answer
DEADLINE_SECONDS = 30.0  # of thread processor time for foreign work; a normal file takes a few
TICK_SECONDS = 0.1  # of processor time between two checks of the clock
MEMORY_SHARE = 0.9  # the share of free memory that a command may take
LEAST_MEMORY_BYTES = 1 << 29  # bytes that a command may always take: torch reserves some that it never uses
SEAL_SECONDS = 5.0  # of thread processor time in which a model is asked whether it mixes beside attention
SEAL_BYTES = 1 << 30  # most bytes that its modules may pass on meanwhile
MOST_CALLS = 1000  # most attention calls of one module in one pass: no real model repeats a layer as often

SIZE_PATTERN = re.compile(r"(\d{1,15}) ?([kMGT]?)B?", re.IGNORECASE)
SIZE_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}


@contextmanager
def memory_limited() -> Iterator[None]:
    """Limit this process to ``ATTNSCOPE_MEMORY``, or to the free memory (Linux).

    An allocation that fails inside raises ``SizeError`` with the limit. Only the command line calls this:
    a library does not change the limits of its process.
    """
    most = most_memory()
    with _limited(most):
        try:
            yield
        except Exception as error:
            if not (shortage := out_of_memory(error)):
                raise
            message = str(error) if isinstance(error, AttnscopeError) else shortage
            message += "" if shortage in message else f" ({shortage})"
            limit = "" if most is None else f"; the command may take {readable(most)}"
            raise SizeError(
                f"{message}{limit}: cut the text with --max-tokens, take one --layer, a smaller --dtype or "
                "model, or set ATTNSCOPE_MEMORY (16G, off)"
            ) from error


@contextmanager
def _limited(most: int | None) -> Iterator[None]:
    if most is None:
        yield
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limits = [limit for limit in (soft, hard, most) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min(limits), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


@contextmanager
def memory_shared(count: int) -> Iterator[None]:
    """Leave this process, and each forked from it inside, a part of what its limit still allows (Linux)."""
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_DATA)
    used = _bytes("/proc/self/status", "VmData")
    with _limited(None if soft == resource.RLIM_INFINITY else used + max(0, soft - used) // count):
        yield


def most_memory() -> int | None:
    """The most bytes that this process may take; ``None`` for no limit. Raises ``InputError``."""
    setting = os.environ.get("ATTNSCOPE_MEMORY", "").strip()
    match = SIZE_PATTERN.fullmatch(setting)
    size = int(match[1]) * SIZE_UNITS[match[2].lower()] if match else 0
    if setting and setting != "off" and size < LEAST_MEMORY_BYTES:
        least = readable(LEAST_MEMORY_BYTES)
        raise InputError(f"ATTNSCOPE_MEMORY is {setting!r:.40}: give at least {least}, such as 4G, or off")
    try:
        import resource

        used, mapped = (_bytes("/proc/self/status", field) for field in ("VmData", "VmSize"))
        most, _ = resource.getrlimit(resource.RLIMIT_AS)  # ulimit -v
        mappable = math.inf if most == resource.RLIM_INFINITY else max(0, most - mapped)
        free = min(_bytes("/proc/meminfo", "MemAvailable"), _container(), mappable)
    except (ImportError, OSError, StopIteration, ValueError):
        return None  # not Linux
    if setting == "off" or Path("/dev/nvidiactl").exists():  # GPU drivers reserve far more than they use
        return None
    return size or used + max(LEAST_MEMORY_BYTES, int(MEMORY_SHARE * free))


def release_memory() -> None:
    """Give free memory back to the system: glibc keeps what lies below memory in use (elsewhere, nothing)."""
    if sys.platform == "linux":
        import ctypes

        with suppress(OSError, AttributeError):  # another C library
            ctypes.CDLL(None).malloc_trim(0)


def free_memory() -> int | None:
    """Bytes that this process may still take under all its limits; ``None`` where the system does not say."""
    try:
        import resource

        limits = [(most_memory(), "VmData")]
        for limit, field in ((resource.RLIMIT_DATA, "VmData"), (resource.RLIMIT_AS, "VmSize")):
            most, _ = resource.getrlimit(limit)
            limits.append((None if most == resource.RLIM_INFINITY else most, field))
        free = [most - _bytes("/proc/self/status", field) for most, field in limits if most]
    except (ImportError, OSError, StopIteration, ValueError):  # not Linux
        return None
    return max(0, min(free)) if free else None


def _bytes(file: str, field: str, unit: int = 1 << 10) -> int:
    """A size from a file of Linux."""
    lines = Path(file).read_text(encoding="ascii", errors="replace").splitlines()
    return unit * next(int(line.split()[1]) for line in lines if line.startswith(field))


def _container(own: str = "/proc/self/cgroup", mounted: str = "/sys/fs/cgroup") -> float:
    """What the memory limits of our control group and those around it leave (Linux, versions 1 and 2)."""
    left = [math.inf]
    with suppress(OSError, ValueError):
        for line in Path(own).read_text(encoding="utf-8", errors="replace").splitlines():
            _, controllers, group = line.split(":", 2)
            if controllers and "memory" not in controllers.split(","):
                continue
            root = Path(mounted, "memory") if controllers else Path(mounted)
            # in a container, the path may be of outside: the groups that are here still limit
            inside = root / group.strip().lstrip("/")
            groups = [each for each in (inside, *inside.parents) if each.is_relative_to(root)]
            left += [_left_by(each, *(CGROUP_1 if controllers else CGROUP_2)) for each in groups]
    return min(left)


CGROUP_1 = "limit_in_bytes", "usage_in_bytes", "total_inactive_file "
CGROUP_2 = "max", "current", "inactive_file "


def _left_by(group: Path, most: str, used: str, cached: str) -> float:
    """What one control group leaves: cached file pages are freed when memory is needed."""
    try:
        most, used = ((group / f"memory.{name}").read_text(encoding="ascii") for name in (most, used))
        return max(0, int(most) - int(used) + _bytes(f"{group}/memory.stat", cached, 1))
    except (OSError, ValueError, StopIteration):  # "max" is no limit
        return math.inf


class OutOfTime(BaseException):
    """Time is over. Not an ``Exception``, so that foreign code does not catch it."""


@contextmanager
def deadline() -> Iterator[None]:
    """Raise ``OutOfTime`` in foreign work after ``ATTNSCOPE_DEADLINE``, on the main thread under Unix.

    Counts this thread's processor time. Raises ``InputError``.
    """
    setting = os.environ.get("ATTNSCOPE_DEADLINE", "").strip() or str(DEADLINE_SECONDS)
    if setting != "off" and not (re.fullmatch(r"\d{1,9}(\.\d{1,9})?", setting) and float(setting)):
        raise InputError(f"ATTNSCOPE_DEADLINE is {setting!r:.40}: give seconds, such as 60, or off")
    main = threading.current_thread() is threading.main_thread() and hasattr(signal, "setitimer")
    if setting == "off" or not main or signal.getitimer(signal.ITIMER_PROF)[0]:  # or another timer is running
        yield
        return
    seconds, changing = float(setting), ("__enter__", "__exit__")
    end, callers = time.thread_time() + seconds, set(_frames(sys._getframe()))

    def stop(number: int, frame: FrameType | None) -> None:
        inside = itertools.takewhile(lambda each: each not in callers, _frames(frame))
        # not where the work enters or leaves a context manager: an error there would leave its state behind
        if time.thread_time() >= end and not any(each.f_code.co_name in changing for each in inside):
            raise OutOfTime(
                f"takes longer than {seconds:g} seconds, and was stopped (ATTNSCOPE_DEADLINE changes that)"
            )

    before = signal.signal(signal.SIGPROF, stop)
    # repeatedly: an exception raised in a garbage collector callback is lost
    signal.setitimer(signal.ITIMER_PROF, TICK_SECONDS, TICK_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
        callers.clear()


_printing = threading.Lock()
_replaced: list[Any] = []  # the real standard output, once for each thread inside


@contextmanager
def foreign_output() -> Iterator[None]:
    """Send what foreign code prints to standard error, from any number of threads at once.

    ``redirect_stdout`` would leave the redirection in place where two threads overlap.
    """
    with _printing:
        _replaced.append(_replaced[0] if _replaced else sys.stdout)
        sys.stdout = sys.stderr
    try:
        yield
    finally:
        with _printing:
            before = _replaced.pop()
            if not _replaced:
                sys.stdout = before


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    """A frame and those that called it, innermost first."""
    while frame is not None:
        yield frame
        frame = frame.f_back


HOST_ARGUMENTS = {f"socket.{name}": 1 for name in ("connect", "sendto", "sendmsg")}
HOST_ARGUMENTS |= {f"socket.{name}": 0 for name in ("getaddrinfo", "gethostbyname")}
"""Audit events of a connection, and which argument holds the host (the first), or an address: for other
machines a tuple with the host first."""


_everywhere: list[str] = []  # why the network is closed: to the process, and to this thread
_here: ContextVar[tuple[str, ...]] = ContextVar("_here", default=())


def close_network() -> None:
    """Close the network to the whole process, for good, and set the hub library to offline."""
    os.environ["HF_HUB_OFFLINE"] = "1"  # read when the library is imported
    constants = sys.modules.get("huggingface_hub.constants")
    if constants is not None:
        vars(constants)["HF_HUB_OFFLINE"] = True
    _watch()
    _everywhere.append("the network is closed (--offline)")


@contextmanager
def network_closed(reason: str) -> Iterator[None]:
    """Close the network to this thread: a connection raises ``ModelError``, with ``reason`` and its host."""
    _watch()
    before = _here.set((reason, *_here.get()))
    try:
        yield
    finally:
        _here.reset(before)


@cache
def _watch() -> None:
    """Install the audit hook, once: Python cannot remove one."""
    sys.addaudithook(_refuse)


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    """The audit hook: raise for a connection to another machine while the network is closed."""
    if event not in HOST_ARGUMENTS:
        return
    reason = next(iter((*_here.get(), *_everywhere)), None)
    address = arguments[HOST_ARGUMENTS[event]] if len(arguments) > HOST_ARGUMENTS[event] else None
    if reason is None or (HOST_ARGUMENTS[event] and not isinstance(address, tuple)):
        return  # such as a Unix socket, whose address is a path
    host = address[0] if isinstance(address, tuple) and address else address
    host = host.decode("utf-8", "replace") if isinstance(host, bytes) else host
    if isinstance(host, str) and not _is_local(host):
        raise ModelError(f"{reason}, and {host} was asked for")


def _is_local(host: str) -> bool:
    """Whether a host is this machine."""
    if host in ("", "localhost", "ip6-localhost"):
        return True
    from ipaddress import ip_address

    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified
