"""A headless Chromium, spoken to through a pipe in its own protocol; tests skip where there is none."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.image import imread

from attnscope.render.page import LARGEST, MASKED, POWER, Code, Page

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

MARKS = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine (apt-get install chromium)"),
]
"""Of a file whose tests need a browser."""

ACTING = {"Tab": 9, " ": 32}
"""Keys that do something in any page, and their numbers."""


class Browser:
    """One page in one browser, without any network."""

    def __init__(self, commands: int, answers: int) -> None:
        self._commands, self._answers = commands, answers
        self._number, self._unread, self._session = 0, b"", None
        self.troubles: list[str] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")
        still = {"latency": 0, "downloadThroughput": 0, "uploadThroughput": 0}
        self.send("Network.emulateNetworkConditions", offline=True, **still)

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send one command and wait for its answer; what goes wrong in the page is noted meanwhile."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer["error"]
                return answer["result"]
            if answer.get("method") == "Runtime.exceptionThrown":
                details = answer["params"]["exceptionDetails"]
                self.troubles.append(details.get("exception", {}).get("description", details["text"]))
            if answer.get("method") == "Log.entryAdded" and answer["params"]["entry"]["level"] == "error":
                self.troubles.append(answer["params"]["entry"]["text"])

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._unread:
            part = os.read(self._answers, 1 << 20)
            assert part, "the browser has gone"
            self._unread += part
        line, self._unread = self._unread.split(b"\0", 1)
        return json.loads(line)

    def open_anew(
        self, path: Path, width: int = 1400, height: int = 900, dark: bool = False, fragment: str = ""
    ) -> None:
        """Load a page freshly in a window of this size."""
        self.size(width, height)
        self.dark(dark)
        self.send("Page.navigate", url="about:blank")
        self.open(path, fragment)

    def size(self, width: int, height: int, scale: float = 1) -> None:
        device = {"deviceScaleFactor": scale, "mobile": width < 500}
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, **device)

    def dark(self, on: bool = True) -> None:
        value = "dark" if on else "light"
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": value}])

    def open(self, path: Path, fragment: str = "") -> None:
        """Load a page from its file and wait until everything has been drawn."""
        self.load(path, fragment)
        self.until("typeof opening !== 'undefined' && current && !opening")

    def load(self, path: Path, fragment: str = "") -> None:
        """Load a page from its file; one without scripts is drawn then."""
        self.send("Page.navigate", url=f"{path.resolve().as_uri()}{fragment}")
        self.until("document.readyState === 'complete'")

    def text(self, name: str) -> str:
        """The text of an element, by its id."""
        return self.run(f"element('{name}').textContent")

    def texts(self, selector: str) -> list[str]:
        """The texts of all elements that a selector finds."""
        return self.run(f"[...document.querySelectorAll(`{selector}`)].map((one) => one.textContent)")

    def box(self, element: str) -> list[float]:
        """Left, top, right and bottom of an element in the window."""
        return self.run(f"((b) => [b.left, b.top, b.right, b.bottom])({element}.getBoundingClientRect())")

    def run(self, *scripts: str) -> Any:
        """The value of the last of some expressions in the page; promises are waited for."""
        for script in scripts:
            found = self.send("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
            assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def until(self, script: str) -> None:
        """Wait until an expression holds, half a minute at most."""
        for _ in range(1500):
            with contextlib.suppress(AssertionError):
                if self.run(script):
                    return
            self.send("Runtime.evaluate", expression="new Promise(r => setTimeout(r, 20))", awaitPromise=True)
        raise AssertionError(f"never came true: {script}")

    def click(self, x: float, y: float) -> None:
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            count = 0 if kind == "mouseMoved" else 1
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=count)

    def move(self, x: float, y: float) -> None:
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def press(self, key: str) -> None:
        text = {"text": key} if len(key) == 1 else {}
        code = {"windowsVirtualKeyCode": ACTING[key]} if key in ACTING else {}
        self.send("Input.dispatchKeyEvent", type="keyDown", key=key, **text, **code)
        self.send("Input.dispatchKeyEvent", type="keyUp", key=key, **code)

    def photograph(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.send("Page.captureScreenshot", format="png")["data"]))

    def pixels(self) -> np.ndarray:
        """The window as it is seen.  -> [row, column, red green blue], 0 to 255"""
        data = self.send("Page.captureScreenshot", format="png")["data"]
        return imread(io.BytesIO(base64.b64decode(data)))[..., :3] * 255


def write_page(path: Path, kinds: Any, title: str = "x", **more: Any) -> Path:
    """A page of these layers as a file."""
    path.write_text(Page(kinds, title=title, **more).text(), "utf-8")
    return path


def weights_of(code: Code, codes: np.ndarray) -> np.ndarray:
    """The weights that a page reads from bytes; NaN where they are masked."""
    return np.where(codes == MASKED, np.nan, code.top * (codes / LARGEST) ** POWER)


def stored(values: np.ndarray, allowed: np.ndarray | None = None) -> np.ndarray:
    """What a page can hold of some weights, NaN where they are masked."""
    known = np.ones_like(values, bool) if allowed is None else allowed
    return weights_of(Code(), Code().bytes_of(values, known))


@contextlib.contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """Start Chromium with a profile in ``folder``; it ends with the block."""
    assert CHROMIUM is not None
    command_end, commands = os.pipe()
    answers, answer_end = os.pipe()

    import fcntl  # not on Windows

    def wire() -> None:  # the protocol is spoken on the file descriptors 3 and 4
        # each copied beyond them: they may be free here, as matplotlib closes its fonts when a process forks
        first, second = (fcntl.fcntl(end, fcntl.F_DUPFD, 5) for end in (command_end, answer_end))
        os.dup2(first, 3)
        os.dup2(second, 4)

    flags = "headless no-sandbox disable-gpu disable-dev-shm-usage remote-debugging-pipe no-first-run"
    command = [CHROMIUM, *(f"--{flag}" for flag in flags.split()), f"--user-data-dir={folder}", "about:blank"]
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(command, preexec_fn=wire, close_fds=False, **silent)
    os.close(command_end)
    os.close(answer_end)
    try:
        yield Browser(commands, answers)
    finally:
        process.kill()
        process.wait()
        os.close(commands)
        os.close(answers)
