"""Record what every command of attnscope prints and writes, and compare two such records.

    python outputs.py record FOLDER [--checkout DIR] [--only REGEX]
    python outputs.py compare A B

To show that a refactoring changes nothing, record before and after it, and compare. ``inputs.py`` creates the
models and files that the commands read. Most commands run in forks of one process that has torch loaded
already, which prints the same and is many times faster.

The commands are the lines of ``commands.txt``, as typed after the program's name. An indented line
continues in the folder of the line above it, and may read its files; every other line starts in an empty
folder with ``models/``, ``files/`` and ``sample_inputs/``. ``$T`` is ``TEXT``, ``$SMALL`` sizes of a model
to be trained, ``< FILE`` gives standard input, and a prefix is the environment, or one of

    ALONE=1      its own Python process: for the steps before a command runs
    KEYS=a,b     browse, with these keys pressed
    LAUNCH="..." with these options of torchrun

A line that begins with ``python`` runs that file.
"""

import argparse
import asyncio
import difflib
import hashlib
import importlib
import json
import os
import pkgutil
import re
import runpy
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

FIXED = {
    "PYTHONHASHSEED": "0", "PYTHONUTF8": "1", "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", "SOURCE_DATE_EPOCH": "0", "COLUMNS": "80",
    "TERM": "xterm-256color", "LANG": "C.UTF-8",
}  # fmt: skip
"""The environment of every command; a line of ``commands.txt`` may change it."""

KEPT = ("PATH", "HOME", "VIRTUAL_ENV", "LD_LIBRARY_PATH")
PLACES = ("models", "files", "sample_inputs")
VARYING = [
    (re.compile(r"[\d,]+ tokens/s"), "<pace> tokens/s"),
    (re.compile(r"[\d.]+ minutes$", re.M), "<time> minutes"),
    (re.compile(r"\d+:\d\d:\d\d left"), "<time> left"),
    (re.compile(r"0x[0-9a-f]{9,}"), "<address>"),
    (re.compile(r"cached \d\d:\d\d|\d{4}-\d\d-\d\dT[\d:]{8}\+00:00"), "<moment>"),
]
"""What differs from run to run in what is printed, and what stands in its place."""


NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?")

MOST, WIDEST = 14, 160
"""Lines of a difference that are shown, and characters of each."""

LONGEST = 300  # seconds that a command may take

TEXT = "The cat sat on the mat because it was tired."

SPECIAL = ("ALONE", "KEYS", "LAUNCH")

SMALL = "--num-layers 2 --num-heads 2 --width 16 --length 16 --batch 4 --vocabulary 150"


@dataclass(frozen=True)
class Line:
    """One command: as it stands in the list, and its parts; ``where`` names its place in a chain."""

    text: str
    where: str
    argv: list[str]
    environment: dict[str, str]
    stdin: str | None
    special: dict[str, str]


def chains(only: str = "") -> Iterator[list[Line]]:
    """The commands that follow each other in one folder; only those with a command that matches ``only``."""
    lines = Path(__file__).with_name("commands.txt").read_text("utf-8").splitlines()
    parts = re.split(r"\n+(?! )", "\n".join(line for line in lines if line[:1] not in ("", "#")))
    for part in parts:
        texts = [line.strip() for line in part.splitlines()]
        if any(re.search(only, text) for text in texts):
            yield [_line(text, " && ".join(texts[: number + 1])) for number, text in enumerate(texts)]


def _line(text: str, where: str) -> Line:
    words = shlex.split(text.replace("$SMALL", SMALL))
    given: dict[str, str] = {}
    while words and re.match(r"[A-Z_0-9]+=", words[0]):
        name, _, value = words.pop(0).partition("=")
        given[name] = value
    stdin = None
    if "<" in words:
        words, stdin = words[: words.index("<")], words[-1]
    special = {name: given.pop(name) for name in SPECIAL if name in given}
    return Line(text, where, [TEXT if word == "$T" else word for word in words], given, stdin, special)


def record(folder: Path, checkout: Path, only: str) -> None:
    """Start anew with the fixed environment and the checkout's package; then make what the commands read, run
    them all, and write what they print and write."""
    environment = {name: os.environ[name] for name in KEPT if name in os.environ}
    environment |= {**FIXED, "PYTHONPATH": str(checkout)}
    if environment.items() - os.environ.items():
        os.execve(sys.executable, [sys.executable, __file__, *sys.argv[1:]], environment)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that nothing stays
    with tempfile.TemporaryDirectory(prefix="outputs-", ignore_cleanup_errors=True) as scratch:
        os.environ["HF_HOME"] = f"{scratch}/hub"
        shutil.copytree(checkout / "sample_inputs", f"{scratch}/sample_inputs")
        _record(folder, checkout, only, Path(scratch))


def _record(folder: Path, checkout: Path, only: str, scratch: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise SystemExit(f"{folder} is not empty: name another folder")
    lines = [line for chain in chains(only) for line in chain]
    models = {name for line in lines for name in re.findall(r"models/([\w-]+)", line.text)}
    _load(checkout, models)
    with open(os.devnull, "w") as nowhere:
        make = importlib.import_module("inputs").make
        if forked(lambda: make(scratch, models), nowhere, nowhere, os.devnull)[0]:
            raise SystemExit("the models and files that the commands read cannot be made")
    names, run, seconds = {str(checkout): "<checkout>", str(scratch): "<scratch>"}, scratch / "run", {}
    for chain in chains(only):
        places = [folder / name_of(line) for line in chain]
        shutil.rmtree(run, ignore_errors=True)
        run.mkdir()
        for place in PLACES:
            (run / place).symlink_to(scratch / place)
        for line, into in zip(chain, places, strict=True):
            began, before = time.monotonic(), _stamps(run)
            into.mkdir()
            code = _run(line, run, into)
            if code < 0:
                raise SystemExit(f"killed by signal {-code}, or after {LONGEST} seconds: {line.text}")
            for stream in ("stdout", "stderr"):
                _settle(into / stream, names)
            about = {"line": line.text, "argv": line.argv, "code": code}
            for path, stamp in _stamps(run).items():
                if before.get(path) != stamp:
                    (into / "files" / path).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(run / path, into / "files" / path)
            (into / "command.json").write_text(json.dumps(about, indent=1, ensure_ascii=False) + "\n")
            seconds[line.text] = round(time.monotonic() - began, 2)
            print(f"{seconds[line.text]:6.2f} s  {code:3}  {line.text}", flush=True)
    (folder / "seconds.json").write_text(json.dumps(seconds, indent=1, ensure_ascii=False) + "\n")
    print(f"{len(seconds)} commands in {sum(seconds.values()):.0f} s")


def name_of(line: Line) -> str:
    """The folder of a command: readable, and the same wherever in the list the command stands."""
    words = re.sub(r"[^A-Za-z0-9.]+", "-", line.text.replace("$T", "")).strip("-.")
    return f"{words[:70].strip('-.')}-{hashlib.sha256(line.where.encode()).hexdigest()[:6]}"


def _load(checkout: Path, models: set[str]) -> None:
    """Import once what every fork needs; nothing that looks at the environment when it is imported."""
    if models:
        importlib.import_module("inputs").load_classes(models)
    for name in ("torch", "scipy.optimize", "matplotlib.backends.backend_agg", "PIL.PngImagePlugin"):
        importlib.import_module(name)
    package = importlib.import_module("attnscope")
    assert Path(package.__file__).resolve().is_relative_to(checkout), package.__file__
    for module in pkgutil.walk_packages(package.__path__, "attnscope."):
        if not module.name.endswith("__main__") and ".browser" not in module.name:
            with suppress(ImportError):  # the command that needs it will say so
                importlib.import_module(module.name)
    sys.modules["torch"].manual_seed(0)  # ViLT draws the order of its patches


def _run(line: Line, run: Path, into: Path) -> int:
    """Run a command in the folder ``run``; returns its exit code."""
    given = os.devnull if line.stdin is None else run / line.stdin
    with (into / "stdout").open("wb") as out, (into / "stderr").open("wb") as err:
        keys, launch = line.special.get("KEYS"), shlex.split(line.special.get("LAUNCH", ""))
        if keys is None and (launch or "ALONE" in line.special):
            start = ["-m", "torch.distributed.run", *launch] if launch else []
            start += ["-m", "attnscope", *line.argv] if line.argv[:1] != ["python"] else line.argv[1:]
            start, environment = [sys.executable, *start], {**os.environ, **line.environment}
            with open(given, "rb") as read:
                streams = {"stdin": read, "stdout": out, "stderr": err}
                return subprocess.run(start, cwd=run, env=environment, timeout=LONGEST, **streams).returncode

        def command() -> None:
            os.environ.update(line.environment)
            os.chdir(run)
            if "PYTHONIOENCODING" in line.environment:
                for stream in (sys.stdout, sys.stderr):
                    stream.reconfigure(encoding=line.environment["PYTHONIOENCODING"])
            if keys is not None:
                press(keys)
            if line.argv[:1] == ["python"]:
                sys.argv = line.argv[1:]
                runpy.run_path(line.argv[1], run_name="__main__")
            else:
                sys.argv = ["attnscope", *line.argv]
                runpy.run_module("attnscope", run_name="__main__", alter_sys=True)

        return forked(command, out, err, given)[0]


def forked(
    work: Callable[[], None], out: IO, err: IO, given: str | Path, seconds: int = LONGEST
) -> tuple[int, Any]:
    """Do ``work`` in a fork of this process, which reads ``given``.  -> its exit code, and what it used"""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    child = os.fork()
    if child:
        before = signal.signal(signal.SIGALRM, lambda *_: os.kill(child, signal.SIGKILL))
        signal.alarm(seconds)
        _, status, usage = os.wait4(child, 0)
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
        return os.waitstatus_to_exitcode(status), usage
    code = 1
    try:
        for number, file in enumerate((os.open(given, os.O_RDONLY), out.fileno(), err.fileno())):
            os.dup2(file, number)
        work()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        try:
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
        finally:
            os._exit(code)  # whatever happened: a fork must never go on with what its parent does


def press(keys: str) -> None:
    """Let an app of Textual run without a terminal, press keys, and save its screen as a picture."""
    from textual import constants
    from textual.app import App

    def run(app: App) -> None:
        async def go() -> None:
            async with app.run_test(size=(100, 30)) as pilot:
                await pilot.press(*keys.split(","))
                await pilot.pause(0.2)
                print("\n".join(strip.text.rstrip() for strip in app.screen._compositor.render_strips()))
                Path("screen.svg").write_text(app.export_screenshot())

        asyncio.run(go())

    constants.COLOR_SYSTEM = "truecolor"
    App.run = run


def _stamps(run: Path) -> dict[str, tuple[int, int]]:
    """The files in a folder, each with what changes when it is written."""
    stamps = {}
    for at, folders, files in os.walk(run):
        folders[:] = [name for name in folders if not Path(at, name).is_symlink()]
        for path in (Path(at, name) for name in files):
            stamps[str(path.relative_to(run))] = path.stat().st_ino, path.stat().st_mtime_ns
    return stamps


def _settle(path: Path, names: dict[str, str]) -> None:
    """Put fixed words in the place of times and of this machine's folders."""
    text = path.read_bytes().decode("utf-8", "backslashreplace")
    for folder, name in names.items():
        text = text.replace(folder, name)
    for pattern, words in VARYING:
        text = pattern.sub(words, text)
    path.write_bytes(text.encode())


def compare(one: Path, other: Path) -> int:
    """Print all differences and how many commands have any; returns the exit code."""
    same, differ = 0, 0
    names = sorted({path.parent.name for record in (one, other) for path in record.glob("*/command.json")})
    for name in names:
        known = [record / name for record in (one, other) if (record / name / "command.json").is_file()]
        about = json.loads((known[0] / "command.json").read_text())
        found = list(_command(*known)) if len(known) == 2 else [f"only in {known[0].parent}"]
        same, differ = same + (not found), differ + bool(found)
        if found:
            print(f"\n{about['line']}\n  {name}")
            for line in found:
                print(f"    {line}")
    print(f"{same} same, {differ} differ")
    return int(differ > 0 or not names)


def _command(one: Path, other: Path) -> Iterator[str]:
    """What differs between two runs of a command."""
    codes = [json.loads((run / "command.json").read_text())["code"] for run in (one, other)]
    if codes[0] != codes[1]:
        yield f"exit code: {codes[0]} and {codes[1]}"
    paths = [path.relative_to(run) for run in (one, other) for path in run.rglob("*") if path.is_file()]
    for name in sorted({*paths} - {Path("command.json")}):
        left, right = one / name, other / name
        if not (left.is_file() and right.is_file()):
            yield f"{name}: in {(one if left.is_file() else other).parent} only"
        elif left.read_bytes() != right.read_bytes():
            yield from (f"{name}: {line}" for line in _file(left, right))


def _file(left: Path, right: Path) -> list[str]:
    """What differs between two files whose bytes differ; nothing if it is not more than times."""
    one, other = _contents(left), _contents(right)
    found = [f"{name} is in one of them only" for name in sorted(one.keys() ^ other.keys())]
    for name in sorted(one.keys() & other.keys()):
        found += [f"{name}: {line}".removeprefix(": ") for line in _differences(one[name], other[name])]
    return found or ["the same pixels, other bytes"] * (left.suffix == ".png")


def _contents(path: Path) -> dict[str, Any]:
    """The arrays and texts of a file by their names; a file that is neither is an array of bytes."""
    kind = path.suffix.lower()
    try:
        if kind == ".npz":
            return dict(np.load(path, allow_pickle=False))
        if kind in (".safetensors", ".trace"):
            from safetensors.numpy import load

            content = path.read_bytes()
            size = 8 + int.from_bytes(content[:8], "little")
            return {**load(content), "header": content[8:size].decode()}
        if kind == ".png":
            from PIL import Image

            return {"pixels": np.asarray(Image.open(path).convert("RGBA")).astype(int)}
        return {"": path.read_bytes().decode("utf-8")}
    except Exception:
        return {"": np.frombuffer(path.read_bytes(), np.uint8)}


def _differences(one: Any, other: Any) -> list[str]:
    """What differs between two texts, or between two arrays."""
    if isinstance(one, str) and isinstance(other, str):
        return _text(_plain(one), _plain(other))
    one, other = np.asarray(one), np.asarray(other)
    try:
        np.testing.assert_array_equal(one, other, strict="U" not in (one.dtype.kind, other.dtype.kind))
    except AssertionError as error:
        return [line for line in str(error).splitlines() if line.strip()][:MOST]
    return []


def _plain(text: str) -> str:
    """A text as it is compared: JSON a line for each value, without times."""
    try:
        told = json.loads(text, object_hook=lambda each: {k: v for k, v in each.items() if k != "seconds"})
    except ValueError:
        return text
    return json.dumps(told, indent=1, ensure_ascii=False)


def _text(one: str, other: str) -> list[str]:
    """A short unified difference; where nothing but numbers differ, also by how much."""
    if one == other:
        return []
    found = list(difflib.unified_diff(one.splitlines(), other.splitlines(), n=0, lineterm=""))[2:]
    told = [line[:WIDEST] for line in found[:MOST]] or ["line ends differ"]
    told += [f"and {len(found) - MOST} more lines"] if len(found) > MOST else []
    if NUMBER.sub("0", one) == NUMBER.sub("0", other):
        pairs = zip(*(map(float, NUMBER.findall(text)) for text in (one, other)), strict=True)
        gaps = [abs(mine - theirs) for mine, theirs in pairs if mine != theirs]
        told.append(f"nothing but {len(gaps)} numbers differ, at most by {max(gaps, default=0):.3g}")
    return told


def main() -> None:
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=plain)
    verbs = parser.add_subparsers(dest="verb", required=True)
    options = verbs.add_parser("record")
    options.add_argument("folder", type=Path)
    options.add_argument("--checkout", type=Path, default=Path(__file__).parents[3])
    options.add_argument("--only", default="", help="only chains with a command that matches this")
    options = verbs.add_parser("compare")
    options.add_argument("records", nargs=2, type=Path)
    asked = parser.parse_args()
    if asked.verb == "compare":
        raise SystemExit(compare(*asked.records))
    record(asked.folder.resolve(), asked.checkout.resolve(), asked.only)


if __name__ == "__main__":
    main()
