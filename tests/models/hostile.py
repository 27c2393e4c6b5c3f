"""Model folders that lie, and what becomes of them."""

import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from attnscope.errors import AttnscopeError
from attnscope.models import load
from tests.models.folders import gpt2
from tests.tools.survey import in_a_fork


def folder(place: Path, file: str = "config.json", **changes) -> Path:
    """A tiny causal model, with one of its JSON files changed."""
    if not place.exists():
        base = place.parent / "honest"
        if not base.exists():
            gpt2(base)
        shutil.copytree(base, place)
    path = place / file
    settings = json.loads(path.read_text("utf-8")) if path.exists() else {}
    path.write_text(json.dumps(settings | changes), "utf-8")
    return place


def verdicts(places: Sequence[Path]) -> list[dict]:
    """What folders come to in a fork, one after the other: the sentence of each, and what it tried."""
    said, status = in_a_fork(lambda: json.dumps(_attempt(places)), 60, 16 << 30)
    assert status == 0
    return json.loads(said)


def _attempt(places: Sequence[Path]) -> list[dict]:
    """Load each folder and read a text; every connection, program and file of code in it is written down.

    No audit hook can be taken away.
    """
    found: list[dict] = []

    def watch(event, arguments):
        if event in ("socket.connect", "socket.getaddrinfo", "subprocess.Popen", "os.system", "os.exec"):
            found[-1]["tried"].append(f"{event} {arguments!r}")
        ran = str(getattr(arguments[0], "co_filename", "")) if event == "exec" else ""
        if ran.startswith(str(places[0].parent)):
            found[-1]["tried"].append(f"ran {ran}")

    for number, place in enumerate(places):
        found.append({"sentence": None, "tried": []})
        if number == 0:
            sys.addaudithook(watch)
        try:
            load(str(place)).prepare("The cat sat.")
        except AttnscopeError as error:
            found[-1]["sentence"] = str(error)
        except BaseException as error:  # such as planted code's own exit
            found[-1]["tried"].append(repr(error))
    return found
