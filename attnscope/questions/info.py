"""Every attention call of a model, what is wrong with those that it reports, and what commands would cost."""

from __future__ import annotations

import inspect
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from time import perf_counter
from typing import Annotated, Any, Literal, TypeAlias
from weakref import finalize

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.weak import WeakIdKeyDictionary

from attnscope.attention import Attention, RowSource, Site
from attnscope.capture import Failure, LayerWithoutAttention, RowSums, SiteRecord, recording
from attnscope.capture.hooks.functions import Function
from attnscope.capture.hooks.mixers import CONVOLUTION, KERNELS, kernels_of
from attnscope.capture.record import FunctionObserver, beyond_rounding, pattern
from attnscope.capture.rows.mixing import BLOCK_BYTES
from attnscope.errors import AttnscopeError, InputError, ModelError, out_of_memory, readable
from attnscope.models import Model, ModelInput
from attnscope.models.huggingface.load import pick_class
from attnscope.models.model import accepts
from attnscope.models.untrusted_folder import ModelSource, foreign_work
from attnscope.questions.answer import Answer
from attnscope.questions.sentences import group_by, layers_of, note_differences, note_unproved
from attnscope.records import Meaning, Notes, Parts, record
from attnscope.storage.corpus import Corpus
from attnscope.text import LARGEST_COUNT, number_ranges
from attnscope.views import BREAK, Cell, Column, Table

OWN = 64 << 20  # bytes of rows that are processed together, with what is computed from them
HEADS = 2 / 3  # a pass with one changed head begins at the head's layer: on average this share of a pass
WITH_GRADIENT = 3.0  # the cost of a pass with its gradient, in passes


@record("what a command takes")
class CommandCost:
    """A command's peak memory, its number of passes, and their time on this machine."""

    command: Annotated[str, Meaning("the commands")]
    passes: Annotated[float, Meaning("forward passes")]
    memory: Annotated[int, Meaning("bytes that it takes at once")]
    seconds: Annotated[float, Meaning("how long it takes on this machine")]


@record("what reading a model costs (--cost), estimated from its config", "info")
class LookCost:
    """The size of a model, and the cost of a pass over a number of tokens."""

    title: str
    parameters: Annotated[int, Meaning("its weights")]
    weights: Annotated[int, Meaning("their bytes, in the type that they are stored in")]
    activations: Annotated[int, Meaning("bytes that live at once in a pass, beside the weights")]
    operations: Annotated[float, Meaning("floating-point operations of a pass")]
    pace: Annotated[float, Meaning("floating-point operations a second, of a product measured here")]
    commands: Annotated[tuple[CommandCost, ...], Meaning("what each command takes")]
    notes: Notes


SAMPLED_TEXTS = 500  # of a corpus, whose tokens are counted


def estimate_corpus_cost(source: ModelSource, corpus: Corpus) -> LookCost:
    """The cost of a pass over each text of a corpus, whose size is estimated from its first texts.

    Raises ``InputError`` if none of these can be read.
    """
    config = source.load_config()
    tokenizer = source.load_tokenizer(config)
    positions = getattr(config.get_text_config(), "max_position_embeddings", None) or LARGEST_COUNT
    entries = list(islice(corpus.entries(), SAMPLED_TEXTS))
    texts = [entry.text for entry in entries if not entry.fault]
    if not texts:
        raise InputError(f"the first texts of {corpus.name} cannot be read")
    lengths = [min(len(ids), positions) for ids in tokenizer(texts)["input_ids"]]
    share = entries[-1].done / corpus.size if corpus.size and len(entries) == SAMPLED_TEXTS else 1.0
    count = len(texts) / share
    mean = max(1, round(sum(lengths) / len(lengths)))
    cost = estimate_cost(source, mean)
    one = cost.commands[0]
    all_texts = replace(one, command="stats --texts", passes=count, seconds=one.seconds * count)
    known = "all were counted" if share == 1 else f"estimated from the first {len(texts):,}"
    if not corpus.size and len(entries) == SAMPLED_TEXTS:
        known = f"counted are the first {len(texts):,}, as nobody knows how many there are"
    size = f"{corpus.name}: {count:,.0f} texts, {count * sum(lengths) / len(lengths):,.0f} tokens; {known}"
    return replace(cost, commands=(all_texts, *cost.commands), notes=(size, *cost.notes))


def estimate_cost(source: ModelSource, tokens: int) -> LookCost:
    """The cost of commands on a text of this length, counted by torch while a model runs without weights."""
    config = source.load_config()
    positions = getattr(config.get_text_config(), "max_position_embeddings", None)
    bare, dtype = pick_class(config, False, False), config.dtype or torch.float32
    made = bare._model_mapping[type(config)]
    made = made[0] if isinstance(made, tuple) else made  # of several, the library's default
    names = [name for name in ("input_ids", "decoder_input_ids") if accepts(made, name)]
    if "input_ids" not in names:
        raise ModelError(f"{source.name} reads no tokens: --cost is of models of text")
    with source.guarded(), foreign_work(f"building {source.name}"):
        from torch._subclasses.fake_tensor import FakeTensorMode

        with FakeTensorMode():
            inputs = {name: torch.zeros(1, tokens, dtype=torch.long) for name in names}
            predicting = pick_class(config, False, True).from_config(config, dtype=dtype).eval()
            module = predicting.base_model
            if type(module) is not made:  # in some, the head cannot be left out
                module = bare.from_config(config, dtype=dtype).eval()
            kernels = KernelRuns()
            with kernels_of(module, kernels):
                plain, work = run_empty(module, inputs, gradient=False)
            saved, _ = run_empty(predicting, inputs, gradient=True)
    base = taken_memory()  # with the library's code of this model
    parts = module.parameters(), predicting.parameters(), {part.weight for part in _tables(module)}
    weights, headed, unread = (sum(each.numel() * each.element_size() for each in part) for part in parts)
    text = config.get_text_config()
    layers, width = (getattr(text, name, None) or 0 for name in ("num_hidden_layers", "num_attention_heads"))
    pace = measure_pace(dtype)
    looks = (
        ("show, stats, find, spans", 1.0, weights - unread + plain),  # unused rows stay on disk
        ("logits", WITH_GRADIENT, headed + saved),
        ("cut, patch, ablate", max(1.0, HEADS * layers * width), headed + plain),
    )
    costs = tuple(
        CommandCost(names, passes, base + OWN + taken, work * passes / pace) for names, passes, taken in looks
    )
    if kernels.runs:
        _, passes, taken = looks[0]
        whole = CommandCost("the same with --mixers", passes, base + OWN + taken + kernels.held, 0.0)
        costs = (costs[0], replace(whole, seconds=costs[0].seconds + kernels.seconds()), *costs[1:])
    count = sum(each.numel() for each in module.parameters())
    title = f"{source.name} · {count:,} weights, {str(dtype).removeprefix('torch.')} · {tokens:,} tokens"
    notes = [
        "estimated from the config: no weight was read",
        f"time: {pace / 1e9:,.0f} GFLOP/s measured here",
    ]
    if kernels.runs:
        notes.append(
            f"--mixers: {sum(kernels.runs.values()):,} runs of kernels; one of each shape was timed here"
        )
    if isinstance(positions, int) and positions < tokens:
        notes.append(f"the model has {positions:,} positions: a text of {tokens:,} tokens would be refused")
    return LookCost(title, count, weights, plain, work, pace, costs, tuple(notes))


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of live tensors while active, except those of a module."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = self.most = 0
        self.known: Any = WeakIdKeyDictionary()
        for each in (*module.parameters(), *module.buffers()):
            self.known[each.untyped_storage()] = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a function, and count the storages that it creates until they are freed."""
        result = func(*args, **(kwargs or {}))
        for each in tree_leaves(result):
            storage = each.untyped_storage() if isinstance(each, Tensor) else None
            if storage is not None and storage not in self.known:
                self.known[storage] = True
                self._add(storage.nbytes())
                finalize(storage, self._add, -storage.nbytes())
        return result

    def _add(self, size: int) -> None:
        self.live += size
        self.most = max(self.most, self.live)


@dataclass(eq=False)
class KernelRuns:
    """Counts the runs of kernels that ``--mixers`` takes, and can time one of each shape."""

    alone: bool = True  # whether only convolutions have run
    held: int = 0  # bytes of the largest block of rows
    runs: dict[str, int] = field(default_factory=dict)  # by function and shapes
    calls: dict[str, tuple[Function, Any]] = field(default_factory=dict)  # tensors as what makes them

    def run(self, name: str, function: Function, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run a kernel on shapes alone, and count it; a convolution where the model has no other kernel."""
        kernel, alone = KERNELS[name], name == CONVOLUTION
        if self.alone and not alone:  # the convolutions so far come before others
            self.runs, self.calls, self.held = {}, {}, 0
        self.alone = self.alone and alone
        if self.alone == alone:
            values = kernel.arrange(
                inspect.signature(function).bind(*args, **kwargs).arguments[kernel.values]
            )
            tokens, heads, channels = values.shape[1:]
            shapes = tree_map(_numbers_like, (args, kwargs))
            key = f"{function} {shapes}"
            self.calls[key] = function, shapes
            columns = 1 - (-tokens // (channels if kernel.heads else 1))
            # blocks of a scan have as many sizes as the number of tokens has bits; each size costs a run
            self.runs[key] = self.runs.get(key, 0) + (tokens.bit_length() if kernel.step else columns)
            self.held = max(self.held, min(BLOCK_BYTES, 4 * heads * tokens**2))
        return function(*args, **kwargs)

    def seconds(self) -> float:
        """The time of all runs on this machine: one of each shape runs on numbers of that shape."""
        return sum(count * self._time(*self.calls[key]) for key, count in self.runs.items())

    def _time(self, function: Function, shapes: Any) -> float:
        args, kwargs = tree_map(lambda each: each() if isinstance(each, partial) else each, shapes)
        start = perf_counter()
        with torch.inference_mode():
            function(*args, **kwargs)
        return perf_counter() - start


def _numbers_like(part: Any) -> Any:
    """What makes a tensor of this shape and type, with a small number at every place."""
    if not isinstance(part, Tensor):
        return part
    return partial(torch.full, tuple(part.shape), 0.01, dtype=part.dtype)


def _tables(module: nn.Module) -> list[nn.Embedding]:
    return [part for part in module.modules() if isinstance(part, nn.Embedding)]


def run_empty(module: nn.Module, inputs: dict[str, Any], *, gradient: bool) -> tuple[int, float]:
    """One pass on meta tensors: peak bytes beside the weights, and the operations."""
    from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

    flash: Any = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu

    def attention_work(query: Any, key: Any, value: Any, *args: Any, **more: Any) -> int:
        return int(sdpa_flop_count(query, key, value))  # type: ignore[no-untyped-call]

    memory, work = LiveBytes(module), FlopCounterMode(display=False, custom_mapping={flash: attention_work})
    begun = list[Tensor]()
    hooks = [each.register_forward_hook(lambda *call: begun.append(call[2])) for each in _tables(module)]
    with torch.set_grad_enabled(gradient), memory, work:
        made = module(**inputs, **({"use_cache": False} if accepts(module, "use_cache") else {}))
        if gradient:
            torch.autograd.grad(made[0][:, -1].float().sum(), begun, retain_graph=True, allow_unused=True)
    for each in hooks:
        each.remove()
    return memory.most, float(work.get_total_flops())


def measure_pace(dtype: torch.dtype, size: int = 1024, seconds: float = 0.3) -> float:
    """Operations per second of a matrix product on this machine."""
    from torch.utils.benchmark import Timer

    matrix = torch.ones(size, size, dtype=dtype)
    timer = Timer("matrix @ matrix", globals={"matrix": matrix}, num_threads=torch.get_num_threads())
    return 2 * size**3 / timer.blocked_autorange(min_run_time=seconds).mean


def taken_memory() -> int:
    """Bytes that this process uses, including torch and transformers; 0 if the system does not say."""
    with suppress(ImportError):
        import resource

        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most << 10
    return 0


def cost_answer(cost: LookCost) -> Answer:
    """What each command takes, as a table."""

    def duration(seconds: float) -> str:
        units = ((1, "s"), (60, "min"), (3600, "h"))
        size, unit = next((each for each in units if seconds < 90 * each[0]), units[-1])
        return f"{seconds / size:.2g} {unit}" if seconds < 10 * size else f"{seconds / size:,.0f} {unit}"

    rows = (
        (each.command, f"{each.passes:,.0f}", readable(each.memory), duration(each.seconds))
        for each in cost.commands
    )
    names = ("command", "passes", "memory", "time")
    columns = tuple(Column(name, name != "command", "keep") for name in names)
    sizes = f"weights {readable(cost.weights)}, a pass {readable(cost.activations)} beside them"
    table = Table(columns, tuple(rows), title=cost.title, subtitle=sizes, notes=cost.notes)
    return Answer((table,), {}, lambda: cost)


SAME = 1e-3  # row sums may differ by this much
ROUNDING = 1e-4  # two computations of one weight in float32 may differ by this much


def fault(own: Tensor, weights: Tensor, alive: Tensor) -> str | None:
    """What a model's own attention tensor for a call holds instead of its weights, or None if it holds them.

    Only rows that see a key are compared: ``alive``, [batch or 1, head or 1, query, 1].
    """
    shape, heads = tuple(weights.shape), weights.shape[1]
    weights, alive = weights.to(own.device), alive.to(own.device)
    if tuple(own.shape) == shape and _close(own, weights, alive):
        return None
    if own.ndim == 4 and heads > 1 and bool((own == own[:, :1]).all()):  # one map, perhaps repeated
        own = own[:, 0]
    if tuple(own.shape) == (shape[0], *shape[2:]) and heads > 1:
        mean = weights.mean(1)
        return "the mean over the heads" if _close(own, mean, alive.any(1)) else "one map for all heads"
    if tuple(own.shape) != shape:
        return f"a tensor of the shape {list(own.shape)}, where the weights are {list(shape)}"
    if _close(torch.softmax(own.float(), -1), weights, alive):
        return "scores from before the softmax"
    return "other weights than those that were used"


def _close(one: Tensor, other: Tensor, alive: Tensor) -> bool:
    """Whether two tensors of weights differ by no more than rounding in the type of the first."""
    tolerance = max(ROUNDING, 4 * torch.finfo(one.dtype).eps)
    return bool((((one.float() - other.float()) * alive).abs() <= tolerance).all())


Verdict: TypeAlias = Literal["right", "wrong", "none"]

OWN_NAMES = {
    "encoder": ("encoder_attentions", "attentions"),
    "decoder": ("decoder_attentions", "attentions"),
    "cross": ("cross_attentions",),
}
"""Where transformers' models put the attention of each kind in their outputs."""


@record("an attention call")
class Sighting:
    """One attention call, and whether the model's own eager ``output_attentions`` has the same weights."""

    site: Annotated[SiteRecord, Parts()]
    report: Annotated[Verdict, Meaning("whether the model itself reports these weights", name="own_report")]
    fault: Annotated[str | None, Meaning("what it reports in their place", name="own_fault")]
    row_sums: Annotated[tuple[float, float], Meaning("the smallest and the largest sum of a row")]


@record("every attention call of a model", "info")
class Survey:
    """Every attention call of a pass, the layers without one, what failed, and notes."""

    sightings: Annotated[tuple[Sighting, ...], Meaning("every call", name="sites")]
    without_attention: Annotated[
        tuple[LayerWithoutAttention, ...], Meaning("layers without attention", name="without")
    ]
    failures: Annotated[tuple[Failure, ...], Meaning("where the recording failed")]
    notes: Notes

    @property
    def calls(self) -> tuple[SiteRecord, ...]:
        """The calls alone."""
        return tuple(sighting.site for sighting in self.sightings)


def survey_model(model: Model, prepared: ModelInput) -> Survey:
    """Compare a run with eager ``output_attentions``, all layers in memory at once, with one as it is.

    The n-th call of a kind of attention is compared with the n-th tensor that the model reports of it.
    """
    outputs = _own_outputs(model, prepared)
    reported = {kind: _reported_weights(outputs, kind) for kind in OWN_NAMES}
    sums, met, faults = RowSums(), Counter[str](), dict[Site, str | None]()

    def compare(attention: Attention) -> None:
        site, size = attention.site, len(attention.queries)
        theirs = reported[site.kind][met[site.kind] :]
        met[site.kind] += 1
        if not theirs or theirs[0] is None:
            faults[site] = "nothing for this call"
            return
        alive = attention.allowed(0, size).any(-1, keepdim=True)
        faults[site] = fault(theirs[0], attention.rows(0, size), alive)

    def verdict(site: Site) -> tuple[Verdict, str | None]:
        theirs, calls = reported[site.kind], met[site.kind]
        # of a picture inside a text, the text's attention alone is reported
        if not theirs or (
            prepared.first_kind is not None and met[prepared.first_kind] and site.kind == "encoder"
        ):
            return "none", None
        if len(theirs) != calls:
            return "wrong", f"{len(theirs):,} tensors for {calls:,} calls"
        return ("right", None) if faults[site] is None else ("wrong", faults[site])

    record = model.run(prepared, [sums, FunctionObserver(compare)])
    return Survey(
        tuple(Sighting(site, *verdict(site.site), sums.ranges[site.site]) for site in record.sites),
        tuple(record.without_attention),
        tuple(record.failures),
        (*model.notes, *prepared.notes, *record.notes),
    )


def _own_outputs(model: Model, prepared: ModelInput) -> Any:
    """The attention that the model returns on request, ``None`` if it cannot be asked."""
    if not hasattr(model.module, "set_attn_implementation"):
        return None
    module: Any = model.module
    configs = {id(each): each for part in module.modules() if (each := getattr(part, "config", None))}
    chosen = "_attn_implementation_internal"  # its setter refuses what a backbone in another library lacks
    before = [(each, getattr(each, chosen)) for each in configs.values() if hasattr(each, chosen)]
    try:
        module.set_attn_implementation("eager")
        # recorded, so that it may attend no more often than a pass that is shown
        with torch.inference_mode(), recording(module, warn=False):
            run = getattr(module, prepared.entry)
            return run(**prepared.inputs, **prepared.settings, output_attentions=True, return_dict=True)
    except Exception as error:  # a model that fails on request reports nothing
        if isinstance(error, AttnscopeError) or out_of_memory(error):
            raise
        return None
    finally:
        for each, implementation in before:
            setattr(each, chosen, implementation)


def _reported_weights(outputs: Any, kind: str) -> Sequence[Tensor | None]:
    reported = (getattr(outputs, name, None) for name in OWN_NAMES[kind])
    return next((each for each in reported if isinstance(each, (tuple, list)) and each), ())


COLUMNS = ("layer", "kind", "module, kernel, weights", "heads", "size", "rows sum to", "own report")


def describe_model(model: Model, result: Survey) -> str:
    """Its name, type, layers and heads by kind of attention, parameters, and how many tokens it reads."""
    sizes, kinds = [], group_by(result.calls, lambda call: call.site.kind)
    for kind, sites in kinds.items():
        layers, heads = len({site.site.layer for site in sites}), {site.heads for site in sites}
        size = f"{layers} layer{'s' * (layers > 1)} × {number_ranges(heads)} heads"
        sizes.append(f"{kind}: {size}" if len(kinds) > 1 else size)
    parts = [model.title, type(model.module).__name__, *sizes]
    parts.append(f"{sum(each.numel() for each in model.module.parameters()):,} parameters")
    parts += [f"{model.positions:,} positions"] if model.positions else []
    return " · ".join(parts)


def survey_answer(result: Survey, title: str = "") -> Answer:
    """One line for calls that differ only in their numbers, the layers without attention, and notes."""
    rows = group_by(result.sightings, _cells)
    table = Table(
        tuple(Column(name, long="fold" if name == COLUMNS[2] else "keep") for name in COLUMNS),
        tuple(
            (number_ranges(each.site.site.layer for each in alike), *cells) for cells, alike in rows.items()
        ),
        title=title,
        notes=(*_notes(result), *result.notes),
        edge=True,
    )
    return Answer((table,), {}, lambda: result)


def _cells(sighting: Sighting) -> tuple[Cell, ...]:
    site = sighting.site
    low, high = (f"{value:.3g}" for value in sighting.row_sums)
    return (
        *_kernel_cells(site),
        f"{site.queries}×{site.keys}",
        low if low == high else f"{low} to {high}",
        sighting.report,
    )


def _kernel_cells(site: SiteRecord) -> tuple[Cell, ...]:
    kernel = f"{site.kernel} {site.dtype}" + (f" window {site.window}" if site.window else "")
    return (
        site.site.kind,
        ((pattern(site.site.name), ""), BREAK, (f"{kernel}, {site.source}", "")),
        f"{site.heads}" if site.key_heads == site.heads else f"{site.heads}/{site.key_heads}",
    )


def _notes(result: Survey) -> list[str]:
    """What is odd about calls."""
    notes = []
    if any(call.key_heads != call.heads for call in result.calls):
        notes.append("heads: query heads / key-value heads")
    faulty = [each for each in result.sightings if each.fault is not None]
    for (kind, fault), alike in group_by(faulty, lambda each: (each.site.site.kind, each.fault)).items():
        where = f"{kind} {layers_of(each.site for each in alike)}"
        notes.append(f"the model's own output_attentions are wrong in {where}: {fault}")
    notes += note_differences(result.calls)
    proofs = [call.difference for call in result.calls if call.difference is not None]
    if proofs:
        within = f"within {max(proofs):.1g} in {len(proofs)} calls"
        notes.append(f"weights × values reproduce the kernel's output {within}")
    notes += note_unproved(result.calls)
    if any(each.row_sums[1] < 1 - SAME for each in result.sightings):
        rest = "a sink that no token owns, or on padding"
        notes.append(f"rows that sum to less than 1 leave the rest on {rest}")
    return notes


@record("an attention call, or a layer without a softmax, and its proof")
class LayerProof:
    """One call, and how far its rows are from what identity values give."""

    site: Annotated[SiteRecord, Parts()]
    error: Annotated[
        float | None,
        Meaning("largest difference of the rows that identity values give; null where none can be fed"),
    ]
    row_sums: Annotated[tuple[float, float], Meaning("the smallest and the largest sum of a row")]

    @property
    def kind(self) -> str:
        """What was compared: the ``rows`` that are shown, or the layer's ``output``."""
        return "output" if self.error is None or self.site.source == "probe" else "rows"

    @property
    def shown_error(self) -> float | None:
        """That of the rows, or of weights × values."""
        return self.site.difference if self.error is None else self.error


@record("how each layer was proved by identity values (--prove)", "info")
class ModelProof:
    """Every call with its proof, and the layers without one."""

    proofs: Annotated[tuple[LayerProof, ...], Meaning("every call", name="sites")]
    without_attention: Annotated[
        tuple[LayerWithoutAttention, ...],
        Meaning("layers that are no matrix, or were not seen", name="without"),
    ]
    notes: Notes


def prove_model(model: Model, prepared: ModelInput) -> ModelProof:
    """Feed identity values to every kernel, and compare what comes back with the rows that are shown."""
    sums, errors = RowSums(), dict[Site, float]()

    def compare(attention: Attention) -> None:
        probe: RowSource | None = getattr(attention, "probe", None)
        if probe is not None:
            both = (rows.rows(0, len(attention.queries), None).float() for rows in (probe, attention))
            errors[attention.site] = float(torch.sub(*both).abs().max())

    model.learn_kinds(prepared)
    observers = (sums, FunctionObserver(compare))
    with (
        model.without_gradients(),
        model.threads(prepared),
        recording(model.module, observers, prepared.labels, warn=False, mixers=True) as seen,
    ):
        prepared.call(model.module)
    model.note_seal(prepared, seen)
    proofs = (
        LayerProof(
            each,
            each.difference if each.source == "probe" else errors.get(each.site),
            sums.ranges[each.site],
        )
        for each in seen.sites
    )
    notes = (*model.notes, *prepared.notes, *seen.notes)
    return ModelProof(tuple(proofs), tuple(seen.without_attention), tuple(dict.fromkeys(notes)))


def proof_answer(result: ModelProof, title: str = "") -> Answer:
    """One line for layers that were proved alike, with the largest error of them."""
    lines, groups = [], group_by(result.proofs, lambda each: (_kernel_cells(each.site), each.kind))
    for (cells, kind), alike in groups.items():
        errors = [each.shown_error for each in alike if each.shown_error is not None]
        proof = f"{max(errors):.0e} of {kind}" if errors else "none"
        if any(beyond_rounding(each.shown_error, each.site.dtype) for each in alike):
            proof = f"not proved: {proof}"
        low, high = (min(each.row_sums[0] for each in alike), max(each.row_sums[1] for each in alike))
        layers = number_ranges(each.site.site.layer for each in alike)
        lines.append((layers, *cells, f"{low:.3g} to {high:.3g}", proof))
    columns = tuple(
        Column(name, long="fold" if name == PROOF_COLUMNS[2] else "keep") for name in PROOF_COLUMNS
    )
    kinds = {kind for _, kind in groups}
    notes = (*(sentence for kind, sentence in PROOF_NOTES.items() if kind in kinds), *result.notes)
    return Answer((Table(columns, tuple(lines), title=title, notes=notes, edge=True),), {}, lambda: result)


PROOF_COLUMNS = ("layer", "kind", "module, kernel, weights", "heads", "rows sum to", "error")
PROOF_NOTES = {
    "rows": "of rows: the kernel ran on identity values, and gave the rows that are shown but for this error",
    "output": "of output: weights × values give the output but for this error, over its largest number",
}
