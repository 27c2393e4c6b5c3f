"""The tutorials in sample_inputs/: train their models, run their commands, write what these print below.

``python -m tests.tools.tutorials`` does so. A page is generated from the text beside this file, which names a
head as ``{induction}`` and not by its number: the scores that attnscope prints identify the head.
"""

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from tests.tools import readme

HERE, SAMPLES = Path(__file__).parent, readme.ROOT / "sample_inputs"
TRAINED = re.compile(r"```console\n\$ python ([^\n]*)\n(.*?)```", re.S)
GIFT, OTHER = (f"When Mary and John met, {giver} gave the book to" for giver in ("Mary", "John"))
SCORE = "--target John --against Mary"
NAMES = ("induction", "gifts")


def train(command: str, folder: Path) -> str:
    """Run a script as the tutorial says, and return what it prints."""
    (folder / "sample_inputs").symlink_to(SAMPLES)
    ran = subprocess.run(
        [sys.executable, *shlex.split(command)], cwd=folder, text=True, capture_output=True, check=True
    )
    return ran.stdout


def answer(command: str, folder: Path) -> Any:
    """What a command answers with ``--json``."""
    return json.loads(readme.output(f"{command} --json", folder))


def strongest(heads: Iterable[Mapping[str, Any]], score: Callable[[Any], float]) -> str:
    return "L{layer}H{head}".format(**max(heads, key=score))


def find_heads(name: str, folder: Path) -> Mapping[str, str]:
    """The heads that a tutorial is about, by what attnscope says of them."""
    if name == "gifts":
        asked = f"-m gifts-model {SCORE}"
        patched = answer(f'attnscope patch "{GIFT}" --with-text "{OTHER}" {asked}', folder)["heads"]
        cut = answer(f'attnscope cut "to -> John" "{GIFT}" {asked}', folder)["heads"]
        return {
            "inhibitor": strongest(patched, lambda each: each["effect"]),
            "names": strongest(cut, lambda each: -each["effect"]),
        }
    heads = answer("attnscope stats --repeat-random 16 -m induction-model", folder)["heads"]
    return {
        "induction": strongest(heads, lambda each: each["scores"]["induction"]["value"]),
        "previous": strongest(heads, lambda each: each["scores"]["previous"]["value"]),
    }


def render(name: str, folder: Path) -> tuple[str, Mapping[str, str]]:
    """A tutorial, its model trained in an empty folder; and its heads."""
    page = (HERE / f"{name}.md").read_text("utf-8")
    page = TRAINED.sub(lambda match: f"```console\n$ python {match[1]}\n{train(match[1], folder)}```", page)
    heads = find_heads(name, folder)
    for role, head in heads.items():
        page = page.replace(f"{{{role}}}", head)
    return readme.BLOCK.sub(lambda match: readme.block(match[1], folder), page), heads


def main() -> None:
    os.environ["ATTNSCOPE_CACHE"] = "off"
    for name in NAMES:
        with tempfile.TemporaryDirectory() as folder:
            (SAMPLES / f"{name}.md").write_text(render(name, Path(folder))[0], "utf-8")


if __name__ == "__main__":
    main()
