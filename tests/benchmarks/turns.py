"""What benchmarks share: ways that take turns, whole processes, and the memory of one way."""

import argparse
import os
import resource
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from attnscope.storage.cache import LOOKS

Taken = TypeVar("Taken")


def cost(work: Callable[[], object]) -> float:
    """How many seconds some work in this process takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def process(
    arguments: Sequence[str], cache: Path, *, fresh: bool = True, **environment: str
) -> tuple[float, float]:
    """Wall clock and processor time of one process, with bytecode as an installed package has it.

    ``fresh``: nothing is kept yet, so that the model runs; machine code that was compiled stays.
    """
    kept = {"PYTHONPYCACHEPREFIX": f"{cache}/bytecode", "ATTNSCOPE_CACHE": str(cache)}
    given = {**os.environ, **kept, **environment}
    given.pop("PYTHONDONTWRITEBYTECODE", None)
    if fresh:
        shutil.rmtree(cache / LOOKS, ignore_errors=True)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, *arguments]
    wall = cost(lambda: subprocess.run(command, check=True, capture_output=True, env=given))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def take_turns(ways: Mapping[str, Callable[[], Taken]], rounds: int, warm: int = 1) -> dict[str, list[Taken]]:
    """What each way gives in each round but ``warm`` ones; in turns, so that a busy neighbour slows all."""
    times: dict[str, list[Taken]] = {name: [] for name in ways}
    for _ in range(warm + rounds):
        for name, way in ways.items():
            times[name].append(way())
    return {name: taken[warm:] for name, taken in times.items()}


def ratio(times: Mapping[str, list[float]], name: str, to: str) -> float:
    """The median over the rounds of what one way takes to what another takes in the same round."""
    return statistics.median(mine / other for mine, other in zip(times[name], times[to], strict=True))


def options(about: str | None, **defaults: object) -> argparse.ArgumentParser:
    """A parser of numbers, or lists of them or of words, each with its default."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawTextHelpFormatter)
    for name, default in defaults.items():
        first = default[0] if isinstance(default, list) else default
        several = {"nargs": "+"} if isinstance(default, list) else {}
        parser.add_argument(f"--{name}", type=type(first), default=default, **several)
    return parser


def medians(columns: Iterable[Sequence[float]]) -> list[float]:
    return [statistics.median(column) for column in zip(*columns, strict=True)]


def peak(module: str, *arguments: object) -> float:
    """Megabytes that a way adds to its loaded model, as ``module`` prints in a process of its own."""
    command = [sys.executable, "-m", module, *map(str, arguments)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])


def print_peak(run: Callable[[], object]) -> None:
    """Run once, and print what the peak memory adds to what is held now, in MB (Linux only)."""
    before = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # start the peak anew
    run()
    print((_status("VmHWM") - before) / 1024)


def _status(name: str) -> int:
    """One line of this process's status, in kB."""
    lines = Path("/proc/self/status").read_text("utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))
