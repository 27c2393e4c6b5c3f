"""What a recording noted about every attention call, small enough to keep."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, NamedTuple, Protocol

from attnscope.attention import Attention, Axis, Site, Source
from attnscope.lazy import torch
from attnscope.progress import report
from attnscope.records import Meaning, Parts, derived, record
from attnscope.text import number_ranges

FUSED = "fused pass"  # the fused pass's name in place of a kernel's

CROSS_ATTENTION_NOTE = "cross-attention: each row has read its own token and predicts the next"

TOLERANCES = {"float16": 0.02, "bfloat16": 0.02}  # of other types 1e-4

UNPROVED = {
    "kernel": "the kernel's output has no head and query axes",
    "recomputed": "the kernel applies dropout, or its output has no head and query axes",
    "softmax": "the module applies dropout, or no single product of all weights and values, with head and "
    "query axes, was seen",
    "file": "a file holds no values",
    "served": "a file holds no values",
    "probe": "none of its rows was read",
}
"""Why nothing was compared, by the source of the weights."""


def tolerance(dtype: object) -> float:
    """The largest error at which weights count as the kernel's, for the type it computes in."""
    return TOLERANCES.get(str(dtype).removeprefix("torch."), 1e-4)


def beyond_rounding(difference: float | None, dtype: object) -> bool:
    """Whether weights differ from the kernel's by more than rounding; not if they were not compared."""
    return difference is not None and not difference <= tolerance(dtype)


@record("an attention call", kw_only=True)
class SiteRecord:
    """One attention call, without its weights; see ``Attention`` for its fields.

    ``step`` counts the passes over the model within the recording (each step of a generation is one).
    ``dtype`` is the name of the type that the kernel computed in.
    """

    source: Annotated[Source, Meaning("where the weights come from")]
    kernel: Annotated[str, Meaning("what computed the layer's output")]
    batch: int
    heads: Annotated[int, Meaning("query heads")]
    key_heads: Annotated[int, Meaning("key heads; fewer in grouped-query attention")]
    queries: Annotated[int, Meaning("rows")]
    keys: Annotated[int, Meaning("columns")]
    offset: int | None = None
    window: Annotated[int | None, Meaning("the sliding window passed to the kernel")] = None
    refusal: str | None = None
    difference: Annotated[
        float | None,
        Meaning(
            "largest difference of weights × values from the kernel's output, over its largest value; "
            "null: not compared"
        ),
    ] = None
    site: Annotated[
        Site,
        Parts(
            name="the module's path",
            call="which call of the module in this pass, from 0",
            kind="which sequence attends to which",
            layer="the layer's number within its kind, from 0",
        ),
    ]
    step: int
    dtype: Annotated[str, Meaning("the type it computes in")]

    @derived("why weights × values were not compared; null where they were")
    def unproved(self) -> str | None:
        return UNPROVED[self.source] if self.difference is None else None

    @property
    def differs(self) -> bool:
        """Whether the weights differ from the kernel's by more than rounding."""
        return beyond_rounding(self.difference, self.dtype)

    @staticmethod
    def from_attention(attention: Attention, step: int = 0) -> SiteRecord:
        """The record of one attention call."""
        same = {each.name for each in fields(SiteRecord)} - {"queries", "keys", "step", "dtype"}
        return SiteRecord(
            step=step,
            queries=len(attention.queries),
            keys=len(attention.keys),
            dtype=str(attention.dtype).removeprefix("torch."),
            **{name: getattr(attention, name) for name in same},
        )


@record("a layer without attention")
class LayerWithoutAttention:
    """A layer without attention that can be shown, and why."""

    name: Annotated[str, Meaning("a module's path")]
    layer: Annotated[int, Meaning("its number")]
    reason: Annotated[str, Meaning("why")]

    @staticmethod
    def from_path(name: str, reason: str) -> LayerWithoutAttention:
        """A module's entry; its number is the last one in its path."""
        numbers = [int(part) for part in name.split(".") if part.isdigit()]
        return LayerWithoutAttention(name, numbers[-1] if numbers else 0, reason)


@record("a failure")
class Failure:
    """A module at which the recording failed, and the error; the model itself went on."""

    name: Annotated[str, Meaning("a module's path")]
    reason: Annotated[str, Meaning("what went wrong")]


@dataclass
class Record:
    """Every attention call of a recording in the order they ran, the layers without, and what failed.

    ``changes`` are sentences on what ran differently than without a recording, or may be missing; ``places``
    the modules to which each applies, with a detail of each. ``calls`` are the paths of the modules at which
    something was captured, added immediately (single heads separately), ``matrices`` those of the mixers that
    are shown; ``query_axes`` the axis of queries in each product of weights and values, None for a kernel;
    ``layout`` arranges the last one by heads.
    ``padding`` has the sentence of each kind that says how many rows are of padding; ``given`` the shapes of
    what the model received; ``dropout`` says whether weights were dropped at random: those before are shown.
    ``lengths`` are those that labels may have.
    """

    sites: list[SiteRecord] = field(default_factory=list)
    without_attention: list[LayerWithoutAttention] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    changes: list[str] = field(default_factory=list)
    calls: list[str] = field(default_factory=list, compare=False)
    matrices: list[str] = field(default_factory=list, compare=False)
    query_axes: list[int | None] = field(default_factory=list, compare=False)
    layout: Callable[..., Any] | None = field(default=None, compare=False)
    places: dict[str, list[tuple[str, str]]] = field(default_factory=dict, compare=False)
    padding: dict[str, str] = field(default_factory=dict, compare=False)
    given: tuple[Sequence[int], ...] = field(default=(), compare=False)
    dropout: bool = field(default=False, compare=False)
    lengths: set[int] = field(default_factory=set, compare=False)

    @property
    def texts(self) -> int:
        """How many texts the batch of its calls holds; 1 if it holds other parts, as channels or windows."""
        batches = {site.batch for site in self.sites} - {1}
        if len(batches) != 1:
            return 1
        (batch,), lengths = batches, {site.queries for site in self.sites}
        first = any(shape[0] == batch for shape in self.given)
        second = any(len(each) == 3 and each[1] == batch and each[0] in lengths for each in self.given)
        return batch if first or second else 1

    def name(self, path: str, reason: str) -> None:
        """Name a module whose attention is not shown, and why, once."""
        layer = LayerWithoutAttention.from_path(path, reason)
        if layer not in self.without_attention:
            self.without_attention.append(layer)

    def note_change(self, sentence: str) -> None:
        """Add a sentence on what ran differently, once."""
        if sentence not in self.changes:
            self.changes.append(sentence)

    def note_cross_attention(self, axes: Mapping[Any, tuple[Axis, Axis]]) -> None:
        """Say what the rows of cross-attention predict, if it ran and they are the decoder's tokens."""
        cross, decoder = (axes.get(kind, ((), ()))[0] for kind in ("cross", "decoder"))
        if cross and cross == decoder and any(site.site.kind == "cross" for site in self.sites):
            self.note_change(CROSS_ATTENTION_NOTE)

    def note_padding(self, kind: str, count: int, rows: int) -> None:
        """Say how many rows are of padding, of the last pass of several."""
        if (before := self.padding.get(kind)) in self.changes:
            self.changes.remove(before)
        self.padding[kind] = f"{count:,} of {rows:,} rows of {kind} attention are padding and are left out"
        self.note_change(self.padding[kind])

    def note_place(self, description: str, name: str, detail: str = "") -> None:
        """Add what applies to a module; a description has its ``{names}`` and ``{details}`` once, for all."""
        places = self.places.setdefault(description, [])

        def describe() -> str:
            details = " or ".join(dict.fromkeys(detail for _, detail in places))
            return description.format(names=name_all(name for name, _ in places), details=details)

        before = describe()
        places.append((name, detail))
        sentence = describe()
        if before in self.changes:
            self.changes[self.changes.index(before)] = sentence
        else:
            self.note_change(sentence)

    @property
    def notes(self) -> list[str]:
        """Notes on the recording itself: where it failed, what it cannot show, and what ran differently."""
        layers: dict[tuple[str, str], list[int]] = {}
        for layer in self.without_attention:
            layers.setdefault((pattern(layer.name), layer.reason), []).append(layer.layer)
        several, sentences = len({path for path, _ in layers}) > 1, self._failed()
        for (path, reason), numbers in layers.items():
            where = name_all([path])
            if "*" in path:
                which = f"layer{'s' * (len(numbers) > 1)} {number_ranges(numbers)}"
                where = f"{which}, {where}" if several else which
            sentences.append(f"no attention in {where}: {reason}")
        return [*sentences, *self.changes]

    @property
    def warnings(self) -> list[str]:
        """Those that a model's own code is warned of."""
        return [*self._failed(), *(each for each in self.changes if each not in self.padding.values())]

    def _failed(self) -> list[str]:
        sites = {site.site.name for site in self.sites}
        failed: dict[tuple[str, bool], list[str]] = {}
        for failure in self.failures:
            failed.setdefault((failure.reason, failure.name in sites), []).append(failure.name)
        sentences = []
        for (reason, partly), names in failed.items():
            whose = "their" if len(names) > 1 else "its"
            lost = f"some of {whose} attention may be" if partly else f"{whose} attention is"
            sentences.append(f"the recording failed in {name_all(names)} ({reason}), so {lost} missing")
        return sentences


NUMBER = re.compile(r"(?:(?<=\.)|^)\d+(?=\.|$)")  # of an entry of a list of modules, in its path


def pattern(path: str) -> str:
    """A path without its numbers: modules of one pattern are the same one of several layers."""
    return NUMBER.sub("*", path)


def is_within(path: str, outer: str) -> bool:
    """Whether a module is another one, or inside of it, as all are inside of the model itself."""
    return not outer or f"{path}.".startswith(f"{outer}.")


def name_all(names: Iterable[str]) -> str:
    """Modules by path, those of one pattern joined."""
    patterns: dict[str, list[str]] = {}
    for name in dict.fromkeys(names):
        patterns.setdefault(pattern(name), []).append(name)
    each = [some[0] if len(some) == 1 else f"{path} ({len(some)} of them)" for path, some in patterns.items()]
    return ", ".join(name or "the model itself" for name in each)


def module_lists(paths: Iterable[str]) -> set[str]:
    """The outermost lists of modules in these paths, each with the dot or the start before its numbers."""
    return {path[: number.start()] for path in paths if (number := NUMBER.search(path))}


def name_mixers(paths: Sequence[str], module: Any) -> str:
    """Modules in words: by layer and path within it, or by whole path where there are several lists."""
    names: dict[str, list[int]] = {}
    lists = module_lists(paths)
    for path in paths:
        numbers_in_path = [*NUMBER.finditer(path)]
        if len(numbers_in_path) != 1:
            names[path or f"the model itself ({type(module).__name__})"] = []
            continue
        inside = path[numbers_in_path[0].end() + 1 :] or type(module.get_submodule(path)).__name__
        names.setdefault(inside if len(lists) == 1 else pattern(path), []).append(int(numbers_in_path[0][0]))
    names_by_layer = (
        f"layer{'s' * (len(numbers) > 1)} {number_ranges(numbers)}, {name}" if numbers else name
        for name, numbers in names.items()
    )
    return "; ".join(names_by_layer)


class Observer(Protocol):
    """What reads attention during a pass."""

    def observe(self, attention: Attention) -> None:
        """Read what is needed immediately; called inside the forward pass, right after the kernel ran.

        The attention holds the kernel's own tensors, so it must not be kept when this returns.
        """


class FunctionObserver(NamedTuple):
    """An observer that is a function."""

    observe: Callable[[Attention], None]


@dataclass(frozen=True, eq=False)
class Replay:
    """One attention per site, from a trace or a recorded generation, observable any number of times."""

    attentions: tuple[Attention, ...]
    record: Record

    def shown_to(self, observers: Sequence[Observer]) -> Record:
        """Show every attention to each observer, like a recording of one pass."""
        if not observers:
            return self.record
        arrays = all(attention.arrays for attention in self.attentions)
        with nullcontext() if arrays else torch.inference_mode():
            for done, attention in enumerate(self.attentions, 1):
                for observer in observers:
                    observer.observe(attention)
                if not arrays:  # those are short, and read within a moment
                    report("layer", done, len(self.attentions))
        return self.record
