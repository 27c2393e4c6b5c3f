"""Gates on heads: what a head adds up of the values, multiplied by a number before the layer goes on with it.

A gate of 1 changes nothing, a gate of 0 takes the head away, and the gradient at 1 is the head's importance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from attnscope.capture.hooks.interface import attention_functions

Gate: TypeAlias = Callable[[int, int], "Tensor | None"]
"""From the number of an attention call, and its heads, to factors ``[batch or 1, head]``, or None."""


class Gates(TorchFunctionMode):
    """Multiplies the output of every attention call by its gate; ``heads`` counts those of each call so far.

    It knows the calls of torch's ``scaled_dot_product_attention`` and of transformers' attention functions;
    what attends in other ways is not gated and not counted.
    """

    def __init__(self, gate: Gate) -> None:
        super().__init__()
        self.gate = gate
        self.heads: list[int] = []
        self._inside = 0

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run ``func``, and gate what torch's own kernel returns."""
        result = func(*args, **(kwargs or {}))
        if self._inside or getattr(func, "__name__", "") != "scaled_dot_product_attention":
            return result
        if result.ndim != 4:
            self.heads.append(0)
            return result
        return self._gated(result, 1)  # [batch, head, query, size]

    def kernel_call(
        self, name: str, kernel: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run an attention function of transformers, and gate what it returns."""
        self._inside += 1
        try:
            output, *more = kernel(*args, **kwargs)
        finally:
            self._inside -= 1
        return (self._gated(output, 2), *more)  # [batch, query, head, size]

    def _gated(self, output: Tensor, axis: int) -> Tensor:
        """The output with each head multiplied by its gate, if there is one."""
        self.heads.append(output.shape[axis])
        factors = self.gate(len(self.heads) - 1, output.shape[axis])
        if factors is None:
            return output
        shape = [1] * output.ndim
        shape[0], shape[axis] = factors.shape
        return output * factors.to(output).view(shape)


@contextmanager
def gated(gate: Gate) -> Iterator[Gates]:
    """Gate every attention call on this thread while the block runs."""
    gates = Gates(gate)
    with attention_functions(gates), gates:
        yield gates


def zeroed(call: int, head: int) -> Gate:
    """A gate that takes one head of one call away."""

    def gate(number: int, heads: int) -> Tensor | None:
        if number != call:
            return None
        factors = torch.ones(1, heads)
        factors[0, head] = 0
        return factors

    return gate
