"""Modules in which other things than tokens attend: texts of a batch, or channels.

Positions are known by lineage, never by names or sizes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attnscope.capture.hooks.functions import quietly
from attnscope.capture.hooks.modules import Call
from attnscope.capture.hooks.softmax import Learned
from attnscope.capture.lineage.follow import Lineage
from attnscope.capture.lineage.functions import PRODUCTS, TorchCall
from attnscope.capture.lineage.layout import MOST, split
from attnscope.capture.lineage.nodes import ROOT_OFFSET, Root, is_constant
from attnscope.capture.record import is_within
from attnscope.capture.rows.capture import CapturedCall, Weighing, is_mapped
from attnscope.capture.tracker import Pass, Tracker

ACROSS = "its attention is between the texts of a batch, not between tokens"
PERHAPS = "attention between texts, if the batch is the first axis: then positions are not tokens: {names}"
OF_CHANNELS = (
    "it takes a softmax over tokens for each channel (linear attention, lambda layers): it has no weights "
    "between tokens"
)


class AcrossTexts(Tracker):
    """Names attention between the texts of a batch.

    A model's input may have positions first, so a single direction says nothing unless the batch is known
    to come first: from labels of its positions, or from attention in the other direction.
    """

    def __init__(self, recorder: Pass) -> None:
        super().__init__(recorder)
        self._lineage = recorder.tracker(Lineage)
        self._along_positions: set[str] = set()  # modules that attend in the direction of positions
        self.begin()

    def begin(self) -> None:
        """No input yet."""
        self._input_roots: dict[int, Root] = {}  # roots with the axes of the model's input
        self._uncertain: list[str] = []

    def enter(self, call: Call) -> None:
        """The model receives states."""
        if len(self.recorder.stack.calls) == 1:
            for tensor in call.tensors:
                self._begin_at(tensor)

    def _begin_at(self, tensor: Tensor) -> None:
        origin = self._lineage.origin_of(tensor)
        root = None if origin is None else origin.node
        if isinstance(root, Root) and len(root.shape) == 3 and root.shape[0] > 1:
            self._input_roots[root.number] = root

    def on_torch_call(self, call: TorchCall) -> None:
        """The model receives ids."""
        if call.name == "embedding" and isinstance(call.result, Tensor):
            ids, inputs = call.arguments("input")["input"], self.recorder.stack.calls[0].tensors
            same = (type(ids) is type(each) and torch.equal(ids, each) for each in inputs)  # no DTensor
            if not is_mapped(ids, *inputs) and any(same):
                self._begin_at(call.result)

    def on_capture(self, capture: CapturedCall) -> bool:
        """Whether a call attends between texts; then it is named."""
        origin = capture.origin
        if origin is None or not self._input_roots or origin.query is None or origin.key is None:
            return False
        if len(capture.queries) * len(capture.keys) * capture.batch > MOST:
            return False
        query, key, roots = origin.query.labels(), origin.key.labels(), self._input_roots.values()
        if query is None or key is None:
            return False
        query_texts, query_positions = split(query[:, 0, :, 0].floor(), roots)  # [batch, query]
        key_texts, _ = split(key[:, 0, 0].floor(), roots)  # [batch, key]
        both_known = (query_texts >= 0)[:, :, None] & (key_texts >= 0)[:, None]
        across = both_known & (query_texts[:, :, None] != key_texts[:, None])
        if bool(across.any()):
            across &= capture.read.allowed(0, len(capture.queries)).any(1)
        moves = not is_constant(query_positions % ROOT_OFFSET, -1)
        if not bool(across.any()):
            if moves and bool(both_known.any()):
                self._along_positions.add(capture.name)
                for other in self._uncertain:
                    self.recorder.record.note_place(PERHAPS, other)
                self._uncertain.clear()
            return False
        if moves or self._along_positions or self._batch_is_first():
            self.recorder.name(capture.name, ACROSS)
            return True
        self._uncertain.append(capture.name)
        return False

    def _batch_is_first(self) -> bool:
        """Whether labels are given, and they do not fit the first axis of the model's input alone."""
        lengths = self.recorder.label_lengths
        shapes = [root.shape for root in self._input_roots.values()]
        return bool(lengths) and all(shape[0] not in lengths or shape[1] in lengths for shape in shapes)


class ChannelSoftmaxes(Tracker):
    """Holds maps of several learned queries until their module ends, and names those whose rows are channels.

    Each learned query gives a vector of its own; channels are summed over once more, with another layer's
    output for each token.
    """

    def __init__(self, recorder: Pass) -> None:
        super().__init__(recorder)
        self._lineage, self._learned = recorder.tracker(Lineage), recorder.tracker(Learned)
        self.begin()

    def begin(self) -> None:
        """Nothing is held."""
        self._next: int | None = None
        self._waiting: dict[int, CapturedCall] = {}  # by the root that the result is
        self._queries: dict[int, set[float]] = {}

    def expect(self, weighing: Weighing, result: Tensor) -> None:
        """The next attention has several learned queries."""
        origin = self._lineage.start(result, -2 if weighing.query_axis in (-1, result.ndim - 1) else -1)
        if origin is not None and isinstance(origin.node, Root):
            self._next = origin.node.number
            self._queries[self._next] = self._channels(weighing.operand)

    def _channels(self, tensor: Tensor | None) -> set[float]:
        """The outputs of layers in a tensor."""
        origin = self._lineage.origin_of(tensor)
        labels = None if origin is None else origin.node.labels("channel")
        return set() if labels is None else set(torch.unique(labels).tolist())

    def on_capture(self, capture: CapturedCall) -> bool:
        """Whether a call is held."""
        number, self._next = self._next, None
        if number is not None:
            self._waiting[number] = capture
        return number is not None

    def on_torch_call(self, call: TorchCall) -> None:
        """Name what is held if its rows are summed over."""
        if not self._waiting or call.name not in PRODUCTS or (product := call.product) is None:
            return
        gone = set(product.left_axes) & set(product.right_axes) - set(product.out)
        for factor, letters, other, _ in product.sides:
            left, right = self._lineage.origin_of(factor), self._lineage.origin_of(other)
            if left is None or right is None or right.right is not None or self._learned.is_fixed(other):
                continue
            for number in {root.number for root in left.node.roots} & self._waiting.keys():
                places = left.node.labels()
                if places is None or all(is_constant(places, letters.index(each)) for each in gone):
                    continue
                if not self._queries[number] & self._channels(other):  # else they give back what they took
                    self.recorder.record.name(self._waiting.pop(number).name, OF_CHANNELS)

    def leave(self, call: Call, output: object) -> None:
        """A module ends: what is held of it has learned queries."""
        for number, capture in list(self._waiting.items()):
            if is_within(capture.name, call.name):
                with quietly():
                    self.recorder.emit(self._waiting.pop(number), self)
