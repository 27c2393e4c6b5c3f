"""Where a command's text comes from: its arguments, a file, or standard input."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import IO, TYPE_CHECKING

import click

from attnscope.cli.command import refuse
from attnscope.cli.options import ModelOptions, SourceOptions, WeighedModelOptions, check_place
from attnscope.cli.waiting import waiting
from attnscope.errors import InputError
from attnscope.figures import Weigh
from attnscope.limits import readable

if TYPE_CHECKING:
    from attnscope.cli.cached_passes import PassKind
    from attnscope.models import Model, ModelInput


MOST = 1 << 26
"""Bytes of a file that are read to find the text in it, or one line of it."""


def read_text(asked: SourceOptions) -> tuple[str, str | None]:
    """The text, and the second one if there is one.

    ``-`` as the text reads standard input. ``line`` picks one line of the input, counted from 1, and a
    tab in that line parts a pair. Raises ``InputError`` for what cannot be read or is empty.
    """
    file, line, second = asked.file, asked.line, asked.second_text
    if file is not None:
        refuse(asked.text is not None, "TEXT", "give a text or --file, not both")
        whole = read_file(file)
    elif asked.text == "-":
        if sys.stdin is None:
            raise InputError("standard input is closed: give a text, or --file FILE")
        whole = _decode(sys.stdin.buffer, "standard input")
    elif asked.text is not None:
        whole = _as_typed(asked.text)
        if len(whole.split()) == 1 and os.path.isfile(whole):
            raise InputError(
                f"{whole} is a file: did you mean --file {whole}? to read its name as a text, use -"
            )
    else:
        raise click.BadParameter("give a text, --file FILE, or - for standard input", param_hint="TEXT")
    if line is not None:
        lines = whole.splitlines()
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
    """What a file holds. Raises ``InputError`` for one that cannot be read."""
    try:
        with file.open("rb") as opened:
            return _decode(opened, str(file))
    except FileNotFoundError:
        raise InputError(f"no such file: {file}") from None
    except IsADirectoryError:
        raise InputError(f"{file} is a folder: give a text file") from None
    except OSError as error:
        raise InputError(f"cannot read {file}: {error.strerror}") from None


def _decode(opened: IO[bytes], name: str) -> str:
    """All that is in a file, a pipe or a device. Raises ``InputError`` where there is no end in sight."""
    content = opened.read(MOST + 1)
    if len(content) > MOST:
        raise InputError(f"{name} holds more than {readable(MOST)}, and no more is read: cut it into parts")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{name} is not UTF-8 text: byte {error.start:,} is 0x{content[error.start]:02x}; "
            "save it as UTF-8"
        ) from None


def _as_typed(text: str) -> str:
    """A text of the command line; bytes in it that are not UTF-8 arrive as lone surrogates."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(f"the text is not UTF-8: character {error.start:,} cannot be read") from None
    return text


@dataclass(frozen=True)
class SourceInput:
    """The input of a command, read and checked, and the model that is to read it."""

    asked: SourceOptions
    model: ModelOptions
    text: str = ""
    second: str | None = None

    def open(
        self,
        *,
        predicting: bool = False,
        cached: bool = True,
        kind: PassKind = "kernel",
        saving: bool = False,
        load: Callable[[], Model] | None = None,
    ) -> tuple[Model, ModelInput]:
        """The model, and the input as it reads it. Raises ``AttnscopeError``.

        ``cached``: with the pass of a small input, for who looks at heads and their figures alone. Where it
        is in the cache, no model is loaded; ``kind`` says how a long text is measured. ``saving``: the title
        goes into a file, and does not say when the pass ran. ``load`` takes the place of ``self.load``.
        """
        if predicting or not cached:
            model = self.load(predicting=predicting)
            return model, self.prepare(model)
        from attnscope.cli.cached_passes import cache_pass, find_cached, run_small

        key = self.key
        if kind == "fused" and self.asked.generate is not None:  # it ran with the kernels
            kind = "kernel"
        if key is not None and not self.asked.fresh:
            found = find_cached(key, kind, self.model, saving=saving)
            if found is not None:
                return found, found.prepared
        model = (load or self.load)()
        prepared = self.prepare(model)
        if self.asked.saved is not None:
            return model, prepared
        from attnscope.models.kept import TracedModel, look_at

        with reading(model, prepared):
            trace = run_small(model, prepared, kind, cached=key is not None)
            if trace is None:
                return model, prepared
            if key is not None and self.key == key:  # no file has changed meanwhile
                cache_pass(key, kind, prepared, trace)
            held = look_at(prepared, trace)
            return (model if model.weigh == "raw" else TracedModel(trace, weigh=model.weigh)), held

    @property
    def key(self) -> str | None:
        """Everything that its pass depends on, in one word; ``None`` for one that is not cached."""
        from attnscope.cli.cached_passes import key_of_pass

        return key_of_pass(self.asked, self.model, (self.text, self.second))

    def load(self, *, predicting: bool = False) -> Model:
        """The model, or a file in its place; ``predicting`` brings what it was trained with."""
        if self.asked.saved is not None:
            from attnscope.models.kept import open_file

            return open_file(self.asked.saved)
        return load_model(self.model, generative=self.asked.generate is not None, predicting=predicting)

    def prepare(self, model: Model) -> ModelInput:
        """The input as a model reads it, with what it writes on; ``--keep`` writes its pass into a file.

        Raises ``AttnscopeError``.
        """
        from attnscope.models.kept import FileModel, look_at
        from attnscope.models.request import InputRequest

        if isinstance(model, FileModel):
            return model.prepared
        asked, text = self.asked, self.text
        prepared = InputRequest(
            text=(text or None) if asked.pictures or asked.audio else text,
            second=self.second,
            pictures=asked.pictures,
            video=asked.video is not None,
            audio=asked.audio,
            begin=asked.from_second,
            end=asked.to_second,
            tensors=asked.inputs,
            chat=asked.chat,
            system=asked.system,
            generate=asked.generate,
            temperature=asked.temperature,
            seed=asked.seed,
            max_tokens=asked.max_tokens,
            truncate=asked.truncate,
        ).prepare(model, waiting)
        if asked.keep is None:
            return prepared
        from attnscope.models.keeping import keep_trace
        from attnscope.storage.trace import write_trace

        with reading(model, prepared):
            trace = keep_trace(model, prepared)
        write_trace(trace, asked.keep)
        print(f"kept {asked.keep}", file=sys.stderr)
        return look_at(prepared, trace)


def read_source(asked: SourceOptions, model: ModelOptions) -> SourceInput:
    """The input that options name; what goes together badly is wrong usage.

    Raises ``InputError`` for a text that cannot be read.
    """
    text = asked.text is not None or asked.file is not None
    writes = asked.chat or asked.generate is not None
    image, audio, video = bool(asked.image), asked.audio is not None, asked.video is not None
    inputs, saved = asked.inputs is not None, asked.saved is not None
    refuse(
        video and (image or inputs or asked.second_text or not text),
        "--video",
        "it goes with a text, not with --image or --inputs",
    )
    refuse(
        image and (inputs or (writes and not text)),
        "--image",
        "without a text, it does not go with --chat or --generate; with --inputs, never",
    )
    refuse(
        audio and (asked.pictures or inputs or asked.chat or asked.second_text),
        "--audio",
        "it goes with what is said as the text, not with --image, --inputs, --chat or a second text",
    )
    refuse(
        not audio and (asked.from_second or asked.to_second is not None),
        "--from-second and --to-second",
        "it goes with --audio",
    )
    refuse(
        "weigh" in model.metadata and (saved or asked.keep is not None),
        "--weigh",
        "a file keeps no values to weigh by: give the text and the model, without --keep",
    )
    refuse(
        saved and (replace(asked, saved=None) != type(asked)() or model != type(model)()),
        "--from",
        "a file of weights, or a trace, has no need of a text or a model: leave them out",
    )
    if asked.keep is not None:
        check_place(asked.keep, (".trace",), "the name of a trace ends in .trace")
    refuse(inputs and text, "TEXT", "give a text or --inputs, not both")
    refuse(inputs and writes, "--chat, --generate", "they go with a text, not with --inputs")
    alone = saved or inputs or ((image or audio) and not text)
    source = SourceInput(asked, model, *(("",) if alone else read_text(asked)))
    refuse(asked.system is not None and not asked.chat, "--system", "it goes with --chat")
    refuse(
        asked.chat and source.second is not None,
        "--chat",
        "a chat is one text: use --system for a message before it",
    )
    refuse(asked.generate is None and asked.temperature > 0, "--temperature", "it goes with --generate N")
    return source


def reopen(asked: SourceOptions, model: ModelOptions) -> tuple[SourceOptions, ModelOptions]:
    """The options with which one looks again: at the trace, where the pass was kept in one."""
    if asked.keep is None:
        return replace(asked, fresh=False), model
    return type(asked)(saved=asked.keep), ModelOptions()


def open_two(one: SourceInput, other: SourceInput, *, saving: bool = False) -> list[tuple[Model, ModelInput]]:
    """Two inputs, each with the model that reads it; one that is the same for both is loaded once."""
    alike = one.model == other.model and (one.asked.generate is None) == (other.asked.generate is None)
    load = cache(one.load) if alike and one.asked.saved is None else None
    return [each.open(saving=saving, load=load) for each in (one, other)]


@contextmanager
def reading(model: Model, *texts: ModelInput) -> Iterator[None]:
    """A sign of life while a model is looked at, which runs on as many threads as pay."""
    size = sum(len(text.tokens) for text in texts)
    with waiting(f"{model.title} · {size:,} tokens"), model.threads(texts[0]):
        yield


def load_model(asked: ModelOptions, *, generative: bool = False, predicting: bool = False) -> Model:
    """The model that options name, with a sign of life while it loads. Raises ``ModelError``."""
    from attnscope.models import load

    weigh: Weigh = "raw"
    target = None
    if isinstance(asked, WeighedModelOptions):
        weigh, target = asked.weigh, asked.target
    refuse(
        target is not None and weigh != "gradient",
        "--target",
        "it goes with --weigh gradient, or show --writes",
    )
    with waiting(f"loading {asked.name}"):
        model = load(
            asked.name,
            tokenizer=asked.tokenizer,
            device=asked.device,
            device_map=asked.device_map,
            dtype=asked.dtype,
            revision=asked.revision,
            trust_remote_code=asked.trust_remote_code,
            allow_pickle=asked.allow_pickle,
            generative=generative,
            predicting=predicting or weigh == "gradient",
        )
    if weigh == "raw":
        return model
    from attnscope.models.weighed import weigh_model

    return weigh_model(model, weigh, target)
