"""A trace: one pass, kept in memory or in a file. Every row can be recomputed; N² tables are never stored.

trace = read_trace("cat.trace")
trace.weights(Head("L2H1"))  # NumPy, [query, key]; nothing here needs torch

A trace is a description (``layout``) and arrays by name. ``keep`` makes one while a model runs, ``replay``
shows one to observers as a model would; those two need torch.
"""

from attnscope.storage.trace.file import SUFFIX, Trace, read_trace, write_trace

__all__ = ["SUFFIX", "Trace", "read_trace", "write_trace"]
