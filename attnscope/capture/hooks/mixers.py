"""Linear and state-space layers: the kernels that mix tokens without a softmax, as exact signed matrices.

A kernel is a function of its model's file, a method of a module, or code inside a module. What cannot be a
matrix, or does not reproduce the layer's output, is named and never shown.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from attnscope.attention import Kind
from attnscope.capture.hooks.functions import Function, Tap, quietly
from attnscope.capture.hooks.modules import CALLED, Call
from attnscope.capture.hooks.torch_functions import ATEN, DIRECT
from attnscope.capture.lineage.functions import TorchCall
from attnscope.capture.placing.kinds import layer_around
from attnscope.capture.record import is_within, name_mixers
from attnscope.capture.rows.capture import CapturedCall
from attnscope.capture.rows.mixing import MixingRows, NoMatrix, Proof, Scan
from attnscope.capture.rows.scores import JoinedHeads
from attnscope.capture.tracker import Pass, Tracker
from attnscope.errors import SelectionError


@dataclass(frozen=True)
class Kernel:
    """A function that is linear in its values: what it is, and the names of its values and earlier state.

    Its values are [batch, token, head, channel], or heads before tokens; where ``heads`` is false, each
    channel has a matrix of its own, and only ``token``, the axis of tokens, is known. A scan is known by the
    name of its ``step``.
    """

    title: str
    values: str
    state: str = ""
    token: int = 1
    heads: bool = True
    step: str = ""

    def of_values(self, function: Function, call: inspect.BoundArguments) -> Function:
        """The function of its values alone, which are arranged as by ``arrange``."""

        def run(values: Tensor) -> Tensor:
            own = values if self.heads else values.squeeze(2)
            own = own.movedim(1, self.token).contiguous()
            arguments = OrderedDict(call.arguments | {self.values: own})
            changed = inspect.BoundArguments(call.signature, arguments)
            return self.arrange(first_of(function(*changed.args, **changed.kwargs)))

        return run

    def arrange(self, tensor: Tensor) -> Tensor:
        """From the kernel's own axes.  -> [batch, token, head, channel]"""
        tensor = tensor.movedim(self.token, 1)
        return tensor if self.heads else tensor.unsqueeze(2)


CONVOLUTION = "causal_conv1d_fn"
LINEAR = {
    "gla": "gated linear attention", "simple_gla": "gated linear attention",
    "linear_attn": "linear attention",
    "retention": "retention", "delta_rule": "delta rule", "gated_delta_rule": "gated delta rule",
    "kda": "Kimi delta attention", "rwkv7": "linear attention (RWKV-7)",
}  # fmt: skip
"""The kernels of flash-linear-attention, by the end of their names."""

KERNELS = {
    "torch_chunk_gated_delta_rule": Kernel("gated delta rule", "value", "initial_state"),
    "chunk_kimi_delta_attention": Kernel("Kimi delta attention", "value", "initial_state"),
    "mamba2_chunk_scan": Kernel("state space (Mamba-2)", "hidden_states", "initial_states"),
    "mamba_chunk_scan_combined": Kernel("state space (Mamba-2)", "x", "initial_states"),
    "mamba_selective_scan": Kernel("state space (Mamba)", "hidden_states", "", 2, False, "dt"),
    "selective_scan_fn": Kernel("state space (Mamba)", "u", "", 2, False, "delta"),
    "rwkv_linear_attention": Kernel("linear attention (RWKV-4)", "value", "state", heads=False),
    "_rnn_scan": Kernel("linear recurrence", "hidden_states", "recurrent_states", heads=False),
    CONVOLUTION: Kernel("short convolution", "hidden_states", token=2, heads=False),
    **{
        f"{how}_{name}": Kernel(title, "v", "initial_state")
        for name, title in LINEAR.items()
        for how in ("chunk", "fused_chunk", "fused_recurrent")
    },
}
"""By the name of the function or method, as modeling files have it."""


@dataclass(frozen=True)
class Inline:
    """A mixer inside a module's own code, between two of its parts."""

    title: str
    before: str  # the part whose output has each head's query, key and value, in this order
    behind: str  # the part that is given the output of all heads
    heads: str  # the attribute with their number


INLINE = {"MiniMaxLightningAttention": Inline("lightning attention", "act_fn", "norm", "num_attention_heads")}
"""By the name of the module's class."""

DYNAMIC = Kernel("dynamic short convolution and its residual", "hidden_states", heads=False)
FORWARDS = {
    "xLSTMBackend": Kernel("matrix memory (xLSTM)", "value", "c_initial", token=2),
    "Inkling2DynamicShortConvolution": DYNAMIC,
    "Inkling2LoopDynamicShortConvolution": DYNAMIC,
}
"""Modules whose whole forward is a kernel, by the name of their class."""

CONTINUES = "its {} continues the state of an earlier part, which no matrix over these tokens shows"
MATRIX = "{}: {}, each head as a signed matrix A"
PROOF = "; A × values gives the kernel's output within {:.1g}; rows sum to {:.2g} to {:.2g}"
SCORES = "scores of such heads are of |A|, each row divided by its sum"
BEFORE = "a short convolution over {details} tokens comes before the values of {names}"


OPERATORS = (torch._ops.OpOverload, torch._ops.OpOverloadPacket)
ROUNDING = 1e-3  # of a matrix that leaves every token where it is


def first_of(result: Any) -> Any:
    """A kernel's output, without the state that it may return too."""
    return result[0] if isinstance(result, tuple) else result


@dataclass(frozen=True, eq=False)
class MixerCall:
    """One call of a mixer as a function of its values; all are [batch, token, head, channel]."""

    title: str
    of_values: Function
    values: Tensor
    output: Tensor
    heads: bool = True  # whether all channels of a head have one matrix
    scans: tuple[Scan, ...] = ()  # of a state space, one a text


class Mixers(Tracker):
    """Captures linear and state-space layers while ``kernels_of`` the model are sent to it."""

    many = False  # whether the pass is one of many, whose notes say no numbers
    channel: int | None = None  # that is read where each has a matrix of its own, and else their mean

    def __init__(self, recorder: Pass) -> None:
        super().__init__(recorder)
        self.shown: list[tuple[str, str, Proof]] = []  # what each is, its module's path, and its proof
        self.calls: dict[str, list[MixerCall]] = {}  # by path; none of a module that ended
        self.convolutions: dict[str, tuple[str, MixerCall]] = {}  # likewise: how many taps, and the call
        self.inside = False  # a kernel, which may call others
        self.widest = 0  # the most channels of a layer whose channels each have a matrix

    def begin(self) -> None:
        """Forget the calls of a pass that failed."""
        self.calls.clear()
        self.convolutions.clear()

    def finish(self) -> None:
        """Note what each mixer is, as far as its rows were read. ``SelectionError``: no such channel."""
        if self.channel is not None and 0 < self.widest <= self.channel:
            raise SelectionError(
                f"no channel {self.channel:,}: the layers have channels 0-{self.widest - 1:,}"
            )
        proofs: dict[str, list[tuple[str, Proof]]] = {}
        for kernel, path, proof in self.shown:
            if proof.difference is not None:
                proofs.setdefault(kernel, []).append((path, proof))
        for kernel, each in proofs.items():
            note = MATRIX.format(name_mixers([*dict(each)], self.recorder.model), kernel)
            sums = [end for _, proof in each for end in proof.sums]
            most = max(proof.difference or 0.0 for _, proof in each)
            numbers = "" if self.many else PROOF.format(most, min(sums), max(sums))
            self.recorder.record.note_change(note + numbers)
        if proofs:
            self.recorder.record.note_change(SCORES)

    def run(self, name: str, function: Function, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run a kernel, and capture it."""
        if self.inside or not self.recorder.listens:
            return function(*args, **kwargs)

        def watch(once: Function, args: Any, kwargs: Any) -> Any:
            self.inside = True
            try:
                result = once(*args, **kwargs)
            finally:
                self.inside = False
            with quietly():
                bound = inspect.signature(function).bind(*args, **kwargs)
                self._capture(KERNELS[name], function, bound, first_of(result), self.recorder.owner)
            return result

        return self.recorder.guard.run(watch, function, args, kwargs)

    def _capture(
        self, kernel: Kernel, function: Function, call: inspect.BoundArguments, output: Tensor, path: str
    ) -> None:
        state = tree_leaves(call.arguments.get(kernel.state))
        if any(part is not None and bool(part.any()) for part in state):
            return self.recorder.name(path, CONTINUES.format(kernel.title))
        values = kernel.arrange(call.arguments[kernel.values])
        mixer = MixerCall(
            kernel.title, kernel.of_values(function, call), values, kernel.arrange(output), kernel.heads,
            scans_of(kernel.step, call.arguments) if kernel.step else (),
        )  # fmt: skip
        if "convolution" in kernel.title:
            taps = call.arguments.get("weight")
            self.convolutions[path] = "a few" if taps is None else str(taps.shape[-1]), mixer
        else:
            self.calls.setdefault(path, []).append(mixer)

    def on_torch_call(self, call: TorchCall) -> None:
        """Show an operator that has no formula here, if identity values give a matrix between tokens."""
        name = call.name.partition(".")[0]
        direct = ATEN.fullmatch(name) is not None
        if not isinstance(call.func, OPERATORS) or (str(call.func).startswith("aten.") and not direct):
            return
        with quietly():
            rows = probe_operator(call)
        if rows is not None:
            self.show([rows], name, self.recorder.owner)
        elif direct:
            self.recorder.name(self.recorder.owner, DIRECT.format(name))

    def leave(self, call: Call, output: object) -> None:
        """Show what a module computed, and the convolutions of a layer that has no mixer of another form."""
        path, name, forward = call.name, type(call.module).__name__, call.module.forward
        inline, whole = INLINE.get(name), FORWARDS.get(name)
        own = inline or whole
        with quietly():
            if own is not None and call.has_cache:
                self.recorder.name(path, CONTINUES.format(own.title))
            elif inline is not None:
                self.calls[path] = [replay(inline, call)]
            elif whole is not None:
                bound = inspect.signature(forward).bind(*call.args, **call.kwargs)
                self._capture(whole, forward, bound, first_of(output), path)
        if mixers := self.calls.get(path):
            self._show({path: mixers}, path)
            self.calls[path] = []  # noted until the pass ends
            for inner in [each for each in self.convolutions if is_within(each, path)]:
                self.recorder.record.note_place(BEFORE, path, self.convolutions.pop(inner)[0])
        ended = [each for each in self.convolutions if layer_around(each) == path]
        inside = {each: [self.convolutions.pop(each)[1]] for each in ended}
        if inside and not any(is_within(each, path) for each in self.calls):
            self._show(inside, path if len(inside) > 1 else ended[0])

    def _show(self, mixers: Mapping[str, Sequence[MixerCall]], path: str) -> None:
        """Show the mixers of a module, or of several modules in a layer, as the heads of one layer."""
        rows, titles = list[MixingRows](), list[str]()
        for inner, mixer in ((inner, each) for inner, some in mixers.items() for each in some):
            one, title = MixingRows(mixer.of_values, mixer.values, mixer.output, mixer.heads), mixer.title
            if not mixer.heads:
                count = mixer.values.shape[-1]
                self.widest = max(self.widest, count)
                channel = self.channel if self.channel is not None and self.channel < count else None
                one = replace(one, scans=mixer.scans, channel=channel)
                mean, only = f", mean of {count:,} channels", f", channel {channel or 0:,} of {count:,}"
                title += mean if channel is None else only
            if len(mixers) > 1:
                title = f"H{len(titles)} {title} ({inner.removeprefix(f'{path}.')})"
            rows.append(one)
            titles.append(title)
        if self.show(rows, "; ".join(dict.fromkeys(titles)), path, "mixer"):
            self.recorder.record.matrices += mixers

    def show(self, rows: Sequence[MixingRows], kernel: str, path: str, kind: Kind | None = None) -> bool:
        """Show rows by identity values to the observers, several as the heads of one layer.

        Without a kind, they are of attention. -> whether observers read them, and saw no failure
        """
        (batch, queries, _, _), keys = rows[0].output.shape, rows[0].values.shape[1]
        counts, before = tuple(each.output.shape[2] for each in rows), len(self.recorder.record.sites)
        rows = [replace(each, share=len(rows)) for each in rows]
        joined = rows[0] if len(rows) == 1 else JoinedHeads(tuple(rows), counts)
        shape = batch, sum(counts), queries, keys
        capture = CapturedCall.from_rows(joined, "probe", kernel, shape, rows[0].values.dtype)
        cross = None if kind is None else False
        self.recorder.add(replace(capture, kind=kind, is_cross=cross), path)
        shown = len(self.recorder.record.sites) > before
        if shown or kind is None:  # attention may be held until it is whole
            self.shown += [(kernel, path, each.proof) for each in rows]
        return shown


def scans_of(step: str, given: Mapping[str, Any]) -> tuple[Scan, ...]:
    """The state space of each text of a scan's arguments; none if it is complex or its inputs are grouped."""
    inputs = [given[name] for name in (step, "A", "B", "C")]
    if [each.ndim for each in inputs] != [3, 2, 3, 3] or any(each.is_complex() for each in inputs):
        return ()
    kind = torch.promote_types(inputs[0].dtype, torch.float32)
    steps, decay, written, read = (each.to(kind) for each in inputs)
    bias, gate, skip = (given.get(name) for name in ("delta_bias", "z", "D"))
    steps = steps if bias is None else steps + bias.to(kind)[:, None]
    steps = nn.functional.softplus(steps) if given.get("delta_softplus") else steps
    gate = torch.ones_like(steps) if gate is None else nn.functional.silu(gate.to(kind))
    skip = torch.zeros_like(decay[:, 0]) if skip is None else skip.to(kind)
    texts = zip(steps, written.mT, read.mT, gate, strict=True)
    return tuple(Scan(each[0], decay, each[1], each[2], skip, each[3]) for each in texts)


class KernelListener(Protocol):
    """What kernels are sent to."""

    def run(self, name: str, function: Function, args: Any, kwargs: dict[str, Any]) -> Any:
        """The result of a kernel, which it runs."""


@contextmanager
def kernels_of(model: nn.Module, listener: KernelListener) -> Iterator[None]:
    """Send the calls of every kernel that the model's modules may use, on this thread, through a listener."""
    owners: dict[Any, None] = {}
    for part in model.modules():
        owners |= {sys.modules.get(type(part).__module__): None, type(part): None}
    with ExitStack() as stack:
        for owner in filter(None, owners):
            for name in KERNELS.keys() & vars(owner).keys():
                stack.enter_context(_tap(owner, name).listening(owner, listener))
        yield


def heads_behind(states: Tensor) -> Tensor:
    """[batch, head, token, channel] -> [batch, token, head, channel], or back"""
    return states.transpose(1, 2).contiguous()


def probe_operator(call: TorchCall) -> MixingRows | None:
    """The rows of an operator on queries, keys and values, if its values are mixed between tokens.

    Axes are [batch, head, token, channel], or tokens before heads: with the wrong ones, there is no matrix.
    """
    output = first_of(call.result)
    places = [
        place
        for place, part in enumerate(call.args)
        if isinstance(part, Tensor) and part.ndim == 4 and part.is_floating_point()
    ]
    if (
        len(places) < 3
        or not isinstance(output, Tensor)
        or output.shape[:3] != call.args[places[0]].shape[:3]
    ):
        return None
    for turn in (heads_behind, Tensor.contiguous):
        rows = MixingRows(
            functools.partial(_operate, call, places[2], turn), turn(call.args[places[2]]), turn(output), True
        )
        with suppress(NoMatrix, RuntimeError):
            matrix = rows.rows(0, rows.output.shape[1], None)
            own = matrix.diagonal(0, -2, -1)
            if bool((matrix.abs().sum((-2, -1)) > (1 + ROUNDING) * own.abs().sum(-1)).any()):
                return rows
    return None


def _operate(call: TorchCall, place: int, turn: Function, values: Tensor) -> Tensor:
    """The output of an operator for other values, [batch, token, head, channel] like these."""
    args = (*call.args[:place], turn(values), *call.args[place + 1 :])
    output: Tensor = turn(first_of(call.func(*args, **call.kwargs)))
    return output


@functools.cache
def _tap(owner: Any, name: str) -> Tap[KernelListener]:
    """That of a function of a module, or a method of a class."""

    def watch(original: Function, listeners: Callable[[], list[KernelListener]]) -> Function:
        def kernel(*args: Any, **kwargs: Any) -> Any:
            call = original
            for each in listeners():
                call = functools.partial(_through, each, name, call)
            return call(*args, **kwargs)

        return kernel

    return Tap(name, watch)


def _through(listener: KernelListener, name: str, function: Function, *args: Any, **kwargs: Any) -> Any:
    return listener.run(name, function, args, kwargs)


class _Reached(Exception):
    """A module's code arrived at the part behind its mixer."""


@dataclass(eq=False)
class Detour:
    """Listens to a module's own code: replaces what one part returns, and stops at another."""

    before: nn.Module
    behind: nn.Module
    states: Any = None  # in place of what the first part returns
    output: Any = None  # what the second part is given

    def run(self, module: nn.Module, call: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one part."""
        if module is self.behind:
            self.output = args[0]
            raise _Reached
        result = call(*args, **kwargs)
        if module is not self.before:
            return result
        self.states = result if self.states is None else self.states
        return self.states


def replay(inline: Inline, call: Call) -> MixerCall:
    """The mixer inside a module's own code, which runs again as far as the part behind it."""
    module: Any = call.module
    heads = getattr(module, inline.heads)

    def run(states: Tensor | None) -> list[Tensor]:
        detour = Detour(getattr(module, inline.before), getattr(module, inline.behind), states)
        with CALLED.listening(nn.Module, detour), suppress(_Reached):
            module.forward(*call.args, **call.kwargs)
        return [each.unflatten(-1, (heads, -1)) for each in (detour.states, detour.output)]

    states, output = run(None)
    size = output.shape[-1]

    def of_values(values: Tensor) -> Tensor:
        return run(torch.cat([states[..., : 2 * size], values], -1).flatten(-2))[1]

    return MixerCall(inline.title, of_values, states[..., 2 * size :], output)
