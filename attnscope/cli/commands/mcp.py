"""``attnscope mcp``: the questions of a run as tools for an agent, over standard input and output."""

from __future__ import annotations

import os
import re
import signal
from asyncio import wrap_future
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from functools import cache, lru_cache, wraps
from multiprocessing import active_children, get_context
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from attnscope.cli.command import Group, command
from attnscope.errors import AttnscopeError, InputError, ModelError
from attnscope.limits import memory_limited
from attnscope.text import clean, shorten

if TYPE_CHECKING:
    from mcp.server.mcpserver import MCPServer

    from attnscope.notebook.reader import Reader
    from attnscope.notebook.run import Run

INSTRUCTIONS = """Shows what the attention heads of a transformer do on a text. Begin with stats or show.
A head is named by its address, L2H1. Next to each score is its baseline: the value under uniform attention.
A pattern is not a cause: cut measures whether a prediction needs it."""


class ServerOptions(Group):
    """What an agent may read, and where models run."""

    folder: Annotated[Path, Argument(help="The folder whose files may be read; nothing outside of it.")]
    device: Annotated[str, Option(help="auto, cpu, cuda or mps.")] = "auto"
    seconds: Annotated[float, Option(help="End a question that takes longer.", min=1)] = 600


@command
def mcp(options: ServerOptions) -> None:
    """Serve an agent within one folder, by the Model Context Protocol.

    Its tools are load, show, stats, find, compare and cut.

    The server reads texts, models, pictures and traces under FOLDER, and models of the hub by their ids; it
    writes nothing and runs no code of a model. It answers one question at a time, in a process of its own.
    Needs the SDK: pip install 'attnscope[mcp]'.

    Example:

    attnscope mcp .
    """
    if not options.folder.is_dir():
        raise InputError(f"{options.folder} is not a folder: name the one that may be read")
    worker = AnsweringProcess(options)
    try:
        server = make_server(worker)
    except ModuleNotFoundError as error:
        raise AttnscopeError(
            f"an MCP server needs {error.name}, which is not installed: pip install 'attnscope[mcp]'"
        ) from error

    def end(number: int, frame: object) -> None:  # at once: a thread waits for standard input
        worker.end()
        os._exit(128 + number)

    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, end)
    server.run()
    worker.end()


class Folder:
    """The one folder whose files may be named. Paths outside, and links that lead there, are refused."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve(strict=True)

    def path(self, name: str) -> Path:
        """A file or folder inside. Raises ``InputError``."""
        path = Path(os.path.realpath(os.path.join(self.root, name.replace("\0", ""))))
        if not path.is_relative_to(self.root):
            raise InputError(f"{name} is outside of the folder that this server may read")
        if not self.has(name):
            raise InputError(f"there is no {name} in the folder that this server may read")
        return path

    def has(self, name: str) -> bool:
        """Whether there is such a file, inside or outside; False for invalid names."""
        return os.path.exists(os.path.join(self.root, name))

    def model(self, name: str) -> str:
        """A bundled model, a folder inside, with its own files, or a hub id. Raises ``AttnscopeError``."""
        if name in ("own", "own-causal") or (HUB_ID.fullmatch(name) and not self.has(name)):
            return name
        folder = self.path(name)
        if ":" in name or not (folder / "config.json").is_file():  # a colon may be taken for code
            raise ModelError(f"{name} is no model: name own, a folder with a config.json, or a hub id")
        for place, folders, files in os.walk(folder, followlinks=True):
            for each in (*folders, *files):
                self.path(os.path.join(place, each))
        return os.path.join(".", folder.relative_to(self.root))  # never a hub id


HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(/[A-Za-z0-9][\w.-]{0,95})?", re.ASCII)


class Answers:
    """What an agent may ask: each method is a tool, and answers with a text, or with a text and a PNG."""

    def __init__(self, options: ServerOptions) -> None:
        self.folder, self.device = Folder(options.folder), options.device
        self.reader = lru_cache(maxsize=2)(self._reader)  # the models that were used last stay in memory

    def _reader(self, name: str) -> Reader:
        from attnscope.notebook.reader import load

        return load(self.folder.model(name), device=self.device)

    def _read(self, text: str, model: str, image: str | None = None) -> Run:
        from attnscope.notebook.reader import open

        if Path(text).suffix == ".trace" and self.folder.has(text):
            return open(self.folder.path(text))
        return self.reader(model).read(text or None, image=None if image is None else self.folder.path(image))

    def load(self, model: str = "own") -> str:
        """Load a model, and say how large it is; it stays loaded for the next questions."""
        loaded = self.reader(model)
        count = sum(each.numel() for each in loaded.module.parameters())
        return f"{loaded.name} has {count:,} parameters; stats and show say what its heads do"

    def show(
        self,
        text: str,
        model: str = "own",
        head: str | None = None,
        token: str | None = None,
        image: str | None = None,
    ) -> list[Any]:
        """A picture of every head, of one head (L2H1) or of one token, and the same as text.

        ``text`` may name a .trace; ``image`` a picture that the model reads with the text.
        """
        run = self._read(text, model, image)
        if token is not None:
            drawing = run.token(token, head=head)
        else:
            drawing = run.overview() if head is None else run.head(head)
        return [repr(drawing), drawing._repr_png_()]

    def stats(self, text: str, model: str = "own", top: int = 20) -> str:
        """What every head does: its role and scores with their baselines, the clearest patterns first."""
        from attnscope.notebook.drawing import as_text
        from attnscope.questions.stats import score_table
        from attnscope.render.terminal import print_view

        scores = self._read(text, model).stats()
        table = score_table(scores.measured, scores.heads[: max(top, 1)])
        return as_text(lambda console: print_view(table, console))

    def find(self, text: str, question: str, model: str = "own") -> str:
        """Which heads attend from one part of the text to another: "it -> cat", "* -> -1"."""
        return repr(self._read(text, model).find(question))

    def compare(
        self, text: str, other: str | None = None, model: str = "own", other_model: str | None = None
    ) -> str:
        """Which heads are alike on a text; or how each changes on another text, or in another model."""
        run = self._read(text, model)
        if other is None and other_model is None:
            return repr(run.compare())
        return repr(run.compare(self._read(other or text, other_model or model)))

    def cut(
        self,
        text: str,
        edge: str,
        model: str = "own-causal",
        target: str | None = None,
        against: str | None = None,
    ) -> str:
        """What the prediction loses without the attention of an edge, "it -> cat", head by head."""
        return repr(self._read(text, model).cut(edge, target=target, against=against))


@cache
def begin(options: ServerOptions) -> Answers:
    """What answers in this process, which the server starts, and ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.dup2(2, 1)  # what models print is no answer
    answers = Answers(options)
    os.chdir(answers.folder.root)  # so that the name of a hub model is not a folder elsewhere
    return answers


def answer(options: ServerOptions, tool: str, words: dict[str, Any]) -> tuple[str, Any]:
    """Why a question has no answer, and its answer."""
    try:
        with memory_limited():
            return "", getattr(begin(options), tool)(**words)
    except Exception as error:
        foreseen = isinstance(error, AttnscopeError)
        return shorten(clean(str(error))) if foreseen else f"unexpected {type(error).__name__}", None


class AnsweringProcess:
    """The process that answers: it can be ended amid a question, and the next question starts another."""

    def __init__(self, options: ServerOptions) -> None:
        self.options, self.free = options, Lock()
        self.pool: Any = None

    async def ask(self, *question: Any) -> Any:
        """What ``answer`` gives in that process, unless it is busy, is ended, or takes too long."""
        from anyio import fail_after

        if not self.free.acquire(blocking=False):
            return "another question is being answered: ask again when it is", None
        try:
            self.pool = self.pool or ProcessPoolExecutor(1, get_context("spawn"))
            with fail_after(self.options.seconds):
                return await wrap_future(self.pool.submit(answer, self.options, *question))
        except BaseException as error:  # also where nobody waits any more
            self.end()
            if not isinstance(error, (TimeoutError, BrokenExecutor)):
                raise
            late = f"this takes longer than {self.options.seconds:g} seconds, and was stopped (--seconds)"
            return late if isinstance(error, TimeoutError) else "the process that answers was ended", None
        finally:
            self.free.release()

    def end(self) -> None:
        """End the process, whatever it does."""
        for each in active_children():
            each.kill()
        self.pool = None


def make_server(worker: AnsweringProcess) -> MCPServer:
    """A server whose tools ask a worker."""
    from mcp.server.mcpserver import Image, MCPServer
    from mcp.server.mcpserver.exceptions import ToolError

    from attnscope.version import __version__

    def tool(method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        async def ask(**words: Any) -> Any:
            sentence, content = await worker.ask(method.__name__, words)
            if sentence:
                raise ToolError(sentence)
            return content if isinstance(content, str) else [content[0], Image(data=content[1], format="png")]

        return ask

    server = MCPServer("attnscope", instructions=INSTRUCTIONS, version=__version__, log_level="WARNING")
    tools = Answers(worker.options)
    for each in (tools.load, tools.show, tools.stats, tools.find, tools.compare, tools.cut):
        server.add_tool(tool(each), structured_output=False)
    return server
