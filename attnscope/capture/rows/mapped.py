"""The axes that ``torch.vmap`` hides from the function that it maps, brought back."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch._C import _functorch as functorch


def count_hidden(*tensors: Tensor) -> int:
    """How many axes torch.vmap hides of some tensors together."""
    return len(_levels(tensors))


def reveal(*tensors: Tensor) -> list[Tensor]:
    """Tensors with all axes: those that torch.vmap hides are in front, the outermost first.

    Where a tensor is not mapped over an axis that another one of them is, it has one entry there.
    """
    levels = _levels(tensors)
    return [_reveal(tensor, levels) for tensor in tensors] if levels else list(tensors)


def batch_first(tensors: Sequence[Tensor], batch: int) -> list[Tensor] | None:
    """Tensors with batch and heads in front, of which torch.vmap hid one, in this order.

    ``batch`` is how many texts the module was given; None where as many heads leave it open which is which.
    Only of four axes is anything known: [batch, head, ...] or [head, batch, ...].
    """
    first, second = tensors[0].shape[:2]
    if tensors[0].ndim != 4 or batch not in (first, second) or first == second == 1:
        return list(tensors)
    if first == second:
        return None
    return [tensor.transpose(0, 1) for tensor in tensors] if second == batch else list(tensors)


def _levels(tensors: tuple[Tensor, ...]) -> list[int]:
    """The maps that run around some tensors, the outermost first."""
    levels: set[int] = set()
    for tensor in tensors:
        while functorch.is_functorch_wrapped_tensor(tensor):
            if functorch.is_batchedtensor(tensor):
                levels.add(functorch.maybe_get_level(tensor))
            tensor = functorch.get_unwrapped(tensor)
    return sorted(levels)


def _reveal(tensor: Tensor, levels: list[int]) -> Tensor:
    for level in reversed(levels):
        while functorch.is_gradtrackingtensor(tensor):  # of a gradient that is taken inside
            tensor = functorch.get_unwrapped(tensor)
        if functorch.is_batchedtensor(tensor) and functorch.maybe_get_level(tensor) == level:
            axis = functorch.maybe_get_bdim(tensor)
            tensor = functorch.get_unwrapped(tensor).movedim(axis, 0)
        else:
            tensor = tensor.unsqueeze(0)
    return tensor
