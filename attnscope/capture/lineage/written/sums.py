"""Tensors that are sums of what weights gave: each product scaled row by row, its entries moved."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from attnscope.capture.hooks.modules import Call
from attnscope.capture.lineage.follow import Lineage
from attnscope.capture.lineage.functions import RESHAPING
from attnscope.capture.lineage.written.parts import Part, Sum, gives, is_whole
from attnscope.capture.lineage.written.weights import Written, closed_keys
from attnscope.capture.rows.weighing import Weighing

TIMES = frozenset({"mul", "mul_", "__mul__", "__rmul__", "__imul__", "multiply"})
OVER = frozenset({"div", "div_", "__truediv__", "__itruediv__", "divide", "true_divide"})
PLUS = frozenset({"add", "add_", "__add__", "__radd__", "__iadd__"})
MINUS = frozenset({"sub", "sub_", "__sub__", "__isub__"})
SAME = frozenset({"to", "type", "type_as", "float", "half", "bfloat16", "double", "dropout", "nan_to_num"})


@dataclass(eq=False)
class Sums:
    """The sums of a pass; gone as soon as the modules end in which they were made."""

    lineage: Lineage
    _ends: dict[Call, dict[Sum, None]] = field(default_factory=dict)  # that went into no other
    _known: Any = field(default_factory=WeakTensorKeyDictionary)
    _made: Any = field(default_factory=WeakTensorKeyDictionary)  # of sums, and none itself: means, norms
    _buffers: Any = field(default_factory=WeakTensorKeyDictionary)  # what was put into a tensor, and where

    def begin(self, written: Written, result: Tensor) -> None:
        """A product of such weights."""
        places = torch.arange(result.numel(), device=result.device)
        places = places.view([result.shape[axis] for axis in written.order])
        back = sorted(range(result.ndim), key=lambda axis: written.order[axis])
        scale = torch.ones((), dtype=result.dtype, device=result.device).expand(result.shape)
        self._set(result, Sum(result.detach(), (Part(written, places.permute(back), scale),)))

    def end(self, call: Call) -> list[Sum]:
        """The sums that a module made, when it ends, but for those that went into others."""
        return list(self._ends.pop(call, {}))

    def see(
        self, name: str, func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], result: Any
    ) -> None:
        """Follow one function."""
        if not self._ends or self._put(name, args, result):
            return
        known = [self._known.get(arg) if isinstance(arg, Tensor) else None for arg in args[:2]]
        if any(known):
            self._see(name, func, args, kwargs, result, known)
        made = any(known) or any(isinstance(arg, Tensor) and arg in self._made for arg in args[:2])
        if made and isinstance(result, Tensor) and result not in self._known:
            self._made[result] = True

    def _see(
        self,
        name: str,
        func: Callable[..., Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
        result: Any,
        known: Sequence[Sum | None],
    ) -> None:
        """Follow a function of such a sum."""
        first, second = (*known, None)[:2]
        if name in RESHAPING and first is not None:
            self._move(first, func, args, kwargs, result)
        elif not isinstance(result, Tensor):
            return
        elif name in SAME and first is not None:
            self._follow(result, first.parts, [first])
        elif name in PLUS | MINUS and not kwargs and len(args) == 2:
            self._add(args, first, second, result, -1 if name in MINUS else 1)
        elif name in TIMES | OVER and not kwargs and len(args) == 2:
            self._scale(args, first, second, result, name in OVER)

    def _set(self, result: Tensor, made: Sum) -> None:
        """A tensor is such a sum."""
        self._known[result] = made
        self._ends.setdefault(made.parts[0].written.call, {})[made] = None

    def _follow(
        self, result: Tensor, parts: tuple[Part, ...], of: Sequence[Sum], scaled: bool = False
    ) -> None:
        """A tensor is made of others, which it takes the place of."""
        for each in of:
            self._drop(each)
        lost = any(each.lost for each in of)
        scaled = scaled or any(each.scaled for each in of)
        earlier = of[0].earlier if len(of) == 1 else None
        self._set(result, Sum(result.detach(), parts, scaled, lost, earlier))

    def _put(self, name: str, args: Sequence[Any], result: Any) -> bool:
        """Whether a sum was put into a place of another tensor, or is read from there again."""
        if name == "__setitem__" and len(args) == 3 and isinstance(args[2], Tensor):
            made = self._known.get(args[2])
            places = self._buffers.setdefault(args[0], {}) if made or args[0] in self._buffers else {}
            if (before := places.pop(repr(args[1]), None)) is not None:
                self._drop(before)
            if made is not None:
                places[repr(args[1])] = made
            return True
        if name == "__getitem__" and args[0] in self._buffers:
            made = self._buffers[args[0]].get(repr(args[1]))
            if made is not None and torch.equal(result, made.tensor):
                self._follow(result, made.parts, [made])
                self._buffers[args[0]][repr(args[1])] = self._known[result]
            return made is not None
        return False

    def _drop(self, known: Sum) -> None:
        """A sum went into another."""
        self._ends.get(known.parts[0].written.call, {}).pop(known, None)

    def _move(
        self, known: Sum, func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], result: Any
    ) -> None:
        """Entries were moved or cut."""
        several = not isinstance(result, Tensor)
        for index, tensor in enumerate(result if isinstance(result, (tuple, list)) else (result,)):
            if not isinstance(tensor, Tensor):
                return
            parts = []
            for part in known.parts:
                both = [func(of, *args[1:], **kwargs) for of in (part.places, part.scale)]
                places, scale = (each[index] if several else each for each in both)
                parts.append(replace(part, places=places, scale=scale))
            if parts[0].places.shape == tensor.shape:
                self._follow(tensor, tuple(parts), [known])

    def _add(
        self, args: Sequence[Any], first: Sum | None, second: Sum | None, result: Tensor, sign: int
    ) -> None:
        """Two are added, or something else to one."""
        if first is not None and second is not None and len({*_shapes(first, second), result.shape}) == 1:
            subtracted = tuple(replace(part, scale=sign * part.scale) for part in second.parts)
            return self._follow(result, (*first.parts, *subtracted), [first, second])
        known, other = (second, args[0]) if first is None else (first, args[1])
        assert known is not None
        if first is None:  # what it was added to may have been overwritten by the sum
            nothing = bool((result == sign * known.tensor).all())
        else:
            nothing = not bool(other.any()) if isinstance(other, Tensor) else other == 0
        if nothing and result.shape == known.tensor.shape:
            factor = torch.tensor(1 if first is not None else sign, device=result.device)
            self._follow(result, known.scale(factor, scaled=False) or (), [known])
        elif known.scaled:
            whole = self.join(known)
            known.lost = whole is None or not is_whole(whole)

    def _scale(
        self, args: Sequence[Any], first: Sum | None, second: Sum | None, result: Tensor, divides: bool
    ) -> None:
        """One is multiplied or divided."""
        known, factor = (second, args[0]) if first is None else (first, args[1])
        if known is None or (divides and first is None) or (first and second and not divides):
            return
        if known.tensor.shape != result.shape:
            return
        if second is not None and first is not None:
            self._drop(second)  # it divides
        varies = isinstance(factor, Tensor) and factor.numel() > 1
        if varies and factor in self._made:
            return  # a norm of what came out, and no division of weights
        given = factor if isinstance(factor, Tensor) else torch.tensor(float(factor), device=result.device)
        given = given.detach().expand(result.shape)
        parts = known.scale(1 / given if divides else given, varies)
        if parts is not None:
            self._follow(result, parts, [known], varies)
            if varies:
                self._known[result].earlier = None if divides else known
        elif divides:
            known.lost = True

    def choose(self, end: Sum) -> Weighing | None:
        """The weights of a sum that went into no other: those of what it was before a gate multiplied it."""
        step: Sum | None = end
        while step is not None:
            whole = self.join(step)
            if whole is not None and is_whole(whole):
                return whole
            step = step.earlier
        while len(end.parts) == 1 and end.earlier is not None:
            end = end.earlier
        return self.join(end)

    def join(self, known: Sum) -> Weighing | None:
        """The weights of a sum, scaled and side by side; None where nobody knows them."""
        scaled, values = [], []
        first = known.parts[0]
        for part in known.parts:
            weighing, rows = part.written.weighing, part.written.rows(part.places, part.scale, known.scaled)
            assert weighing.operand is not None
            assert weighing.values is not None
            if rows is None or not torch.equal(part.places, first.places):
                return None
            laid = self._moved("permute", Tensor.permute, weighing.operand, weighing.axes)
            scaled.append(self._moved("mul", torch.mul, laid, rows) if bool((rows != 1).any()) else laid)
            values.append(weighing.values)
        if len({(each.shape[:-1], of.shape[:-2]) for each, of in zip(scaled, values, strict=True)}) > 1:
            return None
        whole, value = scaled[0], values[0]
        if len(scaled) > 1:
            whole, value = self._moved("cat", torch.cat, scaled, -1), torch.cat(values, -2)
            if not self._differ(whole):
                return None
        dtype = first.written.weighing.weights.dtype
        whole, value = whole.to(dtype), value.to(dtype)
        output = first.written.lay(first.places, known.tensor)
        masked = first.written.weighing.masked
        if len(scaled) > 1:
            masked = closed_keys(whole, first.written.rectified)
        trail = replace(first.written.weighing.trail, masked=masked)
        axes = tuple(range(whole.ndim))
        grouped = first.written.weighing.grouped
        found = Weighing(trail, whole, masked, grouped, whole, axes, values=value, output=output)
        return found if gives(found) else None

    def _differ(self, weights: Tensor) -> bool:
        """Whether no key stands where another does."""
        origin = self.lineage.of(weights)
        if origin is None or origin.right is None:
            return False
        try:
            keys = origin.right.labels("position")[..., 0, :].flatten(0, -2)[0]
        except (RuntimeError, TypeError, IndexError, ValueError):
            return False
        return len(torch.unique(keys)) == len(keys)

    def _moved(self, name: str, func: Callable[..., Tensor], *args: Any) -> Tensor:
        """Move or scale weights, followed to where they come from."""
        result = func(*args)
        self.lineage.see(name, func, args, {}, result)
        return result


def _shapes(*sums: Sum) -> list[torch.Size]:
    return [each.tensor.shape for each in sums]
