"""Commands run on systems without forks, folder locks, timers and limits, such as Windows."""

import pkgutil
import shlex

import pytest

import attnscope
from tests.cli.run import in_a_process

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
assert limits.free_memory() is None
"""


@pytest.mark.subprocess
def test_modules_and_commands_run_without_unix_features(tmp_path):
    names = [each.name for each in pkgutil.walk_packages(attnscope.__path__, "attnscope.")]
    names.remove("attnscope.__main__")
    asked = "show TEXT --json -q|show TEXT --head L2H1 -o head.png|"
    asked += "stats TEXT --sort previous --save-trace a.trace"
    asked += "|show --from a.trace|export TEXT -o out --format npz|check 'any.previous > 0' TEXT"
    commands = {each: shlex.split(each.replace("TEXT", f"'{TEXT}'")) for each in asked.split("|")}
    answers, told = in_a_process(commands, tmp_path, f"{BARE}\nfor name in {names}: __import__(name)\n")
    assert [code for code, _ in answers.values()] == [0] * len(commands), told
    assert '"urn:attnscope:show' in answers["show TEXT --json -q"][1]
    assert (tmp_path / "head.png").stat().st_size > 1000
    assert (tmp_path / "out" / "heads.npz").exists()
