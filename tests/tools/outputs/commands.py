"""The commands that ``outputs.py`` records: the lines of ``commands.txt``, as one types them behind the name.

An indented line goes on in the folder of the line above it, and reads what that one wrote; every other one
begins in an empty folder with ``models/``, ``files/`` and ``sample_inputs/``. ``$T`` is ``TEXT``, ``< FILE``
gives standard input, and what stands in front is the environment, or one of

    ALONE=1      a Python process of its own: for what happens before a command runs, and to try that much
    KEYS=a,b     browse, with these keys pressed
    LAUNCH="..." with these options of torchrun

A line that begins with ``python`` runs that file.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

TEXT = "The cat sat on the mat because it was tired."

UNSTABLE: dict[str, str] = {}
"""Commands whose output differs from run to run of the same code, each with the reason."""

SPECIAL = ("ALONE", "KEYS", "LAUNCH")

LIST = Path(__file__).with_name("commands.txt")

RUN = "--length 16 --batch 4"
SIZES = f"--layers 2 --heads 2 --width 16 {RUN}"
WORDS = {
    "RUN": RUN,
    "SMALL": f"{SIZES} --vocabulary 150",
    "LETTERS": f"{SIZES} --vocabulary 320 --tokenizer bpe --cased",
    "SHAPED": "--hidden 40 --max-positions 64 --positions sinusoidal --guessed 0.2 --short 0.5 --repeats 0.3",
    "LEARNED": "--rate 0.01 --warmup 0.2 --weight-decay 0.1 --dropout 0.1 --optimizer muon "
    "--causal-first 0.3 --save-minutes 0 --device cpu "
    "--precision float32",
}
"""Options that several lines share."""


@dataclass(frozen=True)
class Line:
    """One command: as it stands in the list, and its parts; ``where`` names its place in a chain."""

    text: str
    where: str
    argv: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    stdin: str | None = None
    alone: bool = False
    keys: str | None = None
    launch: list[str] = field(default_factory=list)


def chains(only: str = "") -> Iterator[list[Line]]:
    """The commands that follow each other in one folder; only those with a command that matches ``only``."""
    lines = LIST.read_text("utf-8").splitlines()
    parts = re.split(r"\n+(?! )", "\n".join(line for line in lines if line[:1] not in ("", "#")))
    for part in parts:
        texts = [line.strip() for line in part.splitlines()]
        if any(re.search(only, text) for text in texts):
            yield [_line(text, " && ".join(texts[: number + 1])) for number, text in enumerate(texts)]


def _line(text: str, where: str) -> Line:
    words = shlex.split(re.sub(r"\$([A-Z]{2,})", lambda found: WORDS[found[1]], text))
    given: dict[str, str] = {}
    while words and re.match(r"[A-Z_0-9]+=", words[0]):
        name, _, value = words.pop(0).partition("=")
        given[name] = value
    stdin = None
    if "<" in words:
        words, stdin = words[: words.index("<")], words[-1]
    special = {name: given.pop(name) for name in SPECIAL if name in given}
    return Line(
        text,
        where,
        [TEXT if word == "$T" else word for word in words],
        given,
        stdin,
        "ALONE" in special or "LAUNCH" in special,
        special.get("KEYS"),
        shlex.split(special.get("LAUNCH", "")),
    )
