"""Run Python in a fork of this process, and apps of Textual without a terminal."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import IO

LONGEST = 300
"""Seconds that a command may take."""


def forked(work: Callable[[], None], out: IO, err: IO, given: str | Path) -> int:
    """Do ``work`` in a fork of this process, which reads ``given``; returns its exit code."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    child = os.fork()
    if child:
        signal.signal(signal.SIGALRM, lambda *_: os.kill(child, signal.SIGKILL))
        signal.alarm(LONGEST)
        _, status = os.waitpid(child, 0)
        signal.alarm(0)
        return os.waitstatus_to_exitcode(status)
    code = 1
    try:
        for number, file in enumerate((os.open(given, os.O_RDONLY), out.fileno(), err.fileno())):
            os.dup2(file, number)
        work()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        try:
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
        finally:
            os._exit(code)  # whatever happened: a fork must never go on with what its parent does


def press(keys: str) -> None:
    """Let an app of Textual run without a terminal, press keys, and save its screen as a picture."""
    from textual import constants
    from textual.app import App

    def run(app: App) -> None:
        async def go() -> None:
            async with app.run_test(size=(100, 30)) as pilot:
                await pilot.press(*keys.split(","))
                await pilot.pause(0.2)
                print("\n".join(strip.text.rstrip() for strip in app.screen._compositor.render_strips()))
                Path("screen.svg").write_text(app.export_screenshot())

        asyncio.run(go())

    constants.COLOR_SYSTEM = "truecolor"
    App.run = run
