"""Modules that mix tokens in ways that no softmax over keys tells: found by their token axes, and named.

Sigmoids, ReLUs, exponentials that are divided later, sums of keys times values, running sums, the value of
the highest score, sums of weighed values, weights that a layer makes of pairs: nothing of these is shown.
What makes them one thing is that entries from several positions meet, so each is told by its lineage.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from attnscope.capture.hooks.softmax import is_parameter
from attnscope.capture.lineage.follow import Lineage
from attnscope.capture.lineage.functions import PRODUCTS, RESHAPING, Product, Seen
from attnscope.capture.lineage.layout import find_positions, is_constant
from attnscope.capture.lineage.nodes import STRETCH, Node, beginnings, comes_from_projection
from attnscope.capture.rows.weighing import Weighing, is_mapped
from attnscope.capture.tracker import Pass, Tracker

NO_SOFTMAX = (
    "it weighs values by scores that no softmax made (sigmoids, ReLUs, exponentials divided later): its "
    "weights are not shown"
)
SIGNED = "it weighs values by products of queries and keys, some of them negative: no distribution over keys"
SUMMED = "it sums products of two states over tokens (linear attention): no weights from token to token"
RUNNING = "it adds up what tokens hold, one after another (a running sum): no weights from token to token"
CHOSEN = "each query takes the values at its highest score, by number: hard attention without weights"
MADE = "a layer makes its weights, of pairs of tokens (additive attention) or of one: they are not shown"
MAPPED = "it attends inside of torch.vmap, which hides some of its axes: its weights are not shown"

TAKING = frozenset({"gather", "take_along_dim", "index_select", "__getitem__"})


class UnnormalizedWeights(Tracker):
    """Names the modules that mix tokens without weights to show."""

    def __init__(self, recorder: Pass) -> None:
        super().__init__(recorder)
        self.reasons: dict[str, str] = {}  # by the path of the module
        self._lineage = recorder.of(Lineage)
        self.begin()

    def begin(self) -> None:
        """Nothing was chosen yet."""
        self._chosen: Any = WeakTensorKeyDictionary()  # numbers of the keys with the highest scores

    def _name(self, reason: str) -> None:
        """The innermost of the modules that run mixes tokens, and has no weights to show."""
        self.recorder.placed += 1
        self.reasons.setdefault(self.recorder.owner, reason)

    def see(self, seen: Seen) -> None:
        """Sums over tokens, running sums, choices of the highest score, and scores that weigh values."""
        if self.recorder.rests or self.recorder.frames or seen.is_nested:
            return
        name, product, given = seen.name, None, seen.given("input", "dim")
        source, axis = given.get("input"), given.get("dim")
        if name in PRODUCTS:
            product = seen.product
            if product is not None and self._sums(product):
                self._name(SUMMED)
        elif name == "cumsum" and isinstance(source, Tensor) and type(axis) is int:
            if self._varies(source, axis):
                self._name(RUNNING)
        elif name in ("argmax", "max") and isinstance(source, Tensor) and source.ndim:
            origin = self._lineage.of(source)
            if origin is not None and origin.right is not None:
                numbers = seen.result if isinstance(seen.result, Tensor) else seen.result[1]
                self._chosen[numbers] = origin, source.shape
        elif self._chosen and isinstance(source, Tensor):
            self._follow_chosen(seen, source)
        if product is not None:
            self._weigh(product)

    def see_gates(self, weighing: Weighing) -> None:
        """Weights that a layer made: whether they weigh what stands at several positions."""
        weighed = self._lineage.of(weighing.weighed)
        if weighing.trail.gates and weighed is not None and _stands_apart(weighed.node, weighing.key_axis):
            self._name(MADE)

    def _sides(self, weights: Tensor | None) -> list[Node]:
        """Where the queries and keys of weights come from."""
        origin = self._lineage.of(weights)
        return [] if origin is None else [side for side in (origin.node, origin.right) if side is not None]

    def _sums(self, product: Product) -> bool:
        """Whether a product sums over tokens on both sides."""
        gone = [each for each in product.ours if each in product.theirs and each not in product.out]
        return len(gone) == 1 and all(
            self._varies(factor, letters.index(gone[0])) for factor, letters, *_ in product.sides
        )

    def _weigh(self, product: Product) -> None:
        """Whether scores of queries and keys weigh values in a product, as no softmax does."""
        if all(len(self._sides(factor)) < 2 for factor in (product.left, product.right)):
            return
        for scores, letters, values, others in product.sides:
            keys = [letters.index(each) for each in letters if each in others and each not in product.out]
            queries = [letters.index(each) for each in letters if each not in others and each in product.out]
            if len(keys) == 1 and queries and self._weigh_tokens(scores, values, queries, keys[0]):
                if is_mapped(scores, values):
                    return self._name(MAPPED)
                return self._name(SIGNED if bool((scores < 0).any()) else NO_SOFTMAX)

    def _weigh_tokens(self, scores: Tensor, values: Tensor, queries: Sequence[int], key: int) -> bool:
        """Whether scores weigh values that were projected, from position to position."""
        origin, weighed = self._lineage.of(scores), self._lineage.of(values)
        if origin is None or origin.right is None or is_parameter(values):
            return False
        if is_mapped(scores, values):
            return weighed is None or weighed.right is None
        if weighed is None or weighed.right is not None:
            return False  # a power of scores weighs no values
        if not all(comes_from_projection(node) for node in (origin.node, origin.right, weighed.node)):
            return False
        asking, answering = find_positions(origin.node), find_positions(origin.right)
        if asking is None or answering is None:
            return self._says_attention()
        if scores.shape[key] < 2:  # one key after another, but for what looks at itself
            return not bool((asking == answering).all())
        for rows, columns in ((asking, answering), (answering, asking)):  # scores may lie transposed
            several = any(scores.shape[axis] < 2 or not is_constant(rows, axis) for axis in queries)
            if several and not is_constant(columns, key):
                return True
        return bool((answering % 1 > 0).all() and (asking % 1 == 0).all())  # keys made of tokens (Linformer)

    def _says_attention(self) -> bool:
        """Whether the name of the module that runs, or of its class, says that it attends."""
        call = self.recorder.call_of(self.recorder.owner)
        return call is not None and "att" in f"{call.name} {type(call.module).__name__}".lower()

    def _follow_chosen(self, seen: Seen, source: Tensor) -> None:
        """Numbers of keys that are moved, become ones among zeros, or say which values are taken."""
        if source in self._chosen and isinstance(seen.result, Tensor):
            origin, shape = self._chosen[source]
            if seen.name == "one_hot" and seen.result.shape == shape:
                self._lineage.set(seen.result, origin)
            elif seen.name in RESHAPING and not seen.result.is_floating_point():
                self._chosen[seen.result] = origin, None
        if seen.name in TAKING:
            numbers = [part for part in (*seen.tensors, *seen.kwargs.values()) if part is not source]
            taken = any(isinstance(part, Tensor) and part in self._chosen for part in numbers)
            if taken and self._varies(source, None):
                self._name(CHOSEN)

    def _varies(self, tensor: Tensor, axis: int | None) -> bool:
        """Whether what was projected stands at several positions along an axis, or any."""
        origin = self._lineage.of(tensor)
        if origin is None or origin.right is not None or not comes_from_projection(origin.node):
            return False
        if any(root.is_picture for root in beginnings(origin.node)):
            return False  # nobody knows which axis its features are
        places = find_positions(origin.node)
        if places is None:
            return False
        axes = range(places.ndim) if axis is None else (axis,)
        return any(not is_constant(places, each) for each in axes)


def _stands_apart(node: Node, axis: int) -> bool:
    """Whether entries along an axis stand at several positions; states of several layers stand at one."""
    places = find_positions(node)
    inside = places is not None and -places.ndim <= axis < places.ndim
    return places is not None and inside and not is_constant(places % STRETCH, axis)
