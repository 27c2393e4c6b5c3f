"""A measure: how much goes to keys more than eight tokens away."""

from torch import Tensor

from attnscope.measures import measure
from attnscope.measures.forms import ByGap


@measure("far", ByGap, formula="Σ_j A[i, j] · [|i - j| > 8]", source="this package")
def far(gap: Tensor) -> Tensor:
    """How much goes to keys more than eight tokens away.  [row, key] -> [row, key]"""
    return (gap.abs() > 8).float()
