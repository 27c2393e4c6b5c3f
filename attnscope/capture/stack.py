"""Which module is running: a stack of the modules that the pass is inside of, kept by forward hooks."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

PLAIN = (nn.Softmax, nn.Dropout, nn.Identity)
"""Modules that hold one function; what runs in them belongs to the module around them."""

FROM_ELSEWHERE = ("key_value_states", "encoder_hidden_states", "memory", "context")
CACHES = ("past_key_values", "past_key_value", "layer_past", "cache_params", "cache")


@dataclass(frozen=True, eq=False)
class Call:
    """One call of one module: its path, its how-many-th call in this pass, and what it was given."""

    name: str
    module: nn.Module
    invocation: int
    tensors: tuple[Tensor, ...]
    cached: bool
    foreign: bool  # was given the states of another sequence by name
    stored: dict[str, int]  # the tensors that the module held as attributes before, by identity

    @property
    def first(self) -> Tensor | None:
        """The first tensor that the module was given."""
        return self.tensors[0] if self.tensors else None


@dataclass(eq=False)
class ModuleStack:
    """The calls that the pass is inside of, outermost first; ``watch`` fills it for one thread.

    ``on_pass`` is called when the outermost module is entered, ``on_enter`` for every module after it was
    pushed, ``on_leave`` with every module's output before it is popped.
    """

    root: nn.Module
    on_pass: Callable[[], None]
    on_enter: Callable[[Call], None]
    on_leave: Callable[[Call, object], None]
    calls: list[Call] = field(default_factory=list)
    _counts: Counter[str] = field(default_factory=Counter)
    _muted: bool = False

    def __post_init__(self) -> None:
        self.names = {id(module): name for name, module in self.root.named_modules()}
        self._thread = threading.get_ident()

    def name_of(self, module: object) -> str | None:
        """The path of a module of this model, or None."""
        return self.names.get(id(module))

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Keep the stack with hooks on every module, and leave no hook behind."""
        with ExitStack() as hooks:
            for module in self.root.modules():
                if isinstance(module, torch.jit.ScriptModule):
                    continue
                entered = module.register_forward_pre_hook(self._enter, with_kwargs=True, prepend=True)
                hooks.callback(entered.remove)
                left = module.register_forward_hook(self._leave, always_call=True)
                hooks.callback(left.remove)
            yield

    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if threading.get_ident() != self._thread:
            return
        if module is self.root:
            self.calls.clear()  # a pass that Ctrl-C broke off leaves its calls behind
        if not self.calls:
            self._counts.clear()
            self.on_pass()
        name = self.names[id(module)]
        call = Call(
            name=name,
            module=module,
            invocation=self._counts[name],
            tensors=tuple(tensors_in(args, kwargs)),
            cached=any(kwargs.get(key) is not None for key in CACHES),
            foreign=any(kwargs.get(key) is not None for key in FROM_ELSEWHERE),
            stored=stored(module),
        )
        self._counts[name] += 1
        self.calls.append(call)
        self.on_enter(call)

    def _leave(self, module: nn.Module, args: tuple[Any, ...], output: object) -> None:
        if threading.get_ident() != self._thread:
            return
        for index in reversed(range(len(self.calls))):
            if self.calls[index].module is module:
                del self.calls[index + 1 :]
                self.on_leave(self.calls[index], output)
                self.calls.pop()
                return


def stored(module: nn.Module) -> dict[str, int]:
    """The tensors that a module holds as plain attributes, by identity."""
    return {name: id(value) for name, value in vars(module).items() if isinstance(value, Tensor)}


def tensors_in(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[Tensor]:
    """The tensors among a call's own arguments, in their order."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, Tensor):
            yield value
