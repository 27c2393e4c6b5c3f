"""What a pass computed at one token, by the edge of torch's graph that a gradient reaches it through."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node

from attnscope.attention import Attention, Site
from attnscope.capture.hooks.fast_path import WatchingMode
from attnscope.capture.hooks.modules import Call
from attnscope.capture.observer import is_quiet, quietly
from attnscope.capture.projections import Projections
from attnscope.capture.record import tolerance
from attnscope.capture.rows.proof import mix

Edge: TypeAlias = "tuple[Node, int]"
"""Where a gradient reaches a tensor: the node of torch's graph that made it, and which output of it."""


class Row(NamedTuple):
    """One tensor at one token, along each axis as long as the text, and the module that it is of."""

    at: Mapping[int, Tensor]  # by axis; its place is cut out
    module: str


class Written(NamedTuple):
    """What the heads of one call mixed at the token, as it goes on, or with the projection behind it."""

    site: Site
    mixed: Tensor  # [head, size]
    weight: Tensor | None = None  # [head, size, width]
    bias: Tensor | None = None  # [width]


@dataclass(eq=False)
class StreamRows(Projections):
    """An observer that keeps one token's row of every tensor of a pass that kept gradients.

    ``length`` is the number of tokens, ``at`` the token. The functions of the pass must be watched, before a
    recording is begun:

    >>> with rows.watching(model), recording(model, [rows]):
    ...     score = model(**inputs)
    """

    length: int = 0
    at: int = 0
    rows: dict[Edge, Row] = field(default_factory=dict)
    _mixed: dict[Site, Tensor] = field(default_factory=dict)  # [head, size]
    _near: dict[Site, float] = field(default_factory=dict)

    @contextmanager
    def watching(self, model: nn.Module) -> Iterator[None]:
        """Watch which modules and functions run inside the block."""
        with super().watching(model), _Functions(self):
            yield

    def observe(self, attention: Attention) -> None:
        """Keep what the heads mixed at the token, and look for the projection."""
        if attention.values is not None and attention.batch == 1 and len(attention.queries) == self.length:
            rows = attention.rows(self.at, self.at + 1)
            self._mixed[attention.site] = mix(rows, attention.values)[0, :, 0]
            self._near[attention.site] = tolerance(attention.dtype)
        super().observe(attention)

    def keep(self, output: object) -> None:
        """Note the rows of what a function or a module gave."""
        given = output if isinstance(output, (tuple, list)) else (output,)
        for each in given:
            if isinstance(each, Tensor) and each.grad_fn is not None and not each.is_nested:
                axes = [axis for axis, size in enumerate(each.shape[:-1]) if size == self.length]
                if axes:
                    with torch.no_grad():
                        cut = {axis: each.detach().select(axis, self.at).clone() for axis in axes}
                    module = self._running[-1].name if self._running else ""
                    self.rows[each.grad_fn, each.output_nr] = Row(cut, module)

    def written(self) -> dict[Edge, Written]:
        """Where what heads mixed, or what their projection made of it, stands in the graph."""
        edges: dict[Edge, Written] = {}
        for site, mixed in self._mixed.items():
            projection = self.found.get(site)
            if projection is not None and projection.edge is not None:
                edge = projection.edge.node, projection.edge.output_nr
                edges[edge] = Written(site, mixed, projection.weight, projection.bias)
                continue
            near = self._near[site] * float(mixed.abs().amax())
            for edge, row in self.rows.items():
                if row.module.startswith(site.name) and edge not in edges:
                    for cut in row.at.values():
                        if cut.numel() == mixed.numel() and _gap(cut.reshape(mixed.shape), mixed) <= near:
                            edges[edge] = Written(site, mixed)
        return edges

    def times(self, edge: Edge, grad: Tensor) -> float | None:
        """What was computed at an edge times its gradient; ``None`` where no row of it was kept."""
        row = self.rows.get(edge)
        if row is None:
            return None
        axis = self._axis(grad, row.at)
        return float((row.at[axis].double() * grad.detach().select(axis, self.at).double()).sum())

    def cut(self, grad: Tensor, size: int) -> Tensor:
        """The token's row of a gradient that has so many numbers for each token."""
        axes = [axis for axis, length in enumerate(grad.shape[:-1]) if length == self.length]
        fits = [axis for axis in axes if grad.numel() == size * self.length]
        return grad.select(self._axis(grad, fits), self.at)

    def _axis(self, grad: Tensor, axes: Collection[int]) -> int:
        """Along which axis the tokens lie: where the gradient is one row's alone."""
        return max(axes, key=lambda axis: float(grad.detach().select(axis, self.at).abs().sum()))

    def _leave(self, call: Call, output: object) -> None:
        super()._leave(call, output)
        self.keep(output)


def _gap(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().amax())


class _Functions(WatchingMode):
    """Hands what each function of torch gave to the rows."""

    def __init__(self, rows: StreamRows) -> None:
        super().__init__()
        self.rows = rows

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run ``func``; the mode itself is off while this method runs."""
        result = func(*args, **(kwargs or {}))
        if not is_quiet() and torch.is_grad_enabled():
            with quietly():
                self.rows.keep(result)
        return result
