"""Modules in which other things than tokens attend, or tokens mix without a softmax that weighs values.

Texts of a batch and channels may attend, too. And what a function computes for one position may depend on
others: products without a softmax (sigmoids, exponentials that are normalised later, sums of keys times
values), running sums, convolutions, recurrences, edges of a graph, a layer over positions, means added to
each token. Positions are known by lineage, never by names or sizes. Functions that keep entries in place, or
only move them, mix nothing.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from attnscope.capture.hooks.functions import quietly
from attnscope.capture.hooks.modules import Call
from attnscope.capture.hooks.softmax import Learned, Trails
from attnscope.capture.lineage.follow import MULTIPLYING, Lineage
from attnscope.capture.lineage.functions import ELEMENTWISE, PRODUCTS, REDUCING, Product, Seen
from attnscope.capture.lineage.layout import MOST, split
from attnscope.capture.lineage.nodes import STRETCH, Contracted, Moved, Node, Root, is_constant
from attnscope.capture.placing.without_attention import POOLED, is_torchs_own
from attnscope.capture.record import is_within
from attnscope.capture.rows.capture import MAPPED, Weighing, is_mapped
from attnscope.capture.tracker import Pass, Taken, Tracker

ACROSS = "it attends from text to text of a batch, not from token to token"
PERHAPS = "attention from text to text, if the batch comes first, so the positions are no tokens: {names}"
OF_CHANNELS = (
    "it takes a softmax over tokens for each channel (linear attention, lambda layers): no weights from "
    "token to token"
)
LARGEST = 2**22  # most numbers of a tensor whose positions are looked up

NO_SOFTMAX = (
    "it weighs values by scores that no softmax made (sigmoids, ReLUs, exponentials divided later): its "
    "weights are not shown"
)
SUMMED = "it sums products of two states over tokens (linear attention): no weights from token to token"
RUNNING = "it sums tokens one after another (a running sum): no weights from token to token"
EDGES = "sums along the edges of a graph"
TIMES = {"mul", "__mul__", "__rmul__", "multiply"}
WAYS = (
    (re.compile(r"^(_?conv_?(transpose)?\dd|convolution)$"), "a convolution over tokens"),
    (re.compile(r"^(lstm|gru|rnn_tanh|rnn_relu)$"), "a recurrence"),
    (re.compile(r"^_?fft_"), "a Fourier transform"),
    (re.compile(r"^grid_sample"), "it samples values at points of its choice"),
    (re.compile(r"^(group|instance)_norm$"), "a normalization over tokens"),
    (re.compile(r"scatter_(add|reduce)|index_(add|reduce)|segment|sparse"), EDGES),
)
LAYER = "a learned layer over positions"
SPREAD = "what it makes of several tokens meets each of them"
SHIFTED = "it adds tokens to others"
VAGUE = {SPREAD, SHIFTED}

TURNING = {"transpose", "permute", "movedim", "moveaxis", "swapaxes", "swapdims", "t", "__get__"} | {
    *("reshape", "view", "flatten", "einsum")
}
SHIFTING = {"roll", "flip", "pad", "gather", "__getitem__", "index_select", "cat", "take_along_dim"} | {
    *("expand", "expand_as")
}
"""Functions that may replace one position by another."""

COPYING = {"expand", "expand_as", "broadcast_to", "repeat", "tile", "repeat_interleave"}


class AcrossTexts(Tracker):
    """Names attention between the texts of a batch.

    A model's input may have positions first, so a single direction says nothing unless the batch is known
    to come first: from ``axes``, or from attention in the other direction.
    """

    def __init__(self, recorder: Pass) -> None:
        super().__init__(recorder)
        self._lineage = recorder.of(Lineage)
        self._along: set[str] = set()  # modules that attend in the direction of positions
        self.begin()

    def begin(self) -> None:
        """No input yet."""
        self._given: dict[int, Root] = {}  # roots with the axes of the model's input
        self._doubted: list[str] = []

    def enter(self, call: Call) -> None:
        """The model receives states."""
        if len(self.recorder.stack.calls) == 1:
            for tensor in call.tensors:
                self._begin_at(tensor)

    def _begin_at(self, tensor: Tensor) -> None:
        origin = self._lineage.of(tensor)
        root = None if origin is None else origin.node
        if isinstance(root, Root) and len(root.shape) == 3 and root.shape[0] > 1:
            self._given[root.number] = root

    def see(self, seen: Seen) -> None:
        """The model receives ids."""
        if seen.name == "embedding" and isinstance(seen.result, Tensor):
            ids, given = seen.given("input")["input"], self.recorder.stack.calls[0].tensors
            same = (ids.shape == each.shape and torch.equal(ids, each) for each in given)
            if not is_mapped(ids, *given) and any(same):
                self._begin_at(seen.result)

    def take(self, taken: Taken) -> bool:
        """Whether a call attends between texts; then it is named."""
        origin, capture = taken.origin, taken.capture
        if origin is None or not self._given or origin.query is None or origin.key is None:
            return False
        if len(capture.queries) * len(capture.keys) * capture.batch > MOST:
            return False
        query, key, roots = origin.query.labels(), origin.key.labels(), self._given.values()
        if query is None or key is None:
            return False
        asking, mine = split(query[:, 0, :, 0].floor(), roots)  # [batch, query]
        answering, _ = split(key[:, 0, 0].floor(), roots)  # [batch, key]
        known = (asking >= 0)[:, :, None] & (answering >= 0)[:, None]
        foreign = known & (asking[:, :, None] != answering[:, None])
        if bool(foreign.any()):
            foreign &= capture.read.allowed(0, len(capture.queries)).any(1)
        moves = not is_constant(mine % STRETCH, -1)
        if not bool(foreign.any()):
            if moves and bool(known.any()):
                self._along.add(taken.name)
                for other in self._doubted:
                    self.recorder.record.note_place(PERHAPS, other)
                self._doubted.clear()
            return False
        if moves or self._along or self.recorder.batch_first:
            self.recorder.name(taken.name, ACROSS)
            return True
        self._doubted.append(taken.name)
        return False


class ChannelSoftmaxes(Tracker):
    """Holds maps of several learned queries until their module ends, and names those whose rows are channels.

    Each learned query gives a vector of its own; channels are summed over once more, with another layer's
    output for each token.
    """

    def __init__(self, recorder: Pass) -> None:
        super().__init__(recorder)
        self._lineage, self._learned = recorder.of(Lineage), recorder.of(Learned)
        self.begin()

    def begin(self) -> None:
        """Nothing is held."""
        self._next: int | None = None
        self._held: dict[int, Taken] = {}  # by the root that the result is
        self._queries: dict[int, set[float]] = {}

    def expect(self, weighing: Weighing, result: Tensor) -> None:
        """The next attention has several learned queries."""
        begun = self._lineage.start(result, -2 if weighing.made_axis in (-1, result.ndim - 1) else -1)
        if begun is not None and isinstance(begun.node, Root):
            self._next = begun.node.number
            self._queries[self._next] = self._channels(weighing.operand)

    def _channels(self, tensor: Tensor | None) -> set[float]:
        """The outputs of layers in a tensor."""
        origin = self._lineage.of(tensor)
        labels = None if origin is None else origin.node.labels("channel")
        return set() if labels is None else set(torch.unique(labels).tolist())

    def take(self, taken: Taken) -> bool:
        """Whether a call is held."""
        number, self._next = self._next, None
        if number is not None:
            self._held[number] = taken
        return number is not None

    def see(self, seen: Seen) -> None:
        """Name what is held if its rows are summed over."""
        if not self._held or seen.name not in PRODUCTS or (product := seen.product) is None:
            return
        gone = set(product.ours) & set(product.theirs) - set(product.out)
        for factor, letters, other, _ in product.sides:
            made, origin = self._lineage.of(factor), self._lineage.of(other)
            if made is None or origin is None or origin.right is not None or self._learned.is_fixed(other):
                continue
            for number in {root.number for root in made.node.roots} & self._held.keys():
                places = made.node.labels()
                if places is None or all(is_constant(places, letters.index(each)) for each in gone):
                    continue
                if not self._queries[number] & self._channels(other):  # else they give back what they took
                    self.recorder.record.name(self._held.pop(number).name, OF_CHANNELS)

    def leave(self, call: Call, output: object) -> None:
        """A module ends: what is held of it has learned queries."""
        for number, taken in list(self._held.items()):
            if is_within(taken.name, call.name):
                with quietly():
                    self.recorder.pass_on(self._held.pop(number), self)


class PastAttention(Tracker):
    """Names the modules that mix tokens without weights, each by its most telling kind of mixing."""

    def __init__(self, recorder: Pass) -> None:
        super().__init__(recorder)
        self.reasons: dict[str, str] = {}  # by the path of the module
        self._lineage, self._learned = recorder.of(Lineage), recorder.of(Learned)
        self.begin()

    def begin(self) -> None:
        """No tokens are known yet."""
        self._embedded: set[int] = set()  # roots that are tokens
        self._products: Any = WeakTensorKeyDictionary()  # entry by entry, for factors with other axes
        self._pooled: Any = WeakTensorKeyDictionary()  # made of several tokens alone: whether it was copied

    def see(self, seen: Seen) -> None:
        """Name the running module if this function mixes its input."""
        if self.recorder.rests or self.recorder.frames or seen.is_nested:
            return
        if seen.name == "embedding":
            origin = self._lineage.of(seen.result)
            self._embedded |= set() if origin is None else {root.number for root in origin.node.roots}
        elif (reason := self._way(seen)) is not None:
            name = self._running()
            inside = f"{name}." if name else ""
            if reason in VAGUE and any(path.startswith(inside) for path in self.reasons):
                return  # what was mixed inside is added here
            self.recorder.placed += 1
            if self.reasons.get(name, SPREAD) in VAGUE:
                self.reasons[name] = reason

    def _running(self) -> str:
        """The innermost running module that is not torch's own."""
        calls = [call for call in self.recorder.stack.calls if not is_torchs_own(call.module)]
        return calls[-1].name if calls else self.recorder.owner

    def _is_named(self) -> bool:
        """Whether the running module is named already: what else it mixes need not be looked into."""
        return self.reasons.get(self._running(), SPREAD) not in VAGUE

    def _way(self, seen: Seen) -> str | None:
        """How a function mixes tokens; None if it does not. In a module that is named, any way will do."""
        name, given = seen.name, [part for part in seen.tensors if part.is_floating_point()]
        if self._pooled and isinstance(seen.result, Tensor):
            states = given[:1] if name.endswith("_as") else given  # the second only says which shape or type
            copied = [self._pooled.get(part) for part in states if not self._learned.holds(part)]
            if copied and None not in copied:
                self._pooled[seen.result] = name in COPYING or any(copied)
        if is_mapped(*given):
            return MAPPED if name in PRODUCTS and any(map(self._are_scores, given)) else None
        if any(part.is_sparse for part in given):
            return EDGES
        if name == "cumsum" and given:
            axis: Any = seen.given("input", "dim").get("dim")
            node = self._node(given[0])
            projected = type(axis) is int and node is not None and bool(node.outputs)
            return RUNNING if projected and self._varies(given[0], axis) else None
        way = _known_way(name)
        if way is not None:
            return way if self._mixes(seen, given) else None
        if name in MULTIPLYING and seen.product is not None:
            return SUMMED if self._is_named() else self._multiplies(seen.product)
        if name in REDUCING and given:
            axes = seen.given("input", "dim").get("dim")
            gone = range(given[0].ndim) if axes is None else [axes] if isinstance(axes, int) else axes
            gone = [axis % given[0].ndim - given[0].ndim for axis in gone]
            factors = self._products.get(given[0])
            if any(self._varies(part, axis) for part in factors or given[:1] for axis in gone):
                if self._node(given[0]) is not None:  # no sum of scores
                    self._pooled[seen.result] = False
                return POOLED if factors else None
        if name in ELEMENTWISE - {"to", "type_as"} and len(given) == 2:
            if given[0].shape != given[1].shape and name in TIMES:
                self._products[seen.result] = given
            return SUMMED if self._is_named() else self._meets(*given)
        return None

    def _multiplies(self, product: Product) -> str | None:
        """How a product mixes tokens: by a layer over positions, or as weights without a softmax."""
        gone = set(product.ours) & set(product.theirs) - set(product.out)
        sides = [
            (one, [letters.index(axis) for axis in gone], other) for one, letters, other, _ in product.sides
        ]
        for factor, axes, other in sides:
            if self._learned.holds(other):
                turned = _was_moved(self._node(factor), TURNING)
                return LAYER if turned and any(self._varies(factor, at, True) for at in axes) else None
        trails = self.recorder.of(Trails)
        scored = [self._are_scores(each) and not trails.follows(each) for each, *_ in sides]
        varying = [
            self._node(each) is not None and any(self._varies(each, axis) for axis in axes)
            for each, axes, _ in sides
        ]
        if any(varying):
            return SUMMED if all(varying) else NO_SOFTMAX if any(scored) else POOLED
        for (scores, axes, _), are_scores in zip(sides, scored, strict=True):
            if are_scores and all(scores.shape[axis] == 1 for axis in axes):
                asking, answering = (None if side is None else side.labels() for side in self._sides(scores))
                if asking is not None and answering is not None and bool((asking != answering).any()):
                    return NO_SOFTMAX  # one key after another, at other positions than the query's
        return None

    def _sides(self, tensor: Tensor) -> tuple[Node | None, Node | None]:
        """A tensor's origin: of scores that of the queries, and that of the keys."""
        origin = self._lineage.of(tensor)
        return (None, None) if origin is None else (origin.node, origin.right)

    def _are_scores(self, tensor: Tensor) -> bool:
        """Whether a tensor comes from a product of two states."""
        return self._sides(tensor)[1] is not None

    def _mixes(self, seen: Seen, given: Sequence[Tensor]) -> bool:
        """Whether a function of a mixing kind received several tokens."""
        name, source = seen.name, given[0] if given else None
        if source is None:
            return False
        if "conv" in name:
            same = "transpose" not in name and source.shape[2:] == seen.result.shape[2:]
            if not same or max(given[1].shape[2:]) < 2:
                return False  # of other positions than its input
        elif "scatter" in name or "index" in name or "segment" in name:
            source = given[-1]
        return self._are_tokens(source, picture=source.ndim > 3 and "sample" not in name)

    def _node(self, tensor: Tensor) -> Node | None:
        """A tensor's origin, unless it is a parameter or too large."""
        node, right = self._sides(tensor) if tensor.numel() <= LARGEST else (None, None)
        return node if right is None else None

    def _are_tokens(self, tensor: Tensor, picture: bool = False) -> bool:
        """Whether a tensor holds tokens already, not the pixels or sound that these are made of."""
        node = self._node(tensor)
        if node is None:
            return self.recorder.captured > 0
        known = self.recorder.captured or (not picture and bool(node.outputs))
        return bool(known or any(root.number in self._embedded for root in node.roots))

    def _varies(self, tensor: Tensor, axis: int, whole: bool = False) -> bool:
        """Whether a tensor, or a side of scores, has several positions along an axis.

        ``whole``: positions that nothing mixed before.
        """
        for node in self._sides(tensor) if tensor.numel() <= LARGEST else ():
            places = None if node is None else node.labels()
            if (
                places is None
                or not -places.ndim <= axis < places.ndim
                or is_constant(places, axis)
                or is_constant(_without_copies(places)[0] % STRETCH, axis)
            ):
                continue
            if not whole or not bool((places != places.floor()).any()):
                return True
        return False

    def _meets(self, left: Tensor, right: Tensor) -> str | None:
        """Whether entries of several positions meet in a sum or a product, entry by entry."""
        if (left in self._pooled) != (right in self._pooled):
            pooled, tokens = (left, right) if left in self._pooled else (right, left)
            if self._node(tokens) is None or not self._are_tokens(tokens):
                return None
            spread = self._pooled[pooled] or pooled.shape != tokens.shape
            several = any(self._varies(tokens, axis) for axis in range(-tokens.ndim, 0))
            return SPREAD if spread and several else None
        nodes = [node for node in (self._node(left), self._node(right)) if node is not None]
        spread = left.shape != right.shape or any(_was_moved(node, SHIFTING, True) for node in nodes)
        if not spread or len(nodes) < 2:
            return None
        mine, theirs = (node.labels() for node in nodes)
        if mine is None or theirs is None:
            return None
        if not (self._are_tokens(left) or self._are_tokens(right)):
            return None
        mine, theirs = _without_copies(mine, theirs)
        places, others = mine.floor(), theirs.floor()  # torch's remainders take ten times as long
        if bool((mine != places).any()) != bool((theirs != others).any()):
            return SPREAD
        apart = (places != others) & (mine > 0) & (theirs > 0)
        alike = torch.floor(mine / STRETCH) == torch.floor(theirs / STRETCH)
        return SHIFTED if bool((apart & alike).any()) else None


@cache
def _known_way(name: str) -> str | None:
    return next((way for pattern, way in WAYS if pattern.search(name)), None)


def _without_copies(*labels: Tensor) -> list[Tensor]:
    """Labels without the axes along which all of them repeat, such as channels."""
    shape = np.broadcast_shapes(*(each.shape for each in labels))  # torch's own imports SymPy
    wide = [each.expand(shape) for each in labels]
    for axis, size in enumerate(shape):
        if all(each.stride(axis) == 0 for each in wide):
            wide = [each.narrow(axis, 0, min(1, size)) for each in wide]
    return wide


def _was_moved(node: Node | None, by: Collection[str], past_layers: bool = False) -> bool:
    """Whether functions ``by`` moved entries since the last product, or the last one of two states."""
    while isinstance(node, Moved) or (past_layers and isinstance(node, Contracted) and node.channels):
        if isinstance(node, Contracted):
            node = node.args[0]
        elif node.name in by:
            return True
        else:
            node = next((arg for arg in node.args if isinstance(arg, (Moved, Contracted))), None)
    return False
