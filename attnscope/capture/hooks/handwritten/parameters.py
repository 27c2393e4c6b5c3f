"""What a model learned, as opposed to what it computes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from attnscope.capture.hooks.modules import Call
from attnscope.capture.lineage.functions import PRODUCTS
from attnscope.capture.placing.without_attention import ATTENTION
from attnscope.capture.record import LayerWithoutAttention

MEMORY = "it attends to vectors that were learned, not to tokens"
PROJECTING = PRODUCTS | {"linear", "addmm", "conv1d", "conv2d", "conv3d"}


def is_parameter(tensor: Tensor) -> bool:
    """Whether a tensor is a parameter or a view of one."""
    return isinstance(tensor, nn.Parameter) or isinstance(tensor._base, nn.Parameter)


class Learned:
    """Knows what is made of parameters alone, which no input moves: weights in another type, latents."""

    def __init__(self) -> None:
        self._made: Any = WeakTensorKeyDictionary()
        self._memories: dict[str, None] = {}

    def see(self, name: str, args: Sequence[Any], result: Any) -> None:
        """A function ran: whether it was given nothing but what is learned."""
        if not args or not isinstance(args[0], Tensor) or not self.is_fixed(args[0]):
            return
        if all(self.is_fixed(arg) for arg in args[1:] if isinstance(arg, Tensor)):
            parts = (result,) if isinstance(result, Tensor) else result if isinstance(result, tuple) else ()
            like = self.holds(args[0]) and name not in PROJECTING
            for part in parts:
                if isinstance(part, Tensor) and not is_parameter(part):
                    self._made[part] = like

    def holds(self, tensor: Tensor) -> bool:
        """Whether a tensor is a parameter in another form: cast, moved, normalized."""
        return is_parameter(tensor) or bool(self._made and self._made.get(tensor))

    def is_fixed(self, tensor: Tensor) -> bool:
        """Whether a tensor is made of parameters, in whatever way."""
        return is_parameter(tensor) or bool(self._made and tensor in self._made)

    def asks(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Whether the queries of an attention function were learned, and its keys were not."""
        given = dict(zip(("query", "key"), args, strict=False)) | dict(kwargs)
        return self.is_fixed(given["query"]) and not self.is_fixed(given["key"])

    def weigh(self, call: Call | None, weighed: Tensor | None) -> None:
        """Weights that are not over tokens met ``weighed``: note a module that attends to what it learned."""
        if call is None or weighed is None or not self.is_fixed(weighed):
            return
        if ATTENTION.search(type(call.module).__name__):
            self._memories[call.name] = None

    def memories(self, known: Collection[str]) -> list[LayerWithoutAttention]:
        """The modules that attended only to what they learned, without those whose attention is known."""
        names = [name for name in self._memories if name not in known]
        return [LayerWithoutAttention.at(name, MEMORY) for name in names]
