"""Where a system has no forks, no locks on folders, no timers and no limits, as Windows, commands run too."""

import json
import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import attnscope

TEXT = "The cat sat on the mat."
BARE = """
import os, signal, sys
missing = ("fcntl", "grp", "pty", "pwd", "resource", "termios", "tty")
sys.modules.update(dict.fromkeys(missing))  # each import of them fails
for name in ("fork", "getuid", "killpg", "setsid"):
    delattr(os, name)
for name in ("setitimer", "getitimer", "alarm", "SIGALRM", "SIGPROF", "SIGPIPE", "SIGKILL", "SIGUSR1"):
    delattr(signal, name)
from attnscope import limits

def nothing(*asked):
    raise FileNotFoundError("there is no /proc")

limits._kilobytes = nothing
"""
IMPORTS = (
    BARE
    + """
import importlib
for name in sys.argv[1:]:
    importlib.import_module(name)
assert limits.free_memory() is None
"""
)
COMMANDS = (
    BARE
    + """
import json
from attnscope.cli import main
for words in json.loads(sys.argv[1]):
    sys.argv[1:] = words
    try:
        main()
    except SystemExit as end:
        assert not end.code, (words, end.code)
"""
)


def ran(program, *words, folder):
    """What a fresh Python without all that prints."""
    place = {"PYTHONPATH": str(Path(attnscope.__file__).parents[1]), "ATTNSCOPE_CACHE": str(folder / "cache")}
    command = [sys.executable, "-c", program, *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=os.environ | place)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.subprocess
def test_every_module_is_imported_where_a_system_lacks_what_unix_has(tmp_path):
    names = [each.name for each in pkgutil.walk_packages(attnscope.__path__, "attnscope.")]
    ran(IMPORTS, *(name for name in names if name != "attnscope.__main__"), folder=tmp_path)


@pytest.mark.subprocess
def test_commands_run_there(tmp_path):
    commands = [
        ["show", TEXT, "--json", "-q"],
        ["show", TEXT, "--head", "L2H1", "-o", "head.png"],
        ["stats", TEXT, "--sort", "previous", "--keep", "a.trace"],
        ["show", "--from", "a.trace"],
        ["export", TEXT, "-o", "out", "--format", "npz"],
        ["check", "any.previous > 0", "--text", TEXT],
    ]
    printed = ran(COMMANDS, json.dumps(commands), folder=tmp_path)
    assert json.loads(printed.splitlines()[0])["schema"].startswith("urn:attnscope:show")
    assert (tmp_path / "head.png").stat().st_size > 1000
    assert (tmp_path / "out" / "heads.npz").exists()
