"""Follows the tensors of a pass: what each torch function does to the origin of their entries.

A function that moves entries is kept as a step (``Moved``), a product as the axes that stay (``Spread``).
Any other function whose result has its argument's shape leaves the entries in their places. Everything else
breaks the way: its result is a new beginning, if a layer or a module is given it. Steps are walked only when
a layout has to be found, so a pass pays for a few small objects a call.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from itertools import count
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from attnscope.capture.hooks.handwritten.parameters import Learned, is_parameter
from attnscope.capture.hooks.modules import Call
from attnscope.capture.lineage.functions import (
    JOINING,
    MIXING,
    MOVING,
    PRODUCTS,
    REDUCING,
    Projections,
    spell,
)
from attnscope.capture.lineage.nodes import Filler, Moved, Node, Nothing, Origin, Root, Spread
from attnscope.capture.rows.weighing import is_mapped

SPREADING = frozenset({"add", "__add__", "__radd__", "sub", "__sub__", "__rsub__", "mul", "__mul__"})
"""Functions by which entries meet what the model learned, several numbers each."""

DEEPEST = 100
"""Steps after which a way is given up: models come back to their shortcut long before."""


class Lineage:
    """The tensors of one pass whose origin is known; gone as soon as the model drops them."""

    def __init__(self, learned: Learned) -> None:
        self._learned = learned
        self._origins: Any = WeakTensorKeyDictionary()
        self._projections = Projections()
        self._states = count()
        self.texts: tuple[int, ...] = ()  # what the model was given first: texts, or positions and texts
        self._numbers = count(1)

    def of(self, tensor: Any) -> Origin | None:
        """Where a tensor comes from, if that is known."""
        return self._origins.get(tensor) if isinstance(tensor, Tensor) else None

    def begin(self, tensor: Tensor, channel_axis: int = -1) -> Origin | None:
        """A new way, where none is known yet."""
        known = self.of(tensor)
        if known is None and tensor.is_floating_point() and tensor.ndim >= 2 and not is_parameter(tensor):
            root = Root(next(self._numbers), tensor.shape, channel_axis, tensor.device)
            known = self._origins[tensor] = Origin(root, next(self._states))
        return known

    def enter(self, call: Call) -> None:
        """A module starts: what it is given is a beginning, if nobody knows where it comes from."""
        if not self.texts and call.tensors:
            self.texts = tuple(call.tensors[0].shape[: max(1, call.tensors[0].ndim - 1)][:2])
        for tensor in call.tensors:
            self.begin(tensor)

    def see(
        self,
        name: str,
        func: Callable[..., Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
        result: Any,
    ) -> None:
        """Follow one call."""
        if name in MOVING:
            self._move(name, func, args, kwargs, result)
        if name in MOVING or not isinstance(result, Tensor):
            return
        if name in PRODUCTS or name in ("linear", "addmm", "cdist", "scaled_dot_product_attention"):
            self._multiply(name, args, kwargs, result)
        elif name in ("conv1d", "conv2d", "conv3d"):
            self._convolve(args, kwargs, result)
        elif name == "embedding":
            self.begin(result)
        elif name in JOINING:
            self._join(name, func, args, kwargs, result)
        elif name in REDUCING:
            self._reduce(args, kwargs, result)
        elif name == "pad":
            self._pad(func, args, kwargs, result)
        elif name not in MIXING:
            self._keep(name, args, result)

    def attend(self, args: Sequence[Any], kwargs: dict[str, Any], output: Tensor) -> None:
        """Follow what one of torch's kernels returned, which has a row for each query."""
        self._multiply("scaled_dot_product_attention", args, kwargs, output)

    def place(self, result: Tensor, node: Node | None) -> None:
        """Others know better where a tensor comes from: from there, or from nowhere that is known."""
        self._origins.pop(result, None)
        if node is not None:
            self._set(result, Origin(node, next(self._states)))

    def keep(self, result: Tensor, origin: Origin) -> None:
        """A tensor comes from where another one does."""
        self._set(result, origin)

    def _is_fixed(self, tensor: Tensor) -> bool:
        """Whether a factor is what the model learned: a parameter in some form, or queries made of it."""
        return self._learned.holds(tensor) or (self.of(tensor) is None and self._learned.is_fixed(tensor))

    def _set(self, result: Tensor, origin: Origin) -> None:
        if origin.node.depth <= DEEPEST:
            self._origins[result] = origin

    def _keep(self, name: str, args: Sequence[Any], result: Tensor) -> None:
        """The entries stay in their places: those of the first scores, or of states by the shortest way."""
        shaped = [
            self._origins[arg]
            for arg in args
            if isinstance(arg, Tensor) and arg.shape == result.shape and arg in self._origins
        ]
        if not shaped:
            return self._spread(args, result) if name in SPREADING else None
        scores = next((origin for origin in shaped if origin.right is not None), None)
        best = scores or min(shaped, key=lambda origin: origin.node.depth)
        if best.right is None and any(origin.state != best.state for origin in shaped):
            best = replace(best, state=next(self._states))
        self._set(result, best)

    def _spread(self, args: Sequence[Any], result: Tensor) -> None:
        """Entries met what the model learned, several numbers each (scales of queries and keys)."""
        known = [arg for arg in args if isinstance(arg, Tensor) and not self._learned.is_fixed(arg)]
        if len(known) == 1 and known[0] in self._origins and len(args) == 2 and isinstance(result, Tensor):
            self._move("expand", Tensor.expand, (known[0], result.shape), {}, result)

    def _move(
        self, name: str, func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], result: Any
    ) -> None:
        """A function with one tensor that it moves."""
        known = self.of(args[0]) if args else None
        if known is None or not isinstance(result, (Tensor, tuple, list)):
            return
        rest = tuple(args[1:])
        several = not isinstance(result, Tensor)
        for part, tensor in enumerate(result if several else (result,)):
            if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
                continue
            index = part if several else None
            node = Moved.by(func, name, (known.node, *rest), kwargs, index)
            right = None if known.right is None else Moved.by(func, name, (known.right, *rest), kwargs, index)
            self._set(tensor, replace(known, node=node, right=right))

    def _reduce(self, args: Sequence[Any], kwargs: dict[str, Any], result: Tensor) -> None:
        """One entry for several along an axis: it stands where the first of them stood."""
        given = dict(zip(("input", "dim"), args, strict=False)) | kwargs
        source, axis = given.get("input"), given.get("dim")
        known = self.of(source)
        if not isinstance(source, Tensor) or known is None or type(axis) is not int:
            return
        axis, kept = axis % source.ndim, result.ndim == source.ndim
        if known.right is not None and axis >= source.ndim - 2:
            return  # of scores, heads alone may be joined
        axes = [place for place in range(source.ndim) if place != axis]
        stay = tuple((place, place - (place > axis and not kept)) for place in axes)
        right = None if known.right is None else Spread(known.right, stay, result.shape)
        self._set(result, Origin(Spread(known.node, stay, result.shape), known.state, right))

    def _pad(
        self, func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], result: Tensor
    ) -> None:
        """Padding comes from nowhere, unless it repeats what stands at the ends."""
        given = dict(zip(("input", "pad", "mode"), args, strict=False)) | kwargs
        if given.get("mode", "constant") == "constant":
            self._move("pad", func, (given["input"], given["pad"]), {}, result)

    def _join(
        self, name: str, func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], result: Tensor
    ) -> None:
        """Several tensors in a row; those of unknown origin are fillers."""
        parts: Sequence[Tensor] = args[0] if args else kwargs["tensors"]
        origins = [self.of(part) for part in parts]
        known = [origin for origin in origins if origin is not None]
        if not known:
            return
        axis = (*args, None)[1] if len(args) > 1 else kwargs.get("dim", kwargs.get("axis", 0))
        scores = all(origin.right is not None for origin in known)
        nodes: list[Node] = []
        for part, origin in zip(parts, origins, strict=True):
            if origin is not None:
                nodes.append(origin.node)
            elif scores or name == "stack":
                nodes.append(Nothing(part.shape, part.device))
            else:
                filler = Filler(next(self._numbers), part.shape, axis % part.ndim, part.device)
                nodes.append(filler)
        states = {origin.state for origin in known}
        state = states.pop() if len(states) == 1 else next(self._states)
        right = None
        if scores:
            sides = [
                Nothing(part.shape, part.device) if origin is None or origin.right is None else origin.right
                for part, origin in zip(parts, origins, strict=True)
            ]
            right = Moved.by(func, name, (sides, axis), {})
        self._set(result, Origin(Moved.by(func, name, (nodes, axis), {}), state, right))

    def _convolve(self, args: Sequence[Any], kwargs: dict[str, Any], result: Tensor) -> None:
        """A convolution: a projection if its kernel is 1 wide; else it keeps places or begins anew."""
        given = dict(zip(("input", "weight"), args, strict=False)) | kwargs
        source, weight = given["input"], given["weight"]
        known = self.of(source)
        if known is None or known.right is not None or source.shape[2:] != result.shape[2:]:
            self.begin(result, 1 if result.ndim > 2 else 0)
            return
        kept = tuple((axis, axis) for axis in range(result.ndim) if axis != result.ndim - weight.ndim + 1)
        channels = (result.ndim - weight.ndim + 1,)
        node = Spread(known.node, kept, result.shape, channels, self._projections.number(weight))
        self._set(result, Origin(node, known.state))

    def _multiply(self, name: str, args: Sequence[Any], kwargs: dict[str, Any], result: Tensor) -> None:
        """A product: a projection by a parameter, scores of two activations, or values that were weighed."""
        spelled = spell(name, args, kwargs, result)
        if spelled is None:
            return
        (left, right), (ours, theirs), out = spelled
        if self._is_fixed(left) and not self._is_fixed(right):
            left, right, ours, theirs = right, left, theirs, ours
        kept = tuple((ours.index(letter), out.index(letter)) for letter in ours if letter in out)
        if self._is_fixed(right):
            known = self.begin(left)
            if known is not None and known.right is None:
                new = tuple(axis for axis, letter in enumerate(out) if letter not in ours)
                number = self._projections.number(right)
                node = Spread(known.node, kept, result.shape, new, number)
                self._set(result, Origin(node, known.state))
            return
        if is_mapped(left, right):  # what torch.vmap gives to a function is new
            self.begin(left)
            self.begin(right)
        known, other = self.of(left), self.of(right)
        if known is None:
            return
        node = Spread(known.node, kept, result.shape)
        if known.right is not None:  # weights met their values, or scores, which makes scores again
            keys = None
            if other is not None and other.right is not None:
                kept = tuple((theirs.index(letter), out.index(letter)) for letter in theirs if letter in out)
                keys = Spread(other.right, kept, result.shape)
            self._set(result, Origin(node, next(self._states), keys))
        elif other is not None and other.right is None and name != "scaled_dot_product_attention":
            kept = tuple((theirs.index(letter), out.index(letter)) for letter in theirs if letter in out)
            keys = Spread(other.node, kept, result.shape)
            self._set(result, Origin(node, known.state, keys))
        elif name == "scaled_dot_product_attention":
            self._set(result, Origin(node, next(self._states)))


class Settled:
    """Modules whose attention needs no lineage, because others of their make showed it whole.

    Layers of one make attend in one way. Where all attention of a layer went through functions that say
    themselves which axes are texts and heads, what runs in the next layers of that make is not followed, for
    following costs as much as all other watching.
    """

    def __init__(self) -> None:
        self._makes: WeakKeyDictionary[nn.Module, Hashable] = WeakKeyDictionary()
        self._settled: set[Hashable] = set()
        self._inside: Call | None = None
        self._captured = self._placed = 0
        self._before: dict[Call, tuple[int, int]] = {}  # both counts when a module that runs started

    @property
    def rests(self) -> bool:
        """Whether nothing has to be followed here."""
        return self._inside is not None

    def begin_pass(self) -> None:
        """Nothing runs."""
        self._inside = None
        self._before.clear()

    def count(self, placed: bool) -> None:
        """A call was captured; ``placed`` says whether its lineage was asked."""
        self._captured += 1
        self._placed += placed

    def ask(self) -> None:
        """Lineage was asked, though nothing was captured."""
        self._placed += 1

    def enter(self, call: Call) -> None:
        """A module starts."""
        self._before[call] = self._captured, self._placed
        if self._inside is None and self._settled and self._make(call.module) in self._settled:
            self._inside = call

    def leave(self, call: Call) -> None:
        """A module ends, and is settled if it attended and its lineage was never asked."""
        captured, placed = self._before.pop(call, (self._captured, 0))
        if self._inside is call:
            self._inside = None
        if self._captured > captured and self._placed == placed:
            self._settled.add(self._make(call.module))

    def _make(self, module: nn.Module) -> Hashable:
        """The classes of all modules in a module, in their order."""
        if module not in self._makes:
            self._makes[module] = tuple(type(part) for part in module.modules())
        return self._makes[module]
