"""Where a command's text or corpus comes from, and its pass: from the model, or from the cache."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import asdict, dataclass, fields, replace
from datetime import date, datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, TypeAlias

from attnscope.cli.command import (
    is_given,
    option_of,
    refuse,
    refuse_combined,
    refuse_without,
    without_typed_options,
    write,
)
from attnscope.cli.messages import notify, spinner
from attnscope.cli.options import (
    BatchSource,
    MixedModelOptions,
    ModelOptions,
    PromptsOptions,
    SourceOptions,
    TextAmong,
    check_place,
)
from attnscope.errors import InputError, readable
from attnscope.scores import Weighting
from attnscope.storage.cache import cache_folder, find_pass, hash_key, store_pass
from attnscope.text import decode_file, read_number

if TYPE_CHECKING:
    from attnscope.models import Model, ModelInput
    from attnscope.models.request import InputRequest
    from attnscope.questions.prompts import Prompt
    from attnscope.questions.rules import Question

MOST_TEXT_BYTES = 1 << 26  # bytes of a file that are read to find the text, or one line of it
HEAD = re.compile(r"L\d+H\d+", re.ASCII | re.IGNORECASE)


def read_text(options: SourceOptions) -> tuple[str, str | None]:
    """The text, and the second one if there is one.

    ``-`` as the text reads standard input. ``line`` picks one line of the input, counted from 1; a tab in
    it separates a pair. Raises ``InputError`` if the input cannot be read or is empty.
    """
    file, line, second = options.file, options.line, options.second_text
    refuse(options.text is not None and file is not None, "--file", "cannot be combined with a text")
    if file is not None:
        whole = read_file(file)
    elif options.text == "-":
        if sys.stdin is None:
            raise InputError("standard input is closed: give a text, or --file FILE")
        whole = _decode(sys.stdin.buffer, "standard input")
    else:
        refuse(options.text is None, "TEXT", "give a text, --file FILE, or - for standard input")
        whole = _as_typed(options.text or "")
        if len(whole.split()) == 1 and os.path.isfile(whole):
            meant = f"did you mean --file {whole}? to read its name as a text, use -"
            raise InputError(f"{whole} is a file: {meant}")
    if line is not None:
        lines = whole.removesuffix("\n").split("\n")
        if not 1 <= line <= len(lines):
            raise InputError(f"no line {line:,}: the input has lines 1 to {len(lines):,}")
        whole = lines[line - 1]
        if second is None and "\t" in whole:
            whole, _, second = whole.partition("\t")
    if not whole.strip():
        raise InputError(f"the text is empty{f': {file}' if file else ''}: give at least one word")
    if second is not None and not second.strip():
        raise InputError("the second text is empty: give at least one word, or leave it out")
    return whole.strip("\n"), None if second is None else _as_typed(second)


def read_file(file: Path) -> str:
    """The contents of a file. Raises ``InputError`` if it cannot be read."""
    try:
        with file.open("rb") as stream:
            return _decode(stream, str(file))
    except FileNotFoundError:
        raise InputError(f"no such file: {file}") from None
    except IsADirectoryError:
        raise InputError(f"{file} is a folder: give a text file") from None
    except OSError as error:
        raise InputError(f"cannot read {file}: {error.strerror}") from None


def _decode(file: IO[bytes], name: str) -> str:
    """Everything in a file, a pipe or a device. Raises ``InputError`` for an endless one."""
    content = file.read(MOST_TEXT_BYTES + 1)
    if len(content) > MOST_TEXT_BYTES:
        raise InputError(
            f"{name} holds more than {readable(MOST_TEXT_BYTES)}, and no more is read: cut it into parts"
        )
    try:
        return decode_file(content)
    except UnicodeDecodeError as error:
        wrong = f"byte {error.start:,} is 0x{content[error.start]:02x}"
        raise InputError(f"{name} is not UTF-8 text: {wrong}; save it as UTF-8") from None


def _as_typed(text: str) -> str:
    """A text from the command line; its non-UTF-8 bytes arrive as lone surrogates."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(f"the text is not UTF-8: character {error.start:,} cannot be read") from None
    return text


PassKind: TypeAlias = Literal["kernel", "fused", "other"]
"""How a long text is measured: beside the kernels, by the fused pass, or in a way that is not cached.
A short text has the same pass in all cases."""


@dataclass(frozen=True)
class PassSource:
    """Where the pass of a command comes from: a model that reads the request, the cache, or a file."""

    request: InputRequest
    model: ModelOptions
    saved: Path | None = None  # the file in place of the model, and which of its requests, from 1
    line: int | None = None
    save_trace: Path | None = None
    no_cache: bool = False
    part: int | None = None  # of the batch; all if not given
    steps: str | None = None  # of a loop: a number, or mean; every step is shown if not given

    @classmethod
    def from_options(
        cls, options: SourceOptions, model: ModelOptions, text: str | None = None, second: str | None = None
    ) -> PassSource:
        """The source that options name, with the texts that were read."""
        from attnscope.models.request import InputRequest

        fixed = {"text", "second", "pictures", "video"}
        same = [each.name for each in fields(InputRequest) if each.name not in fixed]
        request = InputRequest(
            text=text or None,
            second=second,
            pictures=options.pictures,
            video=options.video is not None,
            **{name: getattr(options, name) for name in same},
        )
        chosen: dict[str, Any] = {name: getattr(options, name, None) for name in ("part", "steps")}
        where = options.saved, options.line, options.save_trace, options.no_cache
        return cls(request, model, *where, **chosen)

    @property
    def text(self) -> str:
        """The text; empty if something else is read."""
        return self.request.text or ""

    def open(
        self,
        *,
        predicting: bool = False,
        cached: bool = True,
        kind: PassKind = "kernel",
        load: Callable[[], Model] | None = None,
    ) -> tuple[Model, ModelInput]:
        """The model, or its cached pass in place of it, and the prepared input. Raises ``AttnscopeError``.

        ``cached``: with the pass of a small input, for commands that only read heads and their scores;
        ``kind`` says how a long text is measured. ``load`` replaces ``self.load``.
        """
        if self.part is not None or self.steps is not None:
            from attnscope.models.trace_recording import trace_part, trace_step

            source = replace(self, part=None) if self.steps is None else replace(self, steps=None)
            whole, prepared = source.open(predicting=predicting, cached=cached, load=load)
            with model_progress(whole, prepared):
                if self.steps is not None:
                    traced = trace_step(whole, prepared, read_number(self.steps))
                else:
                    traced = trace_part(whole, prepared, self.part or 0)
            return traced, replace(traced.prepared, request=self.request)
        if predicting or not cached:
            model = self.load(predicting=predicting)
            return model, self.prepare(model)
        if kind == "fused" and self.request.generate is not None:  # it ran with the kernels
            kind = "kernel"
        key = self.key
        stored = None if key is None or self.no_cache else self._find_cached(key, kind)
        return stored or self._run_model((load or self.load)(), key, kind)

    def _find_cached(self, key: str, kind: PassKind) -> tuple[Model, ModelInput] | None:
        """The cached pass of this kind, or of any kind if the text is short."""
        from attnscope.models.trace_model import TracedModel, has_short_text

        for stored in dict.fromkeys((kind, "kernel")):
            if (trace := find_pass(_key_of_kind(key, stored))) is None:
                continue
            since = _caching_time(trace.description.kept)
            model = TracedModel(trace, since=since, weighting=self.model.metadata.get("weigh", "raw"))
            if stored == kind or has_short_text(model.prepared):
                return model, replace(model.prepared, request=self.request)
        return None

    def _run_model(self, model: Model, key: str | None, kind: PassKind) -> tuple[Model, ModelInput]:
        """The model and its input, with the recorded pass if that is small; the cache stores it."""
        from attnscope.models.trace_model import TracedModel, attach_trace, has_short_text

        prepared = self.prepare(model)
        short, rerun = (
            has_short_text(prepared),
            self.saved is not None or model.weighting == "gradient" or model.mixers,
        )
        if rerun or (not short and (key is None or kind == "other" or model.weighting != "raw")):
            return model, prepared
        from attnscope.models.trace_recording import record_pass

        with model_progress(model, prepared):
            trace = record_pass(model, prepared, fused=kind == "fused")
            if trace is None:
                return model, prepared
            if key is not None and self.key == key:  # no file has changed meanwhile
                store_pass(_key_of_kind(key, "kernel" if short else kind), trace)
            recorded = attach_trace(prepared, trace)
            runs = model.weighting == "raw"  # a weighted pass is not run again
            return (model if runs else TracedModel(trace, weighting=model.weighting)), recorded

    @contextmanager
    def open_with_progress(self, **how: Any) -> Iterator[tuple[Model, ModelInput]]:
        """What ``open`` gives, with a progress message while the model runs inside the block."""
        model, prepared = self.open(**how)
        with model_progress(model, prepared):
            yield model, prepared

    @property
    def key(self) -> str | None:
        """A hash of everything that the pass depends on; ``None`` if it cannot be cached."""
        request, model = self.request, self.model
        folder = request.video and request.pictures[0].is_dir()
        from_file, gradient = self.saved or self.save_trace, model.metadata.get("weigh") == "gradient"
        if from_file or folder or gradient or model.trust_remote_code or cache_folder() is None:
            return None
        from attnscope.models.identity import identify_model, identify_programs
        from attnscope.storage.files import hash_file

        files = identify_model(model.name, model.revision)
        if files is None:
            return None
        try:
            read = [hash_file(path) for path in request.files]
        except OSError:
            return None
        # commands with fewer options read the passes of those with more
        options = {name: value for name, value in asdict(model).items() if value and name != "offline"}
        key: dict[str, Any] = {
            "request": asdict(request),
            "model": [model.name, options],
            "files": files,
            "programs": identify_programs(),
            "devices": os.environ.get("CUDA_VISIBLE_DEVICES"),
            "day": date.today() if request.chat else None,  # a chat format may contain today's date
            "read": read,
        }
        return hash_key(key)

    def load(self, *, predicting: bool = False) -> Model:
        """Load the model, or open a file in place of one; ``predicting`` adds its output head."""
        if self.saved is not None:
            from attnscope.models.served import open_file

            name = self.model.model if self.model != without_typed_options(type(self.model)) else None
            return open_file(self.saved, self.request.labels, name, self.line)
        return load_model(self.model, generative=self.request.generate is not None, predicting=predicting)

    def with_text(self, text: str) -> PassSource:
        """The same source of another text."""
        return replace(self, request=replace(self.request, text=text or None))

    def reader(self, model: Model) -> Callable[[str], ModelInput]:
        """Prepares other texts like this one."""
        return lambda text: self.with_text(text).prepare(model)

    def prepare(self, model: Model) -> ModelInput:
        """The prepared input, with generated tokens; ``--save-trace`` writes its pass into a file."""
        from attnscope.models.trace_model import TracedModel, attach_trace

        if isinstance(model, TracedModel):
            return model.prepared
        prepared = self.request.prepare(model, spinner)
        if self.save_trace is None:
            return prepared
        from attnscope.models.trace_recording import record_trace
        from attnscope.storage.trace import write_trace

        with model_progress(model, prepared):
            trace = record_trace(model, prepared)
        write_trace(trace, self.save_trace)
        notify(f"saved {self.save_trace}")
        return attach_trace(prepared, trace)


def _key_of_kind(key: str, kind: str) -> str:
    return hash_key({"key": key, "kind": kind})


def _caching_time(recorded: str) -> str | None:
    """When a pass was cached, with the date if that is not today."""
    try:
        then = datetime.fromisoformat(recorded).astimezone()
    except (ValueError, OverflowError, OSError):
        return None
    return f"cached {then:%H:%M}" if then.date() == date.today() else f"cached {then.day} {then:%b %H:%M}"


def read_source(source: SourceOptions, model: ModelOptions) -> PassSource:
    """The input that options name. Conflicts are wrong usage, an unreadable text raises ``InputError``."""
    text = source.text is not None or source.file is not None
    weighted = "a file has no values to weight by"
    refuse_without(
        ("from_second to_second", "audio"),
        ("labels", "inputs saved"),
        ("system", "chat"),
        ("temperature", "generate"),
        ("part", "inputs image saved"),
    )
    refuse_combined(
        ("video", "image inputs second_text", ""),
        ("image", "inputs", ""),
        ("audio", "image video inputs", ""),
        ("audio", "chat second_text", "the text is its transcript"),
        ("inputs", "chat generate", ""),
        ("part", "save_trace weighting", "it is one of a recorded batch"),
        ("steps", "save_trace weighting", "they are of a recorded pass"),
        ("repeat_random", "image audio inputs chat second_text", ""),
        ("mixers", "weighting", "shares of a row are of weights that are not negative"),
        ("mixers", "saved part", "a file holds no kernel to run again"),
        ("mixers", "steps", "a recorded pass has no kernel to run again"),
        ("mixers", "generate", "a step continues a state, which no matrix over these tokens shows"),
    )
    if "weigh" in model.metadata:  # typed, or of the settings
        refuse(source.saved, "--weighting", f"cannot be combined with --from: {weighted}")
        refuse(source.save_trace, "--weighting", f"cannot be combined with --save-trace: {weighted}")
    for option in ("inputs", "repeat_random", "part"):
        beside = text and getattr(source, option, None) is not None
        refuse(beside, option_of(option), "cannot be combined with a text")
    steps = getattr(source, "steps", None)
    number = steps in (None, "mean") or read_number(steps) is not None
    refuse(not number, "--steps", f"is mean or a number from 0, not {steps!r:.40}")
    refuse(source.video and not text, "--video", "requires a text")
    refuse(source.chat and source.image and not text, "--image", "requires a text beside --chat")
    if source.saved is not None:
        _refuse_beside_file(source, model)
    if source.save_trace is not None:
        check_place(source.save_trace, (".trace",), "the name of a trace ends in .trace")
    textless = source.saved or source.inputs or source.repeat_random or source.image or source.audio
    if textless and not text:
        return PassSource.from_options(source, model)
    first, second = read_text(source)
    in_pair = source.chat and second is not None
    refuse(in_pair, "--chat", "a chat is one text: use --system for a message before it")
    return PassSource.from_options(source, model, first, second)


def _refuse_beside_file(source: SourceOptions, model: ModelOptions) -> None:
    """Refuse an input or a model beside a file that takes their place, which ``model`` may only describe."""
    beside: dict[str, Any] = {
        name: None for name in ("saved", "labels", "line", "part", "steps") if hasattr(source, name)
    }
    plain, usual = replace(source, **beside), without_typed_options(type(model))
    others = plain != without_typed_options(type(source)) or replace(model, model=usual.model) != usual
    refuse(others, "--from", "the file has text and weights: leave out the text and the model")


def split_text(
    words: list[str] | None, source: TextAmong, signed: Callable[[str], object], meant: str
) -> tuple[list[str], TextAmong]:
    """The arguments that are ``signed``, which ``meant`` describes, and the source with the text."""
    texts = [each for each in words or () if not signed(each)]
    refuse(len(texts) > 1, "TEXT", f"give one text: here are {' and '.join(map(repr, texts))}; {meant}")
    others = [each for each in words or () if each not in texts]
    return others, replace(source, text=texts[0]) if texts else source


def split_questions(
    words: list[str] | None, source: TextAmong, what: str, *, many: bool = False
) -> tuple[list[Question], TextAmong]:
    """The questions among arguments, and the source with the text among them, unless ``many`` are read."""
    from attnscope.questions.rules import is_rule, parse_questions

    questions, source = split_text(
        words, source, lambda word: "->" in word or is_rule(word), f"{what} has an arrow, ->"
    )
    if len(questions) > 1 and not (many or source.names_one):  # a text with an arrow in it
        source = replace(source, text=questions.pop())
    refuse(not questions, what.split()[-1].upper(), f"name {what}, the arrow written as ->: 'it -> cat'")
    return [question for each in questions for question in parse_questions(each)], source


def list_prompts(
    source: PassSource, many: PromptsOptions, target: str | None = None, against: str | None = None
) -> list[Prompt]:
    """The prompts that a table makes of the text, or the text itself without a table."""
    from attnscope.questions.prompts import Prompt, read_prompts

    if many.prompts is None:
        return [Prompt(source.text, target, against)]
    return read_prompts(source.text, read_file(many.prompts), target, against)


def reopen(options: SourceOptions, model: ModelOptions) -> tuple[SourceOptions, ModelOptions]:
    """The options that show the same pass again: those of the trace, if it was kept."""
    if options.save_trace is None:
        return replace(options, no_cache=False), model
    return type(options)(saved=options.save_trace), ModelOptions()


def explain_again(options: BatchSource, model: MixedModelOptions) -> str:
    """What follows the head and the cell in a command that explains it; empty if none reads this input."""
    chosen = options.part is not None or options.steps is not None
    unread = options.saved, options.text == "-", chosen, is_given("generate"), model.weighting != "raw"
    if any(unread):
        return ""
    kept = {each.name: getattr(model, each.name) for each in fields(ModelOptions)}
    again = replace(options, save_trace=None, no_cache=False), ModelOptions(**kept)
    return write("why", *again).removeprefix("attnscope why")


@contextmanager
def model_progress(model: Model, *texts: ModelInput) -> Iterator[None]:
    """A progress message while a model runs, on as many threads as pay off."""
    size = sum(len(text.tokens) for text in texts)
    with spinner(f"{model.title} · {size:,} tokens"), model.threads(texts[0]):
        yield


def load_model(options: ModelOptions, *, generative: bool = False, predicting: bool = False) -> Model:
    """The model that options name, with a progress message while it loads. Raises ``ModelError``."""
    from attnscope.models import load

    weighting: Weighting = getattr(options, "weighting", "raw")
    target: str | None = getattr(options, "target", None)
    words = "requires --weighting gradient or --faithful; see attnscope logits"
    refuse(target and weighting != "gradient", "--target", words)
    names = ("device", "device_map", "dtype", "revision", "tokenizer", "trust_remote_code", "allow_pickle")
    arguments = {name: getattr(options, name) for name in names}
    with spinner(f"loading {options.name}"):
        predicting = predicting or weighting == "gradient"
        model = load(options.name, generative=generative, predicting=predicting, **arguments)
    if getattr(options, "mixers", False):
        model = copy(model)
        model.mixers, model.channel = True, getattr(options, "channel", None)
    if weighting == "raw":
        return model
    from attnscope.models.weighting import with_weighting  # its imports cost a first look 3 % of its time

    return with_weighting(model, weighting, target)
