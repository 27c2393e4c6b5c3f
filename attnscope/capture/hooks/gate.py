"""Gates on heads: each head's output, multiplied by a number before the output projection.

A gate of 1 changes nothing, a gate of 0 removes the head, and the gradient at 1 is the head's importance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.overrides import TorchFunctionMode

from attnscope.capture.hooks.functions import Function, attention_functions
from attnscope.capture.rows.kernels import bind

Edit: TypeAlias = Callable[[int, Tensor], "Tensor | None"]
"""Maps a call's number and output ``[batch, query, head, size]`` to a new output, or None."""


class Gates(TorchFunctionMode):
    """Edits the output of every attention call; ``heads`` is the number of heads of each call so far.

    It covers torch's ``scaled_dot_product_attention`` and ``multi_head_attention_forward`` and
    transformers' attention functions; other attention is neither edited nor counted.
    """

    def __init__(self, edit: Edit) -> None:
        super().__init__()
        self.edit = edit
        self.heads: list[int] = []
        self._inside = 0

    def __torch_function__(self, func: Function, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run ``func``, and edit what torch's own kernel returns."""
        name = getattr(func, "__name__", "")
        if name == "multi_head_attention_forward" and not self._inside:
            return self._projected(func, bind(args, kwargs or {}))
        result = func(*args, **(kwargs or {}))
        if self._inside or name != "scaled_dot_product_attention":
            return result
        if result.ndim != 4:
            self.heads.append(0)
            return result
        return self._edited(result.transpose(1, 2)).transpose(1, 2)  # of [batch, head, query, size]

    def kernel_call(self, name: str, kernel: Function, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run an attention function of transformers, and edit what it returns."""
        self._inside += 1
        try:
            output, *more = kernel(*args, **kwargs)
        finally:
            self._inside -= 1
        return (self._edited(output), *more)

    def _projected(self, func: Function, given: dict[str, Any]) -> Any:
        """Run torch's attention with its projections, and edit its heads before the last of them.

        The function gets an identity as its last projection, since it does not return heads otherwise.
        """
        weight, bias = given["out_proj_weight"], given["out_proj_bias"]
        same = torch.eye(weight.shape[1], dtype=weight.dtype, device=weight.device)
        output, *more = func(**given | {"out_proj_weight": same, "out_proj_bias": None})
        heads = output.unflatten(-1, (given["num_heads"], -1))  # [query, batch, head, size], or no batch
        batched = heads[:, None] if heads.ndim == 3 else heads
        heads = self._edited(batched.transpose(0, 1)).transpose(0, 1).reshape(output.shape)
        return (linear(heads, weight, bias), *more)

    def _edited(self, output: Tensor) -> Tensor:
        """The edited output.  [batch, query, head, size] -> the same"""
        self.heads.append(output.shape[2])
        other = self.edit(len(self.heads) - 1, output)
        return output if other is None else other


@contextmanager
def edited(edit: Edit) -> Iterator[Gates]:
    """Edit the output of every attention call on this thread while the block runs."""
    gates = Gates(edit)
    with attention_functions(gates.kernel_call), gates:
        yield gates


@contextmanager
def put_forward(module: nn.Module, forward: Function) -> Iterator[None]:
    """Run another forward in the place of a module's while the block runs."""
    own = vars(module).get("forward")
    vars(module)["forward"] = forward
    try:
        yield
    finally:
        if own is None:
            del vars(module)["forward"]
        else:
            vars(module)["forward"] = own
