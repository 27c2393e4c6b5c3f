"""How large the page of all heads is, and how fast: ``python -m tests.benchmarks.page [--tokens N]``.

144 heads of 12 layers, opened from its file in headless Chromium with the network off, on the page's own
clock: from the start of the navigation until the first head is drawn, and from a click on a head in
the overview, an arrow key, and a change of scale, until the frame after the redraw.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from attnscope.render.page.page import page
from tests.benchmarks.pictures import made
from tests.render.page.browser import browser

FRAME = "new Promise((done) => requestAnimationFrame(() => setTimeout(() => done(performance.now()))))"

TIMED = """(async () => {
  const shown = (name) => element("name").textContent.startsWith(name + " ");
  const begun = performance.now();
  %s;
  while (!shown("%s")) await new Promise((done) => setTimeout(done));
  return await %s - begun;
})()"""

CLICK = "overview.cells[%d][%d].click()"

KEY = 'document.dispatchEvent(new KeyboardEvent("keydown", { key: "%s" }))'


def main() -> None:
    """Write the page, open it, click and press, and print what it took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=512)
    tokens = parser.parse_args().tokens
    layers = made(tokens)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        path = Path(name, "page.html")
        start = time.process_time()
        path.write_text(page({"encoder": enumerate(layers)}, title="a model"), "utf-8")
        taken = time.process_time() - start
        print(f"144 heads × {tokens} tokens: {path.stat().st_size / 1e6:.1f} MB, written in {taken:.2f} s")
        with browser(Path(name, "profile")) as shown:
            shown.size(1280, 900)
            for which in ("first", "second"):
                shown.open(path)
                drawn = shown.run("performance.getEntriesByName('drawn')[0].startTime")
                whole = shown.run("performance.getEntriesByType('navigation')[0].domComplete")
                print(
                    f"opened a {which} time: a head is drawn after {drawn:.0f} ms, all arrived {whole:.0f} ms"
                )
                shown.send("Page.navigate", url="about:blank")
                shown.until("location.href === 'about:blank'")
            shown.open(path)
            clicks = [
                shown.run(TIMED % (CLICK % (11 - head, head), f"L{11 - head}H{head}", FRAME))
                for head in range(12)
            ]
            keys = [shown.run(TIMED % (KEY % "ArrowDown", f"L{layer}H11", FRAME)) for layer in range(1, 12)]
            scales = [shown.run(TIMED % (KEY % "s", "L11H11", FRAME)) for _ in range(6)]
    for what, found in (("a click", clicks), ("an arrow key", keys), ("another scale", scales)):
        print(f"{what}: median {statistics.median(found):.0f} ms, at most {max(found):.0f} ms")


if __name__ == "__main__":
    main()
