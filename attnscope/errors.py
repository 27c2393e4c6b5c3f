"""What a user can fix, as one small tree of exceptions.

Every message is one full sentence that says what exists and what to do. The command line prints it
on standard error and exits with code 2; the library raises it.

    AttnscopeError
    ├── InputError       the text, its file or its length
    ├── ModelError       the model: not found, not loadable, without attention
    ├── SelectionError   a layer, head, token, kind, measure or format that does not exist
    ├── OutputError      a file that cannot be written
    └── SizeError        work that did not get the memory it asked for
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Sequence

from attnscope.text import clean

OUT_OF_MEMORY = re.compile(r"DefaultCPUAllocator|std::bad_alloc|can't start new thread|failed to map segment")
"""What libraries say in out-of-memory errors of other types."""

ALLOCATED = re.compile(r"allocate ([\d.]+) (bytes|[KMGTPE]iB)")


class AttnscopeError(Exception):
    """The root of every error that a user can fix; file names and library messages are made printable.

    ``notes`` on what was seen before follow the ``sentence`` itself.
    """

    def __init__(self, message: str = "", notes: Sequence[str] = ()) -> None:
        super().__init__(clean("; ".join([message, *notes])))
        self.sentence = clean(message)

    @property
    def suggestion(self) -> str | None:
        """What exists or what to do, behind the sentence's last colon; ``None`` without one."""
        suggestion = self.sentence.rpartition(": ")[2]
        causes = map(os.strerror, errno.errorcode)
        return None if suggestion in (self.sentence, *causes) else suggestion

    def _render_traceback_(self) -> list[str]:
        """What a notebook prints: the sentence, without a traceback."""
        return [f"{type(self).__name__}: {self}"]


class InputError(AttnscopeError):
    """The text, the file it comes from, or its length is not usable."""


class NoCheckpoint(InputError):
    """No readable checkpoint exists, or none yet."""


class ModelError(AttnscopeError):
    """The model cannot be found, loaded or read."""


class SelectionError(AttnscopeError):
    """A layer, head, token, kind, measure or format was asked for that does not exist."""


class OutputError(AttnscopeError):
    """A result cannot be written where it was asked for."""


class SizeError(AttnscopeError):
    """The work did not get the memory that it needs."""


def out_of_memory(error: BaseException | None) -> str:
    """What could not get how much memory, if an error or its cause is about memory; otherwise ``None``."""
    while error is not None:
        text, kind = str(error), type(error)
        is_memory = isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM
        if is_memory or kind.__name__ == "OutOfMemoryError" or OUT_OF_MEMORY.search(text):
            modules = {"numpy": "NumPy", "torch": "torch"}
            library = "torch" if "DefaultCPUAllocator" in text else kind.__module__.partition(".")[0]
            amount = ALLOCATED.search(text)
            size = float(amount[1]) * 1024 ** "bKMGTPE".index(amount[2][0]) if amount else 0
            much = f"for {readable(size)}" if size else "for more memory than there is"
            return f"out of memory: {modules.get(library, 'Python')} asked {much}"
        error = error.__cause__ or error.__context__
    return ""


def readable(size: float) -> str:
    """Bytes for a person: ``1.4 GB``."""
    for unit in ("bytes", "kB", "MB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:,.1f} GB"


def first_line(error: BaseException) -> str:
    """The first line of a foreign exception's message, or two if it ends in a colon; or its type's name."""
    lines = [line.strip() for line in (out_of_memory(error) or str(error)).splitlines() if line.strip()]
    text = " ".join(lines[: 1 + (lines[0][-1] == ":")]) if lines else type(error).__name__
    return clean(text.rstrip(".:"))
