"""What a user can fix, as one small tree of exceptions.

Every message is one full sentence that says what exists and what to do. The command line prints it
on standard error and exits with code 2; the library raises it.

    AttnscopeError
    ├── InputError       the text, its file or its length
    ├── ModelError       the model: not found, not loadable, without attention
    ├── SelectionError   a layer, head, token, kind, measure or format that does not exist
    ├── OutputError      a file that cannot be written
    └── SizeError        work that would not fit the memory that is free
"""

from __future__ import annotations

from attnscope.text import clean


class AttnscopeError(Exception):
    """The root of everything that a user can fix; file names and what libraries say are made clean in it."""

    def __init__(self, message: str = "") -> None:
        super().__init__(clean(message))

    def _render_traceback_(self) -> list[str]:
        """What a notebook prints: the sentence, and no line of this package."""
        return [f"{type(self).__name__}: {self}"]


class InputError(AttnscopeError):
    """The text, the file it comes from, or its length is not usable."""


class ModelError(AttnscopeError):
    """The model cannot be found, loaded or looked into."""


class SelectionError(AttnscopeError):
    """A layer, head, token, kind, measure or format was asked for that does not exist."""


class OutputError(AttnscopeError):
    """A result cannot be written where it was asked for."""


class SizeError(AttnscopeError):
    """The work would not fit the memory that is free."""


def first_line(error: BaseException) -> str:
    """The first line of what a foreign exception says, without its full stop; else the exception's name."""
    text = str(error).strip().splitlines()
    return clean(text[0].rstrip(".")) if text else type(error).__name__
