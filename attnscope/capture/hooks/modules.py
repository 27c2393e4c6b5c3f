"""The running module: a stack of the modules that the pass is inside of.

Maintained in ``nn.Module.__call__``, which every module call goes through: hooks on each module would
change a model that another thread may be running.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor, nn

from attnscope.capture.hooks.functions import Function, Tap, fast_path, is_compiled, is_quiet, original
from attnscope.capture.record import Failure, Record
from attnscope.errors import AttnscopeError, first_line, out_of_memory

Watch: TypeAlias = Callable[[Function, Any, Any], Any]
"""Runs a kernel with its arguments, observes it, and returns its result."""

SINGLE_FUNCTIONS = (nn.Softmax, nn.Dropout, nn.Identity)
"""Modules that hold one function; what runs in them belongs to the module around them."""

OTHER_SEQUENCES = ("key_value_states", "encoder_hidden_states", "memory", "context")
CACHES = ("past_key_values", "past_key_value", "layer_past", "cache_params", "cache")


@dataclass(frozen=True, eq=False)
class Call:
    """One call of one module: its path, and its input."""

    name: str
    module: nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    @cached_property
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors among its arguments."""
        return tuple(tensors_in(self.args, self.kwargs))

    @property
    def has_cache(self) -> bool:
        """Whether it received a cache."""
        return any(self.kwargs.get(key) is not None for key in CACHES)

    @property
    def has_other_sequence(self) -> bool:
        """Whether it received the states of another sequence by name."""
        return any(self.kwargs.get(key) is not None for key in OTHER_SEQUENCES)

    @property
    def first(self) -> Tensor | None:
        """The module's first tensor argument."""
        return self.tensors[0] if self.tensors else None


@dataclass(eq=False)
class ModuleStack:
    """The calls that the pass is inside of, outermost first; ``watch`` fills it for one thread.

    ``on_pass`` is called when the outermost module is entered, ``on_enter`` for every module after it was
    pushed, ``on_leave`` with every module's output before it is popped, unless it failed. All run inside
    ``guard``, so that their errors do not fail a module. ``on_compiled`` is called for every compiled module.
    """

    root: nn.Module
    on_pass: Callable[[], None]
    on_enter: Callable[[Call], None]
    on_leave: Callable[[Call, object], None]
    on_compiled: Callable[[], None]
    guard: AbstractContextManager[None]
    calls: list[Call] = field(default_factory=list)
    _unwrapped: nn.Module | None = None  # the module whose wrapper was just entered

    def __post_init__(self) -> None:
        self.names = {id(module): name for name, module in self.root.named_modules()}  # paths, by identity

    def watch(self) -> AbstractContextManager[None]:
        """Keep the stack while the block runs; the model itself is not touched."""
        return CALLED.listening(nn.Module, self)

    def run(self, module: nn.Module, call: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a module with its entry on the stack.

        A wrapper of ``torch.compile`` stands for its module: it may call it by a method that is not watched.
        """
        if is_quiet():  # our own work
            return call(*args, **kwargs)
        with self.guard:
            if is_compiled(module):
                self.on_compiled()
        entered = module if id(module) in self.names else original(module)
        name, unwrapped = self.names.get(id(entered)), self._unwrapped
        self._unwrapped = None if entered is module else entered
        if name is None or module is unwrapped:
            return call(*args, **kwargs)
        depth = len(self.calls)
        try:
            with self.guard:
                self._enter(name, entered, args, kwargs)
            with fast_path(entered):
                output = call(*args, **kwargs)
            with self.guard:
                if len(self.calls) > depth:
                    self.on_leave(self.calls[depth], output)
            return output
        finally:
            del self.calls[depth:]

    def _enter(self, name: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not self.calls:
            self.on_pass()
        entry = Call(name, module, args, kwargs)
        self.calls.append(entry)
        self.on_enter(entry)


class Listener(Protocol):
    """What runs the calls of modules while it listens."""

    def run(self, module: nn.Module, call: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The output of a module, which ``call`` computes."""


@functools.partial(Tap, "__call__")
def CALLED(original: Function, listeners: Callable[[], list[Listener]]) -> Function:
    """The call method, routed through every listener of this thread, the last one outermost."""

    def through(stack: Listener, module: nn.Module, call: Function, *args: Any, **kwargs: Any) -> Any:
        return stack.run(module, call, args, kwargs)

    def __call__(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        call = functools.partial(original, self)
        for stack in listeners():
            call = functools.partial(through, stack, self, call)
        return call(*args, **kwargs)

    return __call__


def tensors_in(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Tensor]:
    """The tensors among a call's own arguments, in order; nested ones, which have no shape, are left out."""
    with torch._C.DisableTorchFunction():  # a recording need not see what is asked here
        values = (*args, *kwargs.values())
        return [value for value in values if isinstance(value, Tensor) and not value.is_nested]


@dataclass(eq=False)
class Guard:
    """Wraps our own work inside a model: ``with guard:`` notes any exception, and the model goes on.

    An observer's ``AttnscopeError``, an interruption, and lack of memory still end the pass.
    """

    record: Record
    place: Callable[[], str]  # names the running module

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        return error is not None and self._note(error)

    def run(self, watch: Watch, kernel: Function, args: Any, kwargs: Any) -> Any:
        """The result of ``watch``; if that fails, the kernel's own result. The kernel runs exactly once.

        Exceptions of the kernel itself belong to the model and pass through.
        """
        returned: list[Any] = []
        failed = False

        def once(*args: Any, **kwargs: Any) -> Any:
            nonlocal failed
            failed = True
            returned.append(kernel(*args, **kwargs))
            failed = False
            return returned[-1]

        try:
            return watch(once, args, kwargs)
        except Exception as error:
            if failed or not self._note(error):
                raise
        return returned[-1] if returned else kernel(*args, **kwargs)

    def _note(self, error: BaseException) -> bool:
        """Note an exception, unless it shall end the pass."""
        if not isinstance(error, Exception) or isinstance(error, AttnscopeError) or out_of_memory(error):
            return False
        message, name = first_line(error), type(error).__name__
        failure = Failure(self.place(), message if message == name else f"{name}: {message}")
        if failure not in self.record.failures:  # what fails at a module may fail at each of its tensors
            self.record.failures.append(failure)
        return True
