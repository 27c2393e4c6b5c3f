"""Changed passes: heads give something else at some rows, one at a time or several at once.

The layers of the first pass are kept: those before a change do not run again. New outputs are known
before the pass (zeros, means, outputs of another pass), or come from the formula behind every picture, so
that cutting a weight before the softmax equals masking it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from attnscope.attention import Attention, Head, Kind, RowSource
from attnscope.capture import Observer, Record, recording
from attnscope.capture.hooks.torch_functions import Edit, Gates, head_edits, with_forward
from attnscope.capture.projections import first_tensor
from attnscope.capture.record import FunctionObserver, tolerance
from attnscope.capture.rows.scores import mix
from attnscope.errors import ModelError
from attnscope.models import Model, ModelInput
from attnscope.models.inputs import Axes
from attnscope.questions.selection import Selection
from attnscope.questions.sentences import require_selected

BLOCK = 512  # rows that are computed at a time
TOLERANCE_NATS = 1e-3
"""The most by which a loss may differ when stored layers are reused; rounding is far below it."""


class RanLayer(NamedTuple):
    """One call of a layer: its result, and the number of attention calls before and after it."""

    layer: str
    output: Any
    before: int
    after: int

    @property
    def stack(self) -> str:
        """The path of its list."""
        return self.layer.rpartition(".")[0]

    @property
    def states(self) -> Tensor | None:
        """Its first result: in most models the residual stream."""
        return first_tensor(self.output)


@contextmanager
def running_layers(
    module: nn.Module, known: Sequence[RanLayer] | None = None, calls: Sized = ()
) -> Iterator[list[RanLayer]]:
    """Let the first layers return what is ``known`` while the block runs; without it, keep all results.

    A layer is a module with a number that is in no other such module: ``encoder.layer.3``. One that ended
    before an attention call returns the same whatever happens to that call, so it need not run again;
    ``calls`` are the attention calls so far. Results are copied, as a model may write into them.
    """
    ready, ran, inside = iter(known or ()), list[RanLayer](), 0
    copy = partial(tree_map, lambda part: part.clone() if isinstance(part, Tensor) else part)

    def run(name: str, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        nonlocal inside
        if (layer := next(ready, None)) is not None:
            return copy(layer.output)
        before = len(calls)
        inside += 1
        output = forward(*args, **kwargs)
        inside -= 1
        if known is None and not inside:  # a layer that another one calls is a part of that
            ran.append(RanLayer(name, copy(output), before, len(calls)))
        return output

    with ExitStack() as stack:
        for name, layer in module.named_modules():
            *outside, last = name.split(".")
            if last.isdecimal() and not any(part.isdecimal() for part in outside):
                stack.enter_context(with_forward(layer, partial(run, name, layer.forward)))
        yield ran


@dataclass(frozen=True, eq=False)
class LayerPass:
    """A pass with the results of its layers, and the same with another residual stream behind one of them."""

    model: Model
    ran: list[RanLayer]
    record: Record
    before: Any  # the prediction

    @classmethod
    def run(cls, model: Model, prepared: ModelInput, predict: Callable[[], Any]) -> LayerPass:
        """Run ``predict``."""
        module, axes = model.module, prepared.axes
        with recording(module, [], axes, warn=False) as seen, running_layers(module) as ran:
            return cls(model, ran, seen, predict())

    @property
    def attending(self) -> list[tuple[int, Kind, int]]:
        """The place, kind and number in its list of each layer that ran in a list with attention."""
        # of several calls in a list, the first one counts
        inside = ((site.site, ran) for site in reversed(self.record.sites) for ran in self.ran)
        kinds = {ran.stack: site.kind for site, ran in inside if site.name.startswith(f"{ran.layer}.")}
        if not kinds:
            raise ModelError(f"{self.model.name} has no list of layers to read after")
        stacks = [ran.stack for ran in self.ran]
        return [(at, kinds[it], stacks[:at].count(it)) for at, it in enumerate(stacks) if it in kinds]

    def changing(self, at: int, states: Tensor) -> AbstractContextManager[object]:
        """Let a layer return other states while the block runs, and those before it what they returned."""
        ran, mine = self.ran[at], self.ran[at].states
        output = tree_map(lambda part: states if part is mine else part, ran.output)
        return running_layers(self.model.module, [*self.ran[:at], ran._replace(output=output)])


@contextmanager
def editing(
    model: Model, edit: Edit, prepared: ModelInput | None = None, observers: Sequence[Observer] = ()
) -> Iterator[tuple[Record, Gates]]:
    """Edit heads' outputs while the block runs. Raises ``ModelError`` unless every head was edited."""
    axes = None if prepared is None else prepared.axes
    with recording(model.module, observers, axes, warn=False) as record, head_edits(edit, record) as gates:
        yield record, gates
    heads = [site.heads for site in record.sites]
    if not heads:
        raise ModelError(f"{model.name} has no attention, and so no heads")
    if heads != gates.heads:
        ways = ", ".join(dict.fromkeys(site.kernel for site in record.sites))
        raise ModelError(
            f"the heads of {model.name} cannot be gated: it attends by {ways}, and gates fit torch's "
            "scaled_dot_product_attention and nn.MultiheadAttention, the attention functions of "
            "transformers, and one product of all heads' weights and values, outside of loops"
        )


Calls: TypeAlias = Mapping[Head, Sequence[int]]  # the attention calls of every selected head, by number


class Made(NamedTuple):
    """The new outputs of one call's heads at some rows, and the old ones.  [batch, head, row, size]"""

    outputs: Tensor
    rows: Tensor | slice = slice(None)  # [row]
    before: Tensor | None = None  # what proves that a change is of this call; none for known outputs

    def check(self, output: Tensor) -> None:
        """Raise ``ModelError`` unless the call returned ``output``, [batch, query, head, size]."""
        if self.before is None:
            return
        given = output.detach().transpose(1, 2)
        fits = isinstance(self.rows, slice) or int(self.rows[-1]) < given.shape[2]
        if given.shape[:2] != self.before.shape[:2] or not fits:
            raise ModelError("the heads shown are not those that this layer sums")
        given = given[:, :, self.rows]
        size = float(given.abs().amax()) or 1.0
        if float((self.before - given).abs().amax()) <= tolerance(output.dtype) * size:
            return
        raise ModelError("weights × values do not reproduce this layer's output: its heads cannot be changed")


Change: TypeAlias = Callable[[int, Attention], "Made | None"]
"""The change of an attention call of this number; ``None`` leaves it alone."""

Places: TypeAlias = Mapping[int, Sequence[tuple[int | slice, int]]]
"""Which heads of a call of this number are changed: each in which copies of the text."""


def places_of(calls: Calls) -> Places:
    """The heads of each call, in all copies of the text."""
    numbers = {call for mine in calls.values() for call in mine}
    return {
        call: [(slice(None), head.head) for head, mine in calls.items() if call in mine] for call in numbers
    }


def put_heads(places: Places, made: Mapping[int, Made | None], number: int, output: Tensor) -> Tensor | None:
    """The output of a call with some heads changed.  [batch, query, head, size] -> the same"""
    outputs_of_call = made[number] if number in places else None
    if outputs_of_call is None:
        return None
    other = output.clone()
    for copy, head in places[number]:
        other[copy, outputs_of_call.rows, head] = outputs_of_call.outputs[copy, head].to(output)
    return other


def mix_rows(read: RowSource, values: Tensor, first: int, stop: int) -> Tensor:
    """The heads' outputs at some rows.  -> [batch, head, row, size]"""
    blocks = (read.rows(at, min(at + BLOCK, stop), None) for at in range(first, stop, BLOCK))
    return torch.cat([mix(block, values) for block in blocks], 2)


def mixed_values(attention: Attention) -> Tensor:
    """The value vectors of a call. Raises ``ModelError`` if they were not seen."""
    values = attention.values
    if values is None or values.shape[2] != len(attention.keys):
        raise ModelError(f"{attention.site.name} cannot be changed: the values that it mixes are not known")
    return values


@contextmanager
def editing_again(
    first: LayerPass, edit: Edit, observers: Sequence[Observer] = (), axes: Axes | None = None
) -> Iterator[None]:
    """Edit heads' outputs in a pass like the first one; where a softmax made weights, it must be recorded."""
    recorded, module = (
        observers or any(site.source == "softmax" for site in first.record.sites),
        first.model.module,
    )
    watched = recording(module, observers, axes, warn=False) if recorded else nullcontext()
    with watched as record, head_edits(edit, record):
        yield


@dataclass(frozen=True, eq=False)
class PlainPass(LayerPass):
    """A pass, and the same with heads changed, from the layer of the first change on."""

    before: Tensor
    prepared: ModelInput
    predict: Callable[[], Tensor]
    change: Change | None  # none where heads get known outputs
    made: Mapping[int, Made | None]  # by call, its heads' new outputs
    given: Sequence[Tensor]  # what heads gave, [batch, query, head, size], by call; empty unless asked for
    same: dict[int, bool] = field(default_factory=lambda: {0: True})  # by the number of skipped calls

    @classmethod
    def run(
        cls,
        model: Model,
        prepared: ModelInput,
        predict: Callable[[], Tensor],
        change: Change | None = None,
        observers: Sequence[Observer] = (),
        *,
        calls: Calls = MappingProxyType({}),
        keep_outputs: bool = False,
    ) -> PlainPass:
        """Run ``predict``; the heads of ``calls`` are changed, each given the earlier changes.

        Raises ``ModelError`` for heads that cannot be gated.
        """
        made, given, places = dict[int, Made | None](), list[Tensor](), places_of(calls)

        def see(attention: Attention) -> None:
            made[len(made)] = None if change is None else change(len(made), attention)

        def edit(number: int, output: Tensor) -> Tensor | None:
            if keep_outputs:
                given.append(output.detach().clone())
            if change is None:
                return None
            if number not in made:
                raise ModelError(
                    "this attention is known only after its layer has run, and cannot be changed"
                )
            if (mine := made[number]) is not None:
                mine.check(output)
            return put_heads(places, made, number, output)

        observers = [*[FunctionObserver(see)] * (change is not None), *observers]
        with ExitStack() as stack:
            record, gates = stack.enter_context(editing(model, edit, prepared, observers))
            ran = [] if calls else stack.enter_context(running_layers(model.module, None, gates.heads))
            before = predict()
        return cls(model, ran, record, before, prepared, predict, change, made, given)

    def calls(self, selection: Selection, heads: Sequence[Head] = ()) -> Calls:
        """The calls of each selected head: of ``heads``, or of all in the selection."""
        calls = dict[Head, list[int]]()
        for asked in [selection.of(head) for head in heads] or [selection]:
            found = [
                (Head(each.site.layer, head, each.site.kind), call)
                for call, each in enumerate(self.record.sites)
                for head in asked.heads(each.site, each.heads)
            ]
            require_selected(found, self.record, asked)
            for head, call in found:
                calls.setdefault(head, []).append(call)
        return calls

    def putting(self, outputs: Iterable[Tensor]) -> PlainPass:
        """The same with known outputs for the heads of each call, [batch, query, head, size]."""
        return replace(self, made=dict(enumerate(Made(each.transpose(1, 2)) for each in outputs)))

    @contextmanager
    def edited_from(
        self, call: int, edit: Edit, observers: Sequence[Observer] = (), copies: Sequence[RanLayer] = ()
    ) -> Iterator[None]:
        """Run from the layer of an attention call on; ``edit`` numbers calls as in a full pass.

        ``copies`` are the layers of a batch of this input. Layers may keep more state than they return: they
        are reused only if a pass without a change ends the same.
        """
        module, axes = self.model.module, self.prepared.axes
        kept = [ran for ran in self.ran if ran.after <= call]
        skipped = sum(ran.after - ran.before for ran in kept)
        if skipped not in self.same:
            with running_layers(module, kept):
                self.same[skipped] = torch.allclose(self.predict(), self.before, atol=TOLERANCE_NATS, rtol=0)
        if not all(self.same.values()):
            kept, skipped = [], 0
        with (
            running_layers(module, (copies or kept)[: len(kept)]),
            editing_again(self, lambda number, output: edit(number + skipped, output), observers, axes),
        ):
            yield

    def changed(self, calls: Calls, observers: Sequence[Observer] = (), *, hold: bool = False) -> Tensor:
        """The prediction with some heads changed at once; ``hold``: all others give what they gave."""
        places = {call: heads for call, heads in places_of(calls).items() if self.made[call] is not None}
        if not places:
            return self.before
        if self.change is not None and len(places) > 1 and not hold:
            return self.run(self.model, self.prepared, self.predict, self.change, calls=calls).before

        def edit(number: int, output: Tensor) -> Tensor | None:
            held = self.given[number].clone() if hold else None
            changed = put_heads(places, self.made, number, output if held is None else held)
            return held if changed is None else changed

        with self.edited_from(min(places), edit, observers):
            return self.predict()

    def slopes(self, score: Callable[[Tensor], Tensor]) -> Sequence[Tensor | None]:
        """The gradient of a score of the prediction by each call's output, [batch, query, head, size]."""
        added = list[Tensor]()

        def add(number: int, output: Tensor) -> Tensor:
            added.append(torch.zeros_like(output, requires_grad=True))
            return output + added[-1]

        with torch.enable_grad(), editing(self.model, add):
            value = score(self.predict())
        return torch.autograd.grad(value, added, allow_unused=True)
