"""Model folders that lie, and what becomes of them.

``python -m tests.models.hostile FOLDER ...`` loads each folder in a fork of its own, as no audit hook
can be taken away, and prints a line of JSON.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.models.folders import gpt2


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


def verdicts(folders) -> list[dict]:
    """What each folder comes to: its sentence, what it tried, and how its process ended."""
    arguments = [sys.executable, "-m", "tests.models.hostile", *map(str, folders)]
    done = subprocess.run(
        arguments, capture_output=True, text=True, cwd=Path(__file__).parents[2], check=False
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def _attempt(place: str) -> dict:
    """Load a folder and read a text; every connection, program and file of code in it is written down."""
    from attnscope.errors import AttnscopeError
    from attnscope.models import load

    tried: list[str] = []

    def watch(event, arguments):
        if event in ("socket.connect", "socket.getaddrinfo", "subprocess.Popen", "os.system", "os.exec"):
            tried.append(f"{event} {arguments!r}")
        if event == "exec" and str(getattr(arguments[0], "co_filename", "")).startswith(place):
            tried.append(f"ran {arguments[0].co_filename}")

    sys.addaudithook(watch)
    try:
        model = load(place)
        model.prepare("The cat sat.")
        return {"sentence": None, "tried": tried}
    except AttnscopeError as error:
        return {"sentence": str(error), "tried": tried}


def main(*places: str) -> None:
    import tempfile

    from attnscope.models import load

    with (
        tempfile.TemporaryDirectory() as honest
    ):  # what a load imports is imported once, and counts for no folder
        load(gpt2(Path(honest) / "honest")).prepare("The cat sat.")
    for place in places:
        read, write = os.pipe()
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            with os.fdopen(write, "w") as answer:
                json.dump(_attempt(place), answer)
            os._exit(0)
        os.close(write)
        with os.fdopen(read) as answer:
            said = answer.read()
        _, status = os.waitpid(child, 0)
        verdict = json.loads(said) if said else {"sentence": None, "tried": []}
        verdict["ended"] = status
        print(json.dumps(verdict), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
