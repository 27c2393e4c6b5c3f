"""``attnscope mcp``: a server for agents, over standard input and output."""

from __future__ import annotations

from pathlib import Path

from attnscope.cli.command import REQUIRED, Group, argument, command, option
from attnscope.errors import AttnscopeError, InputError


class ServerOptions(Group):
    """What an agent may read, and where models run."""

    folder: Path = argument("The folder whose files may be read; nothing outside of it.", REQUIRED)
    device: str = option("auto, cpu, cuda or mps.", default="auto")


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
        from attnscope.notebook.server import make_server

        server = make_server(asked.folder, device=asked.device)
    except ModuleNotFoundError as error:
        raise AttnscopeError(
            f"an MCP server needs {error.name}, which is not installed: pip install 'attnscope[mcp]'"
        ) from error
    server.run()
