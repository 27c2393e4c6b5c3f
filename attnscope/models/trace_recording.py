"""How a trace is made: by recording a pass of a model, or whatever runs inside a block."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from functools import partial
from itertools import pairwise, starmap
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from attnscope.attention import Attention, AttentionCall, Axis, HeldRows, Kind, OpenKeys, RowSource, Token
from attnscope.axes import Array, coarsen_axis
from attnscope.capture import Coarsen, Observer, Record, Steps
from attnscope.capture.placing.kinds import is_causal
from attnscope.capture.record import CROSS_ATTENTION_NOTE, FunctionObserver, Replay, SiteRecord
from attnscope.capture.rows.scores import JoinedHeads, MeanRows, OnePart, ScoredRows
from attnscope.capture.rows.steps import SteppedRows
from attnscope.errors import InputError, ModelError, SelectionError, SizeError
from attnscope.fused.fused_pass import FusedPass
from attnscope.fused.runs import is_plain, opens
from attnscope.limits import MEASURED_WEIGHTS
from attnscope.measures import Measurement, fused_request
from attnscope.measures.measurement import measure_words
from attnscope.models import inputs
from attnscope.models.model import Model, find_device, require_attention
from attnscope.models.trace_model import TracedModel, has_short_text, is_short
from attnscope.storage.cache import ENTRY_BYTES
from attnscope.storage.trace import Trace, layout
from attnscope.storage.trace.replay import replay

MOST_HELD_PASSES = 16  # most passes of one recording that are held: training may run thousands


class UntraceablePass(ModelError):
    """Part of a pass could not be recorded: no trace can hold it."""


MASK_BLOCK_CELLS = 1 << 24  # cells of a mask requested at a time, if a function makes it


@dataclass(eq=False)
class RowRecorder:
    """Records the axes and the rows of each call; equal arrays are stored once.

    Queries, keys and masks are copied: the kernel's own may be overwritten. Weights are stored only if they
    cannot be recomputed: from queries and keys they come out bit-identical.
    """

    calls: list[tuple[Axis, Axis, layout.TracedRows]] = field(default_factory=list)
    arrays: dict[str, Array] = field(default_factory=dict)
    names: dict[bytes, str] = field(default_factory=dict)

    def observe(self, attention: Attention) -> None:
        """Record one call."""
        queries, keys = attention.queries, attention.keys
        shape = attention.batch, attention.heads, len(queries), len(keys)
        self.calls.append((queries, keys, self._rows(attention.read, shape)))

    def hold(self, what: str, array: Array) -> str:
        """Store an array unless an equal one is stored; returns its name."""
        array = np.asarray(array, order="C")  # files hold rows one after the other
        digest = hashlib.sha256(f"{array.dtype} {array.shape}".encode())
        digest.update(array.data)
        name = self.names.setdefault(digest.digest(), f"{what}.{len(self.names):04}")
        self.arrays.setdefault(name, array)
        return name

    def _rows(self, read: RowSource, shape: tuple[int, int, int, int]) -> layout.TracedRows:
        batch, _, queries, keys = shape
        if isinstance(read, ScoredRows):
            return self._scores(read.without_padding)
        if isinstance(read, JoinedHeads):
            parts = zip(read.parts, read.counts, strict=True)
            joint = tuple(self._rows(part, (batch, count, queries, keys)) for part, count in parts)
            return layout.TracedHeads("heads", joint, read.counts)
        if isinstance(read, SteppedRows):
            return self._steps(read, shape)
        weights = read.weights if isinstance(read, HeldRows) else read.rows(0, queries, None)
        unmasked = read.open_keys if isinstance(read, HeldRows) else read.allowed(0, queries)
        mask = None if unmasked is None else self._mask(unmasked, queries, weights.shape[-1])
        return layout.TracedWeights("weights", self._tensor("weights", weights), mask)

    def _steps(self, read: SteppedRows, shape: tuple[int, int, int, int]) -> layout.TracedSteps:
        """The steps of a generation; a step shares its first keys with the one before if they are equal."""
        keys = [part.call.key for part in read.calls if isinstance(part, ScoredRows)]
        longest = max(keys, key=lambda key: key.shape[2], default=None)
        parts = [
            self._scores(part.call, longest)
            if isinstance(part, ScoredRows)
            else self._rows(part, (*shape[:2], stop - start, shape[3]))
            for part, (start, stop) in zip(read.calls, pairwise(read.starts), strict=True)
        ]
        return layout.TracedSteps("steps", tuple(parts), read.starts, read.shifts, read.keys)

    def _scores(self, call: AttentionCall, longest: Tensor | None = None) -> layout.TracedScores:
        queries, keys = call.query.shape[2], call.key.shape[2]
        begins = None  # the longest keys, where these are their beginning
        if longest is not None and keys < longest.shape[2] and longest[..., :keys, :].equal(call.key):
            begins = longest
        number = isinstance(call.scale, (int, float))
        return layout.TracedScores(
            "scores",
            query=self._tensor("query", call.query),
            key=self._tensor("key", call.key if begins is None else begins),
            stop=None if begins is None else keys,
            scale=float(call.scale) if number else self._tensor("scale", call.scale),
            biases=tuple(self._bias(bias) for bias in call.biases),
            masks=tuple(self._mask(mask, queries, keys) for mask in call.masks),
            diagonal=call.diagonal,
            softcap=call.softcap,
            sinks=None if call.sinks is None else self._tensor("sinks", call.sinks),
        )

    def _bias(self, bias: Tensor) -> layout.Bias:
        """An additive mask as a boolean one and one number if possible; otherwise all its numbers."""
        bias = _narrow(bias)
        if is_plain(bias):
            unmasked = opens(bias)
            masked_values = torch.unique(bias[~unmasked])
            if len(masked_values) < 2:
                mask = layout.pack_mask(unmasked.cpu().numpy(), self.hold)
                masked_values = masked_values if len(masked_values) else bias.new_zeros(1)
                return layout.Bias(self._tensor("closed", masked_values.reshape(1, 1, 1, 1)), mask)
        return layout.Bias(self._tensor("bias", bias), None)

    def _mask(self, mask: OpenKeys, queries: int, keys: int) -> layout.Mask:
        if not callable(mask):
            return layout.pack_mask(_narrow(mask).cpu().numpy(), self.hold)
        step = max(1, MASK_BLOCK_CELLS // keys)
        blocks = [mask(start, min(queries, start + step)).cpu().numpy() for start in range(0, queries, step)]
        return layout.pack_mask(np.concatenate(blocks, 2), self.hold)

    def _tensor(self, what: str, tensor: Any) -> str:
        """Store a copy of a tensor; bfloat16, which NumPy lacks, as its bits."""
        tensor = tensor.detach().cpu().contiguous().clone()
        bits = tensor.dtype == torch.bfloat16
        return self.hold(what, tensor.view(torch.int16).numpy().view(np.uint16) if bits else tensor.numpy())


def _narrow(mask: Any) -> Any:
    """A mask with four axes; an axis along which it only repeats itself is cut to one entry."""
    while mask.ndim < 4:
        mask = mask[None]
    for axis, step in enumerate(mask.stride()):
        if step == 0:
            mask = mask.narrow(axis, 0, 1)
    return mask


def record_pass(model: Model, prepared: inputs.ModelInput, *, fused: bool = False) -> Trace | None:
    """Record the pass of a short input in memory, so that it can be read like a trace from a file.

    ``fused``: the fused pass measures all heads of a long text; no long text is measured otherwise.
    ``None`` for any other input, and for one that fails.
    """
    run, most = partial(model.run, prepared), float(MEASURED_WEIGHTS)
    if not has_short_text(prepared):
        size = _trace_size(model.module, len(prepared.tokens))
        if size is None or size > ENTRY_BYTES:
            return None
        request = fused_request(Measurement().measures, [prepared.tokens]) if fused else None
        run = partial(model.run, prepared, fused=None if request is None else FusedPass(request))
        most = math.inf if fused else 0
    if not prepared.tokens or prepared.array_replay is not None:
        return None
    try:
        trace = make_trace(run, prepared, describe_model(model), model.notes, most=most)
    except (UntraceablePass, SizeError):
        return None
    return replace(trace, description=replace(trace.description, weighed=model.weighting_title))


def record_trace(model: Model, prepared: inputs.ModelInput) -> Trace:
    """Run the model once with its own kernels; record what its rows are computed from, and all scores."""
    return make_trace(partial(model.run, prepared), prepared, describe_model(model), model.notes)


def make_trace(
    run: Callable[[Sequence[Observer]], Record],
    prepared: inputs.ModelInput,
    about: layout.About,
    notes: tuple[str, ...] = (),
    *,
    most: float = math.inf,
) -> Trace:
    """Run and record a pass; heads are not measured if they have more than ``most`` weights in all."""
    recorder, measured, axes, size = RowRecorder(), Measurement(), dict[Axis, int](), 0

    def measure(attention: Attention) -> None:
        nonlocal size
        size += attention.batch * attention.heads * len(attention.queries) * len(attention.keys)
        if size <= most:
            measured.observe(attention)

    record = run([recorder, FunctionObserver(measure)])

    def number(axis: Axis) -> int:
        return axes.setdefault(axis, len(axes))

    if len(recorder.calls) != len(record.sites):
        raise UntraceablePass(f"the pass of {about.name} cannot be recorded: {'; '.join(record.notes)}")
    images = []
    for place, each in enumerate(prepared.pictures):
        pixels = recorder.hold(f"pixels{place}", each.pixels)
        boxes = tuple(starmap(layout.Box, each.boxes.items()))
        images.append(layout.Image(each.name, pixels, each.grid, number(each.tokens), boxes))
    sound_entry, sound = None, prepared.sound
    if sound is not None:
        bands = None if sound.bands is None else recorder.hold("bands", sound.bands)
        sound_entry = layout.TracedSound(sound.seconds, sound.frames, sound.begin, bands)
    description = layout.TraceDescription(
        kept=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        model=about,
        model_notes=notes,
        text_notes=prepared.notes,
        text=prepared.text,
        batch_texts=prepared.batch_texts,
        beams=prepared.beams,
        messages=prepared.messages,
        tokens=number(prepared.tokens),
        written=prepared.written,
        labels=tuple(
            layout.Labels(kind, number(one), number(other)) for kind, (one, other) in prepared.axes.items()
        ),
        images=tuple(images),
        heard=sound_entry,
        calls=tuple(
            layout.TracedCall.from_record(site, number(queries), number(keys), rows)
            for site, (queries, keys, rows) in zip(record.sites, recorder.calls, strict=True)
        ),
        axes=tuple(map(layout.traced_axis, axes)),
        without_attention=tuple(record.without_attention),
        failures=tuple(record.failures),
        changes=tuple(record.changes),
        scores=tuple(measured.scores()) if size <= most else (),
    )
    trace = Trace(description, recorder.arrays)
    if not is_short(trace) or not description.scores:
        return trace
    # the scores of every head with pieces of words merged
    coarse = Coarsen(lambda a: (coarsen_axis(a.queries, words=True), coarsen_axis(a.keys, words=True)))
    replay(trace, arrays=True).shown_to([coarse])
    words = (head for each in coarse.maps for head in measure_words(each.label()[0], each.site) or ())
    return replace(trace, description=replace(description, words=tuple(words)))


def describe_model(model: Model) -> layout.About:
    """A model's description for a file; for a trace, that of its model."""
    if isinstance(model, TracedModel):
        return model.trace.description.model
    return replace(describe_module(model.name, model.module), revision=model.revision)


def describe_module(name: str, module: nn.Module) -> layout.About:
    """A module's description for a file."""
    return layout.About(
        name=name,
        class_=type(module).__name__,
        revision=getattr(getattr(module, "config", None), "_commit_hash", None),
        parameters=sum(weights.numel() for weights in module.parameters()),
        device=str(find_device(module)),
    )


def _trace_size(module: nn.Module, tokens: int) -> int | None:
    """The most bytes of queries and keys of all layers; ``None`` if no config tells."""
    config = getattr(module, "config", None)
    text = getattr(config, "get_text_config", None)
    config = text() if callable(text) else config
    width = getattr(config, "hidden_size", getattr(config, "width", None))
    layers = getattr(config, "num_hidden_layers", getattr(config, "layers", None))
    if not isinstance(width, int) or not isinstance(layers, int):
        return None
    both = 3 if getattr(config, "is_encoder_decoder", False) else 1  # encoder, decoder, cross
    bytes_ = next((weights.itemsize for weights in module.parameters() if weights.is_floating_point()), 4)
    return 2 * both * layers * width * tokens * bytes_


@dataclass(eq=False)
class RecordedPasses:
    """An observer that records passes; a site that occurs again begins a new one, or is the next step."""

    steps: list[Steps] = field(default_factory=lambda: [Steps()])
    starts: list[int] = field(default_factory=lambda: [0])  # the number of earlier calls before each
    seen: int = 0
    dropped: int = 0
    causal: list[bool] = field(default_factory=list)  # self-attention of a decoder with several rows

    def observe(self, attention: Attention) -> None:
        """Record one call."""
        if attention.site.kind == "decoder" and len(attention.queries) > 1:
            self.causal.append(is_causal(attention))
        change = self.steps[-1].change(attention)
        if change is None:
            self.steps.append(Steps())
            self.starts.append(self.seen)
            if len(self.steps) > MOST_HELD_PASSES:
                del self.steps[0], self.starts[0]
                self.dropped += 1
        self.steps[-1].observe(attention, change)
        self.seen += 1

    def traces(
        self, module: nn.Module, name: str, record: Record, axes: inputs.Axes, images: Mapping[str, Any]
    ) -> list[Callable[[], TracedModel]]:
        """What makes a trace of each pass; ``images`` are for all, or a list with one for each."""
        require_attention(name, module, record)
        count, about = len(self.steps) + self.dropped, describe_module(name, module)
        pass_notes = [DROPOUT_NOTE] if record.dropout or has_dropout(module) else []
        if self.causal and all(self.causal) and any(site.site.kind == "cross" for site in record.sites):
            pass_notes.append(CROSS_ATTENTION_NOTE)

        def make(number: int) -> TracedModel:
            which = LAST if number == len(self.steps) - 1 else f"pass {number + self.dropped + 1:,}"
            has = f"the last {MOST_HELD_PASSES}" if self.dropped else "each"
            notes = (f"{which} of {count:,} passes: run.passes has {has}",) if count > 1 else ()
            sites = record.sites[self.starts[number] : [*self.starts, self.seen][number + 1]]
            texts, batches = replace(record, sites=sites).texts, {site.batch for site in sites} - {1}
            steps = self.steps[number]
            pass_images = inputs.images_of_pass(images, number + self.dropped, count)
            placed, pictures = inputs.place_images(axes, pass_images)
            tokens = next((keys for _, keys in placed.values() if isinstance(keys, tuple)), ())
            cut = (f"{each.name}: {' × '.join(map(str, each.grid or ()))} patches" for each in pictures)
            replay = steps.replay(replace(record, sites=sites), placed)
            lengths = {length for each in replay.attentions for length in each.lengths}
            unplaced = inputs.note_unplaced(axes, lengths)
            prepared = inputs.ModelInput(
                {}, placed, tokens, replay=replay, pictures=pictures, batch_texts=texts, beams=steps.beams
            )
            notes = (*notes, *note_batch(batches, prepared), *pass_notes, *steps.notes, *unplaced, *cut)
            prepared = replace(prepared, notes=notes)
            return TracedModel(make_trace(replay.shown_to, prepared, about))

        return [partial(make, number) for number in range(len(self.steps))]


LAST = "the last"
AVERAGED = "scores are means over"


def note_batch(batches: Collection[int], prepared: inputs.ModelInput) -> tuple[str, ...]:
    """The note on batches of these sizes, of which means are shown; none if there is no such batch."""
    counts = " or ".join(f"{count:,}" for count in sorted(batches))
    each = prepared.name_parts(max(batches, default=1) if len(batches) == 1 else 0)
    return (f"{AVERAGED} {counts} {each}: run.part(0) shows one",) if batches else ()


def trace_part(model: Model, prepared: inputs.ModelInput, part: int) -> TracedModel:
    """A trace of one text, or another part, of a batch; layers without parts stay as they are.

    Raises ``SelectionError`` if there is no such part.
    """
    sites: list[SiteRecord] = []

    def run(observers: Sequence[Observer]) -> Record:
        def observe(attention: Attention) -> None:
            count = attention.batch
            if count > 1:
                if not 0 <= part < count:
                    raise SelectionError(f"no part {part}: {attention.site.name} has the parts 0-{count - 1}")
                values = None if attention.values is None else attention.values[part : part + 1]
                read = OnePart(attention.read, part, count)
                attention = replace(attention, batch=1, read=read, values=values, statistics=None)
                counts.add(count)
            sites.append(SiteRecord.from_attention(attention))
            for observer in observers:
                observer.observe(attention)

        counts: set[int] = set()
        record = model.run(plain, [FunctionObserver(observe)])
        if not counts:
            raise SelectionError(f"no part {part}: {model.name} attends in one part")
        return replace(record, sites=sites)

    plain = replace(prepared, array_replay=None, scores=None, words=())
    notes = [note for note in prepared.notes if not note.startswith(AVERAGED)]
    shown = replace(plain, notes=(f"part {part} of the batch", *notes), batch_texts=1, beams=False)
    return TracedModel(make_trace(run, shown, describe_model(model), model.notes))


def trace_mean(passes: Sequence[TracedModel]) -> TracedModel:
    """A trace of the mean weights of several passes, as the steps of a diffusion.

    Raises ``SelectionError`` if their calls differ.
    """
    replays = [each.prepared.replay for each in passes]
    calls = [each.attentions for each in replays if each is not None]
    if len({tuple((call.site, *_shape(call)) for call in each) for each in calls}) > 1:
        raise SelectionError("the passes have no mean: they attend at other places, or over other lengths")
    means = [_mean(each) for each in zip(*calls, strict=True)]
    return _trace_again(passes[-1], means, f"the mean of {len(passes):,} passes")


def trace_step(model: Model, prepared: inputs.ModelInput, step: int | None) -> TracedModel:
    """A trace of one step of a loop in a pass, from 0, or of their mean, as of a diffusion in one forward.

    The calls of a module are its steps; modules that ran once stay. Raises ``SelectionError`` if there is no
    such step, if modules ran for unequal numbers of steps, or if the steps have no mean.
    """
    traced = model if isinstance(model, TracedModel) else TracedModel(record_trace(model, prepared))
    by_module: dict[str, list[Attention]] = {}
    for call in traced.prepared.replay.attentions if traced.prepared.replay is not None else ():
        by_module.setdefault(call.site.name, []).append(call)
    counts = sorted({len(calls) for calls in by_module.values()} - {1})
    if not counts:
        raise SelectionError(f"{model.name} has no steps: each of its layers attends once in a pass")
    if len(counts) > 1:
        numbers = " or ".join(f"{count:,}" for count in counts)
        raise SelectionError(f"{model.name} has no common steps: its layers attend {numbers} times in a pass")
    if step is not None and step >= counts[0]:
        raise SelectionError(f"no step {step}: {model.name} has the steps 0-{counts[0] - 1}")
    shown = []
    for name, calls in by_module.items():
        if step is None and len({_shape(call) for call in calls}) > 1:
            raise SelectionError(f"the steps have no mean: {name} attends over other lengths in each")
        chosen = calls[0 if len(calls) == 1 else step or 0]
        shown.append(_mean(calls) if step is None else replace(chosen, site=calls[0].site))
    which = f"step {step}" if step is not None else "the mean"
    return _trace_again(traced, shown, f"{which} of the {counts[0]:,} steps of a loop")


def _shape(call: Attention) -> tuple[int, ...]:
    return call.batch, call.heads, len(call.queries), len(call.keys)


def _mean(calls: Sequence[Attention]) -> Attention:
    """The mean of calls of one shape, at the place of the first."""
    read = MeanRows(tuple(call.read for call in calls))
    return replace(calls[-1], site=calls[0].site, read=read) if len(calls) > 1 else calls[0]


def _trace_again(traced: TracedModel, calls: Sequence[Attention], note: str) -> TracedModel:
    """A trace of other calls than those of a recorded pass, with a note on what they are."""
    prepared, about = traced.prepared, traced.trace.description.model
    assert prepared.replay is not None
    record = replace(prepared.replay.record, sites=list(map(SiteRecord.from_attention, calls)))
    notes = (note, *(each for each in prepared.notes if not each.startswith(LAST)))
    shown = replace(prepared, notes=notes, replay=None, array_replay=None, scores=None, words=())
    return TracedModel(make_trace(Replay(tuple(calls), record).shown_to, shown, about, traced.notes))


DROPOUT_NOTE = "dropout was on: each pass left out other units at random, and what is shown lacks them"


def has_dropout(module: nn.Module) -> bool:
    """Whether a part of a module in training mode has dropout, as a layer or as a number."""

    def share(part: nn.Module) -> object:
        return part.p if type(part).__name__.startswith("Dropout") else getattr(part, "dropout", 0)

    return any(
        part.training and isinstance(rate := share(part), float) and rate > 0 for part in module.modules()
    )


def axes_of_texts(
    tokens: Sequence[str] | Mapping[str, Sequence[str]] | None,
) -> dict[Kind, tuple[Axis, Axis]]:
    """Texts as the axes of every attention of the same length; equal strings are the same token.

    A mapping gives those of the ``encoder`` and of the ``decoder``. Raises ``InputError`` for other names.
    """
    if tokens is None:
        return {}
    if not isinstance(tokens, Mapping):
        return inputs.text_axes(_tokens_of_texts(tokens))
    if set(tokens) != {"encoder", "decoder"}:
        raise InputError(f"there are tokens of {', '.join(tokens)}: name those of encoder and decoder")
    encoder, decoder = (_tokens_of_texts(tokens[side]) for side in ("encoder", "decoder"))
    return {"encoder": (encoder, encoder), "decoder": (decoder, decoder), "cross": (decoder, encoder)}


def _tokens_of_texts(texts: Sequence[str]) -> tuple[Token, ...]:
    return inputs.tokens_of_labels([inputs.Label(str(text)) for text in texts])
