"""Model folders that lie, and what becomes of them: run in processes of their own, with limits.

``python -m tests.models.hostile TEXT CHAT FOLDER ...`` loads each folder in a fork of its own and prints a
line of JSON.
"""

import json
import os
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

from tests.models.folders import gpt2

SECONDS = 10
MEMORY = 1 << 30


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


def verdicts(folders, text: str = "The cat sat.", chat: bool = False) -> list[dict]:
    """What each folder comes to: its sentence, what it tried, and the seconds and bytes that it took."""
    arguments = [sys.executable, "-m", "tests.models.hostile", text, str(int(chat)), *map(str, folders)]
    done = subprocess.run(
        arguments, capture_output=True, text=True, cwd=Path(__file__).parents[2], check=False
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def _attempt(place: str, text: str, chat: bool) -> dict:
    """Load a folder and read a text; every connection, program and file of code in it is written down."""
    from attnscope.errors import AttnscopeError
    from attnscope.models import load

    tried: list[str] = []

    def watch(event, arguments):
        if event in ("socket.connect", "socket.getaddrinfo", "subprocess.Popen", "os.system", "os.exec"):
            tried.append(f"{event} {arguments!r}")
        if event == "exec" and str(getattr(arguments[0], "co_filename", "")).startswith(place):
            tried.append(f"ran {arguments[0].co_filename}")

    load("own")  # what the first load imports counts for no folder
    sys.addaudithook(watch)
    try:
        model = load(place)
        prepared = model.prepare_chat(text) if chat else model.prepare(text)
        return {"sentence": None, "tried": tried, "tokens": len(prepared.tokens)}
    except AttnscopeError as error:
        return {"sentence": str(error), "tried": tried}


def main(text: str, chat: str, *places: str) -> None:
    import transformers
    import transformers.models.gpt2.modeling_gpt2  # imported once, for all forks

    transformers.AutoTokenizer, transformers.AutoModel  # noqa: B018
    for place in places:
        read, write = os.pipe()
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
            with os.fdopen(write, "w") as answer:
                json.dump(_attempt(place, text, chat == "1"), answer)
            os._exit(0)
        os.close(write)
        started = time.monotonic()
        with os.fdopen(read) as answer:
            said = answer.read()
        _, status, used = os.wait4(child, 0)
        verdict = json.loads(said) if said else {"sentence": None, "tried": []}
        verdict |= {
            "place": place,
            "ended": status,
            "seconds": time.monotonic() - started,
            "cpu": used.ru_utime + used.ru_stime,
            "memory": used.ru_maxrss * 1024,
        }
        print(json.dumps(verdict), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
