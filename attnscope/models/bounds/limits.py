"""Limits on the work that a foreign file can ask for: memory, time, and the size of what is built."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from torch import Tensor, nn
from torch.nn.modules import module as hooks

from attnscope.deadline import OutOfTime, time_limited
from attnscope.errors import ModelError
from attnscope.memory import out_of_memory, readable
from attnscope.models.bounds.size import Stored

FEW = 2000
"""Modules, and tensors, that a model may be built of beyond those that its files can fill."""

ELEMENTS = 1 << 26
"""Numbers that it may have beyond those."""


@contextmanager
def bounded(what: str, memory: int, seconds: float | None = None) -> Iterator[None]:
    """Raise ``ModelError`` for Python code that takes more than ``memory`` bytes or processor ``seconds``.

    For code of libraries whose work a foreign file chooses. The memory counts from what the process has
    already, and is limited where the system knows it (Linux); the time, on the main thread of any Unix.
    """
    try:
        with _memory_limited(memory), time_limited(seconds):
            yield
    except OutOfTime:
        raise ModelError(f"{what} takes longer than {seconds:g} seconds, and was stopped") from None
    except Exception as error:
        if is_out_of_memory(error):
            raise ModelError(f"{what} asks for more than {readable(memory)} of memory") from error
        raise


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether an exception, or one that it was raised from, says that there was no memory."""
    while error is not None:
        if out_of_memory(error) or "std::bad_alloc" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


@contextmanager
def _memory_limited(memory: int) -> Iterator[None]:
    before = limit_memory(memory)
    try:
        yield
    finally:
        if before is not None:
            import resource

            resource.setrlimit(resource.RLIMIT_DATA, before)


def limit_memory(memory: int) -> tuple[int, int] | None:
    """Let this process take so many bytes more; the limits before, or ``None`` where the system has none."""
    taken = _taken()
    if taken is None:
        return None
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    known = [limit for limit in (soft, hard, taken + memory) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min(known), hard))
    return soft, hard


def _taken() -> int | None:
    """Bytes of private memory that this process has; ``None`` where the system does not say."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmData:"))
    except (OSError, StopIteration, ValueError):
        return None


@contextmanager
def built_within(name: str, stored: Callable[[], Stored]) -> Iterator[None]:
    """Raise ``ModelError`` as soon as more is built on this thread than the files of its weights can fill.

    Counted are modules, tensors and the numbers in them, before there is memory behind them; the library sets
    each weight twice, and files may join some. ``stored`` is asked when the first module is built.
    """
    here = threading.get_ident()
    counts = {"modules": 0, "tensors": 0, "numbers": 0}
    most: dict[str, int] = {}

    def count(what: str, number: int) -> None:
        if threading.get_ident() != here:
            return
        if not most:
            size, tensors = stored()
            many = FEW + 8 * tensors
            most.update(modules=many, tensors=many, numbers=ELEMENTS + 8 * size)
        counts[what] += number
        if counts[what] > most[what]:
            raise ModelError(
                f"{name} cannot be loaded: its config.json asks for more than {most[what]:,} {what}, and the "
                f"files of its weights do not fill them"
            )

    def count_module(module: nn.Module, key: str, child: nn.Module | None) -> None:
        count("modules", 1)

    def count_tensor(module: nn.Module, key: str, tensor: Tensor | None) -> None:
        if tensor is not None:
            count("tensors", 1)
            count("numbers", tensor.numel())

    with ExitStack() as stack:
        for handle in (
            hooks.register_module_module_registration_hook(count_module),
            hooks.register_module_parameter_registration_hook(count_tensor),
            hooks.register_module_buffer_registration_hook(count_tensor),
        ):
            stack.callback(handle.remove)
        yield
