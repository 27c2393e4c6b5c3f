"""Finds incomplete files among those that a command left."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np


def broken(folder: Path) -> list[str]:
    """The files below a folder that are not whole, and temporary ones that were left behind."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return [str(path.relative_to(folder)) for path in files if not (path.stat().st_size and _whole(path))]


def _whole(path: Path) -> bool:
    try:
        if path.name.startswith(".attnscope-"):
            return False  # a temporary file: nothing of it may stay
        if path.suffix == ".png":
            from PIL import Image

            with Image.open(path) as picture:
                picture.load()
        elif path.suffix in (".svg", ".html"):
            return path.read_text("utf-8").rstrip().endswith(f"</{path.suffix[1:]}>")
        elif path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as arrays:
                dict(arrays)  # reads all
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
    sums = {manifest.parent / file["name"]: file["sha256"] for file in content["files"]}
    there = {path: path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() for path in sums}
    return [path.name for path in sums if there[path] != sums[path]]
