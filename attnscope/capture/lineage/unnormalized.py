"""Modules that mix tokens in ways that no softmax over keys tells: found by their token axes, and named.

Sigmoids, ReLUs, exponentials that are divided later, sums of keys times values, running sums, the value of
the highest score, sums of weighed values, weights that a layer makes of pairs: nothing of these is shown.
What makes them one thing is that entries from several positions meet, so each is told by its lineage.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from attnscope.capture.hooks.handwritten.parameters import is_parameter
from attnscope.capture.hooks.modules import PLAIN, Call
from attnscope.capture.lineage.follow import Lineage
from attnscope.capture.lineage.functions import PRODUCTS, RESHAPING, spell
from attnscope.capture.lineage.layout import find_positions, is_constant
from attnscope.capture.lineage.nodes import (
    STRETCH,
    Node,
    Origin,
    Root,
    beginnings,
    comes_from_projection,
    is_mixed,
)
from attnscope.capture.placing.without_attention import POOLED
from attnscope.capture.rows.weighing import Weighing, is_mapped

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


@dataclass(eq=False)
class UnnormalizedWeights:
    """Names the modules that mix tokens without weights to show; ``ask`` is called before one is named."""

    ask: Callable[[], None]
    reasons: dict[str, str] = field(default_factory=dict)  # by the path of the module

    def begin_pass(self, lineage: Lineage) -> None:
        """Nothing is known."""
        self._lineage = lineage
        self._chosen: Any = WeakTensorKeyDictionary()  # numbers of the keys with the highest scores

    def name(self, calls: Sequence[Call], reason: str) -> None:
        """The innermost of the modules that run mixes tokens, and has no weights to show."""
        call = next((call for call in reversed(calls) if not isinstance(call.module, PLAIN)), None)
        if call is not None:
            self.ask()
            self.reasons.setdefault(call.name, reason)

    def see(
        self, calls: Sequence[Call], name: str, args: Sequence[Any], kwargs: dict[str, Any], result: Any
    ) -> None:
        """Sums over tokens, running sums and choices of the highest score."""
        given = dict(zip(("input", "dim"), args, strict=False)) | kwargs
        source, axis = given.get("input"), given.get("dim")
        if name in PRODUCTS:
            if self._sums(name, args, kwargs, result):
                self.name(calls, SUMMED)
        elif name == "cumsum" and isinstance(source, Tensor) and type(axis) is int:
            if self._varies(source, axis):
                self.name(calls, RUNNING)
        elif name in ("argmax", "max") and isinstance(source, Tensor) and source.ndim:
            origin = self._lineage.of(source)
            if origin is not None and origin.right is not None:
                numbers = result if isinstance(result, Tensor) else result[1]
                self._chosen[numbers] = origin, source.shape
        elif self._chosen and isinstance(source, Tensor):
            self._follow_chosen(calls, name, source, [*args[1:], *kwargs.values()], result)

    def weigh(
        self, calls: Sequence[Call], name: str, args: Sequence[Any], kwargs: dict[str, Any], result: Tensor
    ) -> None:
        """A product: whether scores of queries and keys weigh values in it, as no softmax does."""
        factors = [arg for given in args for arg in (given if isinstance(given, (list, tuple)) else (given,))]
        if not any(origin.right is not None for origin in map(self._lineage.of, factors) if origin):
            return
        spelled = spell(name, args, kwargs, result)
        if spelled is None:
            return
        (left, right), (ours, theirs), out = spelled
        for scores, values, letters, others in ((left, right, ours, theirs), (right, left, theirs, ours)):
            keys = [letters.index(each) for each in letters if each in others and each not in out]
            queries = [letters.index(each) for each in letters if each not in others and each in out]
            if len(keys) == 1 and queries and self._weigh_tokens(calls, scores, values, queries, keys[0]):
                if is_mapped(scores, values):
                    return self.name(calls, MAPPED)
                return self.name(calls, SIGNED if bool((scores < 0).any()) else NO_SOFTMAX)

    def pool(self, calls: Sequence[Call], weights: Tensor, axes: Sequence[int]) -> None:
        """Weights of a softmax, and the axes along which what they weighed was summed."""
        origin = self._lineage.of(weights)
        sides = [] if origin is None else [origin.node, origin.right]
        if any(_stands_apart(side, axis) for side in sides if side is not None for axis in axes):
            self.name(calls, POOLED)

    def see_gates(self, calls: Sequence[Call], weighing: Weighing) -> None:
        """Weights that a layer made: whether they weigh what stands at several positions."""
        weighed = self._lineage.of(weighing.weighed)
        if weighing.trail.gates and weighed is not None and _stands_apart(weighed.node, weighing.key_axis):
            self.name(calls, MADE)

    def _sums(self, name: str, args: Sequence[Any], kwargs: dict[str, Any], result: Tensor) -> bool:
        """Whether a product sums over tokens on both sides."""
        spelled = spell(name, args, kwargs, result)
        if spelled is None:
            return False
        (left, right), (ours, theirs), out = spelled
        gone = [letter for letter in ours if letter in theirs and letter not in out]
        if len(gone) != 1:
            return False
        return self._varies(left, ours.index(gone[0])) and self._varies(right, theirs.index(gone[0]))

    def _weigh_tokens(
        self, calls: Sequence[Call], scores: Tensor, values: Tensor, queries: Sequence[int], key: int
    ) -> bool:
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
            return _says_attention(calls)
        if scores.shape[key] < 2:  # one key after another, but for what looks at itself
            return not bool((asking == answering).all())
        for rows, columns in ((asking, answering), (answering, asking)):  # scores may lie transposed
            several = any(scores.shape[axis] < 2 or not is_constant(rows, axis) for axis in queries)
            if several and not is_constant(columns, key):
                return True
        return is_mixed(origin.right, origin.node)

    def _follow_chosen(
        self, calls: Sequence[Call], name: str, source: Tensor, rest: Sequence[Any], result: Any
    ) -> None:
        """Numbers of keys that are moved, become ones among zeros, or say which values are taken."""
        if source in self._chosen and isinstance(result, Tensor):
            origin, shape = self._chosen[source]
            if name == "one_hot" and result.shape == shape:
                self._lineage.keep(result, origin)
            elif name in RESHAPING and not result.is_floating_point():
                self._chosen[result] = origin, None
        if name in TAKING:
            parts = [part for arg in rest for part in (arg if isinstance(arg, (tuple, list)) else (arg,))]
            taken = any(isinstance(part, Tensor) and part in self._chosen for part in parts)
            if taken and self._varies(source, None):
                self.name(calls, CHOSEN)

    def _varies(self, tensor: Tensor, axis: int | None) -> bool:
        """Whether what was projected stands at several positions along an axis, or any."""
        origin: Origin | None = self._lineage.of(tensor)
        if origin is None or origin.right is not None or not comes_from_projection(origin.node):
            return False
        begun = [begin for begin in beginnings(origin.node) if isinstance(begin, Root)]
        if any(len(begin.shape) > 3 and begin.channel_axis == -1 for begin in begun):
            return False  # of a picture, nobody knows which axis its features are
        places = find_positions(origin.node)
        if places is None:
            return False
        axes = range(places.ndim) if axis is None else (axis,)
        return any(places.shape[each] > 1 and not is_constant(places, each) for each in axes)


def _stands_apart(node: Node, axis: int) -> bool:
    """Whether entries along an axis stand at several positions; states of several layers stand at one."""
    places = find_positions(node)
    return (
        places is not None and -places.ndim <= axis < places.ndim and not is_constant(places % STRETCH, axis)
    )


def _says_attention(calls: Sequence[Call]) -> bool:
    """Whether the name of the module that runs, or of its class, says that it attends."""
    call = next((call for call in reversed(calls) if not isinstance(call.module, PLAIN)), None)
    return call is not None and "att" in f"{call.name} {type(call.module).__name__}".lower()
