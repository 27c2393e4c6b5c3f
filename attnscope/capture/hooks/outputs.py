"""Step 3: attention weights that a module returned or stored itself, where nothing else was seen in it.

For attention that is computed in ways that show no softmax: by exponentials and sums, in integers, in a
compiled function. A tensor is taken for weights if its name or its module's says attention, it is
``[..., query, key]`` over lengths of what the module was given, has no negative number, no row above
1, and most of its rows sum to 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from torch import Tensor

from attnscope.capture.hooks.modules import Call, stored
from attnscope.capture.lineage.follow import Lineage
from attnscope.capture.lineage.functions import Products
from attnscope.capture.lineage.standing import are_gates
from attnscope.capture.observer import quietly
from attnscope.capture.placing.kinds import texts_in_batch
from attnscope.capture.rows.capture import Capture
from attnscope.capture.rows.weighing import bare_weighing

SURPLUS = 1e-3


def capture_weights(
    calls: Sequence[Call], output: object, lineage: Lineage, products: Products
) -> Capture | None:
    """The attention that the innermost of the running modules shows itself, when it ends with ``output``."""
    weights = find_weights(calls[-1], output, lineage)
    if weights is None:
        return None
    values, mixed = products.of(calls[-1], weights)
    with quietly():
        weighing = replace(bare_weighing(weights.detach()), values=values, output=mixed)
        capture = Capture.of_weighing(weighing, texts_in_batch(calls, weights.shape[-2]))
    return replace(capture, source="module", kernel=type(calls[-1].module).__name__)


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
