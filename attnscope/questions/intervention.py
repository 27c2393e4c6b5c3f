"""Changed passes: heads give something else at some rows, one at a time or several at once.

The layers of the first pass are kept: those before a change do not run again. New outputs are known
before the pass (zeros, means, outputs of another pass), or come from the formula behind every picture, so
that cutting a weight before the softmax equals masking it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import Annotated, Any, NamedTuple, TypeAlias, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._pytree import tree_map

from attnscope.attention import Attention, Axis, Head, Kind, RowSource
from attnscope.capture import Observer, Record, recording
from attnscope.capture.hooks.torch_functions import Edit, Gates, edited, put_forward
from attnscope.capture.projections import first_tensor
from attnscope.capture.record import Seeing, tolerance
from attnscope.capture.rows.scores import mix
from attnscope.errors import InputError, ModelError, SelectionError
from attnscope.models import Model, ModelInput
from attnscope.models.targets import Prediction, score_prediction
from attnscope.questions.selection import Selection
from attnscope.questions.sentences import require_selected
from attnscope.records import Meaning, record

Forward = Callable[..., Any]
Predicted = TypeVar("Predicted")

BLOCK = 512  # rows that are computed at a time
SAME = 1e-5  # least difference between two texts, in nats or logits, for a share of it to mean anything
NEAR = 1e-3  # most nats by which a loss may differ when stored layers are reused; rounding is far below it


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

    def with_states(self, changed: Tensor) -> RanLayer:
        """The same with another stream."""
        mine = self.states
        return self._replace(output=tree_map(lambda part: changed if part is mine else part, self.output))


@dataclass(eq=False)
class KeptLayers:
    """The results of every layer of a pass, in order.

    A layer that ended before an attention call returns the same whatever happens to that call, so it need
    not run again. A layer is a module with a number that is in no other such module: ``encoder.layer.3``.
    Its result is copied whenever it is stored or returned, as a model may write into it.
    """

    module: nn.Module
    ran: list[RanLayer] = field(default_factory=list)

    def keeping(self, calls: Callable[[], int] = lambda: 0) -> AbstractContextManager[None]:
        """Store the layers' results while the block runs; ``calls`` gives the attention calls so far."""
        self.ran.clear()
        inside = 0

        def keep(name: str, forward: Forward, *args: Any, **kwargs: Any) -> Any:
            nonlocal inside
            before = calls()
            inside += 1
            output = forward(*args, **kwargs)
            inside -= 1
            if not inside:  # a layer that another one calls is a part of that
                self.ran.append(RanLayer(name, _copy(output), before, calls()))
            return output

        return self._running(keep)

    def before(self, call: int) -> list[RanLayer]:
        """The layers that ended before an attention call."""
        return [ran for ran in self.ran if ran.after <= call]

    def giving(self, ran: Sequence[RanLayer]) -> AbstractContextManager[None]:
        """Return these results for the first layers while the block runs, and run the others."""
        given = iter(ran)

        def give(name: str, forward: Forward, *args: Any, **kwargs: Any) -> Any:
            ran = next(given, None)
            if ran is None:
                return forward(*args, **kwargs)
            assert ran.layer == name
            return _copy(ran.output)

        return self._running(give)

    @contextmanager
    def _running(self, run: Forward) -> Iterator[None]:
        """Call ``run`` with its name and forward in the place of each layer while the block runs."""
        with ExitStack() as stack:
            for name, layer in self.module.named_modules():
                *outside, last = name.split(".")
                if last.isdecimal() and not any(part.isdecimal() for part in outside):
                    stack.enter_context(put_forward(layer, partial(run, name, layer.forward)))
            yield


def _copy(output: Any) -> Any:
    return tree_map(lambda part: part.clone() if isinstance(part, Tensor) else part, output)


def run_keeping_layers(
    model: Model, prepared: ModelInput, predict: Callable[[], Predicted]
) -> tuple[Predicted, KeptLayers, Record]:
    """One pass, what its layers returned, and its attention calls."""
    kept = KeptLayers(model.module)
    with recording(model.module, [], prepared.axes, warn=False) as seen, kept.keeping():
        return predict(), kept, seen


def attending_layers(model: Model, kept: KeptLayers, seen: Record) -> list[tuple[int, Kind, int]]:
    """The place, kind and number in its list of each layer that ran in a list with attention."""
    inside = ((site.site, ran) for site in reversed(seen.sites) for ran in kept.ran)  # the first one counts
    kinds = {ran.stack: site.kind for site, ran in inside if site.name.startswith(f"{ran.layer}.")}
    if not kinds:
        raise ModelError(f"{model.name} has no list of layers to read after")
    ran_in = {stack: count() for stack in kinds}
    return [
        (at, kinds[ran.stack], next(ran_in[ran.stack]))
        for at, ran in enumerate(kept.ran)
        if ran.stack in kinds
    ]


@contextmanager
def editing(
    model: Model,
    edit: Edit,
    axes: Mapping[Kind, tuple[Axis, Axis]] | None = None,
    observers: Sequence[Observer] = (),
) -> Iterator[tuple[Record, Gates]]:
    """Edit heads' outputs while the block runs. Raises ``ModelError`` unless every head was edited."""
    with recording(model.module, observers, axes, warn=False) as record, edited(edit) as gates:
        yield record, gates
    heads = [site.heads for site in record.sites]
    if not heads:
        raise ModelError(f"{model.name} has no attention, and so no heads")
    if heads != gates.heads:
        ways = ", ".join(dict.fromkeys(site.kernel for site in record.sites))
        raise ModelError(
            f"the heads of {model.name} cannot be gated: it attends by {ways}, and gates fit torch's "
            "scaled_dot_product_attention and nn.MultiheadAttention, and the attention functions of "
            "transformers"
        )


Calls: TypeAlias = Mapping[Head, Sequence[int]]  # the attention calls of every selected head, by number


def calls_of(record: Record, selection: Selection, heads: Sequence[Head] = ()) -> Calls:
    """The calls of each selected head: of ``heads``, or of all in the selection."""
    calls: dict[Head, list[int]] = {}
    for asked in [selection.of(head) for head in heads] or [selection]:
        found = [
            (Head(each.site.layer, head, each.site.kind), call)
            for call, each in enumerate(record.sites)
            for head in asked.heads(each.site, each.heads)
        ]
        require_selected(found, record, asked)
        for head, call in found:
            calls.setdefault(head, []).append(call)
    return calls


class Made(NamedTuple):
    """The new outputs of one call's heads at some rows, and the old ones.  [batch, head, row, size]"""

    outputs: Tensor
    rows: Tensor | slice = slice(None)  # [row]
    before: Tensor | None = None  # what proves that a change is of this call; none for known outputs


Change: TypeAlias = Callable[[int, Attention], "Made | None"]
"""The change of an attention call of this number; ``None`` leaves it alone."""

Changed: TypeAlias = Mapping[int, tuple[Made, Iterable[tuple[int | slice, int]]]]
"""What is put into an attention call of this number: into which copies of the text, and which heads."""


def check_change(made: Sequence[Made | None], number: int, output: Tensor) -> Made | None:
    """The change of the call that returned ``output``, [batch, query, head, size], after a check."""
    if number >= len(made):
        raise ModelError("this attention is known only after its layer has run, and cannot be changed")
    mine = made[number]
    if mine is None or mine.before is None:
        return mine
    given = output.detach().transpose(1, 2)
    fits = isinstance(mine.rows, slice) or int(mine.rows[-1]) < given.shape[2]
    if given.shape[:2] != mine.before.shape[:2] or not fits:
        raise ModelError("the heads shown are not those that this layer sums")
    given = given[:, :, mine.rows]
    size = float(given.abs().amax()) or 1.0
    if not float((mine.before - given).abs().amax()) <= tolerance(output.dtype) * size:
        raise ModelError("weights × values do not reproduce this layer's output: its heads cannot be changed")
    return mine


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


def change_together(
    model: Model, prepared: ModelInput, predict: Callable[[], Tensor], change: Change, calls: Calls
) -> Tensor:
    """The result of ``predict`` with several heads changed in one pass, each given the earlier changes."""
    made, heads = list[Made | None](), heads_by_call(calls)
    see = Seeing(lambda attention: made.append(change(len(made), attention)))

    def edit(number: int, output: Tensor) -> Tensor | None:
        mine = check_change(made, number, output)
        return None if mine is None else put_heads({number: (mine, heads.get(number, ()))}, number, output)

    with recording(model.module, [see], prepared.axes, warn=False), edited(edit):
        return predict()


def heads_by_call(calls: Calls) -> dict[int, list[tuple[slice, int]]]:
    """The heads of each call, in all copies of the text."""
    heads: dict[int, list[tuple[slice, int]]] = {}
    for head, mine in calls.items():
        for call in mine:
            heads.setdefault(call, []).append((slice(None), head.head))
    return heads


def put_heads(changed: Changed, number: int, output: Tensor) -> Tensor | None:
    """The output of a call with some heads changed.  [batch, query, head, size] -> the same"""
    if number not in changed:
        return None
    (made, heads), other = changed[number], output.clone()
    for copy, head in heads:
        other[copy, made.rows, head] = made.outputs[copy, head].to(output)
    return other


@dataclass(frozen=True, eq=False)
class PlainPass:
    """An unchanged pass with its layers stored, and the same with heads changed."""

    model: Model
    prepared: ModelInput
    predict: Callable[[], Tensor]
    change: Change | None  # none where heads get known outputs
    before: Tensor
    kept: KeptLayers
    record: Record
    made: Sequence[Made | None]  # for each call, its heads' new outputs
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
        keep_outputs: bool = False,
    ) -> PlainPass:
        """Run ``predict``. Raises ``ModelError`` for heads that cannot be gated."""
        kept, made, given = KeptLayers(model.module), list[Made | None](), list[Tensor]()
        if change is not None:
            see = Seeing(lambda attention: made.append(change(len(made), attention)))
            observers = [see, *observers]

        def check(number: int, output: Tensor) -> None:
            if keep_outputs:
                given.append(output.detach().clone())
            if change is not None:
                check_change(made, number, output)

        with (
            editing(model, check, prepared.axes, observers) as (record, gates),
            kept.keeping(lambda: len(gates.heads)),
        ):
            before = predict()
        return cls(model, prepared, predict, change, before, kept, record, made, given)

    def putting(self, outputs: Iterable[Tensor]) -> PlainPass:
        """The same with known outputs for the heads of each call, [batch, query, head, size]."""
        return replace(self, made=[Made(each.transpose(1, 2)) for each in outputs])

    @contextmanager
    def edited_from(
        self, call: int, edit: Edit, observers: Sequence[Observer] = (), copies: KeptLayers | None = None
    ) -> Iterator[int]:
        """Run from the layer of an attention call on; ``edit`` numbers calls as in a full pass.

        Yields the number of skipped calls. ``copies`` are the layers of a batch of this input. Layers may
        keep more state than they return: they are reused only if a pass without a change ends the same.
        """
        kept = self.kept.before(call)
        skipped = sum(ran.after - ran.before for ran in kept)
        if skipped not in self.same:
            with self.kept.giving(kept):
                self.same[skipped] = torch.allclose(self.predict(), self.before, atol=NEAR, rtol=0)
        reused = (copies or self.kept).before(call) if all(self.same.values()) else []
        skipped = skipped if reused else 0
        with ExitStack() as stack:
            if observers:
                module, axes = self.model.module, self.prepared.axes
                stack.enter_context(recording(module, observers, axes, warn=False))
            stack.enter_context(self.kept.giving(reused))
            stack.enter_context(edited(lambda number, output: edit(number + skipped, output)))
            yield skipped

    def changes(self, calls: Calls) -> Changed:
        """The new outputs of some heads, by call; calls without a change are left out."""
        heads = heads_by_call(calls).items()
        return {call: (made, mine) for call, mine in heads if (made := self.made[call]) is not None}

    def changed(self, calls: Calls) -> Tensor:
        """The prediction with some heads changed in one pass, from the layer of the first change on."""
        changed = self.changes(calls)
        if not changed:
            return self.before
        if self.change is not None and len(changed) > 1:
            return change_together(self.model, self.prepared, self.predict, self.change, calls)
        with self.edited_from(min(changed), partial(put_heads, changed)):
            return self.predict()


@record("what a change does to the prediction")
class Effect:
    """A prediction after a change."""

    effect: Annotated[float, Meaning("the change of the score; of a patch, the share that comes back")]
    score: Annotated[float, Meaning("the score after the change")]
    divergence: Annotated[float, Meaning("KL divergence of the prediction from before to after, in nats")]


@dataclass(frozen=True, eq=False)
class Scored:
    """A prediction whose score is recomputed in changed passes."""

    model: Model
    prepared: ModelInput
    prediction: Prediction
    reference: float | None = None  # the score of another text
    whole: float = 1.0  # what effects are divided by: how far that one is away

    def toward(self, before: Tensor, reference: Tensor) -> Scored:
        """The same with effects as shares of the way from one prediction to another."""
        score, there = float(self.score(before)), float(self.score(reference))
        if abs(there - score) < SAME:
            raise InputError(f"both texts give the same score ({score:.4g}): choose another target")
        return replace(self, reference=there, whole=there - score)

    @property
    def asked(self) -> tuple[Model, ModelInput, Callable[[], Tensor]]:
        """What ``PlainPass.run`` runs."""
        return self.model, self.prepared, self.logits

    def logits(self) -> Tensor:
        """One pass.  -> [vocabulary] or [class], float64"""
        return self.prediction.scores(self.model, self.prepared)[0].cpu().double()

    @property
    def unit(self) -> str:
        """What the score is."""
        return "log-probability" if self.prediction.against is None else "logit difference"

    def score(self, logits: Tensor) -> Tensor:
        """The log-probability of the prediction, or its logit minus the other word's."""
        chosen, against = self.prediction.chosen, self.prediction.against
        return logits.log_softmax(-1)[chosen] if against is None else logits[chosen] - logits[against]

    def effect(self, before: Tensor, after: Tensor) -> Effect:
        """What a change does."""
        pair = torch.stack([before, after]).log_softmax(-1)
        divergence = float(F.kl_div(pair[1], pair[0], reduction="sum", log_target=True))
        score = float(self.score(after))
        return Effect((score - float(self.score(before))) / self.whole, score, divergence)


@contextmanager
def scoring(model: Model, prepared: ModelInput, target: str | None, against: str | None) -> Iterator[Scored]:
    """The prediction that words name, to be changed in the block."""
    if prepared.replay is not None:
        raise ModelError("a trace holds no weights of the model: give the model and the text")
    model.show_kinds(prepared)
    with torch.no_grad(), model.threads(prepared):
        yield Scored(model, prepared, score_prediction(model, prepared, target, against))


@contextmanager
def naming(what: str, number: int, count: int) -> Iterator[None]:
    """Name one of several texts in errors of the block."""
    try:
        yield
    except (InputError, SelectionError) as error:
        raise type(error)(f"{what} {number:,}: {error}" if count > 1 else str(error)) from None
