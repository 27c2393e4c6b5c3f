"""Run a command in a child process, and interrupt it."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np


def run(arguments: Sequence[str], log: Path, after: float | None = None) -> int:
    """Run ``attnscope`` in a child, and send it a Ctrl-C ``after`` so many seconds; returns its exit code.

    The child is forked with the libraries loaded, so that moments fall into the work and not into imports.
    Its outputs go to ``log``.
    """
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        _command(arguments, log)
    if after is not None:
        time.sleep(after)
        if os.waitpid(child, os.WNOHANG)[0] == 0:
            os.kill(child, signal.SIGINT)
        else:
            return 0
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _command(arguments: Sequence[str], log: Path) -> None:
    """Become ``attnscope`` with these arguments; does not return."""
    code = 1
    try:
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.argv = ["attnscope", *arguments]
        from attnscope.__main__ import main

        main()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def broken(folder: Path) -> list[str]:
    """The files below a folder that are not whole, and temporary ones that were left behind."""
    return [
        str(path.relative_to(folder))
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not (path.stat().st_size and _whole(path))
    ]


def _whole(path: Path) -> bool:
    try:
        if path.name.startswith(".attnscope-"):
            return False  # a temporary file: nothing of it may stay
        if path.suffix == ".png":
            from PIL import Image

            with Image.open(path) as picture:
                picture.load()
        elif path.suffix == ".svg":
            return path.read_text("utf-8").rstrip().endswith("</svg>")
        elif path.suffix == ".html":
            return path.read_text("utf-8").rstrip().endswith("</html>")
        elif path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as arrays:
                for name in arrays.files:
                    assert arrays[name] is not None
        elif path.suffix == ".safetensors":
            from safetensors.numpy import load_file

            assert load_file(path)
        elif path.name == "manifest.json":
            return not wrong_sums(path)
        elif path.suffix == ".json":
            json.loads(path.read_text("utf-8"))
    except Exception:
        return False
    return True


def wrong_sums(manifest: Path) -> list[str]:
    """The files of a manifest that are missing or are not what it says."""
    content = json.loads(manifest.read_text("utf-8"))
    if "unfinished export" in content:  # it was killed, and lists nothing yet: the same command completes it
        return []
    listed = content["files"]
    return [
        file["name"]
        for file in listed
        if not (manifest.parent / file["name"]).is_file()
        or hashlib.sha256((manifest.parent / file["name"]).read_bytes()).hexdigest() != file["sha256"]
    ]
