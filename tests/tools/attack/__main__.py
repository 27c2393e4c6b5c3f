"""Files, folders, texts and moments meant to break attnscope, generated from valid ones by number.

    python -m tests.tools.attack                    # some 2,200, one after another
    python -m tests.tools.attack trace --first 7 --cases 1

A case is determined by its kind and its number, and runs in its own process with limits on time and memory.
It must end in an answer or in a one-sentence error, reach nothing outside of its folder, and leave complete
files; a table counts the cases that did, and lists all that did not.
"""

import argparse
import csv
import json
import os
import re
import resource
import shutil
import signal
import sys
import tempfile
import unicodedata
from functools import partial
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any
from xml.etree import ElementTree

from tests.incomplete_files import broken
from tests.tools.attack.cases import KINDS, make_bases
from tests.tools.outputs.outputs import forked

MEMORY = 2 * 10**9  # bytes that a command is told it may take; what libraries share with other processes
SHARED = 1 << 30  # comes on top
SECONDS = 60  # of processor time, since other programs may keep the machine busy; five times as many in all
REACHES = re.compile(r"socket\.(connect|getaddrinfo)|subprocess\.Popen|os\.(system|exec|posix_spawn|fork)")
"""What no case may do."""
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
NUMBER = re.compile(r"[-+](\d+\.?\d*(e[-+]?\d+)?|inf|nan)")
"""A cell of CSV that is a number, though it begins as a formula does."""


def _run(kind: str, number: int, bases: Path, place: Path) -> None:
    """Make a case and become the command."""
    work = place / "work"
    work.mkdir()
    os.chdir(work)
    os.environ["TMPDIR"] = tempfile.tempdir = str(place)
    case = KINDS[kind][0](Random(f"{kind} {number}"), bases)
    (place / "case").write_text(repr(case), "utf-8", "backslashreplace")
    sys.stdin = sys.__stdin__ = os.fdopen(0, closefd=False)  # whatever stood there, as in tests
    sys.stdout = sys.__stdout__ = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = sys.__stderr__ = os.fdopen(2, "w", -1, "utf-8", "backslashreplace", closefd=False)
    sys.dont_write_bytecode = True
    _watch(place)
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 5))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = ["attnscope", *case.arguments]
    from attnscope.__main__ import main

    (case.act or main)()


def _watch(place: Path) -> None:
    """Write down each attempt to reach the network, to start a program or to write outside of the folder."""
    log = os.open(place / "reached", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        fonts = event == "subprocess.Popen" and arguments[0] == "fc-list"  # Matplotlib looks for letters
        told = f"{event} {arguments!r:.300}" if REACHES.fullmatch(event) and not fonts else ""
        if event == "open" and isinstance(arguments[0], str) and (arguments[2] or 0) & WRITING:
            path = os.path.abspath(arguments[0])
            told = "" if path.startswith((str(place), "/dev/")) else f"wrote {path}"
        if event == "exec" and str(getattr(arguments[0], "co_filename", "")).startswith(str(place)):
            told = f"ran {arguments[0].co_filename}"
        if told:
            os.write(log, f"{told}\n".encode("utf-8", "backslashreplace"))

    sys.addaudithook(watch)


def _verdict(place: Path, code: int, usage: Any) -> str:
    out, told = (place.joinpath(name).read_bytes() for name in ("stdout", "stderr"))
    said = told.decode("utf-8", "backslashreplace")
    end = said.strip()[-400:]
    if code in (-signal.SIGXCPU, -signal.SIGKILL):
        return f"without end: {usage.ru_utime:.0f} s"
    if code not in (0, 1, 2):
        return f"ended with {code}: {end}"
    if usage.ru_maxrss << 10 > MEMORY + SHARED:
        return f"took {usage.ru_maxrss / 1e6:.1f} GB"
    for bad in ("Traceback", "please report it", "Warning:", "warnings.warn"):
        if bad in said:
            return f"{bad}: {end}"
    lines = [line for line in said.splitlines() if line.startswith(("attnscope: ", '{"error"'))]
    if code == 2 and (
        not lines or len(lines[-1]) > 700 * (1 + lines[-1].startswith("{"))
    ):  # JSON has it twice
        return f"no sentence: {end}"
    if wrong := unseen(out) or unseen(told):
        return f"raw {wrong} is printed"
    if reached := (place / "reached").read_text("utf-8"):
        return f"reached: {reached[:300]}"
    if owned := [path.name for path in (place / "work").rglob("owned*")]:
        return f"what nobody typed wrote {owned}"
    left = [name for name in broken(place / "work") if name.startswith((".attnscope-", "out"))]
    known = {"work", "case", "stdout", "stderr", "reached"}
    if left := [*left, *(path.name for path in place.iterdir() if path.name not in known)]:
        return f"not whole: {left}"
    if any(wrong := unclean(path) for path in (place / "work").glob("out*") if path.is_file()):
        return f"in a file: {wrong}"
    return "sentence" if code == 2 else "answer"


def unseen(printed: bytes) -> str:
    """The first thing in an output that a terminal obeys, or that is not UTF-8; else nothing."""
    try:
        text = printed.decode("utf-8")
    except UnicodeDecodeError as error:
        return f"bytes {error.object[error.start : error.end]!r}"
    for char in set(text) - set("\n\t\u200c\u200d\u2068\u2069"):
        if unicodedata.category(char) in ("Cc", "Cs", "Cf", "Zl", "Zp") or ord(char) & 0xFFFE == 0xFFFE:
            return f"U+{ord(char):04X}"
    return ""


def unclean(path: Path) -> str:
    """What is wrong with a file that was written: XML that is none, JSON that is none, a formula in CSV."""
    try:
        if path.suffix == ".svg":
            ElementTree.fromstring(path.read_bytes())
        if path.suffix == ".json":
            json.loads(path.read_text("utf-8"), parse_constant=lambda name: 1 / 0)
        if path.suffix == ".html" and "<script>alert" in path.read_text("utf-8"):
            return "a script"
        if path.suffix == ".csv":
            with path.open(encoding="utf-8", newline="") as file:
                for cell in [cell for row in csv.reader(file) for cell in row]:
                    if cell.startswith(("=", "+", "-", "@")) and not NUMBER.fullmatch(cell):
                        return f"a formula {cell!r:.40}"
    except Exception as error:
        return f"{path.name}: {type(error).__name__} {error}"
    return ""


def run_case(kind: str, number: int, bases: Path, place: Path) -> tuple[str, float, str]:
    """One case's verdict, processor time and what was changed.

    A verdict is ``answer`` or ``sentence``, or says what was wrong.
    """
    folder = place / f"{kind}{number}"
    folder.mkdir()
    with (folder / "stdout").open("wb") as out, (folder / "stderr").open("wb") as err:
        work = partial(_run, kind, number, bases, folder)
        code, usage = forked(work, out, err, os.devnull, 5 * SECONDS)
    verdict = _verdict(folder, code, usage)
    case = (folder / "case").read_text("utf-8") if (folder / "case").exists() else "not made"
    if verdict == "sentence":
        case += "\n    " + (folder / "stderr").read_text("utf-8").strip()[-300:]
    shutil.rmtree(folder, ignore_errors=True)
    return verdict, usage.ru_utime + usage.ru_stime, case


def main() -> None:
    """Parse, run, print; exit code 1 where anything was wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.attack")
    parser.add_argument("kinds", nargs="*", help=", ".join(KINDS))
    parser.add_argument("--cases", type=int)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--all", action="store_true", help="print every case, and every sentence")
    asked = parser.parse_args()
    os.environ |= {"ATTNSCOPE_MEMORY": str(MEMORY), "ATTNSCOPE_DEADLINE": "10"}
    os.environ |= {"ATTNSCOPE_CACHE": "off", "NO_COLOR": "1"}
    os.environ["OMP_NUM_THREADS"] = "1"  # a fork has none of the threads that it would wait for
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="attack-") as made:
        place = make_bases(Path(made))
        for library in ("matplotlib.backends.backend_svg", "attnscope.questions.stats", "rich.table"):
            import_module(library)  # before the forks, so that each of them is quick
        print("| kind | cases | answers | sentences | wrong | longest |\n|---|---|---|---|---|---|")
        for kind in asked.kinds or KINDS:
            count = asked.cases or KINDS[kind][1]
            numbers = range(asked.first, asked.first + count)
            found = {number: run_case(kind, number, place, place) for number in numbers}
            verdicts = [verdict for verdict, _, _ in found.values()]
            answers, sentences = verdicts.count("answer"), verdicts.count("sentence")
            longest = max(seconds for _, seconds, _ in found.values())
            bad = count - answers - sentences
            print(f"| {kind} | {count} | {answers} | {sentences} | {bad} | {longest:.0f} s |", flush=True)
            for number, (verdict, seconds, case) in found.items():
                fell = verdict not in ("answer", "sentence")
                wrong += fell
                if fell or asked.all:
                    print(f"  {kind} {number} ({seconds:.0f} s): {verdict}\n    {case[:800]}", flush=True)
    raise SystemExit(wrong > 0)


if __name__ == "__main__":
    main()
