"""The key of the highest score: hard attention, by weights of one and zero or by its number alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from attnscope.capture.lineage.functions import RESHAPING
from attnscope.capture.lineage.nodes import Origin

TAKING = frozenset({"gather", "take_along_dim", "index_select", "__getitem__"})


class Choices:
    """Knows numbers of keys that are the highest of scores, and the scores that they were chosen by."""

    def __init__(self) -> None:
        self._chosen: Any = WeakTensorKeyDictionary()

    def see(
        self, name: str, args: Sequence[Any], result: Any, of: Callable[[Any], Origin | None]
    ) -> Origin | None:
        """Follow a function; the origin of ones at chosen keys and zeros elsewhere is that of the scores."""
        if not args or not isinstance(args[0], Tensor):
            return None
        if name in ("argmax", "max"):
            numbers, origin = result if isinstance(result, Tensor) else result[1], of(args[0])
            if origin is not None and origin.right is not None and numbers.ndim:
                self._chosen[numbers] = origin, args[0].shape
        elif self._chosen and args[0] in self._chosen and isinstance(result, Tensor):
            origin, shape = self._chosen[args[0]]
            if name == "one_hot":
                return replace(origin, rectified=True) if result.shape == shape else None
            if name in RESHAPING and not result.is_floating_point():
                self._chosen[result] = origin, None
        return None

    def take(self, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
        """Whether a function takes entries at chosen keys."""
        if name not in TAKING or not self._chosen:
            return False
        given = [part for arg in (*args[1:], *kwargs.values()) for part in _parts(arg)]
        return any(isinstance(part, Tensor) and part in self._chosen for part in given)


def _parts(arg: Any) -> Sequence[Any]:
    return arg if isinstance(arg, (tuple, list)) else (arg,)
