"""Try many inputs of each kind and print what came of it as a table."""

from __future__ import annotations

import argparse
import logging
import math
import os
import tempfile
import time
import traceback
import warnings
from contextlib import suppress
from importlib import import_module
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.tools.fuzz.kinds import KINDS


class _Over(KeyboardInterrupt):
    """The time is over; Hypothesis takes it for no failure."""


def try_kind(name: str, inputs: int, start: int, seconds: float = math.inf) -> int:
    """Run one kind's property on so many inputs; returns how many ran. Raises on the first that fails.

    No input begins when so many seconds are over.
    """
    tried, end = 0, time.monotonic() + seconds

    @seed(start)
    @settings(
        max_examples=inputs,
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def holds(data: st.DataObject) -> None:
        nonlocal tried
        if time.monotonic() > end:
            raise _Over
        tried += 1
        with tempfile.TemporaryDirectory(prefix="attnscope-fuzz-") as folder:
            KINDS[name](data, Path(folder))

    with suppress(_Over):
        holds()
    return tried


def main() -> None:
    """Parse, run, print."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.fuzz", description=__doc__)
    parser.add_argument("kinds", nargs="*", default=list(KINDS), help=f"any of {', '.join(KINDS)}")
    parser.add_argument("--inputs", type=int, default=2000)
    parser.add_argument("--minutes", type=float, default=math.inf, help="for one kind")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"  # a made-up model name must not ask the network
    warnings.simplefilter("ignore")
    logging.disable()
    for library in ("torch", "transformers.models.auto", "matplotlib.figure", "attnscope.questions.overview"):
        import_module(library)  # before any clock ticks
    failed = False
    print("| kind | inputs | what it is | outcome |\n|---|---|---|---|")
    for name in asked.kinds:
        began = time.monotonic()
        what = (KINDS[name].__doc__ or "").split("\n")[0].rstrip(".")
        try:
            tried = try_kind(name, asked.inputs, asked.seed, 60 * asked.minutes)
            outcome = "a result or one sentence each"
        except Exception as error:
            failed, tried, outcome = True, 0, f"FAILED: {type(error).__name__}, see below"
            traceback.print_exception(error, limit=-3)
        seconds = time.monotonic() - began
        print(f"| {name} | {tried:,} | {what} | {outcome} ({seconds:.0f} s) |", flush=True)
    raise SystemExit(failed)


if __name__ == "__main__":
    main()
