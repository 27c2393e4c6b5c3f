"""Interrupt exports and trainings at random moments, look at what is left, run again, and print a table."""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections import Counter
from importlib import import_module
from pathlib import Path

from tests.tools.interruptions.interrupt import broken, run, wrong_sums

TEXT = "The cat sat on the mat because it was tired."
ROOT = Path(__file__).resolve().parents[3]
OTHER = "A dog lay under the tree and slept there."
FORMATS = "png,svg,npz,safetensors,json,csv,html"
QUIET = (0, 130)
"""Exit codes of a command that was interrupted: it had ended already, or it ended because of it."""


def interrupted_export(chance: random.Random, folder: Path, log: Path, whole: float) -> int:
    """Interrupt an export, often into a full folder, then complete it; returns its exit code."""
    out = folder / "out"
    arguments = ["export", TEXT, "-o", str(out), "--force", "--layers", "0", "--heads", "0-1"]
    arguments += ["--format", FORMATS]
    if chance.random() < 0.5:
        other = [part.replace(TEXT, OTHER) for part in arguments]
        assert run(other, log) == 0, log.read_text()
    code = run(arguments, log, after=chance.uniform(0, whole))
    _expect(code, log, folder)
    assert run(arguments, log) == 0, log.read_text()
    assert not broken(folder)
    assert not wrong_sums(out / "manifest.json")
    return code


def interrupted_training(chance: random.Random, folder: Path, log: Path, whole: float) -> int:
    """Interrupt a training, resume it to its end, and load the result; returns its exit code."""
    arguments = training(folder)
    code = run(arguments, log, after=chance.uniform(0, whole))
    _expect(code, log, folder)
    begun = (folder / "encoder" / "training" / "terms.json").is_file()
    if begun or not (folder / "encoder" / "model.safetensors").is_file():
        assert run([*arguments, "--resume"] if begun else arguments, log) == 0, log.read_text()
    assert not broken(folder)
    assert run(["show", TEXT, "-m", str(folder / "encoder")], log) == 0, log.read_text()
    return code


def training(folder: Path) -> list[str]:
    """A training of seconds that saves after every step."""
    sizes = {"layers": 1, "heads": 2, "width": 16, "vocabulary": 200, "batch": 4, "length": 16, "steps": 25}
    text = str(ROOT / "sample_inputs" / "article.txt")
    arguments = ["train", text, text, "-o", str(folder / "encoder"), "--save-minutes", "0"]
    return arguments + [part for name, size in sizes.items() for part in (f"--{name}", str(size))]


def _expect(code: int, log: Path, folder: Path) -> None:
    told = log.read_text(encoding="utf-8", errors="replace")
    assert code in QUIET, f"exit code {code}: {told}"
    assert "Traceback" not in told, told
    assert not broken(folder), f"not whole: {broken(folder)}"


KINDS = {"export": interrupted_export, "train": interrupted_training}


def interrupt(kind: str, times: int, seed: int) -> Counter[int]:
    """Interrupt one kind of command so often; returns how often it ended with which exit code."""
    chance = random.Random(seed)
    codes: Counter[int] = Counter()
    with tempfile.TemporaryDirectory() as place:
        log = Path(place) / "log"
        first = Path(place) / "first"
        first.mkdir()
        arguments = ["export", TEXT, "-o", str(first / "out"), "--layers", "0", "--heads", "0-1"]
        if kind == "export":
            arguments += ["--format", FORMATS]
        began = time.monotonic()
        assert run(arguments if kind == "export" else training(first), log) == 0, log.read_text()
        whole = time.monotonic() - began
        for number in range(times):
            folder = Path(place) / str(number)
            folder.mkdir()
            codes[KINDS[kind](chance, folder, log, whole)] += 1
    return codes


def main() -> None:
    """Parse, interrupt, print."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.interruptions", description=__doc__)
    parser.add_argument("--times", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    own = ("attnscope.cli.commands.train", "attnscope.network")
    for library in ("torch", "matplotlib.figure", "tokenizers", *own):
        import_module(library)  # before the forks, so that interruptions fall into the work
    print(
        "| command | interrupted | ended with 130 | had ended | files not whole | second runs that failed |"
    )
    print("|---|---|---|---|---|---|")
    for kind in KINDS:
        codes = interrupt(kind, asked.times // len(KINDS), asked.seed)
        print(f"| {kind} | {codes.total()} | {codes[130]} | {codes[0]} | 0 | 0 |", flush=True)


if __name__ == "__main__":
    main()
