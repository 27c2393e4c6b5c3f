"""The layers of one pass, kept: those before a head that is taken away are computed once for all heads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.utils._pytree import tree_map

Forward = Callable[..., Any]


class _Ran(NamedTuple):
    """One call of a layer: what it returned, and how many attention calls there were before and after it."""

    layer: str
    output: Any
    before: int
    after: int


@dataclass(eq=False)
class KeptLayers:
    """What every layer of a pass returned, in the order in which they ran.

    A layer that ended before an attention call returns the same whatever is done to that call; so it need not
    run again. A layer is a module with a number that is in no other such module: ``encoder.layer.3``. What it
    returns is copied whenever it is kept or given, as a model may write into it.
    """

    module: nn.Module
    ran: list[_Ran] = field(default_factory=list)

    @property
    def layers(self) -> list[str]:
        """The paths of the layers."""
        named = ((name, name.split(".")) for name, _ in self.module.named_modules())
        return [
            name
            for name, (*outside, last) in named
            if last.isdecimal() and not any(part.isdecimal() for part in outside)
        ]

    @contextmanager
    def keeping(self, count: Callable[[], int]) -> Iterator[None]:
        """Keep what the layers return while the block runs; ``count`` tells the attention calls so far."""
        self.ran.clear()
        inside = 0

        def keep(name: str, forward: Forward) -> Forward:
            def run(*args: Any, **kwargs: Any) -> Any:
                nonlocal inside
                before = count()
                inside += 1
                try:
                    output = forward(*args, **kwargs)
                finally:
                    inside -= 1
                if not inside:  # a layer that another one calls is a part of that
                    self.ran.append(_Ran(name, _copy(output), before, count()))
                return output

            return run

        with self._forwards(keep):
            yield

    def skipped(self, call: int) -> int:
        """How many attention calls are left out where all layers before one call are given."""
        return sum(ran.after - ran.before for ran in self._given(call))

    @contextmanager
    def giving(self, call: int) -> Iterator[None]:
        """Give what was kept of the layers that ended before an attention call, and run the others."""
        given = iter(self._given(call))

        def give(name: str, forward: Forward) -> Forward:
            def run(*args: Any, **kwargs: Any) -> Any:
                ran = next(given, None)
                if ran is None:
                    return forward(*args, **kwargs)
                assert ran.layer == name
                return _copy(ran.output)

            return run

        with self._forwards(give):
            yield

    def _given(self, call: int) -> list[_Ran]:
        return [ran for ran in self.ran if ran.after <= call]

    @contextmanager
    def _forwards(self, make: Callable[[str, Forward], Forward]) -> Iterator[None]:
        """Put another forward in the place of each layer's; nothing of it stays behind."""
        changed: list[tuple[nn.Module, Any]] = []
        try:
            for name in self.layers:
                layer = self.module.get_submodule(name)
                changed.append((layer, vars(layer).get("forward")))
                vars(layer)["forward"] = make(name, layer.forward)
            yield
        finally:
            for layer, own in reversed(changed):
                if own is None:
                    vars(layer).pop("forward", None)
                else:
                    vars(layer)["forward"] = own


def _copy(output: Any) -> Any:
    return tree_map(lambda part: part.clone() if isinstance(part, Tensor) else part, output)
