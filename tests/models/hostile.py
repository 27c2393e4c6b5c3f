"""Model folders that lie, and what becomes of them."""

import json
import shutil
import sys
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


def verdict(place: Path) -> dict:
    """What a folder comes to in a fork: its sentence, what it tried, and how its process ended."""
    said, status = in_a_fork(lambda: json.dumps(_attempt(str(place))), 60, 16 << 30)
    return json.loads(said) | {"ended": status}


def _attempt(place: str) -> dict:
    """Load a folder and read a text; every connection, program and file of code in it is written down.

    No audit hook can be taken away.
    """
    tried: list[str] = []

    def watch(event, arguments):
        if event in ("socket.connect", "socket.getaddrinfo", "subprocess.Popen", "os.system", "os.exec"):
            tried.append(f"{event} {arguments!r}")
        if event == "exec" and str(getattr(arguments[0], "co_filename", "")).startswith(place):
            tried.append(f"ran {arguments[0].co_filename}")

    sys.addaudithook(watch)
    try:
        load(place).prepare("The cat sat.")
    except AttnscopeError as error:
        return {"sentence": str(error), "tried": tried}
    except BaseException as error:  # such as planted code's own exit
        tried.append(repr(error))
    return {"sentence": None, "tried": tried}
