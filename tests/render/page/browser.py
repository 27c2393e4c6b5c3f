"""A headless Chromium, driven by Playwright; tests are skipped without one."""

import contextlib
import io
import shutil
from collections.abc import Iterator
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.image import imread

from attnscope.render.page import LARGEST_BYTE, MASKED_BYTE, POWER, Code, Page

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
if find_spec("playwright") is None:
    CHROMIUM = None

MISSING = "no chromium on this machine (apt-get install chromium)"
MARKS = [pytest.mark.browser, pytest.mark.skipif(CHROMIUM is None, reason=MISSING)]
"""Of a file whose tests need a browser."""


class Browser:
    """One page in one browser, without any network."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.click, self.move, self.press = page.mouse.click, page.mouse.move, page.keyboard.press
        self._session = page.context.new_cdp_session(page)
        self.troubles: list[str] = []
        page.on("pageerror", lambda error: self.troubles.append(str(error)))
        page.on("console", lambda said: self.troubles.extend([said.text] * (said.type == "error")))

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send one command of Chromium's protocol and wait for its answer."""
        return self._session.send(method, parameters)

    def open_anew(self, path: Path, width=1400, height=900, dark=False, fragment="") -> None:
        """Load a page freshly in a window of this size."""
        self.size(width, height)
        self.dark(dark)
        self.page.goto("about:blank")
        self.open(path, fragment)

    def size(self, width: int, height: int, scale: float = 1) -> None:
        device = {"deviceScaleFactor": scale, "mobile": width < 500}
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, **device)

    def dark(self, on: bool = True) -> None:
        self.page.emulate_media(color_scheme="dark" if on else "light")

    def open(self, path: Path, fragment: str = "") -> None:
        """Load a page from its file and wait until everything has been drawn."""
        self.load(path, fragment)
        self.until("typeof opening !== 'undefined' && current && !opening")

    def load(self, path: Path, fragment: str = "") -> None:
        """Load a page from its file; one without scripts is drawn then."""
        self.page.goto(f"{path.resolve().as_uri()}{fragment}")

    def text(self, name: str) -> str:
        """The text of an element, by its id."""
        return self.run(f"element('{name}').textContent")

    def texts(self, selector: str) -> list[str]:
        """The texts of all elements that a selector finds."""
        return self.run(f"[...document.querySelectorAll(`{selector}`)].map((one) => one.textContent)")

    def box(self, element: str) -> list[float]:
        """Left, top, right and bottom of an element in the window."""
        return self.run(f"((b) => [b.left, b.top, b.right, b.bottom])({element}.getBoundingClientRect())")

    def inside(self, name: str, x: str, y: str) -> list[float]:
        """A place in an element, by its id and the page's own numbers, in the window."""
        left, top, *_ = self.box(f"element('{name}')")
        return self.run(f"[{left} + {x}, {top} + {y}]")

    def over_cell(self, row: int, column: int) -> list[float]:
        """The middle of a cell of the map, in the window."""
        x, y = f"map.left + {column + 0.5} * map.cell", f"map.top + {row + 0.5} * map.tall"
        return self.inside("picture", x, y)

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

    def strokes(self) -> list[tuple[str, float, float]]:
        """The colour, opacity and width of each line as the page draws its lines."""
        return self.run(
            "(() => { const found = [], { prototype } = CanvasRenderingContext2D, { stroke } = prototype;"
            "prototype.stroke = function () {"
            " found.push([this.strokeStyle, this.globalAlpha, this.lineWidth]); return stroke.call(this); };"
            "drawLines(); prototype.stroke = stroke; return found; })()"
        )

    def violations(self) -> list[str]:
        """What axe finds wrong; a test that asks is skipped without it."""
        pytest.importorskip("axe_playwright_python", reason="axe-playwright-python is not installed")
        axe = (files("axe_playwright_python") / "axe.min.js").read_text("utf-8")
        self.send("Runtime.evaluate", expression=axe)
        return self.run("axe.run().then((all) => all.violations.map((one) => `${one.id}: ${one.help}`))")

    def photograph(self, path: Path) -> None:
        self.page.screenshot(path=path)

    def pixels(self) -> np.ndarray:
        """The window as it is seen.  -> [row, column, red green blue], 0 to 255"""
        return imread(io.BytesIO(self.page.screenshot()))[..., :3] * 255


def write_page(path: Path, kinds: Any, title: str = "x", **more: Any) -> Path:
    """A page of these layers as a file."""
    path.write_text(Page(kinds, title=title, **more).text(), "utf-8")
    return path


def weights_of(code: Code, codes: np.ndarray) -> np.ndarray:
    """The weights that a page reads from bytes; NaN where they are masked."""
    return np.where(codes == MASKED_BYTE, np.nan, code.top * (codes / LARGEST_BYTE) ** POWER)


def stored(values: np.ndarray, allowed: np.ndarray | None = None) -> np.ndarray:
    """What a page can hold of some weights, NaN where they are masked."""
    known = np.ones_like(values, bool) if allowed is None else allowed
    return weights_of(Code(), Code().bytes_of(values, known))


@contextlib.contextmanager
def launched() -> Iterator[Any]:
    """Start Chromium; it ends with the block."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        shown = {"args": ["--disable-gpu"], "ignore_default_args": ["--hide-scrollbars"]}
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, **shown)
        yield chromium
        chromium.close()


@contextlib.contextmanager
def profile(chromium: Any) -> Iterator[Browser]:
    """A page with a profile of its own."""
    context = chromium.new_context(no_viewport=True, offline=True)
    yield Browser(context.new_page())
    context.close()


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    """Start Chromium for one page."""
    with launched() as chromium, profile(chromium) as page:
        yield page
