"""Check every model in a process of its own, with a limit of time and memory, and write the table."""

from __future__ import annotations

import argparse
import json
import time
import warnings
from pathlib import Path

import torch

from tests.models.torchvision_parts import can_import_torchvision
from tests.tools.coverage.fork import in_a_fork
from tests.tools.libraries.check import Checked, check
from tests.tools.libraries.made import Make, all_models
from tests.tools.libraries.table import table

SECONDS, MEMORY = 120, 10 << 30


def attempt(name: str, make: Make) -> Checked:
    """One model, built and checked; what fails is said."""
    try:
        torch.manual_seed(0)
        model, arguments, inputs = make()
    except Exception as error:
        return Checked(name, note=f"it cannot be built: {said(error)}")
    try:
        return check(name, model.eval(), arguments, inputs)
    except Exception as error:
        return Checked(name, note=f"it fails: {said(error)}")


def said(error: Exception) -> str:
    """The kind of an error, and its first line."""
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:160]


def main() -> None:
    """Check the models whose names hold one of the words, or all; parts add up in a JSON-lines file."""
    parser = argparse.ArgumentParser()
    parser.add_argument("words", nargs="*")
    parser.add_argument("--results", type=Path, default=Path("libraries.jsonl"))
    parser.add_argument("--table", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    can_import_torchvision()  # timm's models ask for it
    done: dict[str, Checked] = {}
    if options.results.exists():
        lines = map(json.loads, options.results.read_text().splitlines())
        done = {line["model"]: Checked(**line) for line in lines}
    for name, make in all_models().items():
        if options.words and not any(word in name for word in options.words):
            continue
        if not options.words and name in done:
            continue
        start = time.monotonic()
        line, status = in_a_fork(lambda name=name, make=make: attempt(name, make).json(), SECONDS, MEMORY)
        ended = Checked(name, note=f"the process ended with status {status} (time or memory)")
        done[name] = Checked(**json.loads(line)) if line else ended
        print(f"{time.monotonic() - start:5.1f}s {done[name].json()}", flush=True)
        options.results.write_text("".join(f"{each.json()}\n" for each in done.values()))
    if options.table:
        options.table.write_text(table(list(done.values())))


if __name__ == "__main__":
    main()
