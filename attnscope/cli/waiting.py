"""A sign of life on standard error while something takes longer than a blink."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def waiting(message: str) -> Iterator[None]:
    """Show ``message`` with a spinner while the body runs; nothing where nobody is looking."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console
    from rich.text import Text

    with Console(stderr=True).status(Text(message)):
        yield
