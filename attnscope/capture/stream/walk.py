"""From a score back along the residual stream, to all that was added to it.

The stream is what leads from the score to the embeddings through nothing but sums, linear maps and factors
that are held. What is added to it and does not lead there is a part: what heads mixed, found by its
numbers, or else the output of whatever added it. The score is linear in all of them, so that each part times
its gradient is what it writes, and these sum to the score.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

from torch import Tensor
from torch.autograd.graph import Node

from attnscope.capture.stream.rows import Edge, StreamRows
from attnscope.capture.stream.rules import (
    ACTIVATIONS,
    LINEAR,
    NORMS,
    PRODUCTS,
    SIDES,
    is_spread,
    kind,
    pull,
    shape_of,
)

Key = TypeVar("Key", Edge, Node)
Ways: TypeAlias = "Callable[[tuple[Node | None, int]], bool]"

LEAF = "AccumulateGrad"
EMBEDDING = "Embedding"


class Lost(Exception):
    """The stream cannot be followed through a function; the message names it."""


@dataclass(eq=False)
class Parts:
    """The gradients of a score at all that it is the sum of."""

    heads: dict[Edge, Tensor] = field(default_factory=dict)
    others: dict[Edge, Tensor] = field(default_factory=dict)
    embeddings: dict[Edge, Tensor] = field(default_factory=dict)
    biases: dict[Node, Tensor] = field(default_factory=dict)
    constants: list[tuple[Edge, Edge | None, Tensor]] = field(default_factory=list)


@dataclass(eq=False)
class Stream:
    """The graph behind a score: which nodes lead to the embeddings (the stream), and which to heads."""

    root: Edge
    rows: StreamRows
    held: list[str] = field(default_factory=list)  # activations of the output head

    def __post_init__(self) -> None:
        self.written = self.rows.written()
        self.order = _order(self.root[0])  # what a node reads stands before it
        self._open: set[Node] = set()
        self._varies: dict[Node, bool] = {}
        for node in self.order:
            self._varies[node] = kind(node) == EMBEDDING or any(
                self._varies[each] for each, _ in node.next_functions if each is not None
            )
        for _ in range(3):
            self._look()
            if self._leads[self.root[0]]:
                return
            self._open_head()
        raise Lost("its output does not lead back to its embeddings")

    def _look(self) -> None:
        """Say of every node whether it leads to the embeddings, and whether to heads."""
        self._leads: dict[Node, bool] = {}
        self._heads: dict[Node, bool] = {}
        for node in self.order:
            self._leads[node] = kind(node) == EMBEDDING or any(self._ways(node, self.streams))
            self._heads[node] = not self._leads[node] and any(self._ways(node, self.mixes))

    def streams(self, edge: tuple[Node | None, int]) -> bool:
        """Whether an edge is of the stream."""
        return edge[0] is not None and edge not in self.written and self._leads[edge[0]]

    def mixes(self, edge: tuple[Node | None, int]) -> bool:
        """Whether an edge is of what heads wrote."""
        return edge[0] is not None and (edge in self.written or self._heads[edge[0]])

    def mixes_tokens(self, edge: Edge) -> bool:
        """Whether a part is made by a convolution, beside or in the place of attention."""
        waiting, reached = [edge[0]], set[Node]()
        while waiting:
            node = waiting.pop()
            if node in reached or self._leads[node]:
                continue
            reached.add(node)
            if kind(node) == "Convolution":
                return True
            waiting += [each for each, _ in node.next_functions if each is not None]
        return False

    def _ways(self, node: Node, leads: Ways) -> list[bool]:
        """Which inputs of a node lead on, where one may go on at all."""
        name, inputs = kind(node), node.next_functions
        ways = [leads(edge) for edge in inputs]
        none = [False] * len(ways)
        if name in LINEAR:
            return ways
        if name in ACTIVATIONS:
            return ways if node in self._open else none
        if name in NORMS:
            return [ways[0], False, False][: len(ways)]
        if name not in PRODUCTS:
            return none
        added = SIDES.get(name, 0)
        factors = ways[added:]
        if name == "Div":
            factors = [factors[0], False] if not any(factors[1:]) else [False, False]
        if sum(factors) != 1:
            return [*ways[:added], *([False] * len(factors))]
        side = factors.index(True)
        other = inputs[1 + added - side] if len(factors) == 2 else (None, 0)
        if leads == self.streams and other[0] is not None and self._varies[other[0]]:
            of_each = (
                name == "Bmm" and shape_of(node, 0)[0] == self.rows.length
            )  # streams mixed token by token
            if not (of_each or is_spread(node, 1 - side) or node in self._open):
                factors = [False, False]
        return [*ways[:added], *factors]

    def _open_head(self) -> None:
        """Hold the activations that stand between the score and everything else."""
        waiting, reached = [self.root[0]], set[Node]()
        while waiting:
            node = waiting.pop()
            if node in reached:
                continue
            reached.add(node)
            name = kind(node)
            varying = [each for each, _ in node.next_functions if each is not None and self._varies[each]]
            gated = name == "Mul" and len(varying) == 2 and not any(is_spread(node, side) for side in (0, 1))
            blocked = name in ACTIVATIONS or (gated and not any(self._ways(node, self.streams)))
            if blocked and node not in self._open and self._varies[node]:
                self._open.add(node)
                if name in ACTIVATIONS:
                    self.held.append(name.lower())
            elif name in LINEAR | PRODUCTS | ACTIVATIONS:
                waiting += [each for each, _ in node.next_functions if each is not None]

    def walk(self, seed: Tensor) -> Parts:
        """Take a gradient at the root back to all parts."""
        parts = Parts()
        pending: dict[Node, list[Tensor | None]] = {}
        self._push(self.root, seed, pending, parts)
        for node in reversed(self.order):
            grads = pending.pop(node, None)
            if grads is None:
                continue
            name = kind(node)
            if name == EMBEDDING:
                _add(parts.embeddings, (node, 0), grads[0])
                continue
            if name == LEAF:
                _add(parts.biases, node, grads[0])
                continue
            self._pass(node, name, grads, pending, parts)
        return parts

    def _pass(
        self,
        node: Node,
        name: str,
        grads: list[Tensor | None],
        pending: dict[Node, list[Tensor | None]],
        parts: Parts,
    ) -> None:
        """Take gradients through one node."""
        chosen = self._chosen(node, name)
        if chosen is None:
            raise Lost(f"nothing is known of {name.lower()}")
        known = [(each, output) for each, output in node.next_functions if each is not None]
        if name in ("Add", "Sub") and len(known) < 2 and grads[0] is not None:
            parts.constants.append(((node, 0), known[0] if known else None, grads[0]))
        for (each, output), grad, follow in zip(node.next_functions, pull(node, grads), chosen, strict=False):
            if follow and each is not None and grad is not None:
                shape = shape_of(each, output)
                grad = grad.sum_to_size(shape) if grad.shape != shape else grad
                self._push((each, output), grad, pending, parts)

    def _chosen(self, node: Node, name: str) -> list[bool] | None:
        """Which inputs the gradient goes on to: all terms of a sum, one side of a product."""
        inputs = node.next_functions
        if name in LINEAR:
            return [True] * len(inputs)
        ways = self._ways(node, self.mixes)
        streams = self._ways(node, self.streams)
        ways = [one or other for one, other in zip(ways, streams, strict=True)]
        if not any(ways) and name in PRODUCTS:
            varying = [edge[0] is not None and self._varies[edge[0]] for edge in inputs]
            ways = varying if sum(varying) == 1 else ways
        if not any(ways):
            return None
        if name in NORMS:
            return [True, False, True][: len(inputs)]
        return [True if side < SIDES.get(name, 0) else way for side, way in enumerate(ways)]

    def _push(self, edge: Edge, grad: Tensor, pending: dict[Node, list[Tensor | None]], parts: Parts) -> None:
        """Add a gradient to what waits at an edge, or to a part: heads, or another whose row is known."""
        node, output = edge
        if edge in self.written:
            return _add(parts.heads, edge, grad)
        on = self.streams(edge) or self.mixes(edge) or not self._varies[node]
        if not on and edge in self.rows.rows:
            return _add(parts.others, edge, grad)
        waiting = pending.setdefault(node, [None] * len(node._input_metadata))
        before = waiting[output]
        waiting[output] = grad if before is None else before + grad


def _add(sums: dict[Key, Tensor], key: Key, grad: Tensor | None) -> None:
    if grad is not None:
        sums[key] = sums[key] + grad if key in sums else grad


def _order(root: Node) -> list[Node]:
    """All nodes behind one, each behind those that it reads."""
    order: list[Node] = []
    reached = {root}
    waiting = [(root, iter(root.next_functions))]
    while waiting:
        node, inputs = waiting[-1]
        for each, _ in inputs:
            if each is not None and each not in reached:
                reached.add(each)
                waiting.append((each, iter(each.next_functions)))
                break
        else:
            order.append(node)
            waiting.pop()
    return order
