"""Which attention is selected, and how its axes are coarsened."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

from attnscope.attention import Axis, Head, Site
from attnscope.axes import Coarsening, coarsen_axis
from attnscope.capture.observers import Coarsen, How
from attnscope.errors import SelectionError
from attnscope.views import Scale


@dataclass(frozen=True)
class Selection:
    """Which attention, and how it is shown. ``None`` means: not given.

    ``head`` is one head, ``among`` are several; ``layers`` are some layers, ``number`` the heads of that
    number in each of them.
    ``token`` is a word of the text or a token's number, ``words`` merges the pieces of words,
    ``hide_special`` leaves special tokens out, ``zoom`` keeps a run of tokens, ``scale`` is one of
    ``attnscope.views.Scale``, cells of a head's map below ``min_weight`` are hidden, and those
    that ``mark`` asks about, like ``find``, are marked.
    """

    head: Head | None = None
    among: tuple[Head, ...] = ()
    layers: tuple[int, ...] | None = None
    number: int | None = None
    kind: str | None = None
    token: str | None = None
    words: bool = False
    hide_special: bool = False
    zoom: range | None = None
    scale: Scale = "auto"
    min_weight: float = 0.0
    mark: Sequence[str] | None = None

    def __post_init__(self) -> None:
        if self.head is not None and self.head.kind is not None:
            if self.kind not in (None, self.head.kind):
                said = f"{self.head} is not a head of {self.kind} attention"
                raise SelectionError(f"{said}: leave one of them out")
            object.__setattr__(self, "kind", self.head.kind)

    def of(self, head: Head | str) -> Selection:
        """The same for one head: ``"L2H1"`` or a ``Head``."""
        return replace(self, head=Head(head))

    @property
    def as_read(self) -> bool:
        """Whether the axes hold each token that the model read."""
        return not (self.words or self.hide_special or self.zoom)

    @property
    def every_layer(self) -> bool:
        """Whether all layers are selected."""
        return self.named == () and self.layers is None

    @property
    def named(self) -> tuple[Head, ...]:
        """The heads that are named by their layer and number."""
        return self.among if self.head is None else (self.head,)

    def meets(self, site: Site) -> bool:
        """Whether a layer is selected."""
        layers = {each.layer for each in self._named_in(site)} if self.named else self.layers
        return self.kind in (None, site.kind) and (layers is None or site.layer in layers)

    def heads(self, site: Site, count: int) -> Sequence[int]:
        """The selected heads' numbers, among the ``count`` ones of a site; none if it is not selected."""
        every = range(count if self.meets(site) else 0)
        if self.named:
            return sorted({each.head for each in self._named_in(site)} & {*every})
        return every if self.number is None else every[self.number : self.number + 1]

    def _named_in(self, site: Site) -> list[Head]:
        """The named heads of a site's layer."""
        return [each for each in self.named if each.layer == site.layer and each.kind in (None, site.kind)]

    def coarsening(self, axis: Axis, most: int | None = None, *, even: bool = False) -> Coarsening:
        """How an axis is coarsened for display, to at most so many places."""
        hidden = {"hide_special": self.hide_special, "zoom": self.zoom}
        return coarsen_axis(axis, words=self.words, **hidden, most=most, even=even)

    def coarsen(self, most: int, *, even: bool = False, how: How = "share") -> Coarsen:
        """An observer that keeps every head as shown, with at most so many rows and columns."""
        along = partial(self.coarsening, most=most, even=even)
        return Coarsen(lambda attention: (along(attention.queries), along(attention.keys)), how, signed=True)


Asked: TypeAlias = Selection | Head | str
"""What a function on one head accepts: its address alone, or a selection that names it."""


def selection_of(asked: Asked) -> Selection:
    """A head's address as a selection; a selection stays as it is."""
    return asked if isinstance(asked, Selection) else Selection().of(asked)
