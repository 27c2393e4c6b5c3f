"""What a model learned, as opposed to what it computes."""

from __future__ import annotations

from torch import Tensor, nn


def is_parameter(tensor: Tensor) -> bool:
    """Whether a tensor is a parameter or a view of one."""
    return isinstance(tensor, nn.Parameter) or isinstance(tensor._base, nn.Parameter)
