"""What ran inside a block, kept: the last of several passes, or all steps of a generation as one text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import nn

from attnscope.attention import Attention, Axis, Kind, Site, Token
from attnscope.capture import Record, Steps
from attnscope.capture.placing.emptiness import why_empty
from attnscope.errors import ModelError
from attnscope.models.inputs import ModelInput
from attnscope.models.kept.keeping import describe_module, make_trace
from attnscope.models.kept.trace import TracedModel


@dataclass(eq=False)
class LastPass:
    """An observer that holds one pass: a site that comes again with several queries begins another."""

    steps: Steps = field(default_factory=Steps)
    met: set[Site] = field(default_factory=set)
    passes: int = 1

    def observe(self, attention: Attention) -> None:
        """Hold one call."""
        if attention.site in self.met and len(attention.queries) > 1:
            self.steps, self.met, self.passes = Steps(), set(), self.passes + 1
        self.met.add(attention.site)
        self.steps.observe(attention)

    def kept(
        self, module: nn.Module, name: str, record: Record, axes: Mapping[Kind, tuple[Axis, Axis]]
    ) -> TracedModel:
        """The pass as a trace. Raises ``ModelError`` if there is none."""
        if not self.met:
            raise ModelError(f"{name} has no attention to show: {why_empty(module, record)}")
        notes = (f"the last of {self.passes:,} passes",) if self.passes > 1 else ()
        replay = self.steps.replay(record, axes)
        tokens = next((keys for _, keys in axes.values() if isinstance(keys, tuple)), ())
        prepared = ModelInput({}, axes, tokens, notes, replay=replay)
        return TracedModel(make_trace(replay.shown_to, prepared, describe_module(name, module)))


def label_axes(tokens: Sequence[str] | None) -> dict[Kind, tuple[Axis, Axis]]:
    """Texts as the axes of every attention of their number; equal texts are the same token."""
    if tokens is None:
        return {}
    numbers: dict[str, int] = {}
    axis = tuple(
        Token(str(text), numbers.setdefault(str(text), len(numbers)), word=place)
        for place, text in enumerate(tokens)
    )
    return {"encoder": (axis, axis), "decoder": (axis, axis)}
