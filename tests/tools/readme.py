"""The README's commands: take them out, run them, and write their real output back.

``python -m tests.tools.readme`` runs every ``$ attnscope ...`` command of a console block in README.md, as it
would run in a pipe of 80 columns, and replaces what stands below it.
"""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
BLOCK = re.compile(r"```console\n\$ (attnscope [^\n]*)\n(.*?)```", re.S)
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)


def shown() -> Iterator[tuple[str, str]]:
    """Each command that is shown with its output, and that output."""
    for match in BLOCK.finditer(README.read_text("utf-8")):
        yield match[1], match[2]


def mentioned() -> list[str]:
    """Every command that stands in a block without its output."""
    blocks = [block for language, block in FENCED.findall(README.read_text("utf-8")) if not language]
    return [line for block in blocks for line in block.splitlines() if "attnscope" in line]


def output(command: str) -> str:
    """What a command prints in a pipe of 80 columns."""
    arguments = shlex.split(command)[1:]
    environment = {**os.environ, "COLUMNS": "80", "PYTHONIOENCODING": "utf-8"}
    ran = subprocess.run(
        [sys.executable, "-m", "attnscope", *arguments],
        capture_output=True,
        encoding="utf-8",
        env=environment,
        cwd=ROOT,
        check=True,
    )
    return "\n".join(line.rstrip() for line in ran.stdout.splitlines()) + "\n"


def main() -> None:
    """Write the README anew."""
    text = BLOCK.sub(
        lambda match: f"```console\n$ {match[1]}\n{output(match[1])}```", README.read_text("utf-8")
    )
    README.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
