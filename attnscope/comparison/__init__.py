"""How far heads are apart: the Jensen-Shannon divergence of their rows, and what it says of many heads.

spread = between(rows)              # [head, row, key] -> every pair of heads
groups(spread.mean)                 # which heads are alike, and an order in which they stand together
plane(spread.mean)                  # every head as a point, as near to the others as it behaves
matches(between(rows, others).mean) # which head of another model does the same
align(texts, other_texts)           # which tokens of two texts belong together
"""

from attnscope.comparison.alignment import Alignment, align, shared
from attnscope.comparison.averages import Averaged, averaged
from attnscope.comparison.groups import Groups, groups
from attnscope.comparison.jensen_shannon import LARGEST, Spread, between, divergence, sampling_error
from attnscope.comparison.matching import matches
from attnscope.comparison.plane import Plane, plane

__all__ = [
    "LARGEST",
    "Alignment",
    "Averaged",
    "Groups",
    "Plane",
    "Spread",
    "align",
    "averaged",
    "between",
    "divergence",
    "groups",
    "matches",
    "plane",
    "sampling_error",
    "shared",
]
