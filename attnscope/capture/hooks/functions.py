"""Functions that are replaced or watched while threads record: kernels, compiled and fused code, our own."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from types import ModuleType
from typing import Any, Generic, TypeAlias, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import (
    _get_current_function_mode,
    _get_current_function_mode_stack,
    _pop_mode,
    _pop_mode_temporarily,
    _push_mode,
)
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

Listener = TypeVar("Listener")
Function: TypeAlias = Callable[..., Any]


class Tap(Generic[Listener]):
    """A way to watch a method of a class, or a function of a module, without changing any object.

    ``watch(original, listeners)`` makes the replacement that is installed while any thread listens, and
    restored after the last one. Without listeners on its thread, it must do what the original does.
    """

    def __init__(
        self, method: str, watch: Callable[[Function, Callable[[], list[Listener]]], Function]
    ) -> None:
        self.method, self.watch = method, watch
        self._lock = threading.Lock()
        self._users = 0
        self._original: Any = None
        self._threads = threading.local()

    def listeners(self) -> list[Listener]:
        """The listeners of this thread, outermost first."""
        stack: list[Listener] = self._threads.__dict__.setdefault("stack", [])
        return stack

    @contextmanager
    def installed(self, owner: type | ModuleType) -> Iterator[None]:
        """Keep the replacement in place while the block runs: Python tells each class that inherits it."""
        with self._lock:
            if self._users == 0:
                self._original = owner.__dict__.get(self.method)
                original = getattr(owner, self.method)
                setattr(owner, self.method, functools.wraps(original)(self.watch(original, self.listeners)))
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if self._users == 0:
                    if self._original is None:  # the method is inherited
                        delattr(owner, self.method)
                    else:
                        setattr(owner, self.method, self._original)
                    self._original = None

    @contextmanager
    def listening(self, owner: type | ModuleType, listener: Listener) -> Iterator[None]:
        """Let ``listener`` watch the method of ``owner`` on this thread while the block runs."""
        stack = self.listeners()
        with self.installed(owner):
            stack.append(listener)
            try:
                yield
            finally:
                # blocks may end in any order
                del stack[max(place for place, each in enumerate(stack) if each is listener)]


KernelWatch: TypeAlias = Callable[[str, Function, tuple[Any, ...], dict[str, Any]], Any]
"""Calls a kernel of this name with these arguments, and returns its result."""


@contextmanager
def attention_functions(watch: KernelWatch) -> Iterator[None]:
    """Send every Hugging Face attention call on this thread through ``watch`` while the block runs.

    Does nothing, and does not import transformers, if the program has not imported it: then none of its
    models can run.
    """
    if "transformers.modeling_utils" not in sys.modules:
        yield
        return
    from transformers.modeling_utils import AttentionInterface

    with ExitStack() as stack:
        if hasattr(AttentionInterface, "get_interface"):
            stack.enter_context(_kernel_tap.listening(AttentionInterface, watch))
        else:  # transformers 5.0 looks up an item, and calls the eager function of a model's file without
            stack.enter_context(_item_tap.listening(AttentionInterface, watch))
            for name, module in [*sys.modules.items()]:
                if name.startswith("transformers.models.") and _EAGER in vars(module):
                    stack.enter_context(_eager_tap(name).listening(module, watch))
        yield


def _with_watches(kernel: Function, name: str, watches: list[KernelWatch]) -> Function:
    """A kernel that goes through the watches, the outermost last."""

    def observed(watch: KernelWatch, kernel: Function) -> Function:
        return functools.wraps(kernel)(lambda *args, **kwargs: watch(name, kernel, args, kwargs))

    for watch in watches:
        kernel = observed(watch, kernel)
    return kernel


def _kernel_lookup(original: Function, listeners: Callable[[], list[KernelWatch]]) -> Function:
    """The lookup method, returning functions that go through the listeners."""

    def look_up(self: Any, attn_implementation: str, *default: Function) -> Any:
        kernel = original(self, attn_implementation, *default)
        return _with_watches(kernel, str(attn_implementation or "eager"), listeners())

    return look_up


_kernel_tap = Tap("get_interface", _kernel_lookup)
_item_tap = Tap("__getitem__", _kernel_lookup)
_EAGER = "eager_attention_forward"


@functools.cache
def _eager_tap(name: str) -> Tap[KernelWatch]:
    """That of the eager function in a model's file."""

    def watch(original: Function, listeners: Callable[[], list[KernelWatch]]) -> Function:
        return lambda *args, **kwargs: _with_watches(original, "eager", listeners())(*args, **kwargs)

    return Tap(_EAGER, watch)


_quiet = threading.local()  # .depth: how deep this thread is in our own work


@contextmanager
def quietly() -> Iterator[None]:
    """Our own work, without gradients and hidden from the recording.

    The recording's mode is off meanwhile; otherwise it would record itself endlessly.
    """
    _quiet.depth = getattr(_quiet, "depth", 0) + 1
    mode = _get_current_function_mode()  # type: ignore[no-untyped-call]
    try:
        with torch.no_grad(), _pop_mode_temporarily() if isinstance(mode, WatchingMode) else nullcontext():
            yield
    finally:
        _quiet.depth -= 1


def is_quiet() -> bool:
    """Whether this thread is inside ``quietly``."""
    return bool(getattr(_quiet, "depth", 0))


COMPILED = "compiled code ran uncompiled: compiled results may differ by rounding"

_lock = threading.Lock()
_stances: list[Any] = []  # one per running recording, on any thread; the first one holds


@contextmanager
def uncompiled() -> Iterator[None]:
    """Run compiled functions and modules uncompiled while the block runs.

    Torch's compiler is not imported if the program has not imported it: then the stance is set as soon as
    the block's thread compiles something, as ``flex_attention`` does whenever it runs.
    """
    with ExitStack() as stack:
        if "torch._dynamo" in sys.modules:
            stack.enter_context(_eager_stance())
        else:
            stack.enter_context(_compile_tap.listening(torch, lambda: stack.enter_context(_eager_stance())))
        yield


@contextmanager
def _eager_stance() -> Iterator[None]:
    """Torch has one stance for all threads: the first block sets it, the last one restores it."""
    with _lock:
        _stances.append(None if _stances else torch.compiler.set_stance("force_eager"))
    try:
        yield
    finally:
        with _lock:
            first = _stances[0]
            _stances.pop()
            if not _stances:
                first.__exit__(None, None, None)


@functools.partial(Tap, "compile")
def _compile_tap(original: Function, listeners: Callable[[], list[Callable[[], None]]]) -> Function:
    """Wrap ``torch.compile``, so that listeners set the stance before it compiles anything."""

    def compile(*args: Any, **kwargs: Any) -> Any:
        for listener in listeners():
            listener()
        return original(*args, **kwargs)

    return compile


def is_compiled(module: nn.Module) -> bool:
    """Whether a module is compiled: by ``torch.compile``, its own ``compile``, or its ``forward`` alone."""
    if module._compiled_call_impl is not None or "_orig_mod" in module._modules:
        return True
    return hasattr(module.forward, "_torchdynamo_orig_callable")


def runs_as_written() -> bool:
    """Whether this is called inside compiled code that runs uncompiled, flex attention's own aside."""
    frame = sys._getframe() if "torch._dynamo" in sys.modules else None
    while frame is not None and frame.f_back is not None:
        inside, frame = frame, frame.f_back
        if (
            inside.f_code.co_name == "compile_wrapper"
            and inside.f_globals.get("__name__") == "torch._dynamo.eval_frame"
            and frame.f_globals.get("__name__") != "torch.nn.attention.flex_attention"
        ):
            return True
    return False


def original(module: nn.Module) -> nn.Module:
    """The module that ``torch.compile`` wrapped; any other module as it is."""
    return getattr(module, "_orig_mod", module)


FAST_PATH_MODULES = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerEncoder)
FUSED_FUNCTIONS = frozenset({"_native_multi_head_attention", "_transformer_encoder_layer_fwd"})
OPERATORS = frozenset(getattr(torch.ops.aten, name).default for name in FUSED_FUNCTIONS)
PRODUCTS = frozenset({torch.ops.aten.mm.default, torch.ops.aten.addmm.default})
BATCHED_PRODUCT = torch.ops.aten.bmm.default  # may project transposed states; after that, it attends
TRANSPOSE = torch.ops.aten.t.default


class WatchingMode(torch.overrides.TorchFunctionMode):
    """A function mode that knows the fused functions, and changes nothing."""

    def __exit__(self, *error: object) -> None:
        """Leave the stack of modes, wherever in it this one stands: blocks may end in any order."""
        above = []
        while (mode := _pop_mode()) is not self:  # type: ignore[no-untyped-call]
            above.append(mode)
        for mode in reversed(above):
            _push_mode(mode)  # type: ignore[no-untyped-call]


class FusedProducts(TorchDispatchMode):
    """The products around the attention inside torch's fused encoder layers, which run unchanged.

    ``nn.MultiheadAttention``, ``nn.TransformerEncoderLayer`` and ``nn.TransformerEncoder`` call one fused
    function each instead of their own code, with slightly different results: padded tokens are skipped, and
    zeros come back. Before that they check for function modes or tensor subclasses that would miss what they
    do inside. A recording misses nothing, so ``fast_path`` makes the check pass.

    Texts are concatenated along the tokens, without padding where states are nested. Nothing is seen if
    another mode would see the operators inside, too.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.projected: list[Tensor] = []  # queries, keys and values, together if of the same states
        self.without_bias = False  # whether without their bias
        self.head_outputs: Tensor | None = None  # the last product's input: weights × values, [token, size]

    @staticmethod
    def run(kernel: Function, args: Any, kwargs: Any) -> tuple[Any, FusedProducts]:
        """The result of a fused function, and what was seen inside."""
        products = FusedProducts()
        modes: list[Any] = _get_current_dispatch_mode_stack()
        with products if all(isinstance(mode, FusedProducts) for mode in modes) else nullcontext():
            return kernel(*args, **kwargs), products

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator; those of a fused function run under this mode, which is off inside this method."""
        if func in OPERATORS:
            below = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.Python)
            with self:
                return func.redispatch(torch._C._dispatch_keys(args[0]) & below, *args, **(kwargs or {}))
        result = func(*args, **(kwargs or {}))
        if func is TRANSPOSE and torch.is_inference_mode_enabled():  # a product asks how to run it
            result.requires_grad_(args[0].requires_grad)
        if func in PRODUCTS | {BATCHED_PRODUCT} and self.head_outputs is None:
            factor, weight = args[-2:]
            if sum(part.shape[1] for part in self.projected) < 3 * weight.shape[-2]:
                self.projected.append(result.flatten(0, -2))
                self.without_bias = len(args) == 2  # a bias would come before the two factors
            elif func in PRODUCTS:
                self.head_outputs = factor
        return result


def fast_path(module: nn.Module) -> AbstractContextManager[None]:
    """Let a module take its fast path under a recording mode, as it would without."""
    asks = isinstance(module, FAST_PATH_MODULES)
    return _check_tap.listening(torch.overrides, asks) if asks or _check_tap.listeners() else nullcontext()


@functools.partial(Tap, "has_torch_function")
def _check_tap(original: Function, listeners: Callable[[], list[bool]]) -> Function:
    """The check, answering no for a recording mode while one of the checking modules runs its own code."""

    def has_torch_function(tensors: tuple[object, ...]) -> Any:
        fast = listeners()
        return original(tensors) and not (fast and fast[-1] and watched_alone(tensors))

    def watched_alone(tensors: tuple[object, ...]) -> bool:
        """Whether only recording modes would see functions of these plain tensors."""
        modes: list[Any] = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
        plain = all(tensor is None or type(tensor) in (Tensor, nn.Parameter) for tensor in tensors)
        return plain and all(isinstance(mode, WatchingMode) for mode in modes)

    return has_torch_function
