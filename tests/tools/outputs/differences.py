"""What differs between two records of ``outputs.py``: texts by lines, numbers by how far they are apart."""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

MOST, WIDEST = 14, 160
"""Lines of a difference that are shown, and characters of each."""

NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?")

VARYING = ("seconds",)
"""Keys of JSON objects that hold times."""


def compare(one: Path, other: Path) -> int:
    """Print all differences and how many commands have any; returns the exit code."""
    same, differ, unstable = 0, 0, []
    names = sorted({path.parent.name for record in (one, other) for path in record.glob("*/command.json")})
    for name in names:
        known = [record / name for record in (one, other) if (record / name / "command.json").is_file()]
        about = json.loads((known[0] / "command.json").read_text())
        if "unstable" in about:
            unstable.append(f"not compared: {about['line']}  ({about['unstable']})")
            continue
        found = list(_command(*known)) if len(known) == 2 else [f"only in {known[0].parent}"]
        same, differ = same + (not found), differ + bool(found)
        if found:
            print(f"\n{about['line']}\n  {name}")
            for line in found:
                print(f"    {line}")
    print(*unstable, sep="\n", end="\n" if unstable else "")
    print(f"{same} same, {differ} differ")
    return int(differ > 0 or not names)


def _command(one: Path, other: Path) -> Iterator[str]:
    """What differs between two runs of a command."""
    codes = [json.loads((run / "command.json").read_text())["code"] for run in (one, other)]
    if codes[0] != codes[1]:
        yield f"exit code: {codes[0]} and {codes[1]}"
    files = sorted({
        str(path.relative_to(run)) for run in (one, other) for path in run.rglob("*") if path.is_file()
    })  # fmt: skip
    for name in files:
        if name == "command.json":
            continue
        paths = one / name, other / name
        missing = [path for path in paths if not path.is_file()]
        if missing:
            yield f"{name}: not in {missing[0].parents[len(Path(name).parts)]}"
            continue
        left, right = (path.read_bytes() for path in paths)
        if left != right:
            yield from (f"{name}: {line}" for line in _file(*paths, left, right))


def _file(one: Path, other: Path, left: bytes, right: bytes) -> list[str]:
    """What differs between two files whose bytes differ; nothing if it is not more than times."""
    kind = one.suffix.lower()
    try:
        if kind == ".npz":
            return _arrays(*(dict(np.load(path, allow_pickle=False)) for path in (one, other)))
        if kind == ".safetensors":
            return _arrays(*(_tensors(path) for path in (one, other)))
        if kind == ".png":
            return _pixels(one, other)
        if kind in (".json", ""):  # what is printed may be JSON, too
            return _structure(json.loads(left), json.loads(right))
    except Exception as error:
        if kind:
            return [f"{type(error).__name__}: {error}", *_bytes(left, right)]
    return _text(left, right) if kind in (".csv", ".svg", ".txt", "") else _bytes(left, right)


def _tensors(path: Path) -> dict[str, Any]:
    """The tensors of a file as arrays, and what is said beside them."""
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 it is no mapping
        said = {f"metadata {name}": np.array(text) for name, text in (file.metadata() or {}).items()}
    types = {f"{name}, its type": np.array(str(tensor.dtype)) for name, tensor in found.items()}
    arrays = {name: (t.double() if t.is_floating_point() else t).numpy() for name, t in found.items()}
    return arrays | types | said


def _arrays(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """What differs between arrays of the same names."""
    found = [f"array {name} is in one of them only" for name in sorted(one.keys() ^ other.keys())]
    for name in sorted(one.keys() & other.keys()):
        left, right = one[name], other[name]
        if left.shape != right.shape or left.dtype.kind != right.dtype.kind:
            found.append(f"{name}: {left.dtype} {left.shape} and {right.dtype} {right.shape}")
        elif left.dtype.kind in "US":
            for mine, theirs in zip(left.ravel(), right.ravel(), strict=True):
                if mine != theirs:
                    found += [f"{name}: {line}" for line in _said(str(mine), str(theirs))]
        elif left.dtype != right.dtype:
            found.append(f"{name}: {left.dtype} and {right.dtype}")
        elif not np.array_equal(left, right, equal_nan=left.dtype.kind == "f"):
            gap = np.abs(np.nan_to_num(left.astype(float)) - np.nan_to_num(right.astype(float))).max()
            found.append(f"{name}: largest difference {gap:.3g}")
    return found


def _said(one: str, other: str) -> list[str]:
    """What differs between two texts beside arrays, which may be JSON."""
    try:
        return _structure(json.loads(one), json.loads(other))
    except ValueError:
        return _text(one.encode(), other.encode())


def _pixels(one: Path, other: Path) -> list[str]:
    """How many pixels differ between two pictures, and by how much."""
    from PIL import Image

    left, right = (np.asarray(Image.open(path).convert("RGBA")).astype(int) for path in (one, other))
    if left.shape != right.shape:
        return [f"{left.shape[1]} × {left.shape[0]} and {right.shape[1]} × {right.shape[0]} pixels"]
    gap = np.abs(left - right).max(-1)
    if not gap.any():
        return ["the same pixels, other bytes"]
    return [f"{(gap > 0).mean():.4%} of the pixels differ, at most by {gap.max()} of 255"]


def _structure(one: Any, other: Any) -> list[str]:
    """What differs between two pieces of JSON: where, and the largest difference of numbers."""
    numbers: list[tuple[float, str]] = []
    found = list(_walk(one, other, "", numbers))
    if numbers:
        gap, where = max(numbers)
        found.append(f"{len(numbers)} numbers differ, most at {where}: by {gap:.3g}")
    return found[:MOST] + ([f"and {len(found) - MOST} more"] if len(found) > MOST else [])


def _walk(one: Any, other: Any, where: str, numbers: list[tuple[float, str]]) -> Iterator[str]:
    if isinstance(one, dict) and isinstance(other, dict):
        if list(one) != list(other):
            odd = sorted(one.keys() ^ other.keys())
            told = f"keys {', '.join(odd)} in one only" if odd else "keys in another order"
            yield f"{where or 'top'}: {told}"
        for key in one.keys() & other.keys():
            if key not in VARYING:
                yield from _walk(one[key], other[key], f"{where}.{key}", numbers)
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for number, (mine, theirs) in enumerate(zip(one, other, strict=True)):
            yield from _walk(mine, theirs, f"{where}[{number}]", numbers)
    elif isinstance(one, (int, float)) and isinstance(other, (int, float)) and type(one) is type(other):
        if one != other and not (math.isnan(one) and math.isnan(other)):
            numbers.append((abs(one - other), where))
    elif one != other or type(one) is not type(other):
        yield f"{where}: {str(one)[:WIDEST]!r} and {str(other)[:WIDEST]!r}"


def _text(left: bytes, right: bytes) -> list[str]:
    """A short unified difference; where nothing but numbers differ, also by how much."""
    texts = [each.decode("utf-8", "replace") for each in (left, right)]
    found = list(difflib.unified_diff(*(text.splitlines() for text in texts), n=0, lineterm=""))[2:]
    told = [line[:WIDEST] for line in found[:MOST]] or ["line ends differ"]
    told += [f"and {len(found) - MOST} more lines"] if len(found) > MOST else []
    if NUMBER.sub("0", texts[0]) == NUMBER.sub("0", texts[1]):
        pairs = zip(*(map(float, NUMBER.findall(text)) for text in texts), strict=True)
        gaps = [abs(mine - theirs) for mine, theirs in pairs if mine != theirs]
        told.append(f"nothing but {len(gaps)} numbers differ, at most by {max(gaps, default=0):.3g}")
    return told


def _bytes(left: bytes, right: bytes) -> list[str]:
    """Where two files part, and what stands there."""
    pairs = enumerate(zip(left, right, strict=False))
    at = next((place for place, (a, b) in pairs if a != b), min(len(left), len(right)))
    around = [each[max(0, at - 20) : at + 40] for each in (left, right)]
    return [f"{len(left):,} and {len(right):,} bytes, from byte {at:,} on: {around[0]!r} and {around[1]!r}"]
