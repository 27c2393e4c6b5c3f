"""Which attention to look at, and how its axes are folded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch

from attnscope.attention import Attention, Axis, Site
from attnscope.axes.folding import AxisFolding, fold_axis
from attnscope.axes.weights import Array
from attnscope.capture.observers.coarsen import Folding
from attnscope.views import Scale


@dataclass(frozen=True)
class Choice:
    """Which attention to look at, and how. ``None`` means: not said.

    ``token`` is a word of the text or a token's number, ``words`` merges the pieces of words,
    ``hide_special`` leaves special tokens out, ``scale`` is one of ``attnscope.views.SCALES``. ``layers``
    names several layers at once.
    """

    layer: int | None = None
    head: int | None = None
    kind: str | None = None
    token: str | None = None
    words: bool = False
    hide_special: bool = False
    scale: Scale = "fixed"
    layers: tuple[int, ...] | None = None

    @property
    def every_layer(self) -> bool:
        """Whether no layer is left out."""
        return self.layer is None and self.layers is None

    def heads(self, site: Site, count: int) -> Sequence[int] | None:
        """The heads that are meant, among the ``count`` ones of a site."""
        if self.layer not in (None, site.layer) or self.kind not in (None, site.kind):
            return None
        if self.layers is not None and site.layer not in self.layers:
            return None
        if self.head is None:
            return range(count)
        return [self.head] if self.head < count else None

    def fold(self, axis: Axis, most: int | None = None) -> AxisFolding:
        """An axis as it is shown, in at most so many places."""
        return _fold(axis, self.words, self.hide_special, most)

    def folding(self, most: int) -> Callable[[Attention], Folding]:
        """What ``capture.Fold`` does to both axes of a map, to bring each to at most so many places."""

        def matrices(attention: Attention) -> Folding:
            down = self.fold(attention.queries, most).averaging()
            across = self.fold(attention.keys, most).summing()
            return tensor(down), tensor(across)

        return matrices


@lru_cache(maxsize=8)
def _fold(axis: Axis, words: bool, hide_special: bool, most: int | None) -> AxisFolding:
    return fold_axis(axis, words=words, hide_special=hide_special, most=most)


def tensor(matrix: Array | None) -> torch.Tensor | None:
    """An array as a tensor; ``None`` stays ``None``."""
    return None if matrix is None else torch.from_numpy(matrix)
