"""The common part of surveys: each item in its own child process with limits, and one table."""

import argparse
import json
import os
import resource
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

Row: TypeAlias = "dict[str, Any]"


def survey(
    tool: str,
    names: Callable[[], Iterable[str]],
    work: Callable[[str], Row],
    table: Callable[[list[Row]], str],
    *,
    seconds: int = 40,
) -> None:
    """Parse the command line, ``work`` on the names that are given, or on all that have no row yet.

    Rows stay in a file of JSON lines, so that parts add up. Of work or a child that does not end well the row
    is ``note`` alone.
    """
    parser = argparse.ArgumentParser(prog=f"python -m tests.tools.{tool}")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--results", type=Path, default=Path(f"{tool}.jsonl"))
    parser.add_argument("--table", type=Path)
    parser.add_argument("--seconds", type=int, default=seconds, help="of work that each may take")
    parser.add_argument("-v", action="store_true")
    options = parser.parse_args()
    import torch
    import transformers
    import transformers.models.llama.modeling_llama  # what children need is imported once

    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    lines = options.results.read_text("utf-8").splitlines() if options.results.exists() else []
    rows = {row["name"]: row for row in map(json.loads, lines)}
    for name in options.names or [name for name in names() if name not in rows]:
        start = time.monotonic()
        said, status = in_a_fork(lambda name=name: json.dumps(_row(work, name)), options.seconds, 10 << 30)
        note = f"the process ended with status {status} (time or memory)"
        rows[name] = {"name": name} | (json.loads(said) if said else {"note": note})
        print(f"{time.monotonic() - start:5.1f}s {json.dumps(rows[name])}", flush=True)
        with options.results.open("a", encoding="utf-8") as file:  # of two rows of a name the last one counts
            file.write(f"{json.dumps(rows[name])}\n")
    if options.table:
        options.table.write_text(table(list(rows.values())), "utf-8")


def _row(work: Callable[[str], Row], name: str) -> Row:
    try:
        return work(name)
    except Exception as error:  # a row of the table, not the end of it
        return {"note": describe_error(error)}


def first_line(error: BaseException) -> str:
    """Its type, and the first line of what it says."""
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:160]


def describe_error(error: BaseException) -> str:
    """Its first line and its place; with ``-v`` all of it is printed, too."""
    if "-v" in sys.argv:
        traceback.print_exception(error)
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{first_line(error)} [{Path(frame.filename).name}:{frame.lineno}]"


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
        said = pipe.read()
    _, status = os.waitpid(child, 0)
    return said, status


def grid(rows: Iterable[Sequence[object]]) -> list[str]:
    """The lines of a table in Markdown; the first row is its head."""
    rows = [["", *map(str, row), ""] for row in rows]
    head, *others = ("|".join(f" {cell} " if cell else " " for cell in row).strip() for row in rows)
    return [head, f"|{'---|' * (len(rows[0]) - 2)}", *others]


def report(
    tool: str, counts: Mapping[str, object], says: Mapping[str, Mapping[str, str]], more: Iterable[str] = ()
) -> str:
    """A page: counts, a heading with a line for each name where there are any, and whatever follows.

    What the tool's page says above its counts and behind ``HAND`` is written by hand, and stays.
    """
    page = Path(__file__).with_name(f"{tool}.md").read_text("utf-8")
    lines = [page.partition("\n|")[0], *grid([("", ""), *counts.items()]), ""]
    for title, each in says.items():
        named = [f"- `{name}`: {line}" for name, line in each.items()]
        lines += [f"## {title} ({len(each)})", "", *named, ""] if each else []
    _, hand, why = page.partition(HAND)
    return "\n".join([*lines, *more]).rstrip() + f"\n{hand}{why}"


HAND = "\n## Looked into by hand\n"
