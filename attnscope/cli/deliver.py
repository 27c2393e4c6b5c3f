"""Where every command's answer goes: JSON, CSV, files, or the terminal."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from attnscope.cli.command import fields_of, given_options
from attnscope.cli.messages import is_quiet, is_verbose, notify, warn
from attnscope.cli.options import (
    LATEX,
    PARQUET,
    PICTURES,
    Metadata,
    PrintedOptions,
    SavedOptions,
    TableOutput,
)
from attnscope.errors import OutputError
from attnscope.questions.processes import torchrun_processes
from attnscope.records import plain
from attnscope.text import clean, csv_cell, escape_json
from attnscope.version import __version__

if TYPE_CHECKING:
    from attnscope.models import ModelInput
    from attnscope.questions.answer import Answer
    from attnscope.views import Drawable

Shown = TypeVar("Shown", bound="Drawable")
PLAIN = PrintedOptions()  # print options of a command without picture options


def deliver(
    command: str,
    answer: Answer,
    output: Any,
    picture: SavedOptions = PLAIN,
    metadata: Metadata | None = None,
    read: Any = (),
    other: Any = (),
) -> None:
    """Print an answer, save it, or both, as the options of a command ask; of several processes, the first.

    ``read`` is the model and what it read, as ``describe_input`` takes it; ``other`` is compared with it.

    ``output`` is the command's group of output options; it decides which of these exist:

    * ``out``: by its suffix ``answer.picture``; ``answer.arrays`` (.npz),
      ``answer.layers`` (.npz, .safetensors, .json, .csv), or a page of ``answer.heads`` (.html);
    * ``as_json``: the schema's name, the numbers and the ``metadata``;
    * ``as_latex``: the tables and maps of heads among the views, or ``answer.table``;
    * ``as_csv``: ``answer.table``;
    * without any of these ``answer.views`` in the terminal, with pixels where ``picture`` asks for them.
    """
    if torchrun_processes().number:
        return
    out: Path | None = getattr(output, "out", None)
    if is_verbose() and (sites := _calls_of(answer.to_record())):
        from attnscope.questions.sentences import describe_kernels

        notify(f"attention: {describe_kernels(sites)}")
    if out is not None:
        about = partial(describe_answer, command, read, other)
        save(answer, out, picture, opened=output.open_file, read=read, about=about)
    if getattr(output, "as_json", False):
        print_answer(command, {**answer.numbers, **(metadata or {})}, read, other)
    elif getattr(output, "as_latex", False):
        print(latex_of(answer, describe_answer(command, read, other)))
    elif getattr(output, "as_csv", False):
        rows = ([csv_cell(value) for value in row] for row in (answer.table() if answer.table else ()))
        csv.writer(sys.stdout, lineterminator="\n").writerows(rows)
    elif out is None:
        from rich.console import Console

        from attnscope.render.terminal import print_views

        console = Console(highlight=False)
        views: Any = answer.views
        if is_quiet():
            views = [replace(view, notes=()) if hasattr(view, "notes") else view for view in views]
        look = picture if isinstance(picture, PrintedOptions) else PLAIN
        since = getattr(next(iter(read), None), "since", None)  # of a cached pass
        print_views(
            views, console, look.graphics, cmap=picture.cmap, plain=look.plain, below=since is not None
        )
        if since is not None:
            notify(f"{since}; --no-cache runs the model again")


def _calls_of(result: Any) -> Sequence[Any]:
    """The attention calls behind a result: those of its pass, or those of its heads."""
    if hasattr(result, "record"):
        return tuple(result.record.sites)
    sites = [getattr(each, "site", None) for each in (result, *getattr(result, "heads", ()))]
    return [site for site in sites if hasattr(site, "kernel")]


def save(
    answer: Answer,
    out: Path,
    picture: SavedOptions,
    *,
    opened: bool = False,
    read: Sequence[Any] = (),
    about: Callable[[], dict[str, Any]] = dict,
) -> None:
    """Write a picture, a page or data by the suffix of ``out``; ``-`` is standard output.

    ``read`` is the model, and what it read; a file says of them what ``about`` says.
    """
    from attnscope.storage.files import write_whole

    piped = out.stem == "-" and out.parent == Path()
    with TemporaryDirectory() if piped else nullcontext("") as folder:
        path = Path(folder, f"answer{out.suffix}") if piped else out
        if out.suffix.lower() in PICTURES:
            save_pictures(answer, path, picture, json.dumps(about()))
        elif out.suffix.lower() == PARQUET:
            save_parquet(answer, path, json.dumps(about()))
        elif out.suffix.lower() == LATEX:
            write_whole(path, f"{latex_of(answer, about())}\n".encode())
        else:
            save_data(answer, path, picture, read, about)
        if piped:
            sys.stdout.buffer.write(path.read_bytes())
            return
    notify(f"saved {out}")
    if opened:
        typer.launch(str(out))


def latex_of(answer: Answer, about: Mapping[str, Any]) -> str:
    """The tables of an answer as LaTeX, with where they come from as a comment.

    Raises ``OutputError`` if it has none.
    """
    from attnscope.render.latex import LATEX_FUNCTIONS, latex_of_rows
    from attnscope.views import Table

    views = [view for view in answer.views if not isinstance(view, Table) or view.rows]
    drawn = (
        [write(view) for view in views if isinstance(view, kind)] for kind, write in LATEX_FUNCTIONS.items()
    )
    tables = next(filter(None, drawn), [])
    if not tables and answer.table is not None:
        tables = [latex_of_rows(answer.table())]
    if not tables:
        raise OutputError("this answer has no table: --latex does not apply")
    read = about["input"]
    options = [name if value is True else f"{name} {value}" for name, value in about["options"].items()]
    sums = {"revision": read["revision"], "model sha256": read["checksum"]}
    sums |= {f"{name} sha256": each for name, each in (read.get("files") or {}).items()} | about["versions"]
    source = [f"attnscope {about['attnscope']}", f"model {read['model']}", read.get("text"), *options]
    source += [f"{name} {each}" for name, each in sums.items() if each]
    comment = " · ".join(" ".join(clean(each).split()) for each in source if each)
    return "\n\n".join(tables) + f"\n% {comment}"


def save_data(
    answer: Answer, out: Path, picture: SavedOptions, read: Sequence[Any], about: Callable[[], dict[str, Any]]
) -> None:
    """Write a page, or all numbers."""
    from attnscope.models import ModelInput
    from attnscope.models.text.tokens import spell_tokens
    from attnscope.render.page import PAGE, graph_json, graph_page, save_page
    from attnscope.storage import arrays
    from attnscope.storage.files import write_whole
    from attnscope.views import LayerGraph

    view = next(iter(answer.pictures.values()), None)
    paged = out.suffix.lower() == PAGE
    if answer.arrays is not None and not paged:
        arrays.save_arrays(answer.arrays(), out, json.dumps(about()))
    elif answer.layers is not None and not paged:
        kinds, described = answer.layers()
        source = {name: value for name, value in about().items() if name != "schema"}
        arrays.save_weights(kinds, out, **described, about=source)
    elif answer.heads is not None:
        save_page(answer.heads(), out, picture.cmap)
    elif isinstance(view, LayerGraph) and not paged:
        prepared = next(each for each in read if isinstance(each, ModelInput))
        tokens = [token.text for token in prepared.tokens]
        graph = graph_json(view, read[0].name, tokens, prepared.text or spell_tokens(prepared.tokens))
        write_whole(out, escape_json(json.dumps(plain(graph), ensure_ascii=False, allow_nan=False)).encode())
    elif isinstance(view, LayerGraph):
        write_whole(out, graph_page(apply_title_options(view, picture), picture.cmap).encode())
    else:
        raise OutputError("a page is of heads: save a picture, or .npz, .safetensors, .json, .csv")


def save_parquet(answer: Answer, out: Path, source: str) -> None:
    """Write the table of an answer, all rows, and its source. Raises ``OutputError`` if it has none."""
    from attnscope.storage.arrays import save_table

    if answer.table is None:
        raise OutputError("this answer has no table: save a picture, or use --json")
    save_table(answer.table(), out, source)


def print_plain(numbers: Any, *, indent: int | None = None) -> None:
    """Print plain data as JSON."""
    print(escape_json(json.dumps(numbers, ensure_ascii=False, allow_nan=False, indent=indent)))


UNTOLD = {
    *fields_of(TableOutput, PrintedOptions).split(),
    *("model", "no_cache", "save_trace", "save_snapshot", "checkpoint", "pooled", "jsonl", "offline"),
}
"""Fields that change no number, or are told elsewhere in an answer."""


def describe_answer(command: str, read: Any, other: Any = ()) -> dict[str, Any]:
    """What made an answer, as plain data: its schema, the version, what was read, and with which options."""
    from attnscope.models.identity import describe_input
    from attnscope.questions.answer import Beginning, name_schema

    inputs = describe_input(*read), describe_input(*other) if other else None
    begins = Beginning(name_schema(command), __version__, *inputs, given_options(UNTOLD))
    described: dict[str, Any] = plain(begins)
    return described


def print_answer(command: str, numbers: Mapping[str, Any], read: Any, other: Any = ()) -> None:
    """Print an answer as JSON, of several processes the first: its schema, version, what it is about."""
    if torchrun_processes().number:
        return
    print_plain({**describe_answer(command, read, other), **numbers})


def print_written(prepared: ModelInput) -> None:
    """Print the text that the model read and, after a bar and in bold, what it generated."""
    from rich.console import Console
    from rich.text import Text

    from attnscope.models.text.tokens import spell_tokens

    axes = prepared.axes.get("decoder")
    if prepared.written is None or axes is None or isinstance(axes[0], range):
        return
    read, wrote = axes[0][: prepared.written], axes[0][prepared.written :]
    line = Text.assemble((spell_tokens(read), "dim"), " │ ", (spell_tokens(wrote), "bold"))
    Console(highlight=False).print(line, end="\n\n")


def save_pictures(answer: Answer, out: Path, picture: SavedOptions, source: str) -> None:
    """Draw the answer into ``out``, and write its source there."""
    from attnscope.render.image import save_image

    how = {name: getattr(picture, name) for name in ("dpi", "cmap", "font")}
    how["annotate"] = writes_weights(answer.picture, picture)
    view = apply_title_options(answer.picture, picture)
    for warning in save_image(view, out, width=picture.size, source=source, **how):
        warn(warning)


ANNOTATED = 16  # most rows and columns of a head whose weights are written into its cells by default


def writes_weights(view: Drawable, picture: SavedOptions) -> bool:
    """Whether weights stand in the cells of a saved picture: if asked, or if they fit."""
    from attnscope.views import Heatmap, is_narrow

    asked = picture.annotate if isinstance(picture, PrintedOptions) else False
    if asked is not None or not isinstance(view, Heatmap) or view.signed:
        return bool(asked)
    few = max(view.values.shape) <= ANNOTATED
    return few and not is_narrow(picture.size) and float(view.values.max(initial=0)) >= 0.005


def apply_title_options(view: Shown, picture: SavedOptions) -> Shown:
    """A view with the requested title, or without title, scores or notes; in a column, with a short title."""
    from attnscope.questions.sentences import AVERAGES
    from attnscope.views import Heatmap, Panels, is_narrow

    changed: dict[str, Any] = {}
    short, quoted, _ = view.title.partition(" · “")
    if is_narrow(picture.size) and quoted:
        changed = {"title": short, "subtitle": ""}
        notes = tuple(note for note in view.notes if not note.startswith(AVERAGES))
        changed |= {"readings": (), "notes": notes} if isinstance(view, Heatmap) else {}
    if picture.title is not None:
        changed["title"] = picture.title
    if picture.title == "":
        changed |= {"subtitle": ""}
    if picture.no_caption:
        changed |= {"notes": ()}
    if isinstance(view, Heatmap) and picture.no_caption:
        changed |= {"readings": (), "subtitle": ""}
    if isinstance(view, Panels):  # the title is that of the whole
        own = replace(picture, title=picture.title and None)
        changed["parts"] = tuple(apply_title_options(part, own) for part in view.parts)
    return replace(view, **changed)
