"""Which part of a picture each token of a vision-language model stands for, found by experiment.

No family's rules are written down here. A model shows by its own gradients which numbers of the prepared
picture end in which token while attention is held (``owners.py``). Its processor shows, with pictures of
which each pixel tells its place, where those numbers come from (``coordinates.py``). Both together give each
token a box in the picture as it was given; boxes of one size are the cells of a lattice (``lattice.py``).
Of a sound, quiet moments in noise tell the time that each token stands for (``moments.py``).
"""

from attnscope.models.regions.coordinates import find_coordinates
from attnscope.models.regions.lattice import Region, find_regions
from attnscope.models.regions.moments import Moments, find_moments
from attnscope.models.regions.owners import find_moved, find_owners

__all__ = [
    "Moments",
    "Region",
    "find_coordinates",
    "find_moments",
    "find_moved",
    "find_owners",
    "find_regions",
]
