"""The effect of each edge between two heads on the difference between two texts: estimated, and run.

Edge attribution patching (Syed et al. 2023) with integrated gradients (Hanna et al. 2024). Nodes are the
token embeddings, every head, and the prediction. An edge carries a head's output to a later one through
the residual stream and the feed-forward layers; attention in between is held constant. Its score is the
difference of its source between the texts times the gradient of the prediction's score along the edge,
averaged over the straight path from one text's embeddings to the other's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from attnscope.axes import Array
from attnscope.capture.hooks.gate import edited
from attnscope.errors import ModelError
from attnscope.models import Model
from attnscope.questions.intervention import Scored, SeenPass
from attnscope.questions.patching import TextPair, TwoPasses

STEPS = 5  # points on the path from one text's embeddings to the other's at which gradients are taken
ROUNDING = 1e-4  # tolerance of a share
PASSES = 4000  # passes after which edges are no longer tested for being necessary

Edge: TypeAlias = tuple[int, int]
"""Two nodes by number: 0 is the embeddings, then every head, last the prediction."""


@contextmanager
def embeddings_changed(module: nn.Module, change: Callable[[int, Tensor], Tensor | None]) -> Iterator[None]:
    """Let ``change`` see, and replace, the output of each embedding of a module while the block runs."""
    number = -1

    def hook(_: nn.Module, given: object, output: Tensor) -> Tensor | None:
        nonlocal number
        number += 1
        return change(number, output)

    with ExitStack() as stack:
        for part in module.modules():
            if isinstance(part, nn.Embedding):
                stack.callback(part.register_forward_hook(hook).remove)
        yield


@dataclass(frozen=True, eq=False)
class TwoTexts:
    """Two texts of one length, their passes, and passes in between."""

    scored: Scored
    clean: SeenPass
    corrupt: SeenPass
    embeds: Sequence[Sequence[Tensor]]  # what embeddings gave in the clean text, and in the corrupt one

    @classmethod
    def of(cls, model: Model, pair: TextPair) -> TwoTexts:
        """Run both texts.

        Raises ``ModelError`` where heads cannot be changed or embeddings not be seen, ``InputError`` if the
        prediction does not differ between the texts.
        """
        seen = list[Tensor]()
        with (
            pair.scoring(model, noise=True) as (clean, corrupt),
            embeddings_changed(model.module, lambda _, output: seen.append(output.clone())),
        ):
            both = TwoPasses.of(clean, corrupt)
        if not seen:
            raise ModelError(f"{model.name} has no embedding of tokens: circuits are of texts")
        count = len(seen) // 2
        return cls(clean, both.here, both.there, (seen[:count], seen[count:]))

    @property
    def heads(self) -> list[int]:
        """How many heads each call has."""
        return [given.shape[2] for given in self.clean.given]

    @cached_property
    def places(self) -> list[tuple[int, int]]:
        """The call and the number in it of every head."""
        return [(call, head) for call, of in enumerate(self.heads) for head in range(of)]

    def run(self, embeds: Sequence[Tensor], edit: Callable[[int, Tensor], Tensor | None]) -> Tensor:
        """The score of a pass with other embeddings, and other outputs of attention calls."""
        with embeddings_changed(self.scored.model.module, lambda number, _: embeds[number]), edited(edit):
            return self.scored.score(self.scored.logits())

    @property
    def whole(self) -> float:
        """The difference of the texts' scores."""
        return self.clean.score - self.corrupt.score

    def attribute(self) -> Array:
        """The score of every edge, averaged over ``STEPS``.  -> [node, node]"""
        heads = self.heads
        count = 2 + sum(heads)
        first = [1 + sum(heads[:call]) for call in range(len(heads))]
        scores = np.zeros((count, count))
        moved = [one - other for one, other in zip(*self.embeds, strict=True)]
        apart = [one - other for one, other in zip(self.clean.given, self.corrupt.given, strict=True)]

        def add(node: int, slopes: Sequence[Tensor]) -> None:
            """Add a node's incoming edges, by the gradients of all earlier nodes."""
            scores[0, node] += sum(
                float((each * slope).sum()) for each, slope in zip(moved, slopes, strict=False)
            )
            for call, slope in enumerate(slopes[len(moved) :]):
                sums = (apart[call] * slope).sum((0, 1, 3)).double().cpu().numpy()  # [head]
                scores[first[call] : first[call] + heads[call], node] += sums

        for step in range(STEPS):
            share = (step + 0.5) / STEPS
            mixed = [
                (other + share * change).requires_grad_()
                for other, change in zip(self.embeds[1], moved, strict=True)
            ]
            made, leaves = list[Tensor](), list[Tensor]()

            def part(
                _: int, output: Tensor, made: list[Tensor] = made, leaves: list[Tensor] = leaves
            ) -> Tensor:
                made.append(output)
                leaves.append(output.detach().requires_grad_())
                return leaves[-1]

            direct = _slopes(self.run(mixed, part), [*mixed, *leaves])
            add(count - 1, direct)
            totals = list(direct[len(mixed) :])
            for call in reversed(range(len(leaves))):
                for head in range(heads[call]):
                    alone = torch.zeros_like(totals[call])
                    alone[:, :, head] = totals[call][:, :, head]
                    found = _slopes(made[call], [*mixed, *leaves[:call]], alone)
                    add(first[call] + head, found)
                    for before, slope in enumerate(found[len(mixed) :]):
                        totals[before] = totals[before] + slope
        return scores / STEPS

    def restored(self, edges: frozenset[Edge]) -> float:
        """The score if these edges carry the text's values, and all others the other text's.

        One pass for each set of source nodes.
        """
        last = 1 + len(self.places)
        given: dict[int, Tensor] = {}  # of the nodes of the circuit, [batch, query, size]
        passes: dict[frozenset[int], tuple[Tensor, list[Tensor]]] = {}

        def run(sources: frozenset[int]) -> tuple[Tensor, list[Tensor]]:
            seen: list[Tensor] = []

            def put(call: int, output: Tensor) -> Tensor:
                seen.append(output)
                return self._put(
                    {source: given[source] for source in sources - {0}}, call, self.corrupt.given[call]
                )

            return self.run(self.embeds[0 if 0 in sources else 1], put), seen

        by_target = sources_of(edges)
        for node in sorted(by_target.keys() | {last}):
            sources = by_target.get(node, frozenset())
            if sources not in passes:
                passes[sources] = run(sources)
            if node < last:
                call, head = self.places[node - 1]
                given[node] = passes[sources][1][call][:, :, head]
        return float(passes[by_target.get(last, frozenset())][0])

    def without(self, nodes: Sequence[int]) -> float:
        """The score of the text with some heads' outputs from the other one."""
        others = {}
        for node in nodes:
            call, head = self.places[node - 1]
            others[node] = self.corrupt.given[call][:, :, head]
        return float(self.run(self.embeds[0], partial(self._put, others)))

    def _put(self, nodes: Mapping[int, Tensor], call: int, output: Tensor) -> Tensor:
        """The output of a call with that of some nodes replaced."""
        changed = output.clone()
        for node, states in nodes.items():
            at, head = self.places[node - 1]
            if at == call:
                changed[:, :, head] = states
        return changed


def _slopes(of: Tensor, sources: Sequence[Tensor], by: Tensor | None = None) -> tuple[Tensor, ...]:
    if not of.requires_grad:
        return tuple(map(torch.zeros_like, sources))
    return torch.autograd.grad(
        of, list(sources), by, allow_unused=True, materialize_grads=True, retain_graph=True
    )


def sources_of(edges: frozenset[Edge]) -> dict[int, frozenset[int]]:
    """The sources of each node."""
    found: dict[int, set[int]] = {}
    for source, target in edges:
        found.setdefault(target, set()).add(source)
    return {target: frozenset(sources) for target, sources in found.items()}


def connected(edges: Sequence[Edge], last: int) -> frozenset[Edge]:
    """The edges that lie on a path from the embeddings to the prediction."""
    ahead, back = {0}, {last}
    for source, target in sorted(edges):
        if source in ahead:
            ahead.add(target)
    for source, target in sorted(edges, key=lambda edge: -edge[1]):
        if target in back:
            back.add(source)
    return frozenset((source, target) for source, target in edges if source in ahead and target in back)


def prune(
    edges: Sequence[Edge],
    last: int,
    share: Callable[[frozenset[Edge]], float],
    keep: float,
    passes: Callable[[], int],
) -> frozenset[Edge]:
    """The fewest edges, largest first, that keep a share; then without each one that is not needed.

    More than the full effect counts as a miss, too.
    """

    def enough(some: frozenset[Edge]) -> bool:
        return abs(1 - share(some)) <= 1 - keep + ROUNDING

    high = 1
    while high < len(edges) and not enough(connected(edges[:high], last)):
        high *= 2
    low = high // 2
    high = min(high, len(edges))
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(connected(edges[:middle], last)) else (middle, high)
    kept = connected(edges[:high], last)
    for edge in reversed(edges[:high]):
        if edge in kept and passes() < PASSES:
            fewer = connected(sorted(kept - {edge}), last)
            kept = fewer if enough(fewer) else kept
    return kept
