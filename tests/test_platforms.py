"""Where a system has no forks, no locks on folders, no timers and no limits, as Windows, commands run too."""

import json
import os
import pkgutil
import shlex
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

limits._bytes = nothing
"""
RUN = (
    BARE
    + """
import importlib, json
from attnscope.cli import main
names, commands = map(json.loads, sys.argv[1:])
for name in names:
    importlib.import_module(name)
assert limits.free_memory() is None
for words in commands:
    sys.argv[1:] = words
    try:
        main()
    except SystemExit as end:
        assert not end.code, (words, end.code)
"""
)


@pytest.mark.subprocess
def test_every_module_is_imported_and_commands_run_where_a_system_lacks_what_unix_has(tmp_path):
    names = [each.name for each in pkgutil.walk_packages(attnscope.__path__, "attnscope.")]
    names.remove("attnscope.__main__")
    asked = "show TEXT --json -q|show TEXT --head L2H1 -o head.png|stats TEXT --sort previous --keep a.trace"
    asked += "|show --from a.trace|export TEXT -o out --format npz|check 'any.previous > 0' --text TEXT"
    commands = [shlex.split(each.replace("TEXT", f"'{TEXT}'")) for each in asked.split("|")]
    place = {"PYTHONPATH": str(Path(attnscope.__file__).parents[1]), "ATTNSCOPE_CACHE": f"{tmp_path}/cache"}
    asked = [sys.executable, "-c", RUN, json.dumps(names), json.dumps(commands)]
    done = subprocess.run(asked, capture_output=True, text=True, cwd=tmp_path, env=os.environ | place)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[0])["schema"].startswith("urn:attnscope:show")
    assert (tmp_path / "head.png").stat().st_size > 1000
    assert (tmp_path / "out" / "heads.npz").exists()
