"""The scores of every head during training: on the training batches, or on probe texts."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from attnscope.attention import Token
from attnscope.capture import recording
from attnscope.capture.hooks.functions import original
from attnscope.capture.placing.split_heads import require_whole_heads
from attnscope.errors import AttnscopeError, InputError, ModelError
from attnscope.lazy import torch
from attnscope.measures import MEASURES, HeadScores, Measurement
from attnscope.models.text.reader import wrap_module
from attnscope.models.trace_recording import has_dropout
from attnscope.notebook.drawing import Display, Drawing
from attnscope.notebook.reader import eval_mode
from attnscope.questions.conditions import Condition, parse_conditions
from attnscope.questions.corpus import CorpusRun
from attnscope.questions.corpus_stats import corpus_stats
from attnscope.questions.processes import joined_processes
from attnscope.questions.track import Track, courses_of, scores_of, track_answer
from attnscope.storage.corpus import Corpus, ListedTexts, read_corpus

if TYPE_CHECKING:
    from torch import Tensor, nn

DEFAULT = ("entropy", "confidence", "first", "previous", "self")

FRAMEWORKS = {"transformers": "TrainerCallback"}  # the callback class of each
FRAMEWORKS |= dict.fromkeys(("lightning.pytorch", "pytorch_lightning"), "Callback")

OnAlarm: TypeAlias = "Literal['warn', 'stop'] | Callable[[str], object]"


class AlarmError(AttnscopeError):
    """A head met the condition for stopping a run."""


@dataclass(eq=False)
class TrainingLog(Display):
    """The measurements of each watched step; a notebook shows curves of the heads that changed most.

    ``step`` counts the passes in training mode from 0, and may be set. Of several processes the first one
    has the scores, and each has ``stopped``, the alarm that ends the run.
    """

    every: int = 100
    measures: Sequence[str] = DEFAULT
    texts: str | Path | Sequence[str] | None = None
    tokenizer: Any = None
    path: str | Path | None = None
    report: Callable[[Mapping[str, float]], object] | None = None
    alarm: str | None = None
    on_alarm: OnAlarm = "warn"
    step: int = -1
    scores: dict[int, list[dict[str, Any]]] = field(default_factory=dict, init=False)
    notes: list[str] = field(default_factory=list, init=False)
    alarms: list[str] = field(default_factory=list, init=False)
    stopped: str = field(default="", init=False)
    _last: int | None = field(default=None, init=False)  # the last watched step
    _conditions: list[tuple[Condition, ...]] = field(init=False)
    _probe: Corpus | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        """Refuse invalid settings before anything runs."""
        if self.every < 1:
            raise AttnscopeError(f"every is {self.every}, but must be 1 or more")
        self._conditions = [parse_conditions(part) for part in self.alarm.split(" or ")] if self.alarm else []
        named = [condition.name for each in self._conditions for condition in each]
        self.measures = tuple(dict.fromkeys([*self.measures, *named]))
        for name in self.measures:
            MEASURES[name]
        if self.texts is not None:
            texts = self.texts
            self._probe = read_corpus(texts) if isinstance(texts, (str, Path)) else ListedTexts(texts)

    @property
    def track(self) -> Track:
        """Every measure of every head over the steps. Raises ``AttnscopeError`` before the first one."""
        if not self.scores:
            raise AttnscopeError("no step has been measured yet")
        return courses_of(self.scores, self.measures, tuple(self.notes), "steps of training")

    def _drawing(self) -> Drawing:
        return Drawing(track_answer(self.track))

    def frame(self) -> Any:
        """The scores as a ``pandas.DataFrame``, a row for each measure, head and step."""
        return self._drawing().frame()

    def save(self, path: str | Path, **options: Any) -> None:
        """Write the curves of every measure: .png, .svg, .pdf or .jpg."""
        self._drawing().save(path, **options)

    def _repr_png_(self) -> bytes | None:
        return self._drawing()._repr_png_() if self.scores else None

    def __repr__(self) -> str:
        return f"<{len(self.scores):,} steps measured, {len(self.alarms):,} alarms>"

    @property
    def is_due(self) -> bool:
        """Whether the step should be watched, and was not yet."""
        return self.step % self.every == 0 and self.step != self._last

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Warn of a file that cannot be written: no training ends for it."""
        try:
            yield
        except OSError as error:
            warnings.warn(f"cannot write {self.path} ({error.strerror}): steps are missing", stacklevel=3)

    @contextmanager
    def measuring(self, model: nn.Module, batch: object) -> Iterator[None]:
        """Measure the step: the probe texts before the block, or the model's attention inside it."""
        self._last = self.step
        require_whole_heads(model, "watch a run with DDP or FSDP")
        if self._probe is not None:
            heads, notes = _probe(model, self._probe, self.tokenizer, tuple(self.measures))
            self._conclude(heads, notes)
            yield
            return
        measured = Measurement(tuple(self.measures))
        ids = _ids(batch)
        if ids is not None:  # tokens by number alone
            texts = [tuple(Token(str(number), number) for number in text) for text in ids.tolist()]
            measured.label(dict.fromkeys(("encoder", "decoder"), (texts, texts)))
        with recording(model, [measured], warn=False) as record:
            yield
        for note in record.warnings:
            if note not in self.notes:
                warnings.warn(note, stacklevel=2)
        notes = list(record.notes)
        if record.dropout or has_dropout(model):
            notes.append("dropout was on: the weights are those before dropout")
        self._conclude(measured, notes)

    def _conclude(self, measured: Measurement | Sequence[HeadScores], notes: Sequence[str]) -> None:
        """Combine the measurements of all processes; the first one stores them, and says whether all stop."""
        processes = joined_processes()
        if isinstance(measured, Measurement):
            _, *others = processes.gather(measured.state()) or [None]
            for state in others:
                measured.merge(Measurement.from_state(state))
            measured = measured.scores()
        if processes.number == 0:
            self._add(measured, notes)
        if self.on_alarm == "stop":
            self.stopped = processes.broadcast(self.stopped)

    def _add(self, heads: Sequence[HeadScores], notes: Sequence[str]) -> None:
        """Store, write and report the scores of the step, and raise alarms."""
        self.scores[self.step] = [scores_of(head, self.measures) for head in heads]
        self.notes += [note for note in notes if note not in self.notes]
        alarms = [f"step {self.step:,}: {each}" for each in self._find_alarms(heads)]
        self.alarms += alarms
        if self.path is not None:
            line = {"step": self.step, "scores": self.scores[self.step], "alarms": alarms}
            with self.writing(), Path(self.path).open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        if self.report is not None:
            several = len({head.site.kind for head in heads}) > 1
            named = {f"{head.site.kind}." * several + head.name: head.scores for head in heads}
            self.report(
                {f"{head}/{name}": each.value for head in named for name, each in named[head].items()}
            )
        for alarm in alarms:
            if callable(self.on_alarm):
                self.on_alarm(alarm)
            elif self.on_alarm == "stop":
                self.stopped = self.stopped or alarm
            else:
                warnings.warn(alarm, stacklevel=2)

    def _find_alarms(self, heads: Sequence[HeadScores]) -> Iterator[str]:
        """What is wrong with heads: NaN scores, and the conditions that each meets."""
        for head in heads:
            lost = [name for name, each in head.scores.items() if not isfinite(each.value)]
            if lost:
                yield f"{head.name}: {', '.join(lost)} not finite, in {head.site.name}"
            for each in self._conditions:
                if all(condition.meets(head) for condition in each):
                    values = (f"{named.name} {head.scores[named.name].value:.4g}" for named in each)
                    yield f"{head.name} has {' and '.join(values)}"


@contextmanager
def watch(
    model: nn.Module,
    *,
    every: int = 100,
    measures: Sequence[str] = DEFAULT,
    texts: str | Path | Sequence[str] | None = None,
    tokenizer: Any = None,
    path: str | Path | None = None,
    report: Callable[[Mapping[str, float]], object] | None = None,
    alarm: str | None = None,
    on_alarm: OnAlarm = "warn",
) -> Iterator[TrainingLog]:
    """Measure every head in one of ``every`` passes that a model makes in training mode inside the block.

    The batch that runs is measured, nothing is run twice; or else ``texts``, a list or a file, which the
    model reads with its ``tokenizer`` as it predicts. Outputs, gradients and random numbers do not
    change; a compiled model runs uncompiled while it is watched. ``path`` gets one line of JSON per step,
    ``report`` the scores by name, for any logger. ``alarm`` ("entropy < 0.05 or confidence > 0.99")
    warns of each head that meets it, and of NaN scores; ``on_alarm`` may be "stop", which ends the run
    with ``AlarmError``, or a function of the sentence. Rows that the mask calls padding do not count, and a
    batch is averaged. The batches of several processes (torch.distributed) are added up, and the first one
    has the log.

    >>> with attnscope.watch(model, every=100, path="heads.jsonl") as log:
    ...     train(model)
    """
    log = TrainingLog(every, measures, texts, tokenizer, path, report, alarm, on_alarm)
    with _watching_calls(log, model, counting=True):
        yield log


_watching: dict[int, tuple[Any, list[tuple[TrainingLog, bool]]]] = {}
"""By the id of a model: how it was called before it was watched; the logs, and whether each counts."""


@contextmanager
def _watching_calls(log: TrainingLog, model: nn.Module, counting: bool) -> Iterator[None]:
    """Show a log each pass of a model in training mode, counted as a step, while the block runs.

    All blocks of a model share one wrapper, which the last to end takes away: they may end in any order.
    """
    if not hasattr(model, "_compiled_call_impl"):
        raise ModelError("watch does not support this release of torch: use record")
    before, logs = _watching.setdefault(id(model), (model._compiled_call_impl, []))

    def put(how: Callable[..., Any] | None) -> None:
        if how is None:
            vars(model).pop("_compiled_call_impl", None)
        else:
            object.__setattr__(model, "_compiled_call_impl", how)

    call: Callable[..., Any] = model._call_impl if before is None else before

    def measured(due: Sequence[TrainingLog], *args: Any, **kwargs: Any) -> Any:
        put(before)
        try:
            with ExitStack() as stack:
                for each in due:
                    stack.enter_context(each.measuring(model, kwargs if "input_ids" in kwargs else args))
                output = model(*args, **kwargs)
        finally:
            put(watched)
        for stopped in [each.stopped for each, counts in logs if counts and each.stopped]:
            raise AlarmError(stopped)
        return output

    def watched(*args: Any, **kwargs: Any) -> Any:
        if model.training:
            for each, counts in logs:
                each.step += counts
            due = [each for each, _ in logs if each.is_due]
            if due:  # probe texts run first, where no other log sees them
                return measured(sorted(due, key=lambda each: each.texts is None), *args, **kwargs)
        return call(*args, **kwargs)

    if "torch._dynamo" in sys.modules:  # this may be called inside of what was compiled, and is no part of it
        measured = torch.compiler.disable(measured)  # type: ignore[no-untyped-call]
        watched = torch.compiler.disable(watched, recursive=False)  # type: ignore[no-untyped-call]
    logs.append((log, counting))
    if len(logs) == 1:
        put(watched)
    try:
        yield
    finally:
        logs.remove((log, counting))
        if not logs:
            del _watching[id(model)]
            put(before)


def _probe(
    model: nn.Module, texts: Corpus, tokenizer: Any, measures: tuple[str, ...]
) -> tuple[Sequence[HeadScores], Sequence[str]]:
    """The scores of probe texts in eval mode, which every process reads (FSDP); all is restored after it."""
    from torch.nn.parallel import DistributedDataParallel

    if tokenizer is None:
        raise InputError("texts need a tokenizer: pass tokenizer=")
    model = original(model.module if isinstance(model, DistributedDataParallel) else model)
    if not hasattr(tokenizer, "encode_batch"):  # one of transformers reads for a model of transformers
        inside = (part for part in model.modules() if hasattr(part, "config"))
        model = next(inside, model)
    devices = {each.device for each in model.parameters() if each.is_cuda}
    with (
        eval_mode(model),
        torch.random.fork_rng(devices),
        torch.autocast(next(model.parameters()).device.type, enabled=False),
    ):
        wrapped = wrap_module(model, tokenizer, None, None)
        wrapped.trains = True
        stats = corpus_stats(wrapped, texts, names=measures, run=CorpusRun(truncate=True))
    return stats.heads, stats.notes


def _ids(batch: Any) -> Tensor | None:
    """The token ids of a batch, [text, token], if it names them or begins with them."""
    if isinstance(batch, Mapping):
        batch = batch.get("input_ids")
    elif isinstance(batch, (tuple, list)) and batch:
        batch = batch[0]
    is_ids = isinstance(batch, torch.Tensor) and batch.ndim == 2 and batch.dtype in (torch.int32, torch.int64)
    return batch if is_ids else None


def callback(*, every: int = 500, **options: Any) -> Any:
    """A callback for the Trainer of transformers or of Lightning, which watches one of ``every`` steps.

    Its ``history`` has what was measured. The options are those of ``watch``: ``path`` is heads.jsonl in the
    folder of the run if not given, and the tokenizer that of the Trainer. Of several batches of a step the
    first is measured. The loggers of Lightning get every score; of transformers, ``report=trainer.log``.

    >>> trainer.add_callback(attnscope.callback(every=100, texts="probe.txt", report=trainer.log))
    """
    bases = [getattr(sys.modules[name], kind) for name, kind in FRAMEWORKS.items() if name in sys.modules]
    if not bases:
        raise AttnscopeError(
            "import transformers or lightning first: callback() serves whichever is imported"
        )
    return type("HeadCallback", (_TrainerHooks, *bases), {})(TrainingLog(every=every, **options))


class _TrainerHooks:
    """The hooks of both frameworks' trainers; a step that is not watched touches nothing."""

    def __init__(self, log: TrainingLog) -> None:
        super().__init__()
        self.history = log
        self._block = ExitStack()  # what is open while a step is watched

    def _begin(self, folder: str | Path, step: int, tokenizer: Any) -> None:
        """Set what the user left open; a new run starts a new file."""
        self.history.tokenizer = self.history.tokenizer or tokenizer
        if self.history.path is None and joined_processes().number == 0:
            self.history.path = path = Path(folder) / "heads.jsonl"
            with self.history.writing():
                path.parent.mkdir(parents=True, exist_ok=True)
                if step == 0:
                    path.unlink(missing_ok=True)

    def on_train_end(self, *given: Any, **more: Any) -> None:  # in either framework
        self._block.close()

    # transformers: the first pass of a step is watched, and the model is restored when the step ends

    def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        if args.n_gpu > 1:
            raise ModelError("DataParallel cannot be watched: start the training with torchrun")
        self._begin(args.output_dir, state.global_step, more["processing_class"])

    def on_step_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        self.history.step = state.global_step
        if self.history.is_due:
            self._block.enter_context(_watching_calls(self.history, more["model"], counting=False))

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        self._block.close()
        control.should_training_stop |= bool(self.history.stopped)

    # Lightning: the first batch of a step is watched, up to its backward pass

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        folder = trainer.log_dir or trainer.default_root_dir
        self._begin(folder, trainer.global_step, getattr(pl_module, "tokenizer", None))

        def report(scores: Mapping[str, float]) -> None:
            for logger in trainer.loggers:
                logger.log_metrics(dict(scores), step=trainer.global_step)

        self.history.report = self.history.report or report

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self.history.step = trainer.global_step
        if self.history.is_due:
            self._block.enter_context(self.history.measuring(pl_module, batch))

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Any) -> None:
        self._block.close()

    def on_train_batch_end(self, trainer: Any, *given: Any) -> None:
        self._block.close()
        trainer.should_stop |= bool(self.history.stopped)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._block.__exit__(type(exception), exception, exception.__traceback__)  # without measuring
