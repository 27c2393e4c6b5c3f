"""How far heads are apart: the Jensen-Shannon divergence of their rows, and what it says of many heads.

spread = measure_distances(rows)    # [head, row, key] -> every pair of heads
group_heads(spread.mean)            # which heads are alike, and an order in which they stand together
embed_in_plane(spread.mean)         # every head as a point, as near to the others as it behaves
match_heads(measure_distances(rows, others).mean)  # which head of another model does the same
align(texts, other_texts)           # which tokens of two texts belong together
"""

from attnscope.comparison.alignment import Alignment, align, find_shared_words
from attnscope.comparison.averages import Average, average_over_texts
from attnscope.comparison.groups import Groups, group_heads, match_heads
from attnscope.comparison.jensen_shannon import (
    LARGEST,
    Spread,
    divergence,
    measure_distances,
    sampling_error,
)
from attnscope.comparison.plane import Plane, embed_in_plane

__all__ = [
    "LARGEST",
    "Alignment",
    "Average",
    "Groups",
    "Plane",
    "Spread",
    "align",
    "average_over_texts",
    "divergence",
    "embed_in_plane",
    "find_shared_words",
    "group_heads",
    "match_heads",
    "measure_distances",
    "sampling_error",
]
