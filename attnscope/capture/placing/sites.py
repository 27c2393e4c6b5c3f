"""Puts a captured call at its site: which module and call of it, which kind and layer, which labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch import nn

from attnscope.attention import Attention, Axis, Kind, Site
from attnscope.capture.hooks.modules import Call
from attnscope.capture.placing.kinds import is_cross, offset_of, self_kind, shown_kinds
from attnscope.capture.placing.layers import LayerNumbers
from attnscope.capture.rows.capture import Capture


class Sites:
    """The sites of one recording; ``axes`` labels the queries and keys of a kind where the lengths agree."""

    def __init__(self, model: nn.Module, axes: Mapping[Kind, tuple[Axis, Axis]]) -> None:
        self.model = model
        self.axes = axes
        self._kinds = shown_kinds(model)  # for calls of one query, which show nothing themselves
        self.begin_pass()

    def begin_pass(self) -> None:
        """Count calls and layers anew."""
        self._numbers = LayerNumbers()
        self._calls: Counter[str] = Counter()

    def place(self, capture: Capture, name: str, calls: Sequence[Call]) -> Attention:
        """The attention of one call of the module ``name``; ``calls`` are running, outermost first."""
        attention = Attention(
            site=Site(name, self._calls[name], "cross", 0),
            source=capture.source,
            kernel=capture.kernel,
            batch=capture.batch,
            heads=capture.heads,
            key_heads=capture.key_heads,
            queries=range(capture.queries),
            keys=range(capture.keys),
            offset=None,
            dtype=capture.dtype,
            read=capture.read,
            statistics=capture.statistics,
            values=capture.values,
        )
        call = next((call for call in reversed(calls) if call.name == name), None)
        around = [entry for entry in calls if not entry.name or f"{name}.".startswith(f"{entry.name}.")]
        kind: Kind = "cross"
        if not is_cross(capture, name, around):
            known = capture.offset
            if known is None and not capture.apart:
                known = offset_of(attention, any(entry.cached for entry in calls))
            attention = replace(attention, offset=known)
            kind, shows = self_kind(attention, call)
            if shows:
                self._kinds[name] = kind
            kind = self._kinds.get(name, kind)
        invocation = self._calls[name] if call is None else call.invocation
        layer = self._numbers.number(kind, name, invocation, self._width(name))
        site = Site(name, self._calls[name], kind, layer)
        self._calls[name] += 1
        return self._label(replace(attention, site=site))

    def _label(self, attention: Attention) -> Attention:
        queries, keys = self.axes.get(attention.site.kind, (range(0), range(0)))
        if (len(queries), len(keys)) == (len(attention.queries), len(attention.keys)):
            return attention.with_axes(queries, keys)
        start = attention.offset or 0
        return attention.with_axes(range(start, start + len(attention.queries)), attention.keys)

    def _width(self, name: str) -> int:
        """The length of the module list that the last number in a path counts in."""
        parts = name.split(".")
        numbers = [index for index, part in enumerate(parts) if part.isdigit()]
        if not numbers:
            return 1
        owner = self.model.get_submodule(".".join(parts[: numbers[-1]]))
        return sum(1 for _ in owner.children())
