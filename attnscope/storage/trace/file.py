"""A trace in its file: safetensors, with the description as metadata. Written whole, read with suspicion."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from attnscope.errors import InputError, first_line
from attnscope.memory import require
from attnscope.storage.arrays.files import PARSED
from attnscope.storage.regular import name_other
from attnscope.storage.trace.arrays import FileArrays
from attnscope.storage.trace.check import check_trace
from attnscope.storage.trace.layout import FORMAT, Description
from attnscope.storage.trace.restore import restore
from attnscope.storage.trace.trace import Trace
from attnscope.storage.whole import write_whole

SUFFIX = ".trace"
KEY = "attnscope trace"
"""The name of the description in a file's metadata."""


def write_trace(trace: Trace, path: str | Path) -> None:
    """Write a trace, whole or not at all. Raises ``OutputError``."""
    write_whole(path, trace_bytes(trace))


def trace_bytes(trace: Trace, more: Mapping[str, str] | None = None) -> bytes:
    """A trace as its file holds it, with ``more`` metadata."""
    from safetensors.numpy import save

    described = {KEY: json.dumps(asdict(trace.description)), **(more or {})}
    content: bytes = save(dict(trace.arrays), described)
    return content


def read_trace(path: str | Path) -> Trace:
    """Open a trace; its arrays are read when they are asked for, and nothing in it is ever executed.

    Raises ``InputError`` for a file that is none or is damaged, ``SizeError`` for one that would not fit.
    """
    path = Path(path)
    try:
        other = name_other(path)
        if other is not None:
            raise ValueError(f"it is {other}, not a file")
        arrays = FileArrays(path)
        trace = Trace(_read_description(arrays.metadata), arrays)
        check_trace(trace, arrays)
    except FileNotFoundError:
        raise InputError(f"there is no file {path}") from None
    except RecursionError:
        raise InputError(f"cannot read the trace {path}: its description is nested too deep") from None
    except (ValueError, TypeError, OverflowError, OSError, KeyError, IndexError) as error:
        raise InputError(f"cannot read the trace {path}: {first_line(error)}") from error
    return trace


def _read_description(metadata: Mapping[str, str]) -> Description:
    if KEY not in metadata:
        raise ValueError("it is no trace: attnscope makes one with --keep")
    require(PARSED * len(metadata[KEY]), "its description", "keep a shorter text")
    content: Any = json.loads(metadata[KEY])
    version = content.get("trace") if isinstance(content, dict) else None
    if version != FORMAT:
        raise ValueError(f"its layout is number {version!s:.40}; this version of attnscope reads {FORMAT}")
    description: Description = restore(Description, content)
    return description
