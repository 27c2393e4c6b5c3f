"""A few interruptions; ``python -m tests.tools.interruptions`` tries two hundred."""

import subprocess
import sys

import pytest


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.subprocess
@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork on Windows")
def test_what_exists_after_a_ctrl_c_is_whole_and_a_second_run_completes():
    # in a process of its own: a child forked from one with threads could wait for them for ever
    command = [sys.executable, "-m", "tests.tools.interruptions", "--times", "4"]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert "| export | 2 |" in ended.stdout
    assert "| train | 2 |" in ended.stdout
