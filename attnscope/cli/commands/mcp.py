"""``attnscope mcp``: the questions of a run as tools for an agent, over standard input and output."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from attnscope.cli.command import Group, command
from attnscope.errors import AttnscopeError, InputError, ModelError

if TYPE_CHECKING:
    from mcp.server.mcpserver import MCPServer

    from attnscope.notebook.reader import Reader
    from attnscope.notebook.run import Run

INSTRUCTIONS = """Shows what the attention heads of a transformer do on a text. Begin with stats or show.
A head is named by its address, L2H1. Every figure stands beside its baseline, what even attention would give.
A pattern is not a cause: cut says whether a prediction needs it."""


class ServerOptions(Group):
    """What an agent may read, and where models run."""

    folder: Annotated[Path, Argument(help="The folder whose files may be read; nothing outside of it.")]
    device: Annotated[str, Option(help="auto, cpu, cuda or mps.")] = "auto"


@command
def mcp(asked: ServerOptions) -> None:
    """Serve an agent within one folder, by the Model Context Protocol.

    Its tools are load, show, stats, find, compare and cut.

    The server reads texts, models, pictures and traces under FOLDER, and models of the hub by their ids; it
    writes nothing and runs no code of a model. Needs the SDK: pip install 'attnscope[mcp]'.

    Example:

    attnscope mcp .
    """
    if not asked.folder.is_dir():
        raise InputError(f"{asked.folder} is not a folder: name the one that may be read")
    try:
        server = make_server(asked.folder, device=asked.device)
    except ModuleNotFoundError as error:
        raise AttnscopeError(
            f"an MCP server needs {error.name}, which is not installed: pip install 'attnscope[mcp]'"
        ) from error
    server.run()


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
        """A model by name, or a folder inside. Raises ``ModelError`` for a file of code."""
        if name.partition(":")[0].endswith(".py"):
            raise ModelError("this server runs no file of code: name a model or its folder")
        if name in ("own", "own-causal"):
            return name
        is_path = self.has(name) or name.startswith((".", "/", "~")) or re.search(r"\\|\.\.|\0", name)
        return str(self.path(name)) if is_path else name


def make_server(root: Path, *, device: str = "auto") -> MCPServer:
    """A server whose tools read files under ``root`` alone; models are loaded on demand."""
    from mcp.server.mcpserver import Image, MCPServer
    from mcp.server.mcpserver.exceptions import ToolError

    from attnscope.notebook.reader import load, open
    from attnscope.notebook.run import as_text
    from attnscope.questions.stats import figure_table
    from attnscope.render.terminal import print_view
    from attnscope.version import __version__

    folder, lock = Folder(root), Lock()
    os.chdir(folder.root)  # so that the name of a hub model is not a folder elsewhere
    server = MCPServer("attnscope", instructions=INSTRUCTIONS, version=__version__, log_level="WARNING")

    @contextmanager
    def answering() -> Iterator[None]:
        """One question at a time; errors that an agent can fix are one sentence."""
        with lock:
            try:
                yield
            except AttnscopeError as error:
                raise ToolError(str(error)) from None

    @lru_cache(maxsize=2)  # the models that were used last stay in memory
    def reader(name: str) -> Reader:
        return load(folder.model(name), device=device)

    def read(text: str, model: str, image: str | None = None) -> Run:
        if Path(text).suffix == ".trace" and folder.has(text):
            return open(folder.path(text))
        return reader(model).read(text or None, image=None if image is None else folder.path(image))

    @server.tool(name="load")
    def load_model(model: str = "own") -> str:
        """Load a model, and say how large it is; it stays loaded for the next questions."""
        with answering():
            loaded = reader(model)
            count = sum(each.numel() for each in loaded.module.parameters())
            return f"{loaded.name} has {count:,} parameters; stats and show say what its heads do"

    @server.tool(structured_output=False)
    def show(
        text: str,
        model: str = "own",
        head: str | None = None,
        token: str | None = None,
        image: str | None = None,
    ) -> list[Any]:
        """A picture of every head, of one head (L2H1) or of one token, and the same as text.

        ``text`` may name a .trace; ``image`` a picture that the model reads with the text.
        """
        with answering():
            run = read(text, model, image)
            if token is not None:
                drawing = run.token(token, head=head)
            else:
                drawing = run.overview() if head is None else run.head(head)
            return [repr(drawing), Image(data=drawing._repr_png_(), format="png")]

    @server.tool()
    def stats(text: str, model: str = "own", top: int = 20) -> str:
        """What every head does: its role and figures with their baselines, the most telling heads first."""
        with answering():
            figures = read(text, model).stats()
            table = figure_table(figures.measured, figures.heads[: max(top, 1)])
            return as_text(lambda console: print_view(table, console))

    @server.tool()
    def find(text: str, question: str, model: str = "own") -> str:
        """Which heads look from one part of the text to another: "it -> cat", "* -> -1"."""
        with answering():
            return repr(read(text, model).find(question))

    @server.tool()
    def compare(
        text: str, other: str | None = None, model: str = "own", other_model: str | None = None
    ) -> str:
        """Which heads are alike on a text; or how each changes on another text, or in another model."""
        with answering():
            run = read(text, model)
            if other is None and other_model is None:
                return repr(run.compare())
            return repr(run.compare(read(other or text, other_model or model)))

    @server.tool()
    def cut(
        text: str, edge: str, model: str = "own-causal", target: str | None = None, against: str | None = None
    ) -> str:
        """What the prediction loses without the attention of an edge, "it -> cat", head by head."""
        with answering():
            return repr(read(text, model).cut(edge, target=target, against=against))

    return server
