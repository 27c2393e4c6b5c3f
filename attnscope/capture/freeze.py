"""One pass with attention frozen: which numbers depend on a changed token."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from math import inf
from time import thread_time
from typing import Any, NamedTuple, TypeAlias, TypeGuard

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from attnscope.capture.hooks.functions import Function, attention_functions, is_quiet, original, quietly
from attnscope.capture.hooks.modules import CALLED
from attnscope.capture.lineage.functions import ELEMENTWISE, SOFTMAX
from attnscope.capture.record import Record, is_within
from attnscope.errors import ModelError, SizeError, readable


def is_inside(path: str, other: str) -> bool:
    """Whether a module is inside another."""
    return path != other and is_within(path, other)


INERT = ELEMENTWISE | {"__get__", "__iadd__", "add_", "__isub__", "sub_", "relu", "gelu", "silu", "sigmoid"}
"""Functions that mix no tokens by themselves."""

NOT_CAPTURED = "attention that was not captured"
BETWEEN_CHANNELS = "attention between channels"

MIXING_PATTERNS = (
    ("a Fourier transform", r"fft"),
    ("a recurrence", r"lstm|gru|rnn_(tanh|relu)|cumsum|cumprod|scan"),
    ("a convolution", r"conv\d?d?|conv_transpose|unfold"),
    (NOT_CAPTURED, r"attention|softmax"),
)
"""Kinds of token mixing, with fragments of torch's function names; the first match counts."""

A_PRODUCT, A_CHOICE = "a matrix product", "a selection of tokens"
UNSPECIFIC = (A_PRODUCT, "a sum", "a product")
"""Functions that attention uses too: they name a mixer that is not called attention."""

STEP_PATTERNS = (
    ("a normalization over tokens", r"(group|instance|batch)_norm|^normalize$|vector_norm"),
    ("pooling", r"pool|^(mean|sum|amax|max|amin|min|std|var)$|interpolate|grid_sample"),
    (A_PRODUCT, r"linear|matmul|mm$|^mv$|einsum|dot"),
    ("ids that are made of several tokens", r"embedding"),
    (A_CHOICE, r"getitem|gather|select|scatter|index|where|sort|topk|take|masked_fill"),
    (UNSPECIFIC[1], r"^_*i?r?(add|sub)_*$|^lerp_?$"),
    (UNSPECIFIC[2], r"^_*i?r?(mul|div|truediv|pow)_*$"),
)
"""The same for single functions seen to mix tokens."""


def mixing_of(names: set[str], patterns: Sequence[tuple[str, str]]) -> list[str]:
    """The kinds of mixing that some functions are."""
    return [kind for kind, pattern in patterns if any(re.search(pattern, name) for name in names)]


def sorts(ran: Collection[str]) -> bool:
    """Whether one of the functions sorts."""
    return any("sort" in name or "topk" in name for name in ran)


def restore(changed: Tensor, now: Tensor, before: Tensor) -> Tensor:
    """Restore the earlier values where nothing changed, in place if the tensor can be written."""
    restored = torch.where(changed, now, before)
    spread = any(stride == 0 and size > 1 for stride, size in zip(now.stride(), now.shape, strict=True))
    return restored if spread else now.copy_(restored)


class Share(NamedTuple):
    """What one pass changed in a module that mixes tokens: places of its inputs, and its output."""

    inputs: list[list[Tensor]]  # of each input, of each axis, bool
    amount: Tensor  # [...], like the output


def places_changed(changed: Tensor) -> list[Tensor]:
    """Which places of each axis changed.  [...] -> [place], ..."""
    return [changed.movedim(axis, 0).unsqueeze(-1).flatten(1).any(1) for axis in range(changed.ndim)]


def assign_owners(shares: Mapping[int, Share]) -> Tensor:
    """Assign each number of an output to the one pass whose token it shall represent, or -1.  -> [...]

    Tokens lie along an axis on which no two passes changed one place of the input; if the output has that
    axis, it is assigned likewise. Otherwise each place goes to the pass that changed it most, the places
    being those of axes on which some passes changed nothing in common.
    """
    first = next(iter(shares.values())).amount
    owners = torch.full(first.shape, -1, device=first.device)
    shares = {number: share for number, share in shares.items() if bool(share.amount.any())}
    if not shares:
        return owners
    passes = torch.tensor(list(shares), device=first.device)
    amount = torch.stack([share.amount for share in shares.values()])  # [pass, ...]
    for changes in zip(*(share.inputs for share in shares.values()), strict=True):
        boxes = _boxes(changes, amount)
        if not bool(boxes.all()):
            return torch.where(boxes.any(0), passes[boxes.int().argmax(0)], -1)
    changed = [places_changed(each > 0) for each in amount]  # [pass][axis][place]
    places = [
        axis
        for axis in range(owners.ndim)
        if any(not bool((left[axis] & right[axis]).any()) for left in changed for right in changed)
    ]
    rest = [axis + 1 for axis in range(owners.ndim) if axis not in places]
    strength = amount.sum(rest, keepdim=True) if rest else amount
    return passes[strength.argmax(0)].expand_as(owners) if places else owners


def _boxes(changes: Sequence[list[Tensor]], amount: Tensor) -> Tensor:
    """Which part of an output is each pass's, by the places that it alone changed of one input.

    All ones if the output has no axis of such places.  [pass][axis][place], [pass, ...] -> [pass, ...]
    """
    boxes = torch.ones_like(amount, dtype=torch.bool)
    sizes = amount.shape[1:]
    for axis, size in enumerate(sizes if len(changes[0]) == len(sizes) else ()):
        along = torch.stack([places[axis] for places in changes])  # [pass, place]
        if along.shape[1] == size > 1 and int(along.sum(0).amax()) == 1:
            boxes &= along.view(-1, *(size if other == axis else 1 for other in range(len(sizes))))
    return boxes


TOO_LONG = "it would take too long"
CHANGING_CALLS = "the number of attention calls changes with the tokens: the model cannot be audited"

ROUNDING = 64  # rounding error, in smallest steps of single or double precision
COARSE_ROUNDING = 4  # the same for 16-bit types, which sum in single precision and round once


CallKey: TypeAlias = tuple[str, int]  # an attention call: the path of its module, and its count there


class CallEnd(NamedTuple):
    """The input or the output of a module call, or what a captured attention call is given."""

    module: str
    call: int
    end: str  # "in", "out" or "given"


@dataclass(eq=False)
class Moves:
    """The numbers of a first pass, and which of them changed in later ones, each with one changed token.

    ``mixed`` are the places where two passes changed one number, ``unclear`` those whose shapes changed,
    ``reached`` those where any number changed. Raises ``SizeError`` for more than ``most`` bytes.
    """

    keeps: bool = True  # the first pass runs
    most: float = inf
    size: int = 0
    before: dict[CallEnd, list[Tensor]] = field(default_factory=dict)
    changes: dict[CallEnd, list[Tensor]] = field(default_factory=dict)
    mixed: dict[CallEnd, set[torch.Size]] = field(default_factory=dict)  # of which tensors
    unclear: set[CallEnd] = field(default_factory=set)
    reached: set[CallEnd] = field(default_factory=set)

    def forget(self) -> None:
        """Start over: nothing has changed yet."""
        for group in (self.changes, self.mixed, self.unclear, self.reached):
            group.clear()

    def compare(self, place: CallEnd, value: Any) -> list[Tensor]:
        """Where the numbers changed, tensor by tensor; nothing in the first pass, or if shapes differ."""
        before, now = self.before.get(place), [*find_tensors(value)]
        if self.keeps:
            self.size += sum(tensor.nbytes for tensor in now)
            if self.size > self.most:
                raise SizeError(f"its modules pass on more than {readable(int(self.most))}")
            self.before[place] = [tensor.clone() for tensor in now]  # models write into their tensors
            return []
        if before is None or [tensor.shape for tensor in before] != [tensor.shape for tensor in now]:
            self.unclear.add(place)
            return []
        changed = [differ(*both) for both in zip(before, now, strict=True)]
        if not any(bool(each.any()) for each in changed):
            return changed
        self.reached.add(place)
        earlier = self.changes.setdefault(place, [torch.zeros_like(each) for each in changed])
        for each, by_others in zip(changed, earlier, strict=True):
            if bool((each & by_others).any()):
                self.mixed.setdefault(place, set()).add(each.shape)
            by_others |= each
        return changed

    def mixing(self) -> list[CallEnd]:
        """The outputs in which two passes changed one number, of inputs in which they did not."""
        dim = {*self.mixed, *self.unclear}
        ends = (place for place in self.mixed if place.end == "out")
        return [place for place in ends if place._replace(end="in") not in dim]

    def settle(self, place: CallEnd, value: Any) -> list[Tensor]:
        """Compare a module's input, and undo differences below rounding: it could amplify them."""
        changed = self.compare(place, value)
        for each, now, before in zip(changed, find_tensors(value), self.before.get(place, ()), strict=False):
            if now.is_contiguous() and not torch.equal(now.where(each, before), now):
                restore(each, now, before)
        return changed


def differ(before: Tensor, now: Tensor) -> Tensor:
    """Where two tensors of one shape differ by more than rounding, bool.  [...], [...] -> [...]

    In a row with such a number, all differences count: a token may change some features only a little.
    """
    if torch.equal(before, now):
        return torch.zeros(before.shape, dtype=torch.bool, device=before.device)
    precision = torch.finfo(before.dtype)
    steps = ROUNDING if precision.bits >= 32 else COARSE_ROUNDING
    finite = before.abs().nan_to_num(0, 0, 0)
    rounding = steps * precision.eps * float(finite.amax())
    changed = ~torch.isclose(now, before, rtol=0, atol=rounding, equal_nan=True)
    if not changed.ndim:
        return changed
    other = ~torch.isclose(now, before, rtol=0, atol=0, equal_nan=True)
    return changed | (other & changed.any(-1, keepdim=True))


def _is_compared(value: Any) -> TypeGuard[Tensor]:
    """Whether a value is a dense real or complex tensor; torch cannot compare sparse ones."""
    dense = isinstance(value, Tensor) and value.layout == torch.strided and not value.is_nested
    return dense and (value.is_floating_point() or value.is_complex())


def find_tensors(value: Any) -> Iterator[Tensor]:
    """The dense real or complex tensors in tuples, lists and mappings of any class, in order."""
    if _is_compared(value):
        yield value
    elif isinstance(value, (Mapping, tuple, list)):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from find_tensors(each)


def with_tensors(value: Any, tensors: Iterator[Tensor]) -> Any:
    """The same with other tensors in place of those that ``find_tensors`` yields."""
    if isinstance(value, Mapping):
        for key in list(value):
            value[key] = with_tensors(value[key], tensors)  # type: ignore[index]
    elif isinstance(value, (tuple, list)):
        parts = [with_tensors(each, tensors) for each in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return next(tensors) if _is_compared(value) else value


def copy_tensors(value: Any) -> Any:
    """The same with copied tensors: models write into their inputs."""
    return with_tensors(value, iter([tensor.clone() for tensor in find_tensors(value)]))


@dataclass(eq=False)
class FunctionSteps:
    """The functions that run in the modules ``paths`` themselves, not in inner modules.

    One pass without a changed token is kept, in which attention is frozen; later ones are compared with it.
    """

    paths: Collection[str]
    moves: Moves = field(default_factory=Moves)
    names: dict[tuple[str, int], str] = field(default_factory=dict)

    def find_mixing(self) -> dict[str, set[str]]:
        """The names of those with inputs of single tokens and mixed outputs, by module."""
        mixing: dict[str, set[str]] = {}
        for place in self.moves.mixing():
            mixing.setdefault(place.module, set()).add(self.names[place.module, place.call])
        return mixing


@contextmanager
def buffers_put_back(module: nn.Module) -> Iterator[None]:
    """Give a module's buffers back the numbers that they had before the block."""
    before = [
        (part, name, tensor, tensor.clone())
        for part in module.modules()
        for name, tensor in part._buffers.items()
        if tensor is not None
    ]
    try:
        yield
    finally:
        with torch.inference_mode():
            for part, name, tensor, numbers in before:
                part._buffers[name] = tensor
                if not torch.equal(tensor, numbers):
                    tensor.copy_(numbers)


@dataclass(eq=False)
class FirstPass:
    """The first pass: its numbers, and every captured call with its input and result.

    ``modules`` are those whose attention was captured by the time they returned: their return value is
    the result. ``hidden`` are those whose attention is not shown, because it is not over tokens. No pass runs
    past the ``deadline``.
    """

    moves: Moves = field(default_factory=Moves)
    calls: dict[CallKey, tuple[list[Tensor], Any]] = field(default_factory=dict)
    modules: set[str] = field(default_factory=set)
    softmaxes: dict[tuple[str, int], Tensor] = field(default_factory=dict)
    written: set[str] = field(default_factory=set)  # modules that contain a captured softmax
    hidden: dict[str, str] = field(default_factory=dict)  # and why
    affected: set[CallKey] = field(default_factory=set)  # calls whose queries a changed token affected
    shares: dict[tuple[CallEnd, int], dict[int, Share]] = field(default_factory=dict)
    owners: dict[tuple[CallEnd, int], Tensor] = field(default_factory=dict)  # whose token a place has
    functions: dict[str, set[str]] = field(default_factory=dict)  # of torch, that run in a module itself
    deadline: float = inf

    def hide(self, record: Record) -> None:
        """Forget the calls of modules whose attention is not shown: nothing in them may be frozen."""
        shown = {site.site.name for site in record.sites}
        reasons = {layer.name: layer.reason for layer in record.without_attention}
        self.hidden = {name: reason for name, reason in reasons.items() if name not in shown}
        self.calls = {key: call for key, call in self.calls.items() if key[0] not in self.hidden}
        self.modules -= self.hidden.keys()
        self.written -= self.hidden.keys()

    def begin(self) -> None:
        """Begin another round of passes."""
        self.moves.forget()
        self.affected.clear()
        self.shares.clear()

    def assign_owners(self) -> bool:
        """Assign each place that frozen modules mixed to one token; returns whether any are new."""
        new = {key: assign_owners(shares) for key, shares in self.shares.items() if key not in self.owners}
        self.owners |= new
        return bool(new)


KERNELS = {"scaled_dot_product_attention", "flex_attention", "multi_head_attention_forward"}
"""Torch functions whose first argument is the queries, with a result row for each."""

RowOf: TypeAlias = Callable[[Tensor], Tensor]  # from changed queries, [..., query], to rows of the result


def _row(tensor: Tensor, axis: int, number: int) -> Tensor:
    """A view of one row of a tensor; empty if it has fewer rows."""
    return tensor.movedim(axis, 0)[number : number + 1]


@contextmanager
def working() -> Iterator[None]:
    """Our own arithmetic is neither recorded nor frozen; without modes it costs half as much."""
    with quietly(), torch._C.DisableTorchFunction():
        yield


Frame: TypeAlias = tuple[CallEnd, list[Tensor]]  # a running module: its input, and where that changed


class Freeze(TorchFunctionMode):
    """Records a first pass, or freezes its attention and the modules ``held`` to what was recorded.

    A call is captured if the recording grew while it ran. All of its rows are frozen except those whose
    own query changed: they belong to the changed token. Queries that no token affects, because the model
    learned them, count as tokens: in the calls ``fresh``, row ``number`` is changed by hand.
    ``footprint`` is what changed in the first result whose shape differs from its input's: patches.
    ``steps`` watch the single functions of some modules.
    """

    def __init__(
        self,
        root: nn.Module,
        first: FirstPass,
        held: Collection[str] | None = None,
        fresh: Collection[CallKey] = (),
        number: int = 0,
        steps: FunctionSteps | None = None,
    ) -> None:
        super().__init__()
        self.first = first
        self.names = {id(module): path for path, module in root.named_modules()}
        self.keeps = first.moves.keeps = held is None
        self.fresh, self.number, self.steps = fresh, number, steps
        self.held = {*(held or ()), *first.modules}
        self.footprint: Tensor | None = None
        self._record = Record()
        self._busy = False  # inside a function
        self._frames: list[Frame] = [(CallEnd("", 0, "in"), [])]
        self._modules, self._calls, self._softmaxes, self._steps = (Counter[str]() for _ in range(4))

    @contextmanager
    def watch(self, record: Record) -> Iterator[None]:
        """Record or freeze what the recording captures while the block runs."""
        self._record = record
        with ExitStack() as stack:
            stack.enter_context(CALLED.listening(nn.Module, self))
            run = partial(self._answer, "attention", lambda queries: queries.transpose(1, 2))
            stack.enter_context(attention_functions(lambda name, *call: run(*call)))
            stack.enter_context(self)
            yield
        if self.keeps:
            self.first.modules |= {path for path in record.calls if not self._calls[path]}
            self.first.hide(record)

    # attention

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one of torch's functions, or return its frozen result."""
        if self._busy:
            return func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "").partition(".")[0]
        return self._answer(name, Tensor.detach if name in KERNELS else None, func, args, kwargs or {})

    def _answer(
        self, name: str, turn: RowOf | None, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]
    ) -> Any:
        if self._busy or is_quiet():
            return func(*args, **kwargs)
        captured = len(self._record.calls)
        self._busy = True
        try:
            step = None if self.steps is None else self._step(name, args, kwargs)
            result = func(*args, **kwargs)
            if len(self._record.calls) == captured or self._record.calls[-1] in self.first.hidden:
                if step is not None:
                    step(result)
                return self._note(name, result)
            owner = self._record.calls[-1]
            key = owner, self._calls[owner]
            self._calls[owner] += 1
            with quietly():
                inputs = [*find_tensors((args, kwargs))]
                self.first.moves.compare(CallEnd(*key, "given"), inputs)
                if self.keeps:
                    self.first.calls[key] = copy_tensors(inputs), copy_tensors(result)
                    self.first.written |= {owner} if turn is None else set()
                    return result
                return self._freeze(key, turn, self._record.query_axes[-1], inputs, result)
        finally:
            self._busy = False

    def _step(self, name: str, args: Any, kwargs: dict[str, Any]) -> Callable[[Any], None] | None:
        """Watch a function's inputs and, through the returned callback, its output."""
        steps, path = self.steps, self._frames[-1][0].module
        if steps is None or path not in steps.paths:
            return None
        inputs = [*find_tensors((args, kwargs))]
        place = CallEnd(path, self._steps[path], "in")
        self._steps[path] += 1
        steps.names[path, place.call] = name
        with working():
            steps.moves.compare(place, inputs)

        def leave(result: Any) -> None:
            with working():  # functions may write into their inputs
                steps.moves.compare(place._replace(end="out"), (result, inputs))

        return leave

    def _note(self, name: str, result: Any) -> Any:
        """The output of a function that captured nothing; a softmax captured later gives earlier values."""
        path = self._frames[-1][0].module
        if self.keeps and (next(find_tensors(result), None) is not None or sorts({name})):
            self.first.functions.setdefault(path, set()).add(name)
        if name not in SOFTMAX or not isinstance(result, Tensor):
            return result
        key = path, self._softmaxes[path]
        self._softmaxes[path] += 1
        with quietly():
            if self.keeps:
                self.first.softmaxes[key] = result.clone()
            elif any(is_within(path, owner) for owner in self.first.written):
                before = self.first.softmaxes.get(key, result)
                if before.shape == result.shape:
                    result.copy_(before)
        return result

    def _freeze(
        self, key: CallKey, turn: RowOf | None, axis: int | None, inputs: list[Tensor], result: Any
    ) -> Any:
        """The first pass's result, except the rows whose queries changed.

        For a product of weights and values, with queries along ``axis``, the changed rows are unknown.
        """
        if key not in self.first.calls:
            raise ModelError(CHANGING_CALLS)
        inputs_before, result_before = self.first.calls[key]
        before, now = [*find_tensors(result_before)], [*find_tensors(result)]
        if [each.shape for each in inputs_before + before] != [each.shape for each in inputs + now]:
            return copy_tensors(result_before)
        changed = [torch.zeros_like(each, dtype=torch.bool) for each in now]
        if turn is not None:
            queries = differ(inputs_before[0], inputs[0]).any(-1)  # [batch, head, query], or [query, batch]
            if bool(queries.any()):
                self.first.affected.add(key)
            elif key in self.fresh:
                _row(queries, 0 if queries.ndim == 2 else -1, self.number).fill_(True)
            rows = turn(queries)
            for each in changed:
                each |= rows[..., None] if each.shape[:-1] == rows.shape else each
        elif key in self.fresh and axis is not None:
            _row(changed[0], axis, self.number).fill_(True)
        if key in self.fresh and key not in self.first.affected:  # not a shift, which a norm would undo
            now = [each.abs().amax() + 1 - each for each in now]
        return with_tensors(result, map(restore, changed, now, before))

    # modules

    def run(self, module: nn.Module, call: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a module, also one that takes no hooks, and freeze what it returns."""
        path = self.names.get(id(original(module)))
        if path is None:
            return call(*args, **kwargs)
        if thread_time() > self.first.deadline:
            raise ModelError(TOO_LONG)
        depth = len(self._frames)
        place = CallEnd(path, self._modules[path], "in")
        self._modules[path] += 1
        with working():
            self._frames.append((place, self.first.moves.settle(place, (args, kwargs))))
        try:
            output = call(*args, **kwargs)
            return self._leave(module, output)
        finally:
            del self._frames[depth:]

    def _leave(self, module: nn.Module, output: Any) -> Any:
        entered, inputs_changed = self._frames[-1]
        place = entered._replace(end="out")
        with working():
            changed = self.first.moves.compare(place, output)
            before = self.first.moves.before.get(place, [])
            now = [*find_tensors(output)]
            if self.footprint is None and len(changed) == 1 and inputs_changed and not [*module.children()]:
                recut = changed[0].shape != inputs_changed[0].shape
                self.footprint = changed[0] if recut and bool(changed[0].any()) else None
            if not changed or all(map(torch.equal, before, now)):
                return output
            if place.module in self.held:
                both = zip(changed, now, before, strict=True)
                changed = [self._own((place, at), inputs_changed, *each) for at, each in enumerate(both)]
            return with_tensors(output, map(restore, changed, now, before))

    def _own(
        self,
        key: tuple[CallEnd, int],
        inputs_changed: list[Tensor],
        changed: Tensor,
        now: Tensor,
        before: Tensor,
    ) -> Tensor:
        """Which changed numbers belong to the changed token, in a module that mixes tokens."""
        if key in self.first.owners:
            return (self.first.owners[key] == self.number) & changed
        share = Share([places_changed(each) for each in inputs_changed], (now - before).abs() * changed)
        self.first.shares.setdefault(key, {})[self.number] = share
        return torch.zeros_like(changed)
