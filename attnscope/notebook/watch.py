"""The figures of every head while a model is trained, from the batches that run anyway."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscope.errors import AttnscopeError, ModelError
from attnscope.notebook.shown import Display, Drawing
from attnscope.questions.stats import Condition, parse_conditions

if TYPE_CHECKING:
    from torch import Tensor, nn

    from attnscope.measures import HeadFigures
    from attnscope.questions.track import Track

MEASURED = ("entropy", "confidence", "first", "previous", "self")


class Alarmed(AttnscopeError):
    """A head met the condition on which a run is to stop."""


@dataclass(eq=False)
class TrainingLog(Display):
    """What was measured at each step that was watched; in a notebook, curves of the heads that changed most.

    ``step`` counts the passes of the model in training mode, from 0; whoever counts otherwise may set it.
    """

    measures: tuple[str, ...]
    path: Path | None = None
    report: Callable[[Mapping[str, float]], object] | None = None
    alarm: tuple[tuple[Condition, ...], ...] = ()
    stop: bool = False
    step: int = -1
    figures: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    alarms: list[str] = field(default_factory=list)

    @property
    def track(self) -> Track:
        """Every measure of every head over the steps. Raises ``AttnscopeError`` before the first one."""
        from attnscope.questions.track import courses_of

        if not self.figures:
            raise AttnscopeError("no step was watched yet")
        return courses_of(self.figures, self.measures, tuple(self.notes), "steps of training")

    def _drawing(self) -> Drawing:
        from attnscope.questions.track import of_track

        return Drawing(of_track(self.track))

    def frame(self) -> Any:
        """The figures as a ``pandas.DataFrame``, a row for each measure, head and step."""
        return self._drawing().frame()

    def save(self, path: str | Path, **options: Any) -> None:
        """Write the curves, a file a measure."""
        self._drawing().save(path, **options)

    def _repr_html_(self) -> str | None:
        return self._drawing()._repr_html_() if self.figures else None

    def __repr__(self) -> str:
        return f"<{len(self.figures):,} steps watched, {len(self.alarms):,} alarms>"

    def add(self, heads: Sequence[HeadFigures], notes: Sequence[str]) -> None:
        """Keep the figures of a step, write and report them. Raises ``Alarmed`` where a run is to stop."""
        from attnscope.questions.track import figures_of

        self.figures[self.step] = [figures_of(head, self.measures) for head in heads]
        self.notes += [note for note in notes if note not in self.notes]
        if self.path is not None:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"step": self.step, "figures": self.figures[self.step]}) + "\n")
        if self.report is not None:
            named = {
                f"{head.name}/{name}": each.value for head in heads for name, each in head.figures.items()
            }
            self.report(named)
        for head in heads:
            for conditions in self.alarm:
                if all(condition.meets(head) for condition in conditions):
                    said = " and ".join(
                        f"{each.name} {head.figures[each.name].value:.4g}" for each in conditions
                    )
                    self.alarms.append(f"step {self.step:,}: {head.name} has {said}")
                    if self.stop:
                        raise Alarmed(self.alarms[-1])
                    warnings.warn(self.alarms[-1], stacklevel=2)


@contextmanager
def watch(
    model: nn.Module,
    *,
    every: int = 100,
    measures: Sequence[str] = MEASURED,
    path: str | Path | None = None,
    report: Callable[[Mapping[str, float]], object] | None = None,
    alarm: str | None = None,
    stop: bool = False,
) -> Iterator[TrainingLog]:
    """Measure every head in one of ``every`` passes that a model makes in training mode inside the block.

    The batch that runs is measured, nothing is run twice; outputs, gradients and random numbers are what they
    are without it. ``path`` gets a line of JSON a step, ``report`` the figures by name, for any logger.
    ``alarm`` ("entropy < 0.05 or confidence > 0.99") warns of each head that meets it, or ends the run with
    ``Alarmed`` if ``stop``. Rows of padding count, and a batch is averaged.

    >>> with attnscope.watch(model, every=100, path="heads.jsonl") as log:
    ...     train(model)
    """
    if every < 1:
        raise AttnscopeError(f"every is {every}: watch one of 1 pass or more")
    from attnscope.measures import MEASURES

    conditions = tuple(parse_conditions(part) for part in alarm.split(" or ")) if alarm else ()
    named = [condition.name for each in conditions for condition in each]
    names = tuple(dict.fromkeys([*measures, *named]))
    for name in names:
        MEASURES[name]  # a name that is none is refused before anything runs
    log = TrainingLog(names, None if path is None else Path(path), report, conditions, stop)
    if not hasattr(model, "_compiled_call_impl"):
        raise ModelError("this release of torch calls modules in a way that cannot be watched: use record")
    before = model._compiled_call_impl

    def put(how: Callable[..., Any] | None) -> None:
        if how is None:
            vars(model).pop("_compiled_call_impl", None)
        else:
            object.__setattr__(model, "_compiled_call_impl", how)

    call: Callable[..., Any] = model._call_impl if before is None else before

    def watched(*args: Any, **kwargs: Any) -> Any:
        if not model.training:
            return call(*args, **kwargs)
        log.step += 1
        if log.step % every or log.step in log.figures:
            return call(*args, **kwargs)
        put(before)
        try:
            return _measured(model, log, args, kwargs)
        finally:
            put(watched)

    put(watched)
    try:
        yield log
    finally:
        put(before)


def _measured(model: nn.Module, log: TrainingLog, args: Any, kwargs: Mapping[str, Any]) -> Any:
    """One pass, measured."""
    from attnscope.capture import recording
    from attnscope.measures import Measurement

    measured = Measurement(log.measures)
    ids = kwargs.get("input_ids", args[0] if args else None)
    if _are_ids(ids):
        texts = _tokens(ids)
        measured.label(dict.fromkeys(("encoder", "decoder"), (texts, texts)))
    with recording(model, [measured], warn=False) as record:
        output = model(*args, **kwargs)
    notes = list(record.notes)
    if any(getattr(part, "p", 0) for part in model.modules() if "Dropout" in type(part).__name__):
        notes.append("dropout was on: the weights are those before it")
    log.add(measured.figures(), notes)
    return output


def _are_ids(given: Any) -> bool:
    import torch

    return isinstance(given, torch.Tensor) and given.ndim == 2 and given.dtype in (torch.int32, torch.int64)


def _tokens(ids: Tensor) -> list[tuple[Any, ...]]:
    """The tokens of each text of a batch, by their numbers alone."""
    from attnscope.attention import Token

    return [tuple(Token(str(number), number) for number in text) for text in ids.tolist()]


def callback(
    *,
    every: int = 500,
    measures: Sequence[str] = MEASURED,
    path: str | Path | None = None,
    report: Callable[[Mapping[str, float]], object] | None = None,
    alarm: str | None = None,
    stop: bool = False,
) -> Any:
    """A callback for the Trainer of transformers, which watches one of ``every`` steps as ``watch`` does.

    Its ``log`` has what was measured. Of a step that is made of several batches the first is measured; of
    several processes, the first one. With ``stop``, an alarm ends the training after the step. Under
    ``torch_compile`` it warns, and watches nothing.

    >>> trainer = Trainer(model, callbacks=[attnscope.callback(every=100, path="heads.jsonl")])
    """
    from transformers import TrainerCallback

    class HeadCallback(TrainerCallback):  # type: ignore[misc]
        """Watches the steps of a Trainer."""

        log: TrainingLog | None = None
        _block: Any = None

        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if args.torch_compile:
                warnings.warn("a compiled Trainer is not watched: use attnscope.watch", stacklevel=2)
            elif state.is_world_process_zero:
                options = {"measures": measures, "path": path, "report": report, "alarm": alarm}
                self._block = watch(kwargs["model"], every=every, **options)  # type: ignore[arg-type]
                self.log = self._block.__enter__()

        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if self.log is not None:
                self.log.step = state.global_step - 1

        def on_substep_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.on_step_begin(args, state, control)

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            control.should_training_stop |= stop and self.log is not None and bool(self.log.alarms)

        def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if self._block is not None:
                self._block.__exit__(None, None, None)

    return HeadCallback()
