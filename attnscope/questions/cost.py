"""What each command would cost in memory and time, from the model's config alone: no weights are loaded.

The model is built on meta tensors and runs a text of the given length; torch's own trackers count the
memory in use and the operations.
"""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from typing import Annotated, Any
from weakref import finalize

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from attnscope.errors import ModelError, readable
from attnscope.models.foreign import Source, explained
from attnscope.models.huggingface.load import pick_class
from attnscope.models.model import accepts
from attnscope.questions.answer import Answer
from attnscope.records import Meaning, Notes, record
from attnscope.views.table import Column, Table

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


@record("what a look at a model costs (--cost), estimated from its config", "info")
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


def estimate_cost(source: Source, tokens: int) -> LookCost:
    """The cost of commands on a text of this length. Raises ``ModelError`` without token input."""
    config = source.load_config()
    positions = getattr(config.get_text_config(), "max_position_embeddings", None)
    bare, dtype = pick_class(config, False, False), config.dtype or torch.float32
    made = bare._model_mapping[type(config)]
    made = made[0] if isinstance(made, tuple) else made  # of several, the library's default
    names = [name for name in ("input_ids", "decoder_input_ids") if accepts(made, name)]
    if "input_ids" not in names:
        raise ModelError(f"{source.name} reads no tokens: --cost is of models of text")
    with source.shielded(), explained(f"building {source.name}"):
        from torch._subclasses.fake_tensor import FakeTensorMode

        with FakeTensorMode():
            inputs = {name: torch.zeros(1, tokens, dtype=torch.long) for name in names}
            predicting = pick_class(config, False, True).from_config(config, dtype=dtype).eval()
            module = predicting.base_model
            if type(module) is not made:  # in some, the head cannot be left out
                module = bare.from_config(config, dtype=dtype).eval()
            plain, work = run_empty(module, inputs, gradient=False)
            saved, _ = run_empty(predicting, inputs, gradient=True)
    base = taken_memory()  # with the library's code of this model
    weights, headed = (
        sum(each.numel() * each.element_size() for each in part.parameters()) for part in (module, predicting)
    )
    unread = sum(each.numel() * each.element_size() for each in {part.weight for part in _tables(module)})
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
    count = sum(each.numel() for each in module.parameters())
    title = f"{source.name} · {count:,} weights, {str(dtype).removeprefix('torch.')} · {tokens:,} tokens"
    notes = [
        "estimated from the config: no weight was read",
        f"time: {pace / 1e9:,.0f} GFLOP/s measured here",
    ]
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
    left, right = torch.ones(2, size, size, dtype=dtype)
    left @ right
    start, done = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        left @ right
        done += 1
    return 2 * size**3 * done / (time.perf_counter() - start)


def taken_memory() -> int:
    """Bytes that this process uses, including torch and transformers; 0 if the system does not say."""
    with suppress(ImportError):
        import resource

        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most << 10
    return 0


def of_cost(cost: LookCost) -> Answer:
    """What each command takes, as a table."""
    rows = [
        (each.command, f"{each.passes:,.0f}", readable(each.memory), _duration(each.seconds))
        for each in cost.commands
    ]
    names = ("command", "passes", "memory", "time")
    columns = tuple(Column(name, name != "command", "keep") for name in names)
    sizes = f"weights {readable(cost.weights)}, a pass {readable(cost.activations)} beside them"
    table = Table(columns, tuple(rows), title=cost.title, subtitle=sizes, notes=cost.notes)
    return Answer((table,), {}, lambda: cost)


def _duration(seconds: float) -> str:
    units = ((1, "s"), (60, "min"), (3600, "h"))
    size, unit = next((each for each in units if seconds < 90 * each[0]), units[-1])
    return f"{seconds / size:.2g} {unit}" if seconds < 10 * size else f"{seconds / size:,.0f} {unit}"
