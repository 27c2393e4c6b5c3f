"""How a single pass takes the kernel's place inside of a recording."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from attnscope.attention import Attention, Site
from attnscope.capture.hooks.interface import attention_functions
from attnscope.capture.record import Record
from attnscope.capture.recorder import Observer, quietly
from attnscope.capture.rows.found import SdpaCall
from attnscope.capture.rows.kernels import Frame
from attnscope.capture.rows.scores import ScoredRows
from attnscope.fused.fused_pass import SinglePass
from attnscope.fused.statistics import Statistics, StreamedRows

KERNEL = "single pass"
"""The name of the kernel, where it was this one."""


class StandIn(TorchFunctionMode):
    """Computes what ``scaled_dot_product_attention`` is asked for in a single pass, where that can be done.

    So it does for the eager attention functions of transformers that cap scores or have sinks, which torch's
    kernel does not.

    Open it around a recording, and let it show the observers what it has seen:

    >>> stand_in = StandIn(SinglePass(texts, cells=256))
    >>> with torch.inference_mode(), stand_in, recording(model, [stand_in.shown_to([measured, maps])]):
    ...     model(**inputs)

    Observers then get an attention whose ``kernel`` is "single pass" and whose rows carry ``Statistics``.
    ``taken`` counts the calls that it computed, ``left`` those that the kernel did, and ``sites`` are those
    of which observers were given the statistics.
    """

    def __init__(self, engine: SinglePass) -> None:
        super().__init__()
        self.engine = engine
        self.taken = 0
        self.left = 0
        self.sites: set[Site] = set()
        self._latest: tuple[Tensor, Statistics] | None = None
        self._taps = ExitStack()

    def __enter__(self) -> StandIn:
        """Stand in on this thread from here on."""
        super().__enter__()  # type: ignore[no-untyped-call]
        self._taps.enter_context(attention_functions(self))
        return self

    def __exit__(self, *raised: Any) -> None:
        """Leave the kernels alone again."""
        self._taps.close()
        super().__exit__(*raised)  # type: ignore[no-untyped-call]

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run ``func``, or the single pass in its place."""
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") != "scaled_dot_product_attention":
            return func(*args, **kwargs)
        call = SdpaCall.of(args, kwargs)
        done = self.engine.attend(
            call.query,
            call.key,
            call.value,
            call.attn_mask,
            is_causal=call.is_causal,
            scale=call.scale,
            dropout=call.dropout_p,
        )
        if done is None:
            self.left += 1
            self._latest = None
            return func(*args, **kwargs)
        self.taken += 1
        output, statistics = done
        self._latest = call.query, statistics
        return output

    def kernel_call(
        self, name: str, kernel: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run an attention function of transformers, or the single pass in the place of an eager one."""
        frame = Frame.of(name, args, kwargs)
        softcap, sinks = frame.options.get("softcap"), frame.options.get("s_aux")
        learning = torch.is_grad_enabled() and frame.query.requires_grad
        if name != "eager" or learning or (softcap is None and sinks is None):
            return kernel(*args, **kwargs)
        with quietly():  # its own products and exponentials are no attention of the model
            done = self.engine.attend(
                frame.query,
                frame.key,
                frame.value,
                frame.mask,
                scale=frame.options.get("scaling"),
                dropout=frame.options.get("dropout") or 0.0,
                softcap=softcap,
                sinks=sinks,
            )
        if done is None:
            self.left += 1
            self._latest = None
            return kernel(*args, **kwargs)
        self.taken += 1
        output, statistics = done
        self._latest = frame.query, statistics
        return output.transpose(1, 2).contiguous(), None  # [batch, query, head, size]

    def shown_to(self, observers: Sequence[Observer]) -> Observer:
        """One observer that shows every attention to these, with its statistics if they are known."""
        return _Shown(self, observers)

    def with_statistics(self, attention: Attention) -> Attention:
        """The attention of the latest call with its statistics; any other as it is."""
        if self._latest is None or not isinstance(attention.read, ScoredRows):
            return attention
        query, statistics = self._latest
        seen = attention.read.query
        if (seen.data_ptr(), seen.shape) != (query.data_ptr(), query.shape):
            return attention
        self._latest = None
        self.sites.add(attention.site)
        return replace(attention, kernel=KERNEL, read=StreamedRows(attention.read, statistics))

    def told(self, record: Record) -> None:
        """Note in the record of a pass which of its calls ran here."""
        record.sites[:] = [
            replace(seen, kernel=KERNEL, source="kernel") if seen.site in self.sites else seen
            for seen in record.sites
        ]


@dataclass(frozen=True)
class _Shown:
    stand_in: StandIn
    observers: Sequence[Observer]

    def observe(self, attention: Attention) -> None:
        attention = self.stand_in.with_statistics(attention)
        for observer in self.observers:
            observer.observe(attention)
