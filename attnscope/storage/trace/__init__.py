"""A trace: one pass, kept in memory or in a file. Every row can be recomputed; N² tables are never stored.

A description (``layout``) and arrays by name. ``models.trace_recording`` makes one, ``replay`` shows one to
observers as a model would; both need torch, ``read_trace("cat.trace").weights(Head("L2H1"))`` does not.
"""

from attnscope.storage.trace.file import SUFFIX, Trace, read_trace, write_trace

__all__ = ["SUFFIX", "Trace", "read_trace", "write_trace"]
