"""Step 3: attention weights that a module returned or stored itself, where nothing else was seen in it.

For attention that is computed in ways that show no softmax: by exponentials and sums, in integers, in a
compiled function. A tensor is taken for weights if its name or its module's says attention, it is
``[..., query, key]`` over lengths of what the module was given, has no negative number, no row above
1, and most of its rows sum to 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from attnscope.capture.hooks.modules import PLAIN, Call, stored
from attnscope.capture.lineage.follow import Lineage
from attnscope.capture.lineage.functions import PRODUCTS, Seen
from attnscope.capture.lineage.standing import are_gates
from attnscope.capture.observer import quietly
from attnscope.capture.placing.kinds import texts_in_batch
from attnscope.capture.rows.capture import Capture
from attnscope.capture.rows.weighing import bare_weighing
from attnscope.capture.tracker import Pass, Tracker

SURPLUS = 1e-3


class ShownWeights(Tracker):
    """Takes the weights that a module shows at its end, if nothing else was seen in it.

    It keeps what modules that are running multiplied with what may be weights, to hold them against.
    """

    def __init__(self, recorder: Pass) -> None:
        super().__init__(recorder)
        self._products: dict[Call, Any] = {}
        self._before: dict[Call, int] = {}  # how much had been seen when a module started

    def begin(self) -> None:
        """Nothing runs."""
        self._before.clear()

    def enter(self, call: Call) -> None:
        """A module starts."""
        self._before[call] = self.recorder.seen

    def see(self, seen: Seen) -> None:
        """Keep values and what they gave, if the factor before them ends with axes of queries and keys."""
        calls = self.recorder.stack.calls
        call = next((call for call in reversed(calls) if not isinstance(call.module, PLAIN)), None)
        if seen.name not in PRODUCTS or call is None or (product := seen.product) is None:
            return
        weights, ours, theirs = product.left, product.ours, product.theirs
        if weights.ndim < 3 or not call.lengths.issuperset(weights.shape[-2:]):
            return
        usual = ours[-1] == theirs[-2] and product.out == ours[:-1] + theirs[-1]
        if usual and ours[-1] not in product.out and ours[-2] not in theirs:
            known = self._products.setdefault(call, WeakTensorKeyDictionary())
            known[weights] = product.right.detach(), seen.result.detach()

    def leave(self, call: Call, output: object) -> None:
        """Take what the module shows, and let go what it multiplied."""
        products = self._products.pop(call, {})
        if self._before.pop(call, None) != self.recorder.seen or not self.recorder.listens:
            return
        weights = find_weights(call, output, self.recorder.of(Lineage))
        if weights is None:
            return
        values, mixed = products.get(weights) or (None, None)
        with quietly():
            weighing = replace(bare_weighing(weights.detach()), values=values, output=mixed)
            texts = texts_in_batch(self.recorder.stack.calls, weights.shape[-2])
            capture = Capture.of_weighing(weighing, texts)
        self.recorder.take(replace(capture, source="module", kernel=type(call.module).__name__), call.name)


def find_weights(call: Call, output: object, lineage: Lineage) -> Tensor | None:
    """The attention weights that a module's call left in its output or its attributes, if any."""
    for tensor in _candidates(call, output):
        if are_weights(tensor, call.lengths) and not are_gates(lineage, tensor):
            return tensor
    return None


def _candidates(call: Call, output: object) -> Iterator[Tensor]:
    """Tensors behind the first in a tuple, named ones in a mapping, attributes new in this call."""
    named: list[tuple[str, object]] = []
    if isinstance(output, dict):
        named += [(str(name), part) for name, part in output.items()]
    elif isinstance(output, (tuple, list)):
        named += [("", part) for part in output[1:]]
    named += [
        (name, vars(call.module)[name])
        for name, reference in stored(call.module).items()
        if name not in call.stored or call.stored[name]() is not reference()
    ]
    if named:
        says = "att" in f"{call.name} {type(call.module).__name__}".lower()
        for name, part in named:
            if isinstance(part, Tensor) and (says or "att" in name.lower()):
                yield part


def tensors_of(output: object) -> Iterator[Tensor]:
    """The tensors that a module returned, in their order."""
    parts = output.values() if isinstance(output, dict) else output
    for part in parts if isinstance(parts, Iterable) and not isinstance(parts, Tensor) else [parts]:
        if isinstance(part, Tensor):
            yield part


def are_weights(tensor: Tensor, lengths: set[int]) -> bool:
    """Whether a tensor is shaped like attention over sequences of some of these lengths."""
    if tensor.ndim < 3 or not tensor.is_floating_point() or tensor.shape[-1] < 2:
        return False
    if not lengths.issuperset(tensor.shape[-2:]):
        return False
    with quietly():
        rows = tensor.detach().float().sum(-1)
        whole = ((rows - 1).abs() <= SURPLUS).float().mean()
        return bool((tensor >= 0).all()) and float(rows.amax()) <= 1 + SURPLUS and float(whole) > 0.5
