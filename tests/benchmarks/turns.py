"""What benchmarks share: ways that take turns in one process, and the memory of one way."""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path


def cost(work: Callable[[], object], clock: Callable[[], float] = time.process_time) -> float:
    """How long some work takes; of the processor, if no other clock is given."""
    start = clock()
    work()
    return clock() - start


def take_turns(
    ways: Mapping[str, Callable[[], object]], rounds: int, clock: Callable[[], float] = time.process_time
) -> dict[str, list[float]]:
    """What each way takes in each round, so that a busy neighbour slows all; the first round warms up."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(rounds + 1):
        for name, way in ways.items():
            taken = cost(way, clock)
            times[name] += [taken] if turn else []
    return times


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
    """The median of each column of some rows."""
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
