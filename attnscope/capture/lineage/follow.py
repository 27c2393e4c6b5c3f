"""Follows the tensors of a pass: what each torch function does to the origin of their entries.

A function that moves entries is a step (``Moved``), a product the axes that stay (``Contracted``). Any other
whose result has its argument's shape leaves the entries in place, or a new root may begin at its result.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakTensorKeyDictionary

from attnscope.capture.hooks.modules import Call
from attnscope.capture.hooks.softmax import Learned, is_parameter
from attnscope.capture.lineage.functions import JOINING, MIXING, MOVING, PRODUCTS, TorchCall
from attnscope.capture.lineage.nodes import Beside, Contracted, Moved, Node, Origin, Pooled, Root, join_labels
from attnscope.capture.rows.capture import is_mapped
from attnscope.capture.tracker import Pass, Tracker

SDPA = "scaled_dot_product_attention"
MULTIPLYING = PRODUCTS | {"linear", "addmm", "cdist", SDPA}

RESAMPLING = re.compile(r"(?:max|avg|lp)_pool(\d)d$|^interpolate$")  # other positions, along so many axes
ADAPTIVE = {1: F.adaptive_max_pool1d, 2: F.adaptive_max_pool2d, 3: F.adaptive_max_pool3d}
Axes: TypeAlias = "tuple[int | None, ...]"  # for each axis of a product that of a factor, or None
COLOURS = 3  # channels of a picture
DEEPEST = 100  # most steps of a chain: models reach their shortcut long before


class Lineage(Tracker):
    """The tensors of one pass with a known origin; an entry is gone when the model drops its tensor.

    Following costs as much as all other recording. So a module is not followed if all attention of one with
    the same classes went through functions with known axes of texts and heads.
    """

    def __init__(self, recorder: Pass) -> None:
        super().__init__(recorder)
        self._learned = recorder.tracker(Learned)
        self._needless: set[tuple[type, ...]] = set()  # the classes inside modules that need not be followed
        self._needed: set[tuple[type, ...]] = set()  # those that once had to be
        self.begin()

    def begin(self) -> None:
        """Forget the last pass."""
        self._paused_in: Call | None = None
        self.recorder.lineage_paused = False
        self._before: dict[Call, tuple[int, int]] = {}  # what was counted when a module that runs started
        self._origins: Any = WeakTensorKeyDictionary()
        self._numbers, self._projections = count(1), count(1)
        self._parameters: Any = WeakTensorKeyDictionary()  # the numbers of each, by where its parts begin
        self.texts: tuple[int, ...] = ()  # the model's first input: texts, or positions and texts

    def origin_of(self, tensor: object) -> Origin | None:
        """Where a tensor comes from, if it is known."""
        return self._origins.get(tensor) if isinstance(tensor, Tensor) else None

    def start(
        self, tensor: Tensor, channels: int | None = None, grid: tuple[int, int] | None = None
    ) -> Origin | None:
        """A new root for a tensor without one; states of two or three axes have their channels last."""
        origin, has_channels = self.origin_of(tensor), tensor.ndim in (2, 3) or channels is not None
        if origin is None and has_channels and tensor.is_floating_point() and not is_parameter(tensor):
            channels = -1 if channels is None else channels
            before, behind = self._learned.sides.get(tensor, (0, 0))
            given = next(self._numbers), tensor.shape, channels, tensor.device
            self._origins[tensor] = origin = Origin(Root(*given, before, behind, grid))
        return origin

    def enter(self, call: Call) -> None:
        """A module's input is a root if its origin is unknown."""
        self._before[call] = self.recorder.captures, self.recorder.lineage_uses
        needless = set() if self._learned.fills_cache else self._needless - self._needed
        if self._paused_in is None and needless and _classes(call.module) in needless:
            origins = [self.origin_of(tensor) for tensor in call.tensors]
            if all(origin is None or isinstance(origin.node, Root) for origin in origins):  # in their order
                self._paused_in, self.recorder.lineage_paused = call, True
        if self.recorder.lineage_paused:
            return
        with torch._C.DisableTorchFunction():  # or the recording sees that shapes are asked for
            if not self.texts and call.tensors:
                self.texts = tuple(call.tensors[0].shape[: 2 if call.tensors[0].ndim == 3 else 1])
            for tensor in call.tensors:
                if tensor.ndim > 2 or len(self.recorder.stack.calls) > 1:  # the model may be given series
                    self.start(tensor)

    def leave(self, call: Call, output: object) -> None:
        """A module need not be followed again if it attended without asking for its lineage."""
        captures, uses = self._before.pop(call, (self.recorder.captures, 0))
        if self._paused_in is call:
            self._paused_in, self.recorder.lineage_paused = None, False
        if len(self.recorder.stack.calls) == 1:  # the next pass may read this one's states, as a decoder does
            for tensor in filter(self.origin_of, tree_leaves(output)):
                root, *more = self._origins[tensor].node.roots or (None,)
                if root is not None and root.shape == tensor.shape and not more:
                    self._learned.sides[tensor] = root.before, root.behind
        if self.recorder.captures > captures:
            group = self._needless if self.recorder.lineage_uses == uses else self._needed
            group.add(_classes(call.module))

    def on_torch_call(self, call: TorchCall) -> None:
        """Follow one call, with everything that has a shape."""
        name, result = call.name, call.result
        if self.recorder.lineage_paused or call.is_nested:
            return
        if name in MOVING:
            self._move(call)
        elif name == "max" and isinstance(result, tuple):
            source, *more = call.args or (None,)
            self._pool(source, result[0], lambda labels: call.func(labels, *more, **call.kwargs)[0])
        elif not isinstance(result, Tensor):
            return
        elif name in MULTIPLYING:
            self._multiply(call)
        elif name in ("conv1d", "conv2d", "conv3d"):
            self._convolve(call)
        elif name == "embedding":
            self.start(result, -1)
        elif (axes := RESAMPLING.search(name)) and result.shape != call.arguments("input")["input"].shape:
            self._resample(call, int(axes[1]) if axes[1] else result.ndim - 2)
        elif name in JOINING:
            self._join(call)
        elif name == "pad":
            arguments = call.arguments("input", "pad", "mode")
            if arguments.get("mode", "constant") == "constant":  # otherwise it repeats the ends
                self._move(replace(call, args=(arguments["input"], arguments["pad"]), kwargs={}))
        elif name not in MIXING:
            self._keep(call)

    def forget(self, tensor: Tensor) -> None:
        """Where a tensor comes from is not known."""
        self._origins.pop(tensor, None)

    def _set(self, result: Tensor, origin: Origin) -> None:
        if origin.node.depth <= DEEPEST:
            self._origins[result] = origin

    def _is_fixed(self, tensor: Tensor) -> bool:
        """Whether a factor is learned: a parameter in some form, or queries made of one."""
        return self._learned.holds(tensor) or (
            self.origin_of(tensor) is None and self._learned.is_fixed(tensor)
        )

    def _keep(self, call: TorchCall) -> None:
        """The entries stay in place: those of the first scores, or of the states with the shortest chain."""
        parts = [arg for arg in call.args if isinstance(arg, Tensor) and arg.shape == call.result.shape]
        origins = [origin for origin in map(self.origin_of, parts) if origin is not None]
        if origins:
            scores = [origin for origin in origins if origin.right is not None]
            best = scores[0] if scores else min(origins, key=lambda origin: origin.node.depth)
            alike = scores or all(origin.state == best.state for origin in origins)
            self._set(call.result, best if alike else Origin(best.node))

    def _move(self, call: TorchCall) -> None:
        """A function that moves one tensor, the first of its arguments."""
        (source, *more), result = call.args or (None,), call.result
        origin, several = self.origin_of(source), isinstance(result, (tuple, list))

        def as_moved(node: Node, part: int) -> Moved:
            return Moved(call.func, call.name, (node, *more), call.kwargs, part if several else None)

        for part, tensor in enumerate(result if several else (result,)):
            if origin is not None and isinstance(tensor, Tensor) and tensor.is_floating_point():
                right = None if origin.right is None else as_moved(origin.right, part)
                self._set(tensor, Origin(as_moved(origin.node, part), right, origin.state))

    def _pool(self, source: Tensor | None, result: Tensor, last: Callable[[Tensor], Tensor]) -> None:
        """States that are each made of several: they have a root of their own, in the order of these."""
        origin = self.origin_of(source)
        if origin is not None and origin.right is None:
            node = Pooled.from_source(origin.node, result.shape, last, next(self._numbers))
            if node is not None:
                self._set(result, Origin(node, state=origin.state))

    def _resample(self, call: TorchCall, axes: int) -> None:
        """States of other positions: fewer in the order of those that they are made of."""
        source, result = call.arguments("input")["input"], call.result
        sizes = result.shape[-axes:]
        if all(size <= before for size, before in zip(sizes, source.shape[-axes:], strict=True)):
            self._pool(source, result, lambda labels: ADAPTIVE[axes](labels, sizes))
        self.start(result, -1 - axes)

    def _join(self, call: TorchCall) -> None:
        """Concatenated tensors; a new root of states that others join before they are projected."""
        arguments = call.arguments("tensors", "dim")
        parts, axis = arguments["tensors"], arguments.get("dim", 0)
        if call.name != "stack":
            parts = [part for part in parts if part.numel()]  # a cache begins with an empty one
        fixed = [part.shape[axis] if self._learned.is_fixed(part) else 0 for part in parts]
        per_part = [
            None if size and 0 in fixed else self.origin_of(part)
            for part, size in zip(parts, fixed, strict=True)
        ]
        origins = [origin for origin in per_part if origin is not None]
        scores = all(origin.right is not None for origin in origins)
        if len(origins) < len(parts) and not scores and call.name != "stack":
            self._start_beside(call.result, axis, origins)
            return
        if not origins:
            return

        def as_joined(side: str) -> Moved:
            none = torch.zeros((), dtype=torch.float64, device=call.result.device)  # labels of 0: no origin
            nodes = [
                getattr(origin, side, None) or Moved(none.expand, "zeros", (tuple(part.shape),), {})
                for part, origin in zip(parts, per_part, strict=True)
            ]
            return Moved(call.func if call.name == "stack" else join_labels, call.name, (nodes, axis), {})

        right = as_joined("right") if scores else None
        alike = all(origin.state == origins[0].state for origin in origins)
        self._set(call.result, Origin(as_joined("node"), right, origins[0].state if alike else object()))

    def _start_beside(self, result: Tensor, axis: int, origins: Sequence[Origin]) -> None:
        """States beside others that are not followed."""
        if all(origin.node.outputs for origin in origins):  # keys beside others, of a memory or a cache
            self._set(result, Origin(Beside(*self._learned.sides.get(result, (0, 0)))))
        else:
            grids = [origin.node.grid_along(axis) for origin in origins]
            self.start(result, grid=grids[0] if len(grids) == 1 else None)

    def _convolve(self, call: TorchCall) -> None:
        """A convolution: a projection if its kernel has width 1; otherwise places stay or a root begins."""
        arguments, result = call.arguments("input", "weight"), call.result
        source, weight = arguments["input"], arguments["weight"]
        origin, channels = self.origin_of(source), result.ndim - weight.ndim + 1
        if origin is None or origin.right is not None or source.shape[2:] != result.shape[2:]:
            pictured = call.name == "conv2d" and source.ndim == 4
            pictured &= (
                source.shape[1] == COLOURS if origin is None else origin.node.roots[0].grid is not None
            )
            self.start(result, 1 if result.ndim > 2 else 0, tuple(result.shape[2:]) if pictured else None)
            return
        axes = tuple(None if axis == channels else axis for axis in range(result.ndim))
        self._project(origin, axes, weight, result)

    def _project(self, origin: Origin, axes: Axes, weight: Tensor, result: Tensor) -> None:
        """The result is a layer's, whose weight, or part of one, has a number."""
        parts = self._parameters.setdefault(weight if weight._base is None else weight._base, {})
        if weight.storage_offset() not in parts:
            parts[weight.storage_offset()] = next(self._projections)
        node = Contracted((origin.node,), axes, result.shape, parts[weight.storage_offset()])
        self._set(result, Origin(node, state=origin.state))

    def _multiply(self, call: TorchCall) -> None:
        """A product: a projection by a parameter, scores of two activations, or weighted values."""
        product = call.product
        if product is None:
            return
        (left, left_axes, right, right_axes), swapped = product.sides
        if self._is_fixed(left) and not self._is_fixed(right):
            left, left_axes, right, right_axes = swapped
        axes = product.axes(left_axes)
        if self._is_fixed(right):
            summed = [axis for axis in range(left.ndim) if axis not in axes]
            origin = self.start(left, summed[0] if len(summed) == 1 else None)
            if origin is not None and origin.right is None:
                self._project(origin, axes, right, call.result)
            return
        if is_mapped(left, right):  # what torch.vmap gives to a function is new
            self.start(left)
            self.start(right)
        origin = self.origin_of(left)
        if origin is not None:
            self._score(call, origin, axes, self.origin_of(right), product.axes(right_axes))

    def _score(self, call: TorchCall, origin: Origin, axes: Axes, other: Origin | None, keys: Axes) -> None:
        """A product of activations with these origins: the axes of its result are axes of both."""
        shape, whole = call.result.shape, call.name == SDPA
        weighted = origin.right is not None  # weights times their values, or scores times more
        if not weighted and not whole and (other is None or other.right is not None):
            return
        side = None if other is None else other.right if weighted or whole else other.node
        right = None if side is None else Contracted((side,), keys, shape)
        state = object() if weighted or right is None else origin.state
        self._set(call.result, Origin(Contracted((origin.node,), axes, shape), right, state))


def _classes(module: nn.Module) -> tuple[type, ...]:
    return tuple(type(part) for part in module.modules())
