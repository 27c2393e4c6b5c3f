"""The Python API in notebooks, run by Jupyter's own client; and the page in a frame in a real browser."""

import base64
import html
import io
import json

import numpy as np
import pytest
from matplotlib.image import imread

import attnscope
from tests.render.page.browser import MARKS, browser

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytestmark = pytest.mark.slow

CELLS = (
    "import attnscope\nrun = attnscope.load('own').read('The cat sat on the mat.')",
    "run",
    "run.head('L2H1')",
    "run.stats()",
    "run.stats().frame()",
    "run.compare()",
    "run.page()",
    "import matplotlib.pyplot as plt\nfigure, ax = plt.subplots()\nrun.head('L2H1').plot(ax=ax);",
    "run.head('L9H9')",
)


@pytest.fixture(scope="module")
def outputs():
    """By cell, what a notebook got to show."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3", allow_errors=True).execute()
    return {cell.source: cell.outputs for cell in notebook.cells}


@pytest.mark.subprocess
@pytest.mark.parametrize("cell", ["run", "run.head('L2H1')", "run.compare()"])
def test_notebook_output_is_an_image_with_text(outputs, cell):
    (shown,) = outputs[cell]
    assert shown.output_type == "execute_result"
    page = shown.data.get("text/html", "")
    image = page.partition("base64,")[2].partition('"')[0] or shown.data["image/png"]
    assert colours(imread(io.BytesIO(base64.b64decode(image)))) > 20
    assert "attention" in shown.data["text/plain"]
    assert "\x1b" not in shown.data["text/plain"]


@pytest.mark.subprocess
def test_notebook_shows_tables_pages_and_plots(outputs):
    assert outputs["run.stats()"][0].data["text/html"].startswith("<table>")
    assert "previous" in outputs["run.stats().frame()"][0].data["text/html"]
    page = outputs["run.page()"][0].data["text/html"]
    assert page.startswith('<iframe sandbox="allow-scripts allow-downloads" srcdoc="')
    assert "image/png" in outputs[CELLS[-2]][-1].data


@pytest.mark.subprocess
def test_notebook_error_is_one_sentence(outputs):
    (error,) = outputs["run.head('L9H9')"]
    assert error.ename == "SelectionError"
    assert error.traceback == [f"SelectionError: {error.evalue}"]
    assert "layers 0-3, heads 0-7" in error.evalue


POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; "
    "img-src data:; font-src data:; child-src data:"
)
"""What VS Code lets a renderer of notebooks do, without the network that it would allow."""


def plain_cell(shown):
    """The output of a cell on a page."""
    return f"<!doctype html><title>a cell</title><body style='margin:0'>{shown}</body>"


def editor_cell(shown):
    """The same as editors show it: put in by a script, in a frame without rights, under a strict policy."""
    script = json.dumps(shown).replace("</", "<\\/")
    inside = (
        f'<!doctype html><meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        f"<body style='margin:0'><div id=out></div><script>out.innerHTML = {script}</script></body>"
    )
    frame = "width:100%;height:880px;border:0"
    return plain_cell(
        f'<iframe sandbox="allow-scripts allow-downloads" style="{frame}" srcdoc="{html.escape(inside)}">'
        "</iframe>"
    )


@pytest.mark.nightly
@MARKS[0]
@MARKS[1]
def test_page_works_in_a_sandboxed_notebook_frame(tmp_path):
    shown = attnscope.load("own").read("The cat sat on the mat.").page()._repr_html_()
    cell = tmp_path / "cell.html"
    with browser() as chromium:
        chromium.size(1300, 900)
        for host in (plain_cell, editor_cell):
            cell.write_text(host(shown))
            chromium.send("Page.navigate", url=cell.as_uri())
            chromium.until("document.readyState === 'complete' && document.querySelector('iframe') !== null")
            look_until(chromium, lambda now: colours(now / 255) > 100)  # once its maps are drawn
            before = chromium.pixels()[250:600, 500:850]
            chromium.click(98, 219)  # on the thumbnail of L2H1
            look_until(chromium, lambda now, before=before: (now[250:600, 500:850] != before).mean() > 0.01)
            assert chromium.troubles == []


def look_until(chromium, holds):
    """Look at the window until something holds of its pixels, ten seconds at most."""
    for _ in range(200):
        if holds(chromium.pixels()):
            return
        chromium.run("new Promise(r => setTimeout(r, 50))")
    raise AssertionError("never seen")


def colours(pixels):
    return len(np.unique((pixels[..., :3] * 255).astype(int) @ (1 << 16, 1 << 8, 1)))
