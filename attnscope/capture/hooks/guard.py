"""What goes wrong in the watching does not reach the model: its own result stands, and the record says so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeAlias

from attnscope.capture.hooks.modules import tensors_in
from attnscope.capture.record import Failure, Record
from attnscope.capture.rows.weighing import is_mapped
from attnscope.errors import AttnscopeError, first_line
from attnscope.memory import out_of_memory

Kernel: TypeAlias = Callable[..., Any]
Watch: TypeAlias = Callable[[Kernel, Any, Any], Any]
"""Runs a kernel with its arguments, looks on, and gives what the kernel returned."""


@dataclass(eq=False)
class Guard:
    """Around each piece of our own work inside of a model: ``with guard:`` notes what it raises, and goes on.

    What is meant to end the pass does so: an ``AttnscopeError`` of an observer, an interruption, and memory
    that is not there. ``place`` names the module that runs.

    >>> with guard:
    ...     recorder.take(capture_projection(bind(args, kwargs), result[0]), recorder.owner)
    """

    record: Record
    place: Callable[[], str]

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is None or _ends_the_pass(error):
            return False
        self._note(error)
        return True

    def run(self, watch: Watch, kernel: Kernel, args: Any, kwargs: Any) -> Any:
        """What ``watch`` returns; where it fails, what the kernel returns, which runs once in any case.

        What the kernel itself raises is the model's own, and goes on to it.
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
            if failed or _ends_the_pass(error):
                raise
            self._note(error)
        return returned[-1] if returned else kernel(*args, **kwargs)

    def _note(self, error: BaseException) -> None:
        said, name = first_line(error), type(error).__name__
        self.record.note_failure(Failure(self.place(), said if said == name else f"{name}: {said}"))


@dataclass(frozen=True)
class Guarded:
    """Sees the calls of attention functions for a listener that may fail."""

    guard: Guard
    watch: Callable[[str, Kernel, Any, Any], Any]

    def kernel_call(self, name: str, kernel: Kernel, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run ``kernel`` once, in any case; of what is mapped, the functions inside are named."""
        if is_mapped(*tensors_in(args, kwargs)):
            return kernel(*args, **kwargs)

        def watch(kernel: Kernel, args: Any, kwargs: Any) -> Any:
            return self.watch(name, kernel, args, kwargs)

        return self.guard.run(watch, kernel, args, kwargs)


def _ends_the_pass(error: BaseException) -> bool:
    """Whether an error is there to end the pass."""
    return not isinstance(error, Exception) or isinstance(error, AttnscopeError) or out_of_memory(error)
