"""Hand-written attention: follow the result of a softmax until it is applied to values.

A softmax is attention when its result, through views, slices, casts, dropout and element-wise masks, is one
side of a product with something other than a parameter: a router's, an output head's or an indexer's is none.
Gates qualify (the mixing of parallel streams); ``lineage/layout.py`` separates them from weights over tokens.
The weights are that operand, which was applied to the values; masked keys come from the softmax's input.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from attnscope.capture.lineage.functions import ELEMENTWISE, JOINING, PRODUCTS, RESHAPING, SOFTMAX, TorchCall
from attnscope.capture.rows.capture import (
    FACTORS,
    ROUNDING,
    SIGNED,
    TALKING,
    Scores,
    Trail,
    Weighing,
    is_mapped,
    masked_keys,
)
from attnscope.capture.tracker import Pass, Tracker

ADDING = {
    *("to", "type", "type_as", "float", "half", "bfloat16", "double", "cpu", "cuda", "contiguous"),
    *("add", "add_", "__add__", "__radd__", "__iadd__", "sub", "sub_", "__sub__", "__isub__", "clone"),
    *("masked_fill", "masked_fill_", "where", "tril", "triu"),
}
"""Functions that cast scores, or add to them."""

TIMES = {"mul", "mul_", "__mul__", "__rmul__", "__imul__", "multiply"}
DIVIDING = {"div", "div_", "__truediv__", "__itruediv__"}

PROJECTING = PRODUCTS | {"linear", "addmm", "conv1d", "conv2d", "conv3d"}


def is_parameter(tensor: Tensor) -> bool:
    """Whether a tensor is a parameter or a view of one; asking is hidden from the recording."""
    with torch._C.DisableTorchFunction():
        return isinstance(tensor, nn.Parameter) or isinstance(tensor._base, nn.Parameter)


class Learned(Tracker):
    """Knows what is computed from parameters alone and independent of inputs: cast weights, latents."""

    def __init__(self, recorder: Pass) -> None:
        super().__init__(recorder)
        self._fixed: Any = WeakTensorKeyDictionary()
        self.sides: Any = WeakTensorKeyDictionary()  # of a joined tensor: learned entries before and behind
        self.fills_cache = False  # whether a cache began with learned keys, which any layer may have

    def on_torch_call(self, call: TorchCall) -> None:
        """Whether all arguments of a function are learned."""
        args, result = call.args, call.result
        if call.name in JOINING:  # an empty part, where a cache begins, adds nothing
            args = [part for part in call.tensors if part.numel()]
            self.fills_cache |= len(args) < len(call.tensors) and all(map(self.is_fixed, args))
            self._join(call, args)
        elif call.name == "embedding" and _reads_whole_table(call):
            self._fixed[result] = False
            return
        if not args or not isinstance(args[0], Tensor) or not self.is_fixed(args[0]):
            return
        if all(self.is_fixed(arg) for arg in args[1:] if isinstance(arg, Tensor)):
            like = self.holds(args[0]) and call.name not in PROJECTING
            for part in result if isinstance(result, tuple) else (result,):
                if isinstance(part, Tensor) and not is_parameter(part):
                    self._fixed[part] = like

    def _join(self, call: TorchCall, parts: Sequence[Tensor]) -> None:
        """Count what is learned on either side of the one part that is not."""
        axis = call.arguments("tensors", "dim").get("dim", 0)
        fixed = [part.shape[axis] if self.is_fixed(part) else 0 for part in parts]
        if call.name != "stack" and fixed.count(0) == 1 < len(fixed):
            at = fixed.index(0)
            self.sides[call.result] = sum(fixed[:at]), sum(fixed[at:])

    def holds(self, tensor: Tensor) -> bool:
        """Whether a tensor is a parameter in another form: cast, moved, normalized."""
        return is_parameter(tensor) or bool(self._fixed and self._fixed.get(tensor))

    def is_fixed(self, tensor: Tensor) -> bool:
        """Whether a tensor is computed from parameters alone."""
        return is_parameter(tensor) or bool(self._fixed and tensor in self._fixed)


def _reads_whole_table(call: TorchCall) -> bool:
    """Whether an embedding gives its whole table in order, as learned prompts are read, not a text."""
    index, table = (call.arguments("input", "weight")[name] for name in ("input", "weight"))
    if not index.ndim or index.shape[-1] != len(table) or is_mapped(index) or not is_parameter(table):
        return False
    return bool((index == torch.arange(len(table), device=index.device)).all())


class Trails(Tracker):
    """Follows the result of each softmax until it is applied to values, then tells the recorder."""

    def __init__(self, recorder: Pass) -> None:
        super().__init__(recorder)
        self._learned = recorder.tracker(Learned)
        self._trails: Any = WeakTensorKeyDictionary()
        self._mixtures: Any = WeakTensorKeyDictionary()  # what weights made of values
        self._scores: Any = WeakTensorKeyDictionary()
        self._softmaxes = 0

    def on_torch_call(self, call: TorchCall) -> bool | None:
        """Follow one call."""
        name, result = call.name, call.result
        if self._scores and name not in SOFTMAX:
            self._score(call)
        if name in RESHAPING or name in ELEMENTWISE:
            self._carry_on(call)
        elif name in PRODUCTS:
            weighing = self._weighing(call)
            if weighing is not None:
                self._mixtures[result] = True
                return self.recorder.on_weighing(weighing, result)
            weights = [operand for operand in call.tensors if operand in self._trails]
            if len(weights) == len(call.tensors) == 2:
                self._multiply(call, [self._trails[each] for each in weights])
            elif weights and any(map(self._learned.holds, call.tensors)):
                self._mix(weights[0], result)
            elif call.product and not weights and not any(map(self._learned.is_fixed, call.tensors)):
                self._scores[result] = Scores(call.product, float(call.kwargs.get("alpha", 1)))
        elif name in SOFTMAX:
            arguments = call.arguments("input", "dim")
            if isinstance(arguments.get("dim"), int):
                self._start(arguments["input"], arguments["dim"], result)
        elif name in ("linear", "conv1d", "conv2d"):
            self._mix(call.arguments("input")["input"], result)
        return None

    def _multiply(self, call: TorchCall, trails: Sequence[Trail]) -> None:
        """Follow the product of two softmaxes; a key is masked that no way of two open steps leads to."""
        opened = [torch.ones(()) if each.masked is None else (~each.masked).float() for each in trails]
        steps = iter([each.expand(tensor.shape) for each, tensor in zip(opened, call.tensors, strict=True)])
        args = [next(steps) if isinstance(arg, Tensor) else arg for arg in call.args]
        masked = None if opened[0].ndim == opened[1].ndim == 0 else call.func(*args, **call.kwargs) == 0
        reason = trails[0].reason or trails[1].reason
        self._trails[call.result] = replace(trails[0], masked=masked, reason=reason, factors=True)

    def _mix(self, source: Tensor, result: Tensor) -> None:
        """Follow weights through a learned layer over their heads, which keeps their shape."""
        trail = self._trails.get(source) if source.ndim >= 4 and source.shape == result.shape else None
        if trail is not None:
            self._trails[result] = replace(trail, masked=None, reason=TALKING)

    def _start(self, scores: Tensor, axis: int, result: Tensor) -> None:
        if result.ndim >= 2 and result.is_floating_point():
            self._softmaxes += 1
            followed = self._scores.get(scores) if self._scores else None
            self._trails[result] = Trail(
                self.recorder.path,
                masked_keys(scores, axis, result.detach(), followed and followed.added),
                softmax=self._softmaxes,
                scores=followed and replace(followed, softmax_input=scores.detach()),
            )

    def _score(self, call: TorchCall) -> None:
        """Follow scores; a function that does more than scale them and add to them ends it."""
        followed = [arg for arg in call.tensors if arg in self._scores]
        if not followed or not isinstance(call.result, Tensor):
            return
        scores = self._scores[followed[0]]
        self._scores.pop(call.result, None)  # it may be the same tensor, written into
        if len(followed) == 1 and call.result.shape == followed[0].shape:
            after = _change_scores(scores, call, followed[0])
            if after is not None:
                self._scores[call.result] = after

    def _carry_on(self, call: TorchCall) -> None:
        """Carry the first followed argument over to the result of a harmless function."""
        args, result = call.args, call.result
        if not self._trails:
            return
        source = next((arg for arg in args if isinstance(arg, Tensor) and arg in self._trails), None)
        if source is None:
            return
        trail = self._trails[source]
        several = isinstance(result, (tuple, list))
        parts = result if several else (result,)
        if not parts or not all(isinstance(part, Tensor) for part in parts):  # a size, type or number
            return
        if call.name in RESHAPING and source is args[0]:
            scores = trail.scores if call.name in ("contiguous", "clone", "detach") else None
            parts_of = (_move(call, each, len(parts)) for each in (trail.masked, trail.before))
            for part, masked, before in zip(parts, *parts_of, strict=True):
                self._trails[part] = replace(trail, masked=masked, scores=scores, before=before)
        elif not several and call.name in ELEMENTWISE and result.shape == source.shape:
            dropped = trail.before is None and _drops(call, source)
            self._trails[result] = replace(trail, before=source) if dropped else trail

    def _weighing(self, call: TorchCall) -> Weighing | None:
        """The attention weights among the factors of a product; None if they multiply a parameter."""
        product = call.product if self._trails else None
        sides = [] if product is None else [side for side in product.sides if side[0] in self._trails]
        if product is None or len(sides) != 1:
            return None
        ((operand, own_axes, values, value_axes),) = sides
        axes = find_axes(call.name, own_axes, value_axes, product.out)
        if axes is None or is_parameter(values):
            return None
        trail, order = self._trails[operand], tuple(map(own_axes.index, (*axes.lead, axes.query, axes.key)))
        weights = (operand if trail.before is None else trail.before).detach().permute(order)
        checked = self._check_weights(trail, weights, values)
        if checked is None:
            return None
        last = axes.shared[-1:]  # of the axes that values have, too, the heads
        fewer = [values.shape[value_axes.index(x)] < operand.shape[own_axes.index(x)] for x in last]
        weighing = Weighing(
            checked,
            weights,
            None if trail.masked is None else trail.masked.permute(order),
            weights.ndim > 4 and (axes.several or any(fewer)),
            operand,
            order,
            values,
            product.out.index(axes.query),
        )
        return _with_product(weighing, call, axes, value_axes, product.out)

    def _check_weights(self, trail: Trail, weights: Tensor, values: Tensor) -> Trail | None:
        """The trail, with why its weights cannot be shown; None if they sum to more than attention."""
        if trail.factors and values in self._mixtures:
            return replace(trail, reason=FACTORS)
        if trail.reason or is_mapped(weights, values):
            return trail
        above = float(weights.float().sum(-1).amax()) > 1 + ROUNDING
        if trail.factors and (above or float(weights.amin()) < 0):
            return replace(trail, reason=FACTORS)
        if above:
            return None
        return replace(trail, reason=SIGNED) if float(weights.amin()) < 0 else trail


class WeightAxes(NamedTuple):
    """The letters of the axes of weights in a product."""

    lead: list[str]  # texts and heads
    query: str
    key: str
    shared: list[str]  # those that the values have, too
    several: bool  # whether more axes than the queries' are the weights' own: heads that share their values


def find_axes(name: str, own_axes: str, value_axes: str, out: str) -> WeightAxes | None:
    """The axes of weights that meet values, from those of both factors and the product; None: not attention.

    Heads that share values have an axis that the values lack; the last such axis is the queries.
    """
    key = [axis for axis in own_axes if axis in value_axes and axis not in out]
    shared = [axis for axis in own_axes if axis in value_axes and axis in out]
    own = [axis for axis in own_axes if axis not in value_axes and axis in out]
    if len(key) != 1 or not own or len(own_axes) != 1 + len(shared) + len(own):
        return None
    lead = [*shared, *own[:-1]]
    lead = lead if name == "einsum" else sorted(lead, key=own_axes.index)
    return WeightAxes(lead, own[-1], key[0], shared, len(own) > 1)


def _with_product(
    weighing: Weighing, call: TorchCall, axes: WeightAxes, value_axes: str, out: str
) -> Weighing:
    """The same with its values and its product, if these have one axis of size."""
    lead, query, key, *_ = axes
    # the values' own axes: their size is the last, before it are those of texts that share their weights
    *more, size = [axis for axis in value_axes if axis not in (*lead, key)] or [""]
    order = [*more, *lead, query, size]
    if call.name == "baddbmm" or sorted(order) != sorted(out) or (more and axes.several):
        return weighing
    assert weighing.factor is not None
    source = [axis for axis in (*more, *lead, key, size) if axis in value_axes]
    values = weighing.factor.permute([value_axes.index(axis) for axis in source]).detach()
    for place, axis in enumerate((*more, *lead)):
        values = values if axis in value_axes else values.unsqueeze(place)  # heads share them
    order_of_product, weights, result = tuple(map(out.index, order)), weighing.weights, call.result.detach()
    weights = weights.expand(*result.permute(order_of_product).shape[:-2], -1, -1) if more else weights
    return replace(weighing, weights=weights, values=values, result=result, product_axes=order_of_product)


def _drops(call: TorchCall, source: Tensor) -> bool:
    """Whether a function is dropout that does more than return what it is given, in a new tensor."""
    if "dropout" not in call.name or call.result is source:
        return False
    arguments = call.arguments("input", "p", "training")
    return bool(arguments.get("p", 0.5)) and bool(arguments.get("training", arguments.get("train", True)))


def _move(call: TorchCall, tensor: Tensor | None, count: int) -> Sequence[Tensor | None]:
    """The parts that a function which moves weights makes of a tensor in their axes."""
    parts = None if tensor is None else call.func(tensor, *call.args[1:], **call.kwargs)
    return parts if isinstance(parts, (tuple, list)) else [parts] * count


def _change_scores(scores: Scores, call: TorchCall, source: Tensor) -> Scores | None:
    """Scores after a function that scales them by a number, or adds terms; None after any other."""
    others, first = [arg for arg in call.args if arg is not source], call.args[0] is source
    if call.name in ADDING and (first or "sub" not in call.name):
        terms = [arg for arg in others if isinstance(arg, Tensor) and arg.is_floating_point()]
        return replace(scores, terms=(*scores.terms, *terms))
    number = others[0] if len(others) == 1 else None
    if isinstance(number, Tensor) and number.numel() == 1 and not is_mapped(number):
        number = number.item()
    if not isinstance(number, (int, float)) or not number:
        return None
    if call.name in TIMES:
        return replace(scores, scale=scores.scale * number)
    return replace(scores, scale=scores.scale / number) if call.name in DIVIDING and first else None
