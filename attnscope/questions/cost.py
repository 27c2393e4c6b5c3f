"""What commands would cost on a model, counted and timed without its weights."""

from __future__ import annotations

import inspect
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from math import ceil
from time import perf_counter
from typing import Annotated, Any
from weakref import finalize

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.weak import WeakIdKeyDictionary

from attnscope.capture.hooks.functions import Function, Tap
from attnscope.capture.hooks.mixers import CONVOLUTION, KERNELS, kernels_of
from attnscope.capture.rows.mixing import BLOCK_BYTES
from attnscope.errors import InputError, ModelError, readable
from attnscope.models.huggingface.load import pick_class
from attnscope.models.inputs import BATCH_TOKENS
from attnscope.models.model import accepts
from attnscope.models.untrusted_folder import ModelSource, foreign_work
from attnscope.questions.answer import Answer
from attnscope.records import Meaning, Notes, record
from attnscope.storage.corpus import Corpus
from attnscope.text import LARGEST_COUNT
from attnscope.views import Column, Table

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
    positions = getattr(config.get_text_config(decoder=True), "max_position_embeddings", None)
    positions = positions or LARGEST_COUNT
    entries = list(islice(corpus.entries(), SAMPLED_TEXTS))
    texts = [entry.text for entry in entries if not entry.fault]
    if not texts:
        raise InputError(f"the first texts of {corpus.name} cannot be read")
    lengths = [min(len(ids), positions) for ids in tokenizer(texts)["input_ids"]]
    share = entries[-1].done / corpus.size if corpus.size and len(entries) == SAMPLED_TEXTS else 1.0
    count = len(texts) / share
    cost = estimate_cost(source, max(1, round(sum(lengths) / len(lengths))), count)
    known = "all were counted" if share == 1 else f"estimated from the first {len(texts):,}"
    if not corpus.size and len(entries) == SAMPLED_TEXTS:
        known = f"counted are the first {len(texts):,}, as nobody knows how many there are"
    size = f"{corpus.name}: {count:,.0f} texts, {count * sum(lengths) / len(lengths):,.0f} tokens; {known}"
    return replace(cost, notes=(size, *cost.notes))


def estimate_cost(source: ModelSource, tokens: int, texts: float = 0) -> LookCost:
    """The cost of commands on a text of this length, counted by torch while a model runs without weights.

    Also that of ``stats`` on so many such ``texts``, if any.
    """
    config = source.load_config()
    text = config.get_text_config(decoder=True)
    positions = getattr(text, "max_position_embeddings", None)
    bare, dtype = pick_class(config, False, False), config.dtype or torch.float32
    if type(config) not in bare._model_mapping:
        raise ModelError(f"{source.name} is part of another model: --cost is of whole models")
    made = bare._model_mapping[type(config)]
    made = made[0] if isinstance(made, tuple) else made  # of several, the library's default
    names = [name for name in ("input_ids", "decoder_input_ids") if accepts(made, name)]
    if "input_ids" not in names:
        raise ModelError(f"{source.name} reads no tokens: --cost is of models of text")
    with source.guarded(), foreign_work(f"building {source.name}"), _without_numbers(source.name) as empty:
        from transformers.initialization import no_init_weights

        with empty, no_init_weights(), CONVERSION.listening(torch.utils, None):
            batch, few = max(1, BATCH_TOKENS // tokens), min(tokens, BATCH_TOKENS)
            one, short, many = (
                {name: torch.zeros(shape, dtype=torch.long) for name in names}
                for shape in ((1, tokens), (1, few), (batch, few))
            )
            predicting, module = (
                _built(automatic, config, dtype) for automatic in (pick_class(config, False, True), bare)
            )
            kernels = KernelRuns()
            with kernels_of(module, kernels):
                plain = EmptyPass(module).run(one)
            timed, batched = EmptyPass(module).run(short), EmptyPass(module).run(many)
            saved = EmptyPass(predicting).run(one, gradient=True)
    base = taken_memory()  # with the library's code of this model
    parts = module.parameters(), predicting.parameters(), {part.weight for part in _tables(module)}
    weights, headed, unread = (sum(each.numel() * each.element_size() for each in part) for part in parts)
    heads = count_heads(text)
    pace = measure_pace(dtype)
    once = timed.seconds(pace, plain.operations)
    looks = [
        ("show, stats, find, spans", 1.0, weights - unread + plain.most, once),  # unused rows stay on disk
        ("logits", WITH_GRADIENT, headed + saved.most, once),
        ("cut, patch, ablate", max(1.0, HEADS * heads), headed + plain.most, once),
    ]
    if texts:
        taken = weights - unread + max(plain.most, batched.most)
        seconds = batched.seconds(pace, batch * plain.operations)
        looks.insert(0, ("stats --texts", ceil(texts / batch), taken, seconds))
    costs = tuple(
        CommandCost(names, passes, base + OWN + taken, seconds * passes)
        for names, passes, taken, seconds in looks
    )
    if kernels.timed.runs:
        at, whole = len(costs) - 2, costs[-3]
        memory, seconds = whole.memory + kernels.held, whole.seconds + kernels.timed.seconds()
        mixed = replace(whole, command="the same with --mixers", memory=memory, seconds=seconds)
        costs = (*costs[:at], mixed, *costs[at:])
    count = sum(each.numel() for each in module.parameters())
    title = f"{source.name} · {count:,} weights, {str(dtype).removeprefix('torch.')} · {tokens:,} tokens"
    return LookCost(
        title,
        count,
        weights,
        plain.most,
        plain.operations,
        pace,
        costs,
        tuple(_notes(kernels, pace, positions, tokens)),
    )


def _built(automatic: Any, config: Any, dtype: torch.dtype) -> Any:
    """A model without numbers, whose tied weights are one tensor."""
    module = automatic.from_config(config, dtype=dtype).eval()
    module.tie_weights()
    return module


@contextmanager
def _without_numbers(name: str) -> Iterator[AbstractContextManager[Any]]:
    """In which tensors have shapes alone. Raises ``ModelError`` where a model asks for a number."""
    from torch._subclasses import fake_tensor

    try:
        yield fake_tensor.FakeTensorMode()
    except (fake_tensor.DataDependentOutputException, fake_tensor.DynamicOutputShapeException) as error:
        reason = f"what it computes depends on its numbers ({error})"
        raise ModelError(f"the cost of {name} is not known before a pass: {reason}") from error


def count_heads(config: Any) -> int:
    """The attention heads that a config of a text model names, over all layers."""
    layers = getattr(config, "num_hidden_layers", None) or 0
    try:
        return layers * (getattr(config, "num_attention_heads", None) or 0)
    except Exception:  # they differ, and the config has one for each layer
        return sum(getattr(one, "num_attention_heads", None) or 0 for one in config.per_layer_config)


def _notes(kernels: KernelRuns, pace: float, positions: int | None, tokens: int) -> Iterator[str]:
    yield "estimated from the config: no weight was read"
    products = f"large products at {pace / 1e9:,.0f} GFLOP/s"
    yield f"time of passes: one operation of each shape was timed here, {products}"
    if runs := kernels.timed.runs.total():
        yield f"--mixers: {runs:,} runs of kernels; one of each shape was timed here"
    if isinstance(positions, int) and positions < tokens:
        yield f"the model has {positions:,} positions: a text of {tokens:,} tokens would be refused"


@dataclass(eq=False)
class TimedRuns:
    """Runs of functions on tensors of some shapes, of which one of each can be timed on this machine."""

    runs: Counter[str] = field(default_factory=Counter)  # by function and shapes
    calls: dict[str, tuple[Function, Any]] = field(default_factory=dict)  # tensors as what makes them

    def add(self, function: Function, args: Any, kwargs: Any, count: int = 1) -> None:
        """Count runs."""
        shapes = tree_map(_numbers_like, (args, kwargs))
        key = f"{function} {shapes}"
        self.calls[key] = function, shapes
        self.runs[key] += count

    def seconds(self) -> float:
        """The time of all runs: one of each shape runs on numbers of that shape."""
        return sum(count * self._time(*self.calls[key]) for key, count in self.runs.items())

    def _time(self, function: Function, shapes: Any) -> float:
        args, kwargs = tree_map(lambda each: each() if isinstance(each, partial) else each, shapes)
        taken = list[float]()
        with torch.inference_mode():
            while len(taken) < TRIES and sum(taken) < MOST_SECONDS:
                start = perf_counter()
                function(*args, **kwargs)
                taken.append(perf_counter() - start)
        return min(taken)


TRIES, MOST_SECONDS = 3, 0.05  # of a run that is timed


def _numbers_like(part: Any) -> Any:
    """What makes a tensor of this shape and type, with a small number at every place."""
    if not isinstance(part, Tensor):
        return part
    return partial(_numbers, tuple(part.shape), part.stride(), part.dtype)


def _numbers(shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """The small numbers, also where places share memory."""
    last = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    return torch.full((last + 1 if 0 not in shape else 0,), 0.01, dtype=dtype).as_strided(shape, strides)


def _conversion(original: Function, listeners: Callable[[], list[None]]) -> Function:
    """``module.to`` swaps two tensors, which torch refuses if they are empty: it takes the new data here."""

    def swap(weights: Tensor, converted: Tensor) -> None:
        if listeners():
            weights.data = converted.data
        else:
            original(weights, converted)

    return swap


CONVERSION: Tap[None] = Tap("swap_tensors", _conversion)
LARGE = 2 << 30  # operations of a product as large as the one whose pace is measured


class EmptyPass(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A pass of a module on meta tensors: its most bytes beside the weights, and what it computes."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.module = module
        self.live = self.most = 0
        self.operations = self.large = 0.0  # of all, and of large products
        self.small = TimedRuns()
        self.known: Any = WeakIdKeyDictionary()
        for each in (*module.parameters(), *module.buffers()):
            self.known[each.untyped_storage()] = True

    def run(self, inputs: dict[str, Any], *, gradient: bool = False) -> EmptyPass:
        """Run it."""
        module, begun = self.module, list[Tensor]()

        def begin(_module: nn.Module, _given: Any, made: Any) -> None:
            begun.extend(
                each for each in tree_leaves(made) if isinstance(each, Tensor) and each.requires_grad
            )

        hooks = [each.register_forward_hook(begin) for each in _tables(module)]
        with torch.set_grad_enabled(gradient), self:
            made = module(**inputs, **({"use_cache": False} if accepts(module, "use_cache") else {}))
            if gradient:
                last = made[0][:, -1].float().sum()
                torch.autograd.grad(last, begun, retain_graph=True, allow_unused=True)
        for each in hooks:
            each.remove()
        return self

    def seconds(self, pace: float, operations: float) -> float:
        """The time of a pass with so many operations, by this one, whose large products have this pace.

        A long text, which may need more memory than this machine has, is timed by a shorter one.
        """
        return (self.large / pace + self.small.seconds()) * operations / (self.operations or 1.0)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a function, count it, and the storages that it creates until they are freed."""
        kwargs = kwargs or {}
        grouped = func._schema.name in GROUPED
        result = _grouped_product(*args[:3]) if grouped else func(*args, **kwargs)
        for each in tree_leaves(result):
            storage = each.untyped_storage() if isinstance(each, Tensor) else None
            if storage is not None and storage not in self.known:
                self.known[storage] = True
                self._add(storage.nbytes())
                finalize(storage, self._add, -storage.nbytes())
        operations = count_operations(func, args, kwargs, result)
        self.operations += operations
        if grouped:  # as if each expert got the same number of tokens
            rows, experts = args[0], args[1] if args[1].ndim == 3 else args[1][None]
            groups = min(len(rows), len(experts))
            self.small.add(
                torch.ops.aten.mm.default, (rows[: ceil(len(rows) / groups)], experts[0]), {}, groups
            )
        elif operations > LARGE:
            self.large += operations
        elif func.namespace == "aten" and not func.is_view and func is not torch.ops.aten.embedding.default:
            self.small.add(func, args, kwargs)  # a table has no arithmetic, and may be large
        return result

    def _add(self, size: int) -> None:
        self.live += size
        self.most = max(self.most, self.live)


GROUPED = ("aten::_grouped_mm", "transformers::grouped_mm_fallback")  # products of experts with their tokens


def _grouped_product(rows: Tensor, experts: Tensor, ends: Tensor) -> Tensor:
    """The result's shape, which torch knows without numbers for one type alone.

    A gradient is a product of two matrices, whose groups lie along their common side.
    """
    sides = (len(rows),) if experts.ndim == 3 else (len(ends), len(rows))
    return rows.new_empty(*sides, experts.shape[-1])


def count_operations(func: Any, args: Any, kwargs: Any, result: Any) -> float:
    """The floating-point operations of a product, or of attention; 0 for anything else."""
    from torch.utils.flop_counter import flop_registry, sdpa_flop_count

    if func is torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default:
        return float(sdpa_flop_count(*(each.shape for each in args[:3])))  # type: ignore[no-untyped-call]
    if func._schema.name in GROUPED:
        return float(2 * args[0].numel() * args[1].shape[-1])
    counter = flop_registry.get(func._overloadpacket)
    return 0.0 if counter is None else float(counter(*args, **kwargs, out_val=result))


@dataclass(eq=False)
class KernelRuns:
    """Counts the runs of kernels that ``--mixers`` takes."""

    alone: bool = True  # whether only convolutions have run
    held: int = 0  # bytes of the largest block of rows
    timed: TimedRuns = field(default_factory=TimedRuns)

    def run(self, name: str, function: Function, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run a kernel on shapes alone, and count it; a convolution where the model has no other kernel."""
        kernel, alone = KERNELS[name], name == CONVOLUTION
        if self.alone and not alone:  # the convolutions so far come before others
            self.timed, self.held = TimedRuns(), 0
        self.alone = self.alone and alone
        if self.alone == alone:
            values = kernel.arrange(
                inspect.signature(function).bind(*args, **kwargs).arguments[kernel.values]
            )
            tokens, heads, channels = values.shape[1:]
            columns = 1 - (-tokens // (channels if kernel.heads else 1))
            # blocks of a scan have as many sizes as the number of tokens has bits; each size costs a run
            self.timed.add(function, args, kwargs, tokens.bit_length() if kernel.step else columns)
            self.held = max(self.held, min(BLOCK_BYTES, 4 * heads * tokens**2))
        return function(*args, **kwargs)


def _tables(module: nn.Module) -> list[nn.Embedding]:
    return [part for part in module.modules() if isinstance(part, nn.Embedding)]


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
