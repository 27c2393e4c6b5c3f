"""attnscope: see what the attention heads of a transformer do.

The public face, each name loaded when it is first used:

    load, wrap          a model by name, or a model object of yours; read(text) gives a Run
    open                a Run from a file: a trace, or weights
    record              a Run of whatever a module runs inside a with block
    watch, callback     the scores of every head while a model is trained
    measure_texts       sums of every head over many texts, measured in parts and added up
    TextSums            what measure_texts gives: a + b, finish
    Run                 what one pass showed: head, token, stats, compare, find, spans, flow, check, page
    Reader              a model, ready to read texts
    Head                the address of a head: Head("L2H1")
    AttnscopeError      the base class of this package's errors

Every other command of the command line has a function in ``attnscope.questions``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attnscope.attention import Head
    from attnscope.errors import AttnscopeError
    from attnscope.notebook.reader import Reader, load, open, record, wrap
    from attnscope.notebook.run import Run
    from attnscope.notebook.texts import TextSums, measure_texts
    from attnscope.notebook.watch import callback, watch

from attnscope.version import __version__

__all__ = [
    "AttnscopeError",
    "Head",
    "Reader",
    "Run",
    "TextSums",
    "__version__",
    "callback",
    "load",
    "measure_texts",
    "open",
    "record",
    "watch",
    "wrap",
]

_ELSEWHERE = {"AttnscopeError": "errors", "Head": "attention", "Run": "notebook.run"}
_ELSEWHERE |= {"callback": "notebook.watch", "watch": "notebook.watch"}
_ELSEWHERE |= {"TextSums": "notebook.texts", "measure_texts": "notebook.texts"}


def __getattr__(name: str) -> Any:
    public = [each for each in __all__ if each != "__version__"]
    if name not in public:
        raise AttributeError(f"module 'attnscope' has no attribute {name!r}: it has {', '.join(public)}")
    return getattr(import_module(f"attnscope.{_ELSEWHERE.get(name, 'notebook.reader')}"), name)


def __dir__() -> list[str]:
    return __all__
