"""The commands of README.md and of the tour: take them out, run them, and write their real output back.

``python -m tests.tools.readme`` runs every ``$ attnscope ...`` command of a console block, as it would run in
a pipe of 80 columns, and replaces what stands below it; ``--picture`` draws the picture of README.md instead.
"""

import contextlib
import io
import os
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from unittest.mock import patch

from tests.cli.run import Ran

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
DOCUMENTS = (README, ROOT / "attnscope" / "cli" / "TOUR.md")
BLOCK = re.compile(r"```console\n\$ (attnscope [^\n]*)\n(.*?)```", re.S)
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)

NUMBER = re.compile(r"(\d+(?:\.\d+)?)")
ROUNDING = re.compile(r"\b\de-0[6-9]\b")
LEVELS = {shade: level for level, shade in enumerate(" ░▒▓█")} | {
    bar: eighths / 2 for eighths, bar in enumerate("▏▎▍▌▋▊▉", start=1)
}


def examples() -> Iterator[tuple[str, str]]:
    """Each command that stands with its output, and that output."""
    for document in DOCUMENTS:
        for match in BLOCK.finditer(document.read_text("utf-8")):
            yield match[1], match[2]


def mentions() -> list[str]:
    """Every command that stands in a block without its output."""
    text = "\n".join(document.read_text("utf-8") for document in DOCUMENTS)
    blocks = [block for language, block in FENCED.findall(text) if not language]
    return [line for block in blocks for line in block.splitlines() if "attnscope" in line]


def run(words: Sequence[str], folder: Path = ROOT, **environment: str) -> Ran:
    """Run a command in this process and in a folder, with this beside the environment."""
    from attnscope.cli import main as attnscope

    before, code = Path.cwd(), 0
    out, err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True), io.StringIO()
    os.chdir(folder)
    try:
        with (
            patch.object(sys, "argv", [*words]),
            patch.dict(os.environ, environment),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            attnscope()
    except SystemExit as ended:
        code = ended.code or 0
    finally:
        os.chdir(before)
    return Ran(code, out.buffer.getvalue().decode("utf-8"), err.getvalue())


@cache
def output(command: str, folder: Path = ROOT) -> str:
    """What a command prints in a folder, in a pipe of 80 columns."""
    lines = run(shlex.split(command), folder, COLUMNS="80").out.splitlines()
    return "\n".join(line.rstrip() for line in lines) + "\n"


def block(command: str, folder: Path = ROOT) -> str:
    return f"```console\n$ {command}\n{output(command, folder)}```"


def difference(expected: str, printed: str, share: float = 0.0) -> str | None:
    """The first line that says something else, or None.

    A number may be off by one in its last place or by a share of itself, a cell by one shade: other machines
    round otherwise. An error of rounding (5e-07) is a machine's own: only that it is one is compared.
    """
    lines, others = (ROUNDING.sub("1e-07", text).splitlines() for text in (expected, printed))
    for line, other in zip(lines, others, strict=False):
        if not _same(line, other, share):
            return f"- {line}\n+ {other}"
    return None if len(lines) == len(others) else f"{len(lines)} lines, but {len(others)} printed"


def _same(line: str, other: str, share: float) -> bool:
    pieces, others = NUMBER.split(line), NUMBER.split(other)  # text, number, text, number, ... text
    return len(pieces) == len(others) and all(
        _same_number(piece, its, share) if place % 2 else _same_text(piece, its)
        for place, (piece, its) in enumerate(zip(pieces, others, strict=True))
    )


def _same_number(one: str, other: str, share: float) -> bool:
    places = len(one.partition(".")[2])
    last = 0.5 if not places and len(one) < 2 else 1.5  # a small whole number counts something
    allowed = max(last / 10**places, share * abs(float(one)))
    return places == len(other.partition(".")[2]) and abs(float(one) - float(other)) < allowed


def _same_text(one: str, other: str) -> bool:
    width = max(len(one), len(other))
    return one == other or all(
        mark == its or (mark in LEVELS and its in LEVELS and abs(LEVELS[mark] - LEVELS[its]) <= 1)
        for mark, its in zip(one.ljust(width), other.ljust(width), strict=True)
    )


def main() -> None:
    """Write the documents anew, or draw every head of the bundled encoder on the README's sentence."""
    if sys.argv[1:] == ["--picture"]:
        text, picture = "The cat sat on the mat because it was tired.", ROOT / ".pictures" / "overview.png"
        return print(run(["attnscope", "show", text, "-o", str(picture)]).err, end="")
    for document in DOCUMENTS:
        document.write_text(BLOCK.sub(lambda match: block(match[1]), document.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
