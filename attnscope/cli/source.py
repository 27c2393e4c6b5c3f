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

import typer

from attnscope.cli.options import ModelOptions, SourceOptions, WeighedModelOptions
from attnscope.cli.waiting import waiting
from attnscope.errors import InputError, OutputError
from attnscope.figures import Weigh
from attnscope.limits import readable

if TYPE_CHECKING:
    from attnscope.cli.last_look import Way
    from attnscope.models import Model, ModelInput
    from attnscope.models.text.given import Given


MOST = 1 << 26
"""Bytes of a file that are read to find the text in it, or one line of it."""


def read_text(asked: SourceOptions) -> tuple[str, str | None]:
    """The text, and the second one if there is one.

    ``-`` as the text reads standard input. ``line`` picks one line of the input, counted from 1, and a
    tab in that line parts a pair. Raises ``InputError`` for what cannot be read or is empty.
    """
    file, line, second = asked.file, asked.line, asked.second_text
    if file is not None:
        if asked.text is not None:
            raise typer.BadParameter("give a text or --file, not both", param_hint="TEXT")
        whole = read_file(file)
    elif asked.text == "-":
        if sys.stdin is None:
            raise InputError("standard input is closed: give a text, or --file FILE")
        whole = _decode(_read_some(sys.stdin.buffer, "standard input"), "standard input")
    elif asked.text is not None:
        whole = _argument(asked.text)
        if len(whole.split()) == 1 and os.path.isfile(whole):
            raise InputError(
                f"{whole} is a file: did you mean --file {whole}? to read its name as a text, use -"
            )
    else:
        raise typer.BadParameter("give a text, --file FILE, or - for standard input", param_hint="TEXT")
    if line is not None:
        whole, second = _line(whole, line, second)
    if not whole.strip():
        raise InputError(f"the text is empty{f': {file}' if file else ''}: give at least one word")
    if second is not None and not second.strip():
        raise InputError("the second text is empty: give at least one word, or leave it out")
    return whole.strip("\n"), None if second is None else _argument(second)


def read_file(file: Path) -> str:
    """What a file holds. Raises ``InputError`` for one that cannot be read."""
    return _decode(_bytes_of(file), str(file))


def _bytes_of(file: Path) -> bytes:
    try:
        with file.open("rb") as opened:
            return _read_some(opened, str(file))
    except FileNotFoundError:
        raise InputError(f"no such file: {file}") from None
    except IsADirectoryError:
        raise InputError(f"{file} is a folder: give a text file") from None
    except OSError as error:
        raise InputError(f"cannot read {file}: {error.strerror}") from None


def _read_some(opened: IO[bytes], name: str) -> bytes:
    """All that is in a file, a pipe or a device. Raises ``InputError`` where there is no end in sight."""
    content = opened.read(MOST + 1)
    if len(content) > MOST:
        raise InputError(f"{name} holds more than {readable(MOST)}, and no more is read: cut it into parts")
    return content


def _decode(content: bytes, name: str) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{name} is not UTF-8 text: byte {error.start:,} is 0x{content[error.start]:02x}; "
            "save it as UTF-8"
        ) from None


def _argument(text: str) -> str:
    """A command-line argument; bytes in it that are not UTF-8 arrive as lone surrogates."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(f"the text is not UTF-8: character {error.start:,} cannot be read") from None
    return text


def _line(whole: str, line: int, second: str | None) -> tuple[str, str | None]:
    lines = whole.splitlines()
    if not 1 <= line <= len(lines):
        raise InputError(f"no line {line:,}: the input has lines 1 to {len(lines):,}")
    first, tab, rest = lines[line - 1].partition("\t")
    return (first, rest) if tab and second is None else (lines[line - 1], second)


@dataclass(frozen=True)
class Source:
    """The input of a command, read and checked, and the model that is to read it."""

    asked: SourceOptions
    model: ModelOptions
    text: str = ""
    second: str | None = None

    def open(
        self,
        *,
        predicting: bool = False,
        looking: bool = True,
        way: Way = "kernel",
        saving: bool = False,
        load: Callable[[], Model] | None = None,
    ) -> tuple[Model, ModelInput]:
        """The model, and the input as it reads it. Raises ``AttnscopeError``.

        ``looking``: with the pass of a small input, for who looks at heads and their figures alone. It is
        kept by itself, and where it was before, no model is loaded; ``way`` says how a long text is measured.
        ``saving``: the title goes into a file, and does not say when the pass ran. ``load`` loads the
        model in the place of ``self.load``.
        """
        if predicting or not looking:
            model = self.load(predicting=predicting)
            return model, self.prepare(model)
        from attnscope.cli.last_look import find_look, hold_look, key_of

        key = key_of(self)
        way = (
            "kernel" if way == "fused" and self.asked.generate is not None else way
        )  # it ran with the kernels
        found = None if self.asked.fresh else find_look(self, key, way, saving=saving)
        if found is not None:
            return found, found.prepared
        model = (load or self.load)()
        prepared = self.prepare(model)
        if self.asked.saved is not None:
            return model, prepared
        with reading(model, prepared):
            return hold_look(self, key, way, model, prepared)

    def load(self, *, predicting: bool = False) -> Model:
        """The model, or a file in its place; ``predicting`` brings what it was trained with."""
        if self.asked.saved is not None:
            from attnscope.models.kept import open_file

            return open_file(self.asked.saved)
        return load_model(self.model, generative=self.asked.generate is not None, predicting=predicting)

    def prepare(self, model: Model) -> ModelInput:
        """The input as a model reads it, with what it writes on. Raises ``AttnscopeError``."""
        from attnscope.models.kept import FileModel

        if isinstance(model, FileModel):
            return model.prepared
        prepared = self.given.prepare(model, waiting)
        return prepared if self.asked.keep is None else self._keep(model, prepared, self.asked.keep)

    @property
    def given(self) -> Given:
        """What the model is given, as Python gives it."""
        from attnscope.models.text.given import Given

        asked, text = self.asked, self.text
        return Given(
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
        )

    def _keep(self, model: Model, prepared: ModelInput, file: Path) -> ModelInput:
        """The input with its pass, which is in a file now: what is looked at is what was kept."""
        from attnscope.models.kept import keep_trace, look_at
        from attnscope.storage.trace import write_trace

        with reading(model, prepared):
            trace = keep_trace(model, prepared)
        write_trace(trace, file)
        print(f"kept {file}", file=sys.stderr)
        return look_at(prepared, trace)


def read_source(asked: SourceOptions, model: ModelOptions) -> Source:
    """The input that options name; what goes together badly is wrong usage.

    Raises ``InputError`` for a text that cannot be read.
    """
    writes = asked.chat or asked.generate is not None
    text = asked.text is not None or asked.file is not None
    if asked.video is not None and (asked.image or asked.inputs or asked.second_text or not text):
        raise typer.BadParameter("it goes with a text, not with --image or --inputs", param_hint="--video")
    if asked.image and (asked.inputs is not None or (writes and not text)):
        raise typer.BadParameter(
            "without a text, it does not go with --chat or --generate; with --inputs, never",
            param_hint="--image",
        )
    if asked.audio is not None and (asked.pictures or asked.inputs or asked.chat or asked.second_text):
        raise typer.BadParameter(
            "it goes with what is said as the text, not with --image, --inputs, --chat or a second text",
            param_hint="--audio",
        )
    if asked.audio is None and (asked.from_second or asked.to_second is not None):
        raise typer.BadParameter("it goes with --audio", param_hint="--from-second and --to-second")
    weighed = isinstance(model, WeighedModelOptions) and model.weigh != "raw"
    if weighed and (asked.saved is not None or asked.keep is not None):
        raise typer.BadParameter(
            "a file keeps no values to weigh by: give the text and the model, without --keep",
            param_hint="--weigh",
        )
    if asked.saved is not None and (replace(asked, saved=None) != type(asked)() or model != type(model)()):
        raise typer.BadParameter(
            "a file of weights, or a trace, has no need of a text or a model: leave them out",
            param_hint="--from",
        )
    if asked.keep is not None:
        check_keep(asked.keep)
    if asked.inputs is not None and text:
        raise typer.BadParameter("give a text or --inputs, not both", param_hint="TEXT")
    if asked.inputs is not None and writes:
        raise typer.BadParameter("they go with a text, not with --inputs", param_hint="--chat, --generate")
    alone = asked.saved or asked.inputs or ((asked.image or asked.audio) and not text)
    source = Source(asked, model, *(("",) if alone else read_text(asked)))
    if asked.system is not None and not asked.chat:
        raise typer.BadParameter("it goes with --chat", param_hint="--system")
    if asked.chat and source.second is not None:
        raise typer.BadParameter(
            "a chat is one text: use --system for a message before it", param_hint="--chat"
        )
    if asked.generate is None and asked.temperature > 0:
        raise typer.BadParameter("it goes with --generate N", param_hint="--temperature")
    return source


def check_keep(file: Path) -> None:
    """Refuse, before any work is done, a trace that could not be written at its end."""
    if file.suffix.lower() != ".trace":
        raise OutputError(f"{file} cannot be written: the name of a trace ends in .trace")
    if not file.parent.is_dir():
        raise OutputError(f"{file} cannot be written: there is no folder {file.parent}")


def reopen(asked: SourceOptions, model: ModelOptions) -> tuple[SourceOptions, ModelOptions]:
    """The options with which one looks again: at the trace, where the pass was kept in one."""
    if asked.keep is None:
        return replace(asked, fresh=False), model
    return type(asked)(saved=asked.keep), ModelOptions()


def open_two(one: Source, other: Source, *, saving: bool = False) -> list[tuple[Model, ModelInput]]:
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
    if target is not None and weigh != "gradient":
        raise typer.BadParameter("it goes with --weigh gradient, or show --writes", param_hint="--target")
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
    from attnscope.models.weighed import WeighedModel

    return WeighedModel(model, weigh, target)
