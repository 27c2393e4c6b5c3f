"""Follows the tensors of a pass: what each torch function does to the origin of their entries.

A function that moves entries is stored as a step (``Moved``), a product as the axes that stay
(``Contracted``). Any other function whose result has its argument's shape leaves the entries in place.
Anything else breaks the chain: its result is a new root, if a layer or a module receives it. Steps are
walked only when a layout has to be found, so a pass costs a few small objects per call.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from dataclasses import replace
from itertools import count
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from attnscope.capture.hooks.modules import Call
from attnscope.capture.hooks.softmax import Learned, is_parameter
from attnscope.capture.lineage.functions import JOINING, MIXING, MOVING, PRODUCTS, REDUCING, Seen
from attnscope.capture.lineage.nodes import Contracted, Moved, Node, Origin, Root, nothing
from attnscope.capture.rows.capture import is_mapped
from attnscope.capture.tracker import Pass, Tracker

SDPA = "scaled_dot_product_attention"
MULTIPLYING = PRODUCTS | {"linear", "addmm", "cdist", SDPA}

RESAMPLING = re.compile(r"(?:max|avg|lp)_pool(\d)d$|^interpolate$")
"""Functions that create other positions, along that many axes after the channels."""

DEEPEST = 100  # most steps of a chain: models reach their shortcut long before


class Lineage(Tracker):
    """The tensors of one pass with a known origin; an entry is gone when the model drops its tensor."""

    def __init__(self, recorder: Pass) -> None:
        super().__init__(recorder)
        self._learned = recorder.of(Learned)
        self.begin()

    def begin(self) -> None:
        """Forget the last pass."""
        self._origins: Any = WeakTensorKeyDictionary()
        self._numbers, self._projections, self._states = count(1), count(1), count()
        self._parameters: Any = WeakTensorKeyDictionary()  # the numbers of each, by where its parts begin
        self.texts: tuple[int, ...] = ()  # the model's first input: texts, or positions and texts

    def of(self, tensor: object) -> Origin | None:
        """Where a tensor comes from, if it is known."""
        origin: Origin | None = self._origins.get(tensor) if isinstance(tensor, Tensor) else None
        return origin

    def start(self, tensor: Tensor, channel_axis: int = -1, along: int | None = None) -> Origin | None:
        """A new root for a tensor without one; ``along`` is the axis of positions of keys given directly."""
        known = self.of(tensor)
        begins = along is not None or not is_parameter(tensor)
        if known is None and begins and tensor.is_floating_point() and tensor.ndim >= 2:
            root = Root(next(self._numbers), tensor.shape, channel_axis, tensor.device, along)
            known = self._origins[tensor] = Origin(root, next(self._states))
        return known

    def enter(self, call: Call) -> None:
        """A module's input is a root if its origin is unknown."""
        if self.recorder.rests:
            return
        if not self.texts and call.tensors:
            self.texts = tuple(call.tensors[0].shape[: max(1, call.tensors[0].ndim - 1)][:2])
        for tensor in call.tensors:
            if tensor.ndim > 2 or len(self.recorder.stack.calls) > 1:  # the model itself may be given series
                self.start(tensor)

    def see(self, seen: Seen) -> None:
        """Follow one call, with everything that has a shape."""
        name, result = seen.name, seen.result
        if self.recorder.rests or seen.is_nested:
            return
        if name in MOVING:
            self._move(seen, seen.args, seen.kwargs)
        if name in MOVING or not isinstance(result, Tensor):
            return
        if name in MULTIPLYING:
            self._multiply(seen)
        elif name in ("conv1d", "conv2d", "conv3d"):
            self._convolve(seen)
        elif name == "embedding":
            self.start(result)
        elif (axes := RESAMPLING.search(name)) and result.shape != seen.given("input")["input"].shape:
            self.start(result, -1 - int(axes[1]) if axes[1] else 1)
        elif name in JOINING:
            self._join(seen)
        elif name in REDUCING:
            self._reduce(seen)
        elif name == "pad":
            given = seen.given("input", "pad", "mode")
            if given.get("mode", "constant") == "constant":  # otherwise it repeats the ends
                self._move(seen, (given["input"], given["pad"]), {})
        elif name not in MIXING:
            self._keep(seen)

    def place(self, result: Tensor, node: Node | None) -> None:
        """Set a tensor's origin, known from elsewhere; or clear it."""
        self._origins.pop(result, None)
        if node is not None:
            self.set(result, Origin(node, next(self._states)))

    def set(self, result: Tensor, origin: Origin) -> None:
        """Set a tensor's origin, unless its chain is too long."""
        if origin.node.depth <= DEEPEST:
            self._origins[result] = origin

    def _is_fixed(self, tensor: Tensor) -> bool:
        """Whether a factor is learned: a parameter in some form, or queries made of one."""
        return self._learned.holds(tensor) or (self.of(tensor) is None and self._learned.is_fixed(tensor))

    def _keep(self, seen: Seen) -> None:
        """The entries stay in place: those of the first scores, or of the states with the shortest chain."""
        shape = seen.result.shape
        known = [self.of(arg) for arg in seen.args if isinstance(arg, Tensor) and arg.shape == shape]
        shaped = [origin for origin in known if origin is not None]
        if not shaped:
            return
        scores = next((origin for origin in shaped if origin.right is not None), None)
        best = scores or min(shaped, key=lambda origin: origin.node.depth)
        if best.right is None and any(origin.state != best.state for origin in shaped):
            best = replace(best, state=next(self._states))
        self.set(seen.result, best)

    def _move(self, seen: Seen, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        """A function that moves one tensor, the first of these arguments."""
        known, result = self.of(args[0]) if args else None, seen.result
        if known is None or not isinstance(result, (Tensor, tuple, list)):
            return
        several = not isinstance(result, Tensor)

        def moved(node: Node, part: int) -> Moved:
            return Moved(seen.func, seen.name, (node, *args[1:]), kwargs, part if several else None)

        for part, tensor in enumerate(result if several else (result,)):
            if isinstance(tensor, Tensor) and tensor.is_floating_point():
                right = None if known.right is None else moved(known.right, part)
                self.set(tensor, replace(known, node=moved(known.node, part), right=right))

    def _reduce(self, seen: Seen) -> None:
        """A reduction over an axis: the result has the position of the first entry."""
        given, result = seen.given("input", "dim"), seen.result
        source, axis = given.get("input"), given.get("dim")
        known = self.of(source)
        if not isinstance(source, Tensor) or known is None or type(axis) is not int:
            return
        axis, kept = axis % source.ndim, result.ndim == source.ndim
        if known.right is not None and axis >= source.ndim - 2:
            return  # of scores, only heads may be joined
        axes = tuple(None if at == axis else at for at in range(source.ndim) if kept or at != axis)
        right = None if known.right is None else Contracted(known.right, axes, result.shape)
        self.set(result, Origin(Contracted(known.node, axes, result.shape), known.state, right))

    def _join(self, seen: Seen) -> None:
        """Concatenated tensors. Beside queries or keys (of a memory, a cache), others become roots here.

        If states are joined before they are projected (a class token), the whole is a new root.
        """
        parts: Sequence[Tensor] = seen.args[0] if seen.args else seen.kwargs["tensors"]
        axis = seen.args[1] if len(seen.args) > 1 else seen.kwargs.get("dim", seen.kwargs.get("axis", 0))
        origins = [self.of(part) for part in parts]
        known = [origin for origin in origins if origin is not None]
        scores = all(origin.right is not None for origin in known)
        if len(known) < len(parts) and not scores and seen.name != "stack":
            if not all(origin.node.is_projected for origin in known):
                self.start(seen.result)
                return
            origins = [self.start(part, along=axis % part.ndim) for part in parts]
        if not known:
            return

        def joined(nodes: Sequence[Node | None]) -> Moved:
            pairs = zip(parts, nodes, strict=True)
            nodes = [nothing(part) if node is None else node for part, node in pairs]
            return Moved(seen.func, seen.name, (nodes, axis), {})

        node = joined([None if origin is None else origin.node for origin in origins])
        right = joined([None if origin is None else origin.right for origin in origins]) if scores else None
        states = {origin.state for origin in known}
        self.set(seen.result, Origin(node, states.pop() if len(states) == 1 else next(self._states), right))

    def _convolve(self, seen: Seen) -> None:
        """A convolution: a projection if its kernel has width 1; otherwise places stay or a root begins."""
        given, result = seen.given("input", "weight"), seen.result
        source, weight = given["input"], given["weight"]
        known, channels = self.of(source), result.ndim - weight.ndim + 1
        if known is None or known.right is not None or source.shape[2:] != result.shape[2:]:
            self.start(result, 1 if result.ndim > 2 else 0)
            return
        axes = tuple(None if axis == channels else axis for axis in range(result.ndim))
        node = Contracted(known.node, axes, result.shape, self._number(weight))
        self.set(result, Origin(node, known.state))

    def _number(self, weight: Tensor) -> int:
        """The number of a parameter, or of a part of one."""
        parts = self._parameters.setdefault(weight if weight._base is None else weight._base, {})
        if weight.storage_offset() not in parts:
            parts[weight.storage_offset()] = next(self._projections)
        number: int = parts[weight.storage_offset()]
        return number

    def _multiply(self, seen: Seen) -> None:
        """A product: a projection by a parameter, scores of two activations, or weighed values."""
        product, result = seen.product, seen.result
        if product is None:
            return
        (left, ours, right, theirs), turned = product.sides
        if self._is_fixed(left) and not self._is_fixed(right):
            left, ours, right, theirs = turned
        axes = product.axes(ours)
        if self._is_fixed(right):
            known = self.start(left)
            if known is not None and known.right is None:
                node = Contracted(known.node, axes, result.shape, self._number(right))
                self.set(result, Origin(node, known.state))
            return
        if is_mapped(left, right):  # what torch.vmap gives to a function is new
            self.start(left)
            self.start(right)
        known, other = self.of(left), self.of(right)
        if known is None:
            return
        node = Contracted(known.node, axes, result.shape)
        if known.right is not None:  # weights met their values; or scores, which give scores again
            answering = None if other is None else other.right
        else:
            answering = None if other is None or other.right is not None or seen.name == SDPA else other.node
            if answering is None and seen.name != SDPA:
                return
        keys = None if answering is None else Contracted(answering, product.axes(theirs), result.shape)
        asked = known.right is None and keys is not None
        self.set(result, Origin(node, known.state if asked else next(self._states), keys))


class SkipKnownLayers(Tracker):
    """Knows the modules whose attention needs no lineage, because an equal module showed it completely.

    Equal layers attend alike. If all attention of a layer went through functions with known axes of texts
    and heads, the next layers of the same classes are not followed: following costs as much as all other
    recording.
    """

    def __init__(self, recorder: Pass) -> None:
        super().__init__(recorder)
        self._makes: WeakKeyDictionary[nn.Module, Hashable] = WeakKeyDictionary()
        self._known: set[Hashable] = set()
        self.begin()

    def begin(self) -> None:
        """Nothing is running."""
        self._inside: Call | None = None
        self.recorder.rests = False
        self._before: dict[Call, tuple[int, int]] = {}  # what was counted when a module that runs started

    def enter(self, call: Call) -> None:
        """A module starts."""
        self._before[call] = self.recorder.captured, self.recorder.placed
        if self._inside is None and self._known and self._make(call.module) in self._known:
            origins = [self.recorder.of(Lineage).of(tensor) for tensor in call.tensors]
            if all(origin is None or isinstance(origin.node, Root) for origin in origins):  # in their order
                self._inside, self.recorder.rests = call, True

    def leave(self, call: Call, output: object) -> None:
        """A module is known if it attended without asking for its lineage."""
        captured, placed = self._before.pop(call, (self.recorder.captured, 0))
        if self._inside is call:
            self._inside, self.recorder.rests = None, False
        if self.recorder.captured > captured and self.recorder.placed == placed:
            self._known.add(self._make(call.module))

    def _make(self, module: nn.Module) -> Hashable:
        """The classes of all modules in a module, in order."""
        if module not in self._makes:
            self._makes[module] = tuple(type(part) for part in module.modules())
        return self._makes[module]
